"""Images: saved states of jobs on disk. Nothing else in gcr writes to a store.

    <store>/packs/<id>.pack      chunks of device memory, content-addressed, shared by all images (pack.py)
            images/<name>.json   what an image is: the manifest, written last (manifest.py)
            images/<name>.chunks where its chunks are (references.py)
            images/<name>.hashes what the device's hash says of them (hashes.py)
            images/<name>.pulled there if the image came from elsewhere: none is built upon it (parent.py)
            control/<name>/      CRIU's files, where there are any
            gcr-store            the mark: whether all this is encrypted, and with which key (cipher.py, aes.py)
            lock                 who uses the store, and who cleans it up (store.py)

An image is there when its manifest is, and then it is whole: everything that it names was synced before. What a writer
that died left behind has no manifest, and goes with the next clean-up.

Imports no vendor library.
"""
