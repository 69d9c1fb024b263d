"""`gcr checkpoint --processes`, `--stop`: a job that is suspended goes into its image, processes and all.

    looked at   before anything stops: CRIU works here, and can save each process of the job. It is started then, and
                waits with an empty folder until it may look at them again
    left        each agent has closed all that CRIU could not save, and stays away
    dumped      CRIU has written the processes to a folder, and holds them still
    held        beside these two: the device memory is in the store; there is no image yet. It is written as soon as
                it is in host memory, beside the decision and the release of the devices
    published   the folder is in the image; its manifest is written last. From here on a job to be stopped is stopped,
                unless it is a part of a cut over several nodes: it waits for their images, and is taken back without
    parked      only in place: the supervisor has ended the program, and stays (parking.py)
    ended       with --stop CRIU ends the processes, beside the removal of its folder; else it lets them go, and the job
                is suspended as before

Up to the manifest a failure takes everything back, and the job runs again, or is suspended if it was so before. The one
exception is the death of CRIU in its dump, which a process may not survive. If the daemon dies, CRIU lets the processes
go, and the next daemon finds a suspended job.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.barriers import Barrier
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.control import ControlMeans
from gcr.daemon import locked
from gcr.daemon.commands import restore
from gcr.daemon.commands.absence import Absence
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.transaction import DEFAULT_TIMEOUT, suspended
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import NO_TIMEOUT, Imaging
from gcr.daemon.images.outlet import failing, kept_in, withdraw
from gcr.daemon.jobs import Job
from gcr.daemon.recall import recall_program
from gcr.daemon.worlds import STATE
from gcr.dumpfolder import dump_folder, empty
from gcr.engine.node import Course
from gcr.engine.side_by_side import on_thread, side_by_side
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import GcrError, UnsupportedState, typed
from gcr.imageerrors import CannotSave, ImageFailed
from gcr.job.decisions import KeptImage
from gcr.job.stopped import StoppedJob
from gcr.parked import Place
from gcr.peers.criu import CriuPeer
from gcr.processes import identify
from gcr.processmemory import resident
from gcr.protocol.operations.criu import Look, Seen
from gcr.runtime import socket_path
from gcr.trees import end_all, tree_of

log = logging.getLogger("gcr.daemon")

LOOKED_S = 5.0  # for CRIU to look; it tries what it needs on children that it stops
DUMP_S, DUMP_BYTES_PER_S = 60.0, 100e6  # CRIU's time, and more for each byte that a process has in memory
KEEPS_CONNECTIONS = "tcp-established"  # an option of CRIU's
_TOLD = 3  # obstacles in one message


class Ready(Struct):
    """Parts of a save that begin before anything stops.

    looking: a helper looks at the processes · folder: for CRIU's files; None: it was not made, or is taken
    """

    looking: "Future[Seen]" = field(default_factory=Future)
    folder: Path | None = None
    _within: ExitStack = field(default_factory=ExitStack)

    def enter(self, made: AbstractContextManager[Path]) -> Path:
        self.folder = self._within.enter_context(made)
        return self.folder

    def taken(self, stack: ExitStack) -> Path | None:
        """Returns the folder, which goes with the stack from here on."""
        folder, self.folder = self.folder, None
        stack.enter_context(self._within.pop_all())
        return folder

    def close(self) -> None:
        """Removes a folder that was not taken."""
        self._within.close()


class Whole(Struct):
    """The job's way into its image. A helper looks at its processes while the program still runs.

    allow: options of CRIU's · ends: the job is stopped · secret: the store is encrypted
    place: of a private image; the job is parked there, and not stopped
    resumes: after a failure the job runs again; else it is suspended, as it was before
    """

    node: Coordinator
    job: Job
    course: Course
    root: int
    helper: CriuPeer
    allow: tuple[str, ...] = ()
    ends: bool = True
    secret: bool = False
    place: Place | None = None
    resumes: bool = True
    _ready: Ready = field(default_factory=Ready)
    _absence: Absence | None = None  # of its agents

    def look(self) -> None:
        """Has the helper look at the processes, beside what the caller does next. Each agent has come by now."""
        self._ready.looking = on_thread("gcr-look", partial(self.helper.look, self._asked()))

    @property
    def seen(self) -> Seen:
        """The job's processes, as they were before anything stopped. Raises CriuUnusable, and as a call of a peer."""
        return self._ready.looking.result()

    def may_begin(self) -> None:
        """Raises CannotSave, CriuUnusable where the processes cannot be saved."""
        _refuse_others(self.job, self.seen)

    def prepare(self, device_bytes: int) -> None:
        """Makes the folder, once, and has CRIU started, which begins later. Nothing stops. Raises NoRoom, OSError …

        device_bytes: that leave; the agents cover their addresses while they are away
        """
        if self._ready.folder is None:
            folder = self._ready.enter(self._folder())
            self.helper.prepare(folder, _dump_s(self.seen.pids), device_bytes)

    def carry_out(self, imaging: Imaging, unhurried: bool) -> None:
        """Publishes the image of a job that is suspended, and ends its processes or lets them go.

        unhurried: no caller has named a deadline, so the disk may take its time, as long as it is not silent
        Raises an error for an image that was not published; then the job runs again if it `resumes`, or the error says
        so.
        """
        if unhurried:
            self.course.timeout = NO_TIMEOUT
        try:
            with ExitStack() as stack:
                folder = self._ready.taken(stack) or stack.enter_context(self._folder())
                with Transaction(self.job.name) as undo:
                    self._save(imaging, folder, undo)
                    undo.commit()
                made = stack.pop_all()
        except Exception as error:
            imaging.fail(error)
            imaging.give_up_held()
            withdraw(imaging)
            imaging.close()
            back = taken_back(self.node, self.job, self.course, typed(error)) if self.resumes else typed(error)
            raise back from error
        with made:  # what CRIU writes there while it ends the processes goes with the folder
            side_by_side([partial(self._settle, imaging), partial(empty, folder)])

    def _settle(self, imaging: Imaging) -> None:
        """Ends the processes that are in their image, or lets them go."""
        if not self.ends:
            quietly("have the agents come back", self._come_back)
            return
        if self.place is None:
            self.job.ends.stopped_into = kept_in(imaging)
        else:
            self.course.mark("parked")
        self._end()
        self.course.mark("ended")

    def left_on_devices(self) -> int | None:
        """Returns the bytes that the devices still count for the processes; None where they cannot be asked."""
        try:
            control = self.node.control(self.job.world)
            return sum(sum(control.inspect(pid).bytes_by_device.values()) for pid in self.seen.pids)
        except GcrError as error:
            log.warning("job %s: its devices were not asked what is left there: %s", self.job.name, error)
            return None

    def _asked(self) -> Look:
        job, world = self.job, self.job.world
        return Look(
            self.root,
            tuple(sorted(job.processes)),
            world.backend,
            world.simulated,
            _devices(job),
            str(socket_path()),
            self.allow,
        )

    def close(self) -> None:
        """Ends the helper once it has looked. A tree that it has dumped and not ended runs on."""
        if self._ready.looking.running():
            wait([self._ready.looking], LOOKED_S)
        self.helper.channel.close()
        self._ready.close()

    def _folder(self) -> AbstractContextManager[Path]:
        return dump_folder(sum(map(resident, self.seen.pids)), self.secret)

    def _save(self, imaging: Imaging, folder: Path, undo: Transaction) -> None:
        job, course = self.job, self.course
        targets = suspended(self.node, job, job.begun)
        with failing(imaging):
            imaging.lend_held(targets)
        self._absence = Absence.of(job)
        undo.push("come back", self._come_back)
        dump = partial(self._dump, imaging, folder, self._absence)
        side_by_side([dump, partial(hold, job, course, imaging, targets)])
        with failing(imaging):
            imaging.publish(folder, course, left=True)
        self.helper.check()  # else they ran on meanwhile, and would be ended somewhere behind their image
        course.mark("published")
        course.hold(Barrier.DURABLE)
        if self.place:
            self._park(self.place, imaging.order.name)

    def _dump(self, imaging: Imaging, folder: Path, absence: Absence) -> None:
        """Has CRIU write the processes to the folder, and hold them. Where it fails nothing waits for device memory."""
        try:
            for process in self.job.begun:
                absence.send_agent(process)
            self.course.mark("left")
            self._described(imaging).write(folder)
            if KEEPS_CONNECTIONS in self.allow:
                locked.note(absence.token, self.seen.pids)
            self.course.tell("dumping")
            self.helper.dump(folder, _dump_s(self.seen.pids))
            self.course.mark("dumped")
        except BaseException:
            if "held" not in self.course.marks:
                quietly("give the image up", lambda: imaging.ready().kill())  # a slow disk would hold up the way back
            raise

    def _park(self, place: Place, image: str) -> None:
        """Has the supervisor end its program, and stay. Raises an error where it did not, and never will.

        Nothing may fail after it: the image is all that is left of the program.
        """
        supervisor = self.job.supervision.supervisor
        assert supervisor
        try:
            supervisor.park(place.store, image, time.monotonic() - self.course.marks["left"])
        except Exception as error:
            if place.withdraw():
                raise
            log.warning("job %s: its supervisor has parked it, and did not say so: %s", self.job.name, error)
        self.job.supervision.parked = KeptImage(place.store, image)

    def _described(self, imaging: Imaging) -> StoppedJob:
        job = self.job
        assert job.decision
        devices = tuple(imaging.facts.models.items() if imaging.facts else self._devices())
        return StoppedJob(
            token=job.token,
            argv=job.program.argv,
            root=self.root,
            socket=str(socket_path()),
            decision=replace(job.decision, devices=devices),
        )

    def _devices(self) -> Iterator[tuple[str, str]]:
        """Yields all devices, by UUID and name: a driver takes some milliseconds for the answer."""
        return ((each.uuid, each.name) for each in self.node.control(self.job.world).devices())

    def _come_back(self) -> None:
        """Has CRIU let the processes go, with their connections, and their agents return."""
        self.close()
        if self._absence:
            locked.settle(self._absence.token)
            self._absence.call_back()

    def _end(self) -> None:
        """Ends the processes, which the image has: also where CRIU, or its helper, has died since."""
        tree = tree_of(self.seen.pids)
        quietly("end", self.helper.end)
        self.close()
        end_all(self.job.name, tree)
        if self._absence:
            locked.settle(self._absence.token)  # the connections are in the image, and stay locked until they are back
            quietly("remove the marks", self._absence.forget)


