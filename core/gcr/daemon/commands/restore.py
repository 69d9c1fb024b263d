"""`gcr restore`: a job comes back to its devices."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.reports import RestoreReport
from gcr.api.requests import RestoreRequest
from gcr.daemon import departures, first_call, giving_up, orphans, reports
from gcr.daemon.commands import returning, reviving
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.connecting import await_agents
from gcr.daemon.commands.telling import telling
from gcr.daemon.commands.transaction import (
    carry_out,
    course_of,
    refuse_other_backend,
    slowest_link,
    target_of,
)
from gcr.daemon.commands.unparking import make_processes
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.crowding import naming_holders
from gcr.daemon.cuts import refuse_to_bring_back
from gcr.daemon.images.opened import opened
from gcr.daemon.images.order import at_home, place_of
from gcr.daemon.images.sources import acting, image_of
from gcr.daemon.jobs import Job
from gcr.daemon.permission import acting_for
from gcr.daemon.places import forget_place
from gcr.engine.admit import refuse_stopped, refuse_unconnected
from gcr.engine.driver_swap import DriverSwap
from gcr.engine.node import Course
from gcr.engine.orphaned import Orphaned
from gcr.engine.restore import Restore
from gcr.engine.routes.driver import restore_of
from gcr.engine.routes.restore import plan_of
from gcr.errors import UnsupportedState, WrongState
from gcr.imageerrors import WrongImage
from gcr.job.contained import ContainedJob
from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.job.migrations import refuse_to_run
from gcr.job.moves import moves_of, places_of
from gcr.job.process import Process
from gcr.job.states import State


def run(node: Coordinator, request: RestoreRequest, asked: Asked) -> RestoreReport:
    """Raises NotOurs for another user's job, GivenAway and MigrationUnderWay for one that moves to another node."""
    request = at_home(request, asked.caller)
    course = course_of(node, request, asked)
    with reviving.processes(node, request, asked.caller):
        return _restored(node, request, course, asked)


def _restored(node: Coordinator, request: RestoreRequest, course: Course, asked: Asked) -> RestoreReport:
    known = returning.described(request)
    job = _job(node, request, known, course, asked)
    asked.caller.check_owner(job.owner, f"job {job.name}")
    refuse_other_backend(job, request.backend)
    refuse_to_run(job.name, request.cut)
    joining = node.cuts.joining(request, job, course, node.config.cut_s)
    naming = naming_holders(job, node.jobs, node.fleet)
    with telling(node, job, course, asked, request.image) as story, naming, joining:
        if request.cut:
            refuse_to_bring_back(job)
        giving_up.refuse_parked(job, request.without)
        make_processes(node, job, course, request)
        await_agents(node, job, course)
        with node.jobs.changing(job, "restore"):
            story.begun()
            returning.call_back(node, job, known, request.image)
            if known:
                returning.take_in(node, job, known, _kept(request, asked))
            return story.done(bring_back(node, job, course, request, asked))


def _job(node: Coordinator, request: RestoreRequest, known: ContainedJob | None, course: Course, asked: Asked) -> Job:
    if known is None:
        return node.jobs.find(request.target, asked.caller.may_use)
    return returning.arrived(node, known, str(request.image), course, asked.caller.may_use)


def _kept(request: RestoreRequest, asked: Asked) -> KeptImage:
    """Returns the image of a request as what alone has the bytes. Raises UsageError."""
    acting = acting_for(asked.caller).caller
    user = (acting.uid, acting.gid) if acting else None
    return KeptImage(place_of(request, asked.key).path, str(request.image), request.encrypted, user)


def bring_back(node: Coordinator, job: Job, course: Course, request: RestoreRequest, asked: Asked) -> RestoreReport:
    """Restores a job that is marked as being changed already."""
    attempt = Attempt(node, job, course, request, asked)
    without = giving_up.give_up(node, job, request.without, course, attempt.refuse_without)
    return replace(departures.without_departed(job, attempt.restored), without=without)


def _devices_of(processes: Iterable[Process]) -> set[str]:
    """Returns the devices that suspended processes have data on, or will have their contexts on."""
    return {device for p in processes for device in (*p.suspension.bytes_by_device, *p.suspension.ballast_by_device)}


