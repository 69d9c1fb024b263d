"""Agents of a model of ranks, which speak the protocol's own bytes: what a Closing acts on."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ranks import Job

from gcr.engine.closing import Closing
from gcr.protocol.agentwire import (
    AdmitRequest,
    AllowedRecord,
    CloseRequest,
    CountRecord,
    GateRecord,
    GateReply,
    IncompleteRecord,
    MadeRecord,
    ParkedRecord,
)
from gcr.protocol.wire import SEVERAL_THREADS, FrameType, ParkedFlag, WalkKind
from gcr.standstill.messages import Admission, Report, Tier

TRANSACTION = 7


class Target:
    """A process of the job. `said`: what was done with any of them, in order. `error`: raised by its next look."""

    def __init__(self, job: Job, rank: int, said: list[str]) -> None:
        self.job, self.rank, self.said = job, rank, said
        self.pid, self.transaction = rank, TRANSACTION
        self.error: Exception | None = None
        self.process = SimpleNamespace(agent=self, ended=False)

    # ---- as its agent

    def ask(self, kind: FrameType, payload: bytes) -> Any:
        return SimpleNamespace(payload=getattr(self, f"on_{kind.name.lower()}")(payload))

    def on_close(self, payload: bytes) -> bytes:
        request = CloseRequest.unpack(payload)
        assert request.transaction == TRANSACTION
        self.said.append(f"{'close' if request.close else 'open'} {self.rank}")
        if request.close:
            self.job.close()
        else:
            self.job.open()
        return b""

    def on_look(self, _payload: bytes) -> bytes:
        if self.error:
            raise self.error
        self.job.settle()
        return packed(self.job.report(self.rank), self.job.now)

    def on_admit(self, payload: bytes) -> bytes:
        request = AdmitRequest.unpack(payload)
        many = (len(payload) - AdmitRequest.SIZE) // AllowedRecord.SIZE
        allowed = AllowedRecord.unpack_many(payload, AdmitRequest.SIZE, many)
        furthest = {each.signature: each.launched for each in allowed}
        kind = WalkKind(request.walk)
        tier = Tier.WALK if kind is WalkKind.LOCAL else Tier.SPIN
        thread = self.job.thread_of(Admission(tier, self.rank, request.thread, 0))
        return CountRecord(TRANSACTION, self.job.let_through(thread, request.calls, kind, furthest, tier), 0).pack()

    def status(self) -> Any:
        if not self.job.closed:
            for thread in self.job.threads:
                self.job.step(thread)
        captures = sum(thread.capturing for thread in self.job.threads if thread.rank == self.rank)
        return SimpleNamespace(status=SimpleNamespace(captures=captures))

    def quiesce(self, _transaction: int, _deadline: float, pulse_ms: int) -> None:
        assert pulse_ms == 0
        assert not self.job.busy(self.rank)
        self.said.append(f"quiesce {self.rank}")

    # ---- as the engine's own

    def resume(self) -> None:
        self.said.append(f"resume {self.rank}")


def packed(report: Report, now: float) -> bytes:
    parked = tuple(
        ParkedRecord(
            each.signature, each.thread, each.launched, ParkedFlag.CLEAR * each.clear | ParkedFlag.HELPER * each.helper
        )
        for each in report.parked
    )
    launches = tuple(IncompleteRecord(one.signature, one.stream, one.launched, one.kernel) for one in report.incomplete)
    unchanged = int((now - report.changed_at) * 1e6)
    gate = GateRecord(
        TRANSACTION,
        unchanged_us=unchanged,
        busy=int(report.busy),
        in_flight=report.in_flight,
        captures=report.captures,
        held=report.held,
    )
    made = tuple(
        MadeRecord(one.signature, one.launched, SEVERAL_THREADS if one.thread is None else one.thread)
        for one in report.made
    )
    return GateReply(gate, parked, launches, made).pack()


def closing(job: Job, deadline: float = 5.0) -> tuple[Closing, list[str]]:
    """A closing of this job, and what it does."""
    said: list[str] = []
    return closing_of(job, job.ranks, Closing, deadline, said), said


def closing_of(
    job: Job,
    ranks: Sequence[int],
    kind: type[Closing] = Closing,
    deadline: float = 60.0,
    said: list[str] | None = None,
) -> Closing:
    """A closing of some ranks of this job. `said`: is told what it does."""
    told: list[str] = [] if said is None else said
    targets: Any = [Target(job, rank, told) for rank in ranks]
    end = job.now + deadline

    def sleep(seconds: float) -> None:
        job.pass_time(job.now + seconds) if job.closed else setattr(job, "now", job.now + seconds)

    return kind("llm", targets, lambda: max(0.0, end - job.now), now=lambda: job.now, sleep=sleep)
