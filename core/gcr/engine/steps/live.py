"""The copy of a program that runs; the drain copies what changes afterwards."""

from msgspec import Struct

from gcr.engine.live import copy_live
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work


class CopyLive(Struct, frozen=True):
    """Copies every byte while the program runs. The copy goes with the exports."""

    work: Work

    def do(self, undo: Transaction) -> None:
        work = self.work
        work.copied_live = copy_live(work.targets, work.course, work.node.config.drain_s)
