"""Admission: the conditions on every process of a job before anything of it is touched (docs/design.md)."""

from collections import Counter
from collections.abc import Sequence

from gcr.control import ControlMeans, ControlPhase, ProcessView
from gcr.engine.agent_control import AgentControl
from gcr.engine.target import Target
from gcr.errors import DriverError, UnsupportedState, WrongState
from gcr.job.states import State
from gcr.processes import file_access, is_stopped, open_verbs
from gcr.protocol.wire import REFUSED_REASONS, AgentPhase, Reason
from gcr.sharing import gdrcopy

SEEN_FROM_OUTSIDE = frozenset(
    {"uncounted", "nccl", "verbs", "gdrcopy", "mig", "not_permitted", "moved", "deepbind", "orphaned"}
)
"""Reasons that the shim does not report; docs/limitations.md has a section on each, as on each of REFUSED_REASONS."""


def admit(targets: Sequence[Target], whole: bool = False) -> None:
    """Refuses processes that cannot be suspended. Raises WrongState, UnsupportedState; nothing was touched.

    whole: they go into an image, and may end
    """
    for target in targets:
        if target.process.state != State.RUNNING:
            state = target.process.state
            raise WrongState(
                f"job {target.process.job} is {state} already", state=state, hint=f"gcr restore {target.process.job}"
            )
        refuse_stopped(target)
        refuse_moved(target)
        refuse_unsupported(target)
        if whole:
            refuse_as_a_whole(target)


def refuse_moved(target: Target) -> None:
    """Refuses a process with another user or root than before. Raises UnsupportedState.

    On the way back the driver opens its devices anew within the process, and the agent opens the daemon's socket.
    """
    if target.process.file_access and target.process.file_access.differs_from(file_access(target.pid)):
        text = (
            f"process {target.pid} has changed its user or its root directory since it began to use its device: "
            "the driver might not be able to bring it back"
        )
        raise unsupported(text, "moved")


def refuse_stopped(target: Target) -> None:
    """Refuses a stopped process: its agent would be waited for until a deadline. Raises WrongState."""
    if is_stopped(target.pid):
        text = f"process {target.pid} is stopped, by a signal or a debugger, and cannot take part"
        raise WrongState(text, state=target.process.state, hint=f"kill -CONT {target.pid}")


def refuse_unconnected(target: Target) -> None:
    """Refuses a process without a connected agent: no step could reach it. Raises WrongState."""
    if not (target.process.connected or target.process.ended):
        text = f"the agent of process {target.pid} has not connected to this daemon"
        raise WrongState(text, state=target.process.state, hint="the same once more")


def refuse_unsupported(target: Target) -> None:
    """Refuses state that the driver would take and never give back. Raises UnsupportedState, WrongState."""
    if target.look().status.phase != AgentPhase.RUNNING:
        raise WrongState(f"process {target.pid} is in the middle of something; try again")
    for reason in target.books.reports.refusals():
        text = refusal(target.pid, reason, target.books.reports.uncovered()[reason])
        raise unsupported(text, reason_name(reason))
    if verbs := open_verbs(target.pid):
        text = f"process {target.pid} has {verbs[0]} open: a network card may write to its device memory after the cut"
        raise unsupported(text, "verbs")
    for found in gdrcopy(target.pid):
        raise unsupported(f"process {target.pid} {found.detail}", found.reason)


def refuse_as_a_whole(target: Target) -> None:
    """Refuses state that is not known to come back with a process that has ended. Raises UnsupportedState.

    The process must have been looked at.
    """
    for reason in target.books.reports.refusals_of_whole():
        text = f"process {target.pid} {reason.why}, and whether they work after it has ended and come back is not known"
        raise unsupported(text, reason_name(reason))


def refuse_what_the_driver_refuses(targets: Sequence[Target]) -> None:
    """Refuses what only the vendor sees from outside: MIG, an open fabric channel, a process that the driver gave up.

    Raises UnsupportedState, WrongState, DriverError.
    """
    for target in targets:
        refuse_without_means(target.control.means, f"process {target.pid}")
        refuse_what_a_snapshot_loses(target)
        view = target.control.inspect(target.pid)
        if view.phase not in (ControlPhase.RUNNING, ControlPhase.ABSENT):
            raise WrongState(f"process {target.pid} is {view.phase.value} in the driver", state=view.phase.value)
        if view.phase == ControlPhase.ABSENT:
            raise DriverError(f"the driver does not know process {target.pid}")
        refuse_as_inspected(view, heard=True)
        target.books.counts = view.bytes_by_device
        refuse_uncounted(target)
    refuse_crowded_devices(targets)


