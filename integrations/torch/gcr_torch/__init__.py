"""PyTorch: training checkpoints in gcr's stores. `gcr.torch` is its public name; docs/training.md shows it.

    tensors.py       the bytes of a tensor, and tensors of bytes
    record.py        DCP's metadata as the JSON that a step has
    held.py          what a reader or writer has open
    writer.py        StorageWriter: saves a step
    reader.py        StorageReader: loads one
    stager.py        AsyncStager: copies a state to host memory
    state.py         modules and optimizers as a state
    together.py      what all ranks agree on
    by_dcp.py        saves and loads by DCP
    writers.py       the writers of all saves of a Checkpointer
    pacing.py        when a save is due, and how many may be under way
    checkpointer.py  Checkpointer, upon all of them
    transformers.py  the callback of Transformers' Trainer, upon Checkpointer
    apart.py         tensors of a nested state apart from the rest of it
    plugin.py        CheckpointIO of Lightning, upon Checkpointer
    lightning.py, pytorch_lightning.py   its classes for the two packages that Lightning has

Imports of the core only `gcr.checkpoints`, errors and version, and torch only in its modules, not here.
"""
