"""`save_spans`: a training program saves device memory of its own, by its own request, and runs on.

The kernel tells the daemon which process asks, and the daemon saves memory of that process alone: a request cannot
name another. A failure before the copy aside is made (`aside`) costs nothing: the program still has its bytes. A later
failure costs the save.

Spans that the program does not write for a while may be read in place: it runs on from `aside` on, and writes to them
from `safe` on. Its exports stand for the next save (daemon/standing.py).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Timer

from msgspec import Struct

from gcr.api.answers import SpansSaved
from gcr.api.events import ProgressEvent
from gcr.api.jobevents import TEXT, SaveDone, SaveFailed
from gcr.api.requests import SaveNowRequest, SaveSpansRequest
from gcr.daemon import departures, ledger
from gcr.daemon.active import Active
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.transaction import course_of, saying_state, target_of
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job, Save
from gcr.engine import aside
from gcr.engine.node import Course
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import NoSuchJob, UnsupportedState, typed
from gcr.job.process import Process
from gcr.job.states import State
from gcr.memory.memfiles import hold_still
from gcr.peers.worker import WorkerPeer
from gcr.processes import ProcessIdentity
from gcr.protocol.batches import BATCH
from gcr.protocol.operations.operation import Done
from gcr.protocol.operations.worker import CopyName
from gcr.protocol.seqpacket import close_all

RENEW_S = 0.5  # after a save; the driver takes back memory that was released some tenths of a second later
LOOK_S = 0.1  # between looks whether a program that is waited for has left


class Program(Struct, frozen=True):
    """The program that asks. `identity`: its process, as the kernel gives it; `named`: names the memory, once."""

    identity: ProcessIdentity | None
    named: "SimpleQueue[SaveNowRequest]"


def run(
    node: Coordinator, request: SaveSpansRequest, asked: Asked, program: Program
) -> tuple[SpansSaved, Sequence[int]]:
    """Returns, once the bytes are on the host, the answer with its descriptors, which are the caller's.

    Raises NoSuchJob for a process of no job, NotOurs; WrongState beside a command; UnsupportedState, NoRoom.
    """
    job, process = _asking(node, program.identity)
    asked.caller.check_owner(job.owner, f"job {job.name}")
    course = course_of(node, request, asked)
    pid = process.identity.pid
    with (
        _telling(node, job, pid, course, request),
        saying_state(job),
        node.jobs.saving(job, pid) as save,
        ExitStack() as over,
    ):
        done = _copied_aside(node, save, process, course, program, over)
        fds = _drained(node, done, course)
    _renew_later(node, done.copy.worker)
    prepared_s, aside_s, safe_s, drained_s = map(course.since_start, ("prepared", "aside", "safe", "drained"))
    size = sum(done.copy.sizes)
    event = SaveDone(
        job=job.name,
        pid=pid,
        run=request.run,
        step=request.step,
        bytes=size,
        aside_s=aside_s,
        safe_s=safe_s,
        took_s=drained_s,
    )
    node.jobs.history.note(job.owner, event)
    answer = SpansSaved(
        sizes=tuple(done.copy.sizes),
        in_place_bytes=done.copy.in_place,
        prepared_s=prepared_s,
        aside_s=aside_s,
        safe_s=safe_s,
        drained_s=drained_s,
    )
    return answer, fds


@contextmanager
def _telling(node: Coordinator, job: Job, pid: int, course: Course, request: SaveSpansRequest) -> Iterator[None]:
    """Notes an error of a save as an event."""
    try:
        yield
    except Exception as caught:
        error, took_s = typed(caught), time.monotonic() - course.began
        event = SaveFailed(
            job=job.name,
            pid=pid,
            run=request.run,
            step=request.step,
            code=error.code,
            exit=error.exit,
            message=error.message[:TEXT],
            took_s=took_s,
        )
        node.jobs.history.note(job.owner, event)
        ledger.tell(error)
        raise


def _asking(node: Coordinator, who: ProcessIdentity | None) -> tuple[Job, Process]:
    for job in node.jobs.all():
        if who and (process := job.processes.get(who.pid)) and process.identity == who:
            return job, process
    raise NoSuchJob("only a process of a job can have its device memory saved", hint="gcr run")


class Copied(Struct, frozen=True):
    """A copy aside, and the name that the worker has for it."""

    copy: aside.Aside
    name: CopyName


def _copied_aside(
    node: Coordinator,
    save: Save,
    process: Process,
    course: Course,
    program: Program,
    over: ExitStack,
) -> Copied:
    """Copies the spans within their device, reads those that are left in place, and says when they may change.

    `over` gives the copy up, and ends the time of its room.
    """
    job, name = save.job, CopyName(process.hold, course.transaction)
    try:
        expecting = _expect(node, process, name, over)
        with _exported(node, job, process, course) as target:
            course.mark("prepared")
            asked = _named(program, course)
            parts = aside.parts_of(target.books.table, asked.spans, asked.in_place)
            over.enter_context(node.occupying(parts.device))
            if (worker := target.worker(parts.device)) is not expecting:
                over.callback(_forget, worker, name)
            done = aside.copy_aside(target, name, parts, asked.fills, course.left(node.config.drain_s))
            if len(done.sizes) > BATCH:
                text = f"the copy would be in {len(done.sizes)} pieces of host memory, more than {BATCH}"
                raise UnsupportedState(text, hint="fewer spans at a time")
            course.mark("aside")
            course.progress(ProgressEvent(phase="aside", total_bytes=done.in_place))
            if done.in_place:
                course.reach("window")
                done.worker.copies.read_in_place(name, course.left(node.config.drain_s))
            course.mark("safe")
            course.progress(ProgressEvent(phase="safe"))
    except BaseException:
        departures.settle_ends(job)
        raise
    finally:
        if process.state == State.PREPARED:  # its agent is silent; other processes may be in saves of their own
            node.recovery.begin(job)
    node.jobs.copied(save)
    node.jobs.standing.saved(process.identity.pid, done.worker, sum(size for _, size in asked.spans))
    return Copied(done, name)


def _expect(node: Coordinator, process: Process, name: CopyName, over: ExitStack) -> WorkerPeer | None:
    """Has the worker of the last save take room on the host for as large a save, while the agent is asked.

    Returns the worker, which `over` has forget the copy; None where there was no save.
    """
    last = node.jobs.standing.last(process.identity.pid)
    if last is None:
        return None
    over.callback(_forget, last.worker, name)
    quietly("expect a save", partial(last.worker.copies.expect, name, last.owner, last.nbytes))
    return last.worker


def _forget(worker: WorkerPeer, name: CopyName) -> None:
    quietly("forget the copy", partial(worker.copies.forget_copy, name))


@contextmanager
def _exported(node: Coordinator, job: Job, process: Process, course: Course) -> Iterator[Target]:
    """Yields the process with its memory exported, from which a copy is made; the exports stand if that succeeds."""
    standing = node.jobs.standing
    known = standing.of(process)
    target = known or target_of(node, job, process, course.transaction)
    with Active(node.jobs, [target]), Transaction(job.name) as undo:
        undo.push("stand", partial(standing.drop, process))
        took_s = aside.export_more(target, undo) if known else aside.export(target, undo)
        yield target
        if standing.keep(target, took_s):
            undo.commit()
            aside.runs_on(target)


def _named(program: Program, course: Course) -> SaveNowRequest:
    """Waits until the program names the memory; the work on that has ended. Raises Interrupted, DeadlinePassed."""
    while True:
        with suppress(Empty):
            return program.named.get(timeout=course.left(LOOK_S))


def _drained(node: Coordinator, done: Copied, course: Course) -> list[int]:
    """Reads the copy to the host. Returns descriptors to read it by, which keep it as it is."""
    course.reach("reading")
    copies = done.copy.worker.copies
    copies.copy_on(done.name, course.left(node.config.drain_s), _untold)
    course.mark("drained")
    fds = copies.segments(done.name, len(done.copy.sizes))
    held: list[int] = []
    try:
        for fd in fds:
            held.append(hold_still(fd))
    except BaseException:
        close_all(held)
        raise
    finally:
        close_all(fds)
    return held


def _renew_later(node: Coordinator, worker: WorkerPeer) -> None:
    """Has the worker make device memory ready for the next save. At once that would be of no use to it."""
    timer = Timer(RENEW_S, quietly, ("renew the room for saves", partial(_renew, node, worker)))
    timer.daemon = True
    timer.start()


def _renew(node: Coordinator, worker: WorkerPeer) -> None:
    with node.occupying(worker.device):  # a program that finds no room meanwhile tries again
        worker.renew_room()


def _untold(_done: Done) -> None:
    """Tells no progress: the program that saves does not ask for it."""
