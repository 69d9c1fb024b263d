"""The table of jobs: a line a process. A terminal's width is kept to; a pipe gets everything, on one line each."""

from collections.abc import Sequence
from pathlib import PurePath

from gcr import units
from gcr.api.listings import ArenaReady, JobInfo, ProcessInfo, SharedMemory
from gcr.cli import text

HEAD = ("JOB", "PID", "STATE", "DEVICE", "MEMORY", "COVERED", "AGE", "COMMAND")
LEAST_COMMAND = 8  # columns, below which it is left out
SHORT_UUID = 12  # characters of a device that has no other name yet


def table(jobs: Sequence[JobInfo], width: int | None) -> str:
    """`width`: columns of the terminal, None for a pipe: then the notes are a column, else lines of their own."""
    rows = [(cells, notes) for job in jobs for cells, notes in _rows(job, width)]
    if width is None:
        return text.table(
            (*HEAD[:-1], "NOTES", HEAD[-1]), [(*cells[:-1], notes or "-", cells[-1]) for cells, notes in rows]
        )
    lines = text.columns([HEAD, *(cells for cells, _ in rows)]).splitlines()
    lines = _narrowed(lines, width)
    found = [lines[0]]
    for line, (_, notes) in zip(lines[1:], rows, strict=True):
        found += [line, text.cut(f"  {notes}", width)] if notes else [line]
    return "\n".join(found)


def _narrowed(lines: Sequence[str], width: int) -> list[str]:
    """Cuts the last column, the command; leaves it out if too little of it could be seen."""
    at = lines[0].rindex(HEAD[-1])
    if width - at < LEAST_COMMAND:
        return [text.cut(line[:at].rstrip(), width) for line in lines]
    return [text.cut(line, width) for line in lines]


def _rows(job: JobInfo, width: int | None) -> list[tuple[tuple[str, ...], str]]:
    age, command = units.age(units.since(job.started)), _command(job.command, width)
    about = _of_job(job)
    if not job.processes:
        cells = (job.job, str(job.pid or "-"), job.state, "-", "-", "-", age, command)
        return [(cells, ", ".join(about))]
    return [
        ((job.job, *_cells(process, width), age, command), ", ".join([*about, *_notes(process)]))
        for process in job.processes
    ]


def _command(words: Sequence[str], width: int | None) -> str:
    """Returns the command; on a terminal without the folders of the program, since the rest tells jobs apart."""
    named = [PurePath(words[0]).name, *words[1:]] if words and width is not None else words
    return text.printable(" ".join(named)) or "-"


def _of_job(job: JobInfo) -> list[str]:
    """Notes on the job as a whole."""
    became = {"writing": "being written", "failed": "NOT WRITTEN"}
    written = [f"image {each.name} {became[each.state]}" for each in job.images if each.state in became]
    notes = ["SIMULATED"] * job.simulated + written
    notes += [f"in image {job.only_in.image} ONLY"] if job.only_in else []
    return [*notes, *_arena(job.arena)]


def _arena(arena: ArenaReady | None) -> list[str]:
    """Returns a note where the job's next checkpoint would have to fill and pin host memory first."""
    if arena is None or arena.ready_bytes >= arena.wanted_bytes:
        return []
    return [f"arena {text.percent(arena.ready_bytes / arena.wanted_bytes)}"]


def _cells(process: ProcessInfo, width: int | None) -> tuple[str, ...]:
    share = process.covered_bytes / process.bytes if process.bytes else None
    return (
        str(process.pid),
        process.state,
        device(process, width),
        units.size(process.bytes),
        "-" if share is None else text.percent(share),
    )


def device(process: ProcessInfo, width: int | None) -> str:
    """`nvidia:0`, as `gcr devices` numbers it; the UUID until the daemon has asked the driver for the number."""
    known = process.label or process.device or "-"
    return known if width is None or process.label else known[:SHORT_UUID]


def _notes(process: ProcessInfo) -> list[str]:
    """Returns what is resident, the strategy where data is not handed over, and the reasons for uncovered bytes."""
    reasons = [
        f"{reason} {units.size(count)}" if count else reason for reason, count in sorted(process.uncovered.items())
    ]
    there = [f"{units.size(process.resident_bytes)} on the device"] if process.resident_bytes else []
    how = ["copyout"] if process.strategy == "copyout" else []
    return [*there, *how, *reasons, *map(_shared, process.shared)]


def _shared(memory: SharedMemory) -> str:
    other = memory.pid if memory.pid is not None else "a process that has ended"
    return (
        f"holds {units.size(memory.bytes)} of {other}"
        if memory.owner
        else f"{units.size(memory.bytes)} held by {other}"
    )
