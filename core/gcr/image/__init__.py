"""Images: saved states of jobs on disk. Nothing else in gcr writes to a store.

    <store>/packs/<id>.pack      chunks of device memory, content-addressed, shared by all images (pack/format.py)
            images/<name>.json   what an image is: the manifest, written last (files/manifest.py)
            images/<name>.chunks where its chunks are (files/references.py)
            images/<name>.hashes the device hashes of its chunks (files/hashes.py)
            images/<name>.pulled there if the image came from elsewhere: no image builds upon it (write/parent.py)
            control/<name>/      CRIU's files, where there are any
            gcr-store            the mark: whether the store is encrypted, and with which key (crypto/cipher.py)
            lock                 held by the processes that use the store or clean it up (store/store.py)

An image exists when its manifest exists. It is whole then: every file that the manifest names was synced before it. A
writer that died left files without a manifest; the next clean-up removes them.

The folders, each of which imports only those before it:

    chunks   chunks and their names, and device memory as lines of them
    disk     regular files, durable writes, locks, bounce buffers, threads
    crypto   ciphers and keys
    pack     packs: their format, reader and writer
    files    manifest, references and hashes: the small files of an image
    store    the store: its images and packs, and its clean-up
    write    writing an image, and the parent that it builds upon
    read     reading an image
    remote   stores elsewhere: push and pull

Imports no vendor library.
"""
