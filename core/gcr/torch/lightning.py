"""`GcrCheckpointIO` for the Trainer of the package `lightning`.

Importing this module imports PyTorch and Lightning. Raises LibraryMissing without them.
"""

from gcr.torch import needing

with needing("lightning"):
    from gcr_torch.lightning import GcrCheckpointIO

__all__ = ["GcrCheckpointIO"]