def begun(node: Coordinator, job: Job, course: Course, request: CheckpointRequest, place: Place | None = None) -> Whole:
    """Starts a helper that can save the processes. Raises UnsupportedState."""
    root = _root_of(job)
    helper = node.fleet.criu_helper()
    return Whole(node, job, course, root, helper, request.allow, request.stop, request.encrypted, place)


def hold(job: Job, course: Course, imaging: Imaging, targets: Sequence[Target]) -> None:
    """Brings the device memory of a suspended job to the store; there is no image yet. Raises ImageFailed …"""
    assert job.decision
    course.tell("writing")
    with failing(imaging):
        imaging.write_held(targets, job.decision.decided_at, course)
    course.mark("held")


def taken_back(node: Coordinator, job: Job, course: Course, error: GcrError) -> GcrError:
    """Restores a job in place after its image failed. Returns the error to raise."""
    back = Course("restore", node.next_transaction(), DEFAULT_TIMEOUT, course.progress)
    try:
        asked = Asked(course.progress, back.cancelled)
        restore.bring_back(node, job, back, RestoreRequest(target=job.name), asked)
    except GcrError as second:
        log.warning("job %s was not taken back: %s", job.name, second)
        text = f"{error.message}; and the job could not be taken back: {second.message}"
        return ImageFailed(text, hint=f"gcr restore {job.name}")
    return error


