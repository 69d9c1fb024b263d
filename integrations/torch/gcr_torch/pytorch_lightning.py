"""The CheckpointIO for the package `pytorch_lightning`. It keeps checkpoints in a store of gcr's.

Trainer(plugins=[GcrCheckpointIO("/data/run")], callbacks=[ModelCheckpoint(save_top_k=3)])
"""

from lightning_fabric.plugins import TorchCheckpointIO

from gcr_torch.plugin import Plugin


class GcrCheckpointIO(Plugin, TorchCheckpointIO):
    """Saves Lightning's checkpoints into a store, while the training goes on. `Plugin` says how."""
