"""The steps of a migration: each order is one or two requests to the daemons of the two nodes."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from msgspec import Struct, field, to_builtins

from gcr.api.migrations import (
    Abandon,
    Begin,
    Describe,
    Exchange,
    Forget,
    Found,
    JobFacts,
    Look,
    Move,
    MovingTo,
    NodeFacts,
    Offer,
    Offered,
    Own,
    Pull,
    Pulled,
    RanOn,
    Run,
    Standing,
    Warm,
)
from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.errors import GcrError, RolledBack
from gcr.job.mover import Mover
from gcr.job.roundimages import image_of
from gcr.migration.admission import admit
from gcr.migration.filling import Filler
from gcr.migration.holding import Holding
from gcr.migration.messages import Heard, Order
from gcr.migration.rounds import Round
from gcr.migration.ways import GRACE_S, Between
from gcr.migrationerrors import CannotMigrate, GivenAway, NoSuchMigration

log = logging.getLogger(__name__)

PATIENCE_S = 15.0  # for a daemon that has died to be there again
GATES = "stop"  # the mark in a checkpoint's report at which the gates begin to close


class Course(Struct):
    """The course of one migration so far. `images`: in the order made · `closed`: when the gates closed, if they did

    errors: in the order they came, each with the step at which it came
    """

    id: str = field(default_factory=lambda: secrets.token_hex(16))
    images: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    moves: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    closed: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    errors: list[tuple[Order, GcrError]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    interrupted: bool = False

    def mark(self, phase: str) -> None:
        """Notes the end of a part of the stop."""
        if self.closed is not None:
            self.phases[phase] = time.monotonic() - self.closed


class Steps(Struct):
    """The steps of one migration, or of its recovery. Each raises what a node raised."""

    between: Between
    course: Course = field(default_factory=Course)
    facts: JobFacts | None = None
    _nodes: tuple[NodeFacts, NodeFacts] | None = None
    _exchange: Exchange | None = None
    _arriving: "Future[Pulled] | None" = None
    _holding: Holding | None = None
    _filler: Filler | None = None

    @property
    def filler(self) -> Filler:
        """Fills the target's devices."""
        self._filler = self._filler or Filler(self.between, self.course.id)
        return self._filler

    def by_order(self) -> Mapping[Order, Callable[[], Heard]]:
        return {
            Order.ADMIT: self._admit,
            Order.BEGIN: self._begin,
            Order.COPY: self._copy,
            Order.LEAVE: self._leave,
            Order.STOP: self._stop,
            Order.BRING: self._bring,
            Order.HOLD: self._hold,
            Order.GIVE: self._give,
            Order.OWN: self._own,
            Order.OPEN: self._open,
            Order.REOPEN: self._reopen,
            Order.FORGET: self._forget,
            Order.KEEP: self._keep,
            Order.ABANDON: self._abandon,
            Order.TAKE_BACK: self._take_back,
        }

    # ---- forth -------------------------------------------------------------------------------------------------------

    def _admit(self) -> Heard:
        job, source, target, limit = self.between.job, self.between.source, self.between.target, self.between.timeout
        source.link.greet()
        target.link.greet()
        facts = source.take(Describe(job=job), JobFacts, limit)
        here = source.take(Look(job=job, world=facts.world, pids=facts.pids), NodeFacts, limit)
        there = target.take(Look(job=job, world=facts.world, files=here.files), NodeFacts, limit)
        self.course.moves = admit(job, facts, here, there, self.between.devices)
        self.facts, self._nodes = facts, (here, there)
        self.filler.world, self.filler.devices = facts.world, self.course.moves
        return Heard.DONE

    def _begin(self) -> Heard:
        assert self._nodes
        job, id, limit = self.between.job, self.course.id, self.between.timeout
        source, target = self.between.source, self.between.target
        (here, there), ours = self._nodes, to_builtins(Mover.ourselves())
        # The source first: a target that knows a migration which the source does not know is left over.
        for stage, way, other, facts in (("copying", source, target, here), ("arriving", target, source, there)):
            begin = Begin(job=job, id=id, stage=stage, here=way.name, peer=other.name, store=facts.store, mover=ours)
            way.take(begin, Found, limit)
        offered = source.take(Offer(job=job, id=id, host=self.between.host), Offered, limit)
        self._exchange = offered.exchange
        return Heard.DONE

    def _copy(self) -> Heard:
        began = time.monotonic()
        report, image = self._imaged(leave_running=True), self.course.images[-1]
        copied = time.monotonic()
        pulled = self._pulled(image)
        self.course.rounds.append(Round(pulled.bytes_moved, copied - began, pulled.pull_s, report.host_bytes))
        self.filler.begin(image)
        return Heard.DONE

    def _leave(self) -> Heard:
        assert self.facts
        job, devices = self.between.job, tuple(sorted({*self.course.moves.values()}))
        warm = Warm(job=job, id=self.course.id, world=self.facts.world, devices=devices)
        self.between.target.take(warm, Found, self.between.timeout)
        self.filler.wait()
        self._move("leaving")
        return Heard.DONE

    def _stop(self) -> Heard:
        """Has the target await the last image meanwhile: the start of a process need not wait for the stop."""
        image = image_of(self.course.id, len(self.course.images) + 1)
        self._arriving = Future()
        Thread(target=self._await_image, args=(self._arriving, image), name="gcr-arriving", daemon=True).start()
        self._imaged(leave_running=False)
        self.course.mark("stopped")
        return Heard.DONE

    def _await_image(self, arriving: "Future[Pulled]", image: str) -> None:
        try:
            arriving.set_result(self._pulled(image, revive=True))
        except BaseException as error:
            arriving.set_exception(error)

    def _bring(self) -> Heard:
        assert self._arriving
        pulled = self._arriving.result(self.between.timeout + GRACE_S)
        self.course.mark("processes")
        pulled_at = self.course.phases.get("processes", 0.0) - pulled.processes_s
        self.course.phases |= {"pulled": pulled_at, **{name: pulled_at + at for name, at in pulled.phases_s.items()}}
        return Heard.DONE

    def _hold(self) -> Heard:
        self._holding = Holding.begun(self.between, self.course.id, self._asked_devices())
        self._holding.await_barrier(self.between.timeout)
        self.course.mark("ready")
        return Heard.DONE

    def _give(self) -> Heard:
        row = self.between.target.row(self.between.job)
        if row is None or not row.processes or row.cut is None or row.cut.id != self.course.id:
            raise RolledBack(f"job {self.between.job} does not wait at the target any more", hint="gcr ps there")
        self._move("given")
        self.course.mark("given")
        return Heard.DONE

    def _own(self) -> Heard:
        target = self.between.target
        own = Own(job=self.between.job, id=self.course.id)
        target.patiently(lambda: target.take(own, Found, self.between.timeout), PATIENCE_S)
        return Heard.DONE

    def _open(self) -> Heard:
        assert self._holding
        self.between.target.go(self.course.id)
        self._holding.await_end(self.between.timeout)
        self.course.mark("running")
        return Heard.DONE

    def _reopen(self) -> Heard:
        """Lets the job go on from where it stands at the target: it may wait at its barrier still."""
        target = self.between.target
        with suppress(GcrError):
            target.go(self.course.id)
        asked = Run(job=self.between.job, id=self.course.id, images=self._images(), devices=self._asked_devices())
        target.patiently(lambda: target.take(asked, RanOn, self.between.timeout), PATIENCE_S)
        self.course.mark("running")
        return Heard.DONE

    def _forget(self) -> Heard:
        """Removes the images at the target first: the record at the source says until the end where the job is."""
        forget = Forget(job=self.between.job, id=self.course.id, images=self._images())
        for way in (self.between.target, self.between.source):
            way.patiently(lambda way=way: way.take(forget, Found, self.between.timeout), PATIENCE_S)  # type: ignore[misc]
        return Heard.DONE

    # ---- back --------------------------------------------------------------------------------------------------------

    def _keep(self) -> Heard:
        source = self.between.source
        try:
            source.patiently(lambda: self._move("kept"), PATIENCE_S)
        except GivenAway:
            return Heard.GIVEN
        except NoSuchMigration:
            return Heard.UNKNOWN
        return Heard.DONE

    def _take_back(self) -> Heard:
        source, job, id, limit = self.between.source, self.between.job, self.course.id, self.between.timeout
        images = self._images()
        source.patiently(lambda: source.take(Run(job=job, id=id, images=images), RanOn, limit), PATIENCE_S)
        source.take(Forget(job=job, id=id, images=images), Found, limit)
        return Heard.DONE

    def _abandon(self) -> Heard:
        target = self.between.target
        with suppress(GcrError):
            target.give_up(self.course.id)
        if self._holding:
            self._holding.forsake()
        asked = Abandon(job=self.between.job, id=self.course.id)
        target.patiently(lambda: target.take(asked, Found, self.between.timeout), PATIENCE_S)
        return Heard.DONE

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _imaged(self, leave_running: bool) -> CheckpointReport:
        """Has the source make the next image. Without `leave_running` the job ends by it."""
        assert self._nodes
        source, store, limit = self.between.source, self._nodes[0].store, self.between.timeout
        image = image_of(self.course.id, len(self.course.images) + 1)
        self.course.images.append(image)
        source.take(Move(job=self.between.job, id=self.course.id, stage="", image=image), Found, limit)
        request = CheckpointRequest(
            target=self.between.job,
            image=image,
            store=store,
            live=True,
            leave_running=leave_running,
            stop=not leave_running,
            wait="durable",
            timeout=limit,
        )
        began = time.monotonic()
        report = source.checkpoint(request, limit)
        if not leave_running:
            self.course.closed = began + report.phases_s.get(GATES, 0.0)
            self.course.phases |= {
                name: at - report.phases_s.get(GATES, 0.0)
                for name, at in report.phases_s.items()
                if at >= report.phases_s.get(GATES, 0.0)
            }
        return report

    def _pulled(self, image: str, revive: bool = False) -> Pulled:
        assert self._exchange
        fill = self.filler.step(image) if revive else None
        step = Pull(
            job=self.between.job, id=self.course.id, image=image, exchange=self._exchange, revive=revive, fill=fill
        )
        pulled = self.between.target.take(step, Pulled, self.between.timeout)
        self.course.sent += pulled.bytes_moved
        self.filler.note(pulled.filled)
        return pulled

    def _move(self, stage: str) -> Found:
        step = Move(job=self.between.job, id=self.course.id, stage=stage)
        return self.between.source.take(step, Found, self.between.timeout)

    def _images(self) -> tuple[str, ...]:
        return tuple(self.course.images)

    def _asked_devices(self) -> Mapping[str, str]:
        """Returns the devices that the caller chose, by UUID. Others come back in order, model by model."""
        return {old: new for old, new in self.course.moves.items() if self.between.devices}

    def learn(self) -> None:
        """Reads the records of both nodes. Raises NoSuchMigration, CannotMigrate, and the source's error."""
        job, source, target = self.between.job, self.between.source, self.between.target
        here = source.patiently(lambda: source.take(Standing(job=job), MovingTo, self.between.timeout), PATIENCE_S)
        try:
            there = target.take(Standing(job=job), MovingTo, self.between.timeout)
        except GcrError as error:
            log.info("node %s: %s", target.name, error.message)
            there = MovingTo(id="", stage="", peer="", images=(), state="")
        for found, of, other in ((here, source, target), (there, target, source)):
            if found.id and found.peer != other.name:
                text = f"at {of.name} job {job} is moving to or from {found.peer}, and not {other.name}"
                raise CannotMigrate(text, hint=f"gcr migrate {job} --recover with that node")
        self.course.id = here.id or there.id
        self.course.images = list(here.images or there.images)
        if not self.course.id:
            raise NoSuchMigration(f"no migration of job {job} is under way between these nodes", hint="gcr ps")
