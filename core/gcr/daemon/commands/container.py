"""`gcr checkpoint --container`: a job in a container leaves its devices, so that the runtime can checkpoint the rest.

The runtime calls CRIU on the whole container, and the job's supervisor is a part of that. So both leave before.

    refused     before anything stops, what cannot come back by this way
    held        the device memory is in the store; there is no image yet
    published   the image is durable, with the facts to know the processes again by
    away        the decision says that the image has the bytes, and that no process of the job is to be spoken to
    left        agents and supervisor have closed all that CRIU could not save, and what they had of the bytes

A failure at any step takes everything back, and the job runs again: up to the decision from host memory, later from
the image. Then it is the runtime's turn. If that ends the processes, the job was stopped into its image; what it brings
back later comes to `returning.py`. If the processes live on, `gcr restore JOB` has them return in place.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.control import ControlMeans
from gcr.daemon.commands.absence import Absence, token_of
from gcr.daemon.commands.transaction import suspended
from gcr.daemon.commands.whole import hold, taken_back
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.ended import note_contained
from gcr.daemon.foreign import environment_of
from gcr.daemon.images.imaging import NO_TIMEOUT, Imaging
from gcr.daemon.images.outlet import failing, kept_in, withdraw
from gcr.daemon.jobs import Job
from gcr.dumpfolder import dump_folder
from gcr.engine.node import Course, decide
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, UnsupportedState, typed
from gcr.image.store.location import folder_of
from gcr.job.contained import ContainedJob
from gcr.job.decisions import DecisionRecord
from gcr.processes import label_of, shares_namespaces
from gcr.runtime import socket_path

log = logging.getLogger("gcr.daemon")

_OF_A_CONTAINER = ("pid", "mnt")  # namespaces that it does not share with us


class Leaving(Struct):
    """The job's way out of its devices, for its container's runtime. It has the interface of `Whole`."""

    node: Coordinator
    job: Job
    course: Course
    ends = False  # the runtime may end the processes

    def look(self) -> None:
        """Does nothing: the runtime's CRIU looks at the processes."""

    def may_begin(self) -> None:
        """Raises UnsupportedState where the processes could not come back by this way."""
        refuse_others(self.job)

    def prepare(self, device_bytes: int) -> None:
        """Does nothing: the runtime starts its CRIU."""

    def carry_out(self, imaging: Imaging, unhurried: bool) -> None:
        """Publishes the image of a job that is suspended, and has its agents and supervisor leave.

        Raises an error for an image that was not published; then the job runs again, or the error says so.
        """
        if unhurried:
            self.course.timeout = NO_TIMEOUT
        try:
            self._publish(imaging)
            self._leave()
        except Exception as error:
            imaging.fail(error)
            imaging.give_up_held()
            told = self._taken_back(typed(error))
            if not (self.job.decision and self.job.decision.image):  # else it alone has the bytes
                withdraw(imaging)
            imaging.close()
            raise told from error
        self.job.ends.stopped_into = kept_in(imaging)
        note_contained(self.job)

    def left_on_devices(self) -> int | None:
        """Returns nothing: the job is suspended, and its checkpoint has asked the devices."""
        return None

    def close(self) -> None:
        """Does nothing."""

    def _publish(self, imaging: Imaging) -> None:
        job, course, decision = self.job, self.course, self.job.decision
        assert decision
        hold(job, course, imaging, suspended(self.node, job, job.begun))
        devices = tuple((each.uuid, each.name) for each in self.node.control(job.world).devices())
        with dump_folder(0, secret=True) as folder, failing(imaging):
            self._described(replace(decision, devices=devices)).write(folder)
            imaging.publish(folder, course)
        course.mark("published")
        self._decide(replace(decision, image=kept_in(imaging), away=token_of(job)))
        course.mark("away")

    def _decide(self, record: DecisionRecord) -> None:
        decide(self.node.journal, record)
        self.job.decision = record

    def _leave(self) -> None:
        job, absence = self.job, Absence.of(self.job)
        for process in job.begun:
            absence.send_agent(process)
        if job.supervision.supervisor and job.supervision.lasts:
            absence.send_supervisor(job.supervision.supervisor)
        self.course.mark("left")

    def _taken_back(self, error: GcrError) -> GcrError:
        """Has those return that have left, and restores the job in place. Returns the error to raise."""
        decision = self.job.decision
        if decision and decision.away:
            quietly("come back", Absence(self.job, decision.away).call_back)
            quietly("decide", lambda: self._decide(replace(decision, away="")))
        return taken_back(self.node, self.job, self.course, error)

    def _described(self, decision: DecisionRecord) -> ContainedJob:
        labels = tuple((label_of(each.pid), each.pid) for each in decision.processes)
        return ContainedJob(token=token_of(self.job), argv=self.job.program.argv, labels=labels, decision=decision)