def refuse_as_inspected(view: ProcessView, heard: bool) -> None:
    """Refuses a process for the first reason that its backend sees. Raises UnsupportedState.

    heard: the process has an agent, which says what it shares; mere signs of that count no more.
    """
    for first in [each for each in view.refusals if not (heard and each.only_unheard)][:1]:
        raise unsupported(f"process {view.pid}: {first.detail}", first.reason, first.hint)


def unsupported(text: str, reason: str, hint: str = "") -> UnsupportedState:
    """Returns a refusal. Without a hint of its own it leads to gcr's page, where that has a section on the reason."""
    told = SEEN_FROM_OUTSIDE | {each.name.lower() for each in REFUSED_REASONS}
    return UnsupportedState(text, hint=hint or (f"docs/limitations.md#{reason}" if reason in told else ""))


def refuse_uncounted(target: Target) -> None:
    """Refuses a device that does not count by process. A context alone has bytes, so every process has some."""
    if not any(target.books.counts.values()) and any(device.covered_bytes for device in target.look().devices):
        text = f"the device does not say how much process {target.pid} has there: whether it is free could not be told"
        raise unsupported(text, "uncounted")


def refuse_without_means(means: ControlMeans, what: str) -> None:
    """Refuses a living process if only an image of the whole process could hold its control state."""
    if means is ControlMeans.PROCESS:
        text = f"{what} cannot give its whole device back: its driver has no call that saves a living process's state"
        raise UnsupportedState(text, hint="the same once more, or --data-only, which leaves the context where it is")


def refuse_nothing_to_move(targets: Sequence[Target]) -> None:
    """Refuses a checkpoint of data alone where no byte can leave: the device would gain nothing.

    The books must know by then what there is. Raises UnsupportedState.
    """
    if any(size for target in targets for size in target.bytes_by_device.values()):
        return
    stays = Counter[Reason]()
    for target in targets:
        stays.update(target.books.reports.uncovered())
    if stays := +stays:
        why = ", ".join(f"{reason_name(reason)}, {size / 2**20:.0f} MiB" for reason, size in stays.items())
        text = f"none of this job's device memory can be moved ({why}), and with --data-only nothing else would be"
        raise UnsupportedState(text, hint="gcr ps, and gcr doctor: is the vendor's runtime too old?")


def refuse_what_a_snapshot_loses(target: Target) -> None:
    """Refuses memory that a process's own snapshot would bring back with other bytes. Raises UnsupportedState."""
    control = target.control
    if not isinstance(control, AgentControl):
        return
    control.refuse_without_snapshots()
    for reason, size in target.books.reports.uncovered().items():
        what = f"{reason_name(reason)}, {size / 2**20:.0f} MiB"
        text = f"a snapshot would bring device memory of process {target.pid}'s runtime back with other bytes ({what})"
        raise UnsupportedState(text, hint="--data-only, which leaves it where it is")


def refuse_crowded_devices(targets: Sequence[Target]) -> None:
    """Refuses two processes of a job on one device: each would keep the other from coming back."""
    users: dict[str, int] = {}
    for target in targets:
        for device in target.books.counts if target.keeps_context else ():
            if device in users:
                both = f"processes {users[device]} and {target.pid}"
                text = f"{both} share device {device}: neither could come back to it"
                raise UnsupportedState(text, hint="--data-only, which leaves the contexts where they are")
            users[device] = target.pid


def refusal(pid: int, reason: Reason, nbytes: int) -> str:
    what = reason.why or f"uses {reason_name(reason)}"
    size = f" ({nbytes / 2**20:.0f} MiB)" if nbytes else ""
    return f"process {pid} {what}{size}. The driver would take this job and could not give it back."


def reason_name(reason: int) -> str:
    return Reason(reason).name.lower() if reason in Reason._value2member_map_ else str(reason)
