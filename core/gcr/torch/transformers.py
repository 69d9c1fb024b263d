"""`GcrCallback` saves a training of Transformers' Trainer; `resume` trains on from the newest step.

Importing this module imports PyTorch and Transformers. Raises LibraryMissing without them.
"""

from gcr.torch import needing

with needing("transformers"):
    from gcr_torch.transformers import GcrCallback, resume

__all__ = ["GcrCallback", "resume"]
