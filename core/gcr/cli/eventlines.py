"""A job event as a line for people."""

from datetime import datetime

from gcr import units
from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent
from gcr.cli import text
from gcr.errors import Lost, Refused, RolledBack

_JOB = 16  # columns
_ENDS = {Refused.exit: "refused", RolledBack.exit: "failed and rolled back", Lost.exit: "failed, and the job is lost"}


def render(event: AnyEvent) -> str:
    """Returns the local time, the job, and what happened."""
    when = datetime.fromisoformat(event.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return text.printable(f"{when}  {getattr(event, 'job', '-'):<{_JOB}}  {_said(event)}")


def _said(event: AnyEvent) -> str:
    match event:
        case jobevents.DaemonStarted():
            return f"daemon started, pid {event.pid}, gcr {event.version}"
        case jobevents.EventsMissed():
            return f"{text.plural(event.count, 'earlier event')} no longer known"
        case jobevents.JobRegistered():
            return f"job registered{', SIMULATED' * event.simulated}"
        case jobevents.JobEnded():
            return f"job ended{_unless_running(event.state)}"
        case jobevents.JobReleased():
            return "runs without gcr again"
        case jobevents.SupervisorGone():
            return "its gcr run has died; the daemon looks after the job"
        case jobevents.JobRecovered():
            return f"recovered, {event.state}: {event.action}"
        case jobevents.ProcessAttached():
            return f"process {event.pid} attached, {event.backend}"
        case jobevents.ProcessEnded():
            return f"process {event.pid} ended{_unless_running(event.state)}"
        case jobevents.ImageWritten():
            written = units.size(event.bytes_written)
            return f"image {event.image} durable in {text.seconds(event.durable_s)}, {written} written"
        case jobevents.ImageFailed():
            return f"image {event.image} not written: {event.code}: {event.message}"
        case jobevents.SaveDone():
            size, ran_on = units.size(event.bytes), text.seconds(event.aside_s)
            return f"save done: {size} of {event.of} in {text.seconds(event.took_s)}, ran on after {ran_on}"
        case jobevents.SaveFailed():
            ends = _ENDS.get(event.exit, "failed")
            return f"save of {event.of} {ends}: {event.code}: {event.message}"
        case jobevents.ImagesRemoved() | jobevents.RemovalFailed():
            return _of_removal(event)
        case _:
            return _of_command(event)


def _of_removal(event: jobevents.ImagesRemoved | jobevents.RemovalFailed) -> str:
    more = f" and {event.count - len(event.images)} more" if event.count > len(event.images) else ""
    which = f"{', '.join(event.images) or 'no image'}{more}"
    if isinstance(event, jobevents.RemovalFailed):
        return f"{event.command} of {which} {_ENDS.get(event.exit, 'failed')}: {event.code}: {event.message}"
    return f"{event.command}: {which} removed, {units.size(event.bytes_freed)} free, {text.seconds(event.took_s)}"


def _of_command(event: jobevents.CommandEvent) -> str:
    what = jobevents.command_of(event)
    match event:
        case jobevents.BegunEvent():
            return f"{what} begun{_image(event.image)}; asked by {event.by}"
        case jobevents.DoneEvent():
            return f"{what} done, {event.state}: {', '.join(_facts(event))}"
        case jobevents.FailedEvent():
            how = _ENDS.get(event.exit, "failed")
            left = f", {event.state}" if event.state else ""
            return f"{what} {how}{left}: {event.code}: {event.message}"
        case _:
            return what


def _facts(event: jobevents.DoneEvent) -> list[str]:
    found = [f"{units.size(event.bytes)} in {text.seconds(event.took_s)}"]
    if isinstance(event, jobevents.CheckpointDone):
        found.append(f"stopped {text.seconds(event.stop_s)}")
    if isinstance(event, jobevents.CheckpointDone | jobevents.RestoreDone) and event.bytes_per_s:
        found.append(text.rate(event.bytes_per_s))
    if isinstance(event, jobevents.CheckpointDone) and event.image:
        found.append(f"image {event.image}")
    if isinstance(event, jobevents.RestoreDone):
        found += [f"{old} ▸ {new}" for old, new in event.moved.items()]
    return [*found, *["SIMULATED"] * event.simulated]


def _image(name: str | None) -> str:
    return f", image {name}" if name else ""


def _unless_running(state: str) -> str:
    return "" if state in ("running", "exited") else f", {state}"
