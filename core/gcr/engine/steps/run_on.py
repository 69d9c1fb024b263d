"""The end of a cut of a program that runs on: the copy is sealed, and the gates open. Later the copy is handed on."""

from collections.abc import Callable

from msgspec import Struct, field

from gcr.engine.sealing import seal
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.job.states import State
from gcr.protocol.seqpacket import close_all

Copied = Callable[[Target, list[int]], object]
"""Takes the sealed copy of a process over."""


class Seal(Struct, frozen=True):
    """Seals every copy before a gate opens, so that it has the books of the cut and survives the program.

    `close` it: the sealed copies outlive the transaction that stops the program.
    """

    work: Work
    sealed: list[tuple[Target, list[int]]] = field(default_factory=list)

    def do(self, undo: Transaction) -> None:
        for target in self.work.targets:
            if target.bytes_by_device:
                self.sealed.append((target, seal(target, partial=True)))

    def hand_on(self, copied: Copied) -> None:
        """Hands each sealed copy to the image's writer."""
        while self.sealed:
            copied(*self.sealed.pop())

    def close(self) -> None:
        """Closes the copies that were not handed on."""
        close_all([fd for _, fds in self.sealed for fd in fds])
        self.sealed.clear()


class Resume(Struct, frozen=True):
    """Opens every gate, and forgets the exports: the program runs on, and memory that it frees is free at once.

    running: gets the pids, of which nothing is left to be undone.
    """

    work: Work
    running: set[int]

    def do(self, undo: Transaction) -> None:
        side_by_side(target.resume for target in self.work.targets)
        for target in self.work.targets:
            target.process.move(State.RUNNING)
        self.work.course.mark("running")
        side_by_side(target.forget_memory for target in self.work.targets)
        self.running.update(target.pid for target in self.work.targets)
