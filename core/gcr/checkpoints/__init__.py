"""Training checkpoints: the steps of a run, each an image in a store. Frameworks are adapted to this; it knows none.

A step is one image with the cut `app`: the framework rebuilds everything but the bytes. Its files are what the ranks
saved, cut into chunks like any memory. So the chunks of all steps, and of all other images in the store, are shared.

    aside.py     device memory of this process, copied by gcr's worker
    elsewhere.py the steps of a run in a bucket
    steps.py     names of the steps of a run
    run.py       the steps of a run: listing, verification, removal
    saving.py    saving a step: each rank writes a pack, the coordinator publishes one manifest last
    marks.py     the instants of a save
    loading.py   reading a step
    tuning.py    the choice of threads, chunk size, saves in flight and interval
    measuring.py what the disk of a store takes, for that choice
    pacing.py    the same while a training runs: whether a save is due
    contents.py  a step by tensor, and how much of each has changed
    anatomy.py   a run: its steps, its stalls, and the contents of the last step
"""
