"""Adapters for torch.distributed.checkpoint: a writer and a reader of steps, and a stager."""

from gcr_torch.reader import Reader
from gcr_torch.stager import Stager
from gcr_torch.writer import Writer

__all__ = ["Reader", "Stager", "Writer"]
