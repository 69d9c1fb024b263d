"""`GcrCheckpointIO` for the Trainer of the package `pytorch_lightning`.

Importing this module imports PyTorch and Lightning. Raises LibraryMissing without them.
"""

from gcr.torch import needing

with needing("lightning"):
    from gcr_torch.pytorch_lightning import GcrCheckpointIO

__all__ = ["GcrCheckpointIO"]