class Attempt(Struct, frozen=True):
    """One attempt to bring back a job."""

    node: Coordinator
    job: Job
    course: Course
    request: RestoreRequest
    asked: Asked

    def refuse_without(self, given_up: Collection[int]) -> None:
        """Refuses, before these processes are ended for good, what can be refused by then.

        Raises WrongState for another process that is stopped, and as `_moves`.
        """
        job = self.job
        if job.decision is None:
            return
        for process in job.living:
            if process.identity.pid not in given_up:
                refuse_stopped(target_of(self.node, job, process, process.suspension.transaction))
        self._moves(_devices_of(job.living), job.decision)

    def restored(self) -> RestoreReport:
        job = self.job
        departures.refuse_half(job)
        if job.living and not job.begun:
            return first_call.restore(job, self.node, self.course, self.request.image)
        resting = [p for p in job.begun if p.state in (State.SUSPENDED, State.DATA_SUSPENDED)]
        if resting and not (resting := departures.staying(resting)):
            raise departures.ending(job)
        if not resting or job.decision is None:
            raise WrongState(f"job {job.name} is not suspended, it is {job.state}", state=job.state, hint="gcr ps")
        self.node.jobs.settle(job)  # others may hold memory of a process that has just ended
        left = orphans.orphaned(self.node, job)
        used = _devices_of([*resting, *(each.process for each in left)])
        moves = self._moves(used, job.decision)
        moved = {old: new for old, new in moves.items() if old in used and old != new}
        if job.decision.kind == "driver":
            return self._by_driver(moves, moved)
        report = self._from_memory(resting, left, job.decision, moves, moved)
        job.results.report = report
        return report

    def _from_memory(
        self,
        resting: list[Process],
        left: list[Orphaned],
        decision: DecisionRecord,
        moves: Mapping[str, str],
        moved: Mapping[str, str],
    ) -> RestoreReport:
        node, job, course = self.node, self.job, self.course
        targets = [target_of(node, job, process, process.suspension.transaction) for process in resting]
        for target in targets:
            refuse_stopped(target)
            refuse_unconnected(target)
        owners = [*targets, *left]
        for target in owners:
            target.come_back(moves)
        source, unhurried = image_of(job, self.request, self.asked.key), not self.request.timeout
        start = partial(node.fleet.image_helper, acting(job, self.request, self.asked.caller))
        coming = node.residents.arriving.known(job.name)
        with (
            node.residents.arriving.ended_by(job.name, coming),
            opened(source, owners, start, course, node.config.store_s, unhurried, decision, coming) as image,
        ):
            done = Restore(job.name, targets, decision, node, course, image, orphaned=left)
            carry_out(node, job, plan_of(done), targets)
        job.decision = None
        forget_place(decision)
        job.ends.states.clear()
        node.jobs.settle(job)  # before a process that has called exec begins: workers know it by the former one's name
        node.recovery.begin_if_uneven(job)
        departures.refuse_silence(targets)
        departures.settle_ends(job)
        return reports.of_restore(job, done, slowest_link(targets, lambda arena: arena.link_in_bytes_per_s), moved)

    def _moves(self, used: Collection[str], decision: DecisionRecord) -> dict[str, str]:
        """Returns the moves onto other devices: of `gcr restore --device`, and of a job from another machine.

        Raises UnsupportedState, DriverTooOld, WrongDevice.
        """
        asked = self.request.devices
        if not asked and not decision.devices:
            return {}
        control = self.node.control(self.job.world)
        present = control.devices()
        places = places_of(decision.devices, present)
        if not asked and not places:
            return {}
        control.check_move({})
        if any(process.state == State.DATA_SUSPENDED for process in self.job.living):
            text = f"the context of {self.job.name} stays on its device: it was suspended without its control state"
            hint = f"gcr restore {self.job.name}, and a checkpoint without --data-only"
            raise UnsupportedState(text, hint=hint)
        wanted = {places.get(old, old): new for old, new in asked.items()}
        moves = moves_of(wanted, present, {places.get(each, each) for each in used})
        control.check_move(moves)
        return {old: moves.get(new, new) for old, new in places.items()} if places else moves

    def _by_driver(self, moves: Mapping[str, str], moved: Mapping[str, str]) -> RestoreReport:
        if self.request.image:
            raise WrongImage(f"image {self.request.image} is of no process that the driver alone suspended")
        (process,) = self.job.living
        swap = DriverSwap(process, self.node, self.job.world, self.course)
        restore_of(swap, moves).run()
        self.job.decision = None
        report = reports.of_driver_restore(self.job, swap, moved)
        self.node.jobs.release(self.job)
        return report