def takes_contexts(targets: Sequence[Target]) -> bool:
    """Returns whether what the driver keeps of the processes goes with them, by a plugin of CRIU's."""
    return all(target.control.means is ControlMeans.PROCESS for target in targets)


def context_stays(target: Target) -> UnsupportedState:
    """Returns the refusal of a process that keeps its context: it keeps its device files open, too."""
    text = f"the context of process {target.pid} stays on its device ({target.world.backend}): CRIU cannot save that"
    return UnsupportedState(text, hint="without its processes it can be checkpointed")


def _devices(job: Job) -> tuple[str, ...]:
    """Returns the folder of a simulated machine, which stands for device files."""
    folder = dict(job.world.environment).get(STATE)
    return (folder,) if folder and job.world.simulated else ()


def _root_of(job: Job) -> int:
    """Returns the pid of the job's program. Raises UnsupportedState where it cannot be saved."""
    if job.program.pid is None:  # its supervisor has not come to this daemon yet
        recall_program(job)
    root, hint = job.program.pid, "without its processes it can be checkpointed"
    if root is None or identify(root) is None:
        raise UnsupportedState(f"the program of job {job.name} has ended, and other processes of it live on", hint=hint)
    if job.owner != os.getuid():
        raise UnsupportedState(
            f"job {job.name} is of another user, and gcr saves those of its own user alone", hint=hint
        )
    if waiting := [each.identity.pid for each in job.living if each.waits]:
        raise UnsupportedState(f"process {waiting[0]} waits at its first call of the driver", hint="try again later")
    return root


def _refuse_others(job: Job, seen: Seen) -> None:
    """Raises CannotSave for what CRIU cannot save, and for a process of the job that is no child of its program."""
    strays = [pid for pid in job.processes if pid not in seen.pids]
    if strays:
        raise CannotSave(f"process {strays[0]} of job {job.name} is no descendant of its program")
    if seen.in_the_way:
        more = len(seen.in_the_way) - _TOLD
        told = "; ".join(seen.in_the_way[:_TOLD])
        raise CannotSave(f"{told}; and {more} more" if more > 0 else told, hint=seen.remedy)


def _dump_s(pids: Sequence[int]) -> float:
    return DUMP_S + sum(map(resident, pids)) / DUMP_BYTES_PER_S
