"""The part of an image by which gcr knows a job again that a container's runtime has restored.

container.json      {"token", "argv", "labels": [[label, pid]], "decision": the text of a record of the journal}

A runtime gives the processes of a container other pids at each restore. Within the container they keep theirs: a label
is the pid by which a process calls itself. The tables of the image have the pids of the cut.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gcr.converting import convert
from gcr.imageerrors import Damaged
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision, record_of, text_of
from gcr.processes import ProcessIdentity

NAME = "container.json"


class _Body(Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    argv: tuple[str, ...]
    labels: tuple[tuple[int, int], ...]
    decision: str


class ContainedJob(Struct, frozen=True, kw_only=True):
    """`labels`: those of the processes, each with the pid that it had at the cut.

    `decision`: the record that it was suspended by.
    """

    token: str
    argv: tuple[str, ...]
    labels: tuple[tuple[int, int], ...]
    decision: DecisionRecord

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        (folder / NAME).write_bytes(self.text())

    def text(self) -> bytes:
        return encode(_Body(self.token, self.argv, self.labels, text_of(self.decision).decode()))

    @classmethod
    def of_text(cls, text: bytes) -> "ContainedJob":
        """Raises Damaged."""
        try:
            body = convert(decode(text), _Body)
        except MsgspecError as error:
            raise Damaged.of(Path(NAME), f"it is no record of a job: {error}") from error
        record = record_of(body.decision.encode())
        if record is None or {pid for _, pid in body.labels} != {each.pid for each in record.processes}:
            raise Damaged.of(Path(NAME), "its decision does not read back, or is about other processes")
        return cls(token=body.token, argv=body.argv, labels=body.labels, decision=record)

    def as_returned(self, job: str, here: Mapping[int, ProcessIdentity], image: KeptImage) -> DecisionRecord:
        """Returns the decision about the processes that are called so now. `here`: by label, all of them.

        image: it alone has their device memory
        """
        known = {each.pid: each for each in self.decision.processes}
        now = {pid: here[label].pid for label, pid in self.labels}
        processes = tuple(_as_it_is(known[pid], here[label], now) for label, pid in self.labels)
        return replace(self.decision, job=job, processes=processes, image=image, away="")


def _as_it_is(known: ProcessDecision, found: ProcessIdentity, now: Mapping[int, int]) -> ProcessDecision:
    """`now`: the present pids of all processes, by those of the cut."""
    lent_to = tuple(now[pid] for pid in known.lent_to if pid in now)
    identity = {"pid": found.pid, "start_time": found.start_time, "stack": found.stack}
    return replace(known, **identity, imaged=known.pid, lent_to=lent_to)