def begun(node: Coordinator, job: Job, course: Course) -> Leaving:
    """Raises UnsupportedState where the job could not come back by this way."""
    if node.control(job.world).means is not ControlMeans.DRIVER:
        text = f"the context of {job.name} stays on its device ({job.world.backend}): the runtime cannot save that"
        raise UnsupportedState(text, hint="without --container it can be checkpointed")
    refuse_others(job)
    return Leaving(node, job, course)


def report_of(job: Job, request: CheckpointRequest) -> CheckpointReport | None:
    """Returns the report of a job that is away in this very image already: CRIU may run a hook twice."""
    decision, report = job.decision, job.results.report
    if not (decision and decision.away and decision.image and isinstance(report, CheckpointReport)):
        return None
    there = (decision.image.name, decision.image.store) == (request.image, folder_of(request.store or ""))
    return report if there else None


def refuse_others(job: Job) -> None:
    """Raises UnsupportedState for a job that is in no container, or that could not leave it to the runtime."""
    if not token_of(job):
        text = f"job {job.name} was not started by gcr run"
        raise UnsupportedState(text, hint="start the program by gcr run, in its container")
    for process in job.living:
        pid = process.identity.pid
        if process.waits:
            raise UnsupportedState(f"process {pid} waits at its first call of the driver", hint="try again later")
        if shares_namespaces(pid, _OF_A_CONTAINER[:1]) and shares_namespaces(pid, _OF_A_CONTAINER[1:]):
            text = f"process {pid} of job {job.name} is in no container"
            raise UnsupportedState(text, hint="--stop saves its processes, too")
    pids = [process.identity.pid for process in job.living]
    _refuse_several(job, pids)
    _refuse_old_supervisor(job)
    for pid in pids:
        _refuse_without_socket(pid)


def _refuse_several(job: Job, pids: Sequence[int]) -> None:
    for pid in pids[1:]:
        if not shares_namespaces(pid, _OF_A_CONTAINER, pids[0]):
            text = f"processes {pids[0]} and {pid} of job {job.name} are in different containers"
            raise UnsupportedState(text, hint="one job for each container")


def _refuse_old_supervisor(job: Job) -> None:
    supervision = job.supervision
    if supervision.supervisor and supervision.lasts and not supervision.leaves:
        text = f"the supervisor of {job.name} is of an older gcr, and keeps its connection"
        raise UnsupportedState(text, hint="start the job anew; its container needs this version of gcr")


def _refuse_without_socket(pid: int) -> None:
    """Raises UnsupportedState where a process does not see the marks beside our socket."""
    ours, told = socket_path(), environment_of(pid).get("GCR_SOCKET")
    if not told:
        raise UnsupportedState(f"process {pid} has no GCR_SOCKET", hint="start it with gcr run, in the container")
    theirs = Path(told)
    try:
        seen, own = Path(f"/proc/{pid}/root{theirs.parent}").stat(), ours.parent.stat()
    except OSError as error:
        raise _elsewhere(pid, theirs, ours) from error
    if (seen.st_dev, seen.st_ino) != (own.st_dev, own.st_ino) or theirs.name != ours.name:
        raise _elsewhere(pid, theirs, ours)


def _elsewhere(pid: int, theirs: Path, ours: Path) -> UnsupportedState:
    text = f"process {pid} looks for its daemon at {theirs}, and that is not the folder of {ours}"
    return UnsupportedState(text, hint=f"mount the folder {ours.parent} into the container, not the socket alone")
