"""Adapters for torch.distributed.checkpoint: `Writer` saves a step, `Reader` loads one, `Stager` copies a state aside.

Importing this module imports PyTorch. Raises LibraryMissing without it.
"""

from gcr.torch import needing

with needing("torch"):
    from gcr_torch.dcp import Reader, Stager, Writer

__all__ = ["Reader", "Stager", "Writer"]
