"""A job in an image, beside its processes: the facts by which a supervisor and a daemon take it in again.

job.json        {"token", "argv", "root", "socket", "decision": the text of a record of the journal}
"""

from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gcr.imageerrors import Damaged, NotRestored
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision, record_of, text_of
from gcr.processes import identify

NAME = "job.json"


class StoppedJob(Struct, frozen=True, kw_only=True):
    """`root`: the pid of its program · `socket`: where its agents look for a daemon

    `decision`: the record that it was suspended by.
    """

    token: str
    argv: tuple[str, ...]
    root: int
    socket: str
    decision: DecisionRecord

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        (folder / NAME).write_bytes(encode({**_plain(self), "decision": text_of(self.decision).decode()}))

    @classmethod
    def read(cls, folder: Path) -> "StoppedJob":
        """Raises Damaged."""
        path = folder / NAME
        try:
            body = decode(path.read_bytes())
            found = record_of(str(body["decision"]).encode())
            if found is None:
                raise ValueError("its decision does not read back")
            return cls(**{**body, "argv": tuple(body["argv"]), "decision": found})
        except (OSError, MsgspecError, ValueError, KeyError, TypeError) as error:
            raise Damaged.of(path, f"it is no record of a job: {error}") from error

    def as_restored(self, image: KeptImage) -> DecisionRecord:
        """Returns the decision about the processes that have these pids now; `image` alone has their device memory.

        Raises NotRestored where one is gone.
        """
        processes = tuple(_as_it_is(each) for each in self.decision.processes)
        return replace(self.decision, processes=processes, image=image)


def _plain(job: StoppedJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__ if name != "decision"}


def _as_it_is(known: ProcessDecision) -> ProcessDecision:
    found = identify(known.pid)
    if found is None:
        raise NotRestored(f"process {known.pid} is not there")
    return replace(known, start_time=found.start_time, stack=found.stack)
