"""The table of jobs: a line a process. A terminal's width is kept to; a pipe gets everything, on one line each."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from gcr import units
from gcr.cli import text

Row = Mapping[str, Any]

HEAD = ("JOB", "PID", "STATE", "DEVICE", "MEMORY", "COVERED", "AGE", "COMMAND")
LEAST_COMMAND = 8  # columns, below which it is left out
SHORT_UUID = 12  # characters of a device that has no other name yet


def table(jobs: Sequence[Row], width: int | None) -> str:
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


def _rows(job: Row, width: int | None) -> list[tuple[tuple[str, ...], str]]:
    age, command = units.age(units.since(job["started"])), _command(job.get("command") or (), width)
    about = _of_job(job)
    if not job["processes"]:
        cells = (job["job"], str(job["pid"] or "-"), job["state"], "-", "-", "-", age, command)
        return [(cells, ", ".join(about))]
    return [
        ((job["job"], *_cells(process, width), age, command), ", ".join([*about, *_notes(process)]))
        for process in job["processes"]
    ]


def _command(words: Sequence[str], width: int | None) -> str:
    """Returns the command; on a terminal without the folders of the program, since the rest tells jobs apart."""
    named = [PurePath(words[0]).name, *words[1:]] if words and width is not None else words
    return text.printable(" ".join(named)) or "-"


def _of_job(job: Row) -> list[str]:
    """Notes on the job as a whole."""
    became = {"writing": "being written", "failed": "NOT WRITTEN"}
    images = job.get("images") or ([job["image"]] if job.get("image") else [])
    written = [f"image {each['name']} {became[each['state']]}" for each in images if each["state"] in became]
    notes = ["SIMULATED"] * job["simulated"] + written
    notes += [f"in image {job['only_in']['image']} ONLY"] if job.get("only_in") else []
    return [*notes, *_arena(job.get("arena"))]


def _arena(arena: Mapping[str, int] | None) -> list[str]:
    """Returns a note where the job's next checkpoint would have to fill and pin host memory first."""
    if arena is None or arena["ready_bytes"] >= arena["wanted_bytes"]:
        return []
    return [f"arena {text.percent(arena['ready_bytes'] / arena['wanted_bytes'])}"]


def _cells(process: Row, width: int | None) -> tuple[str, ...]:
    share = process["covered_bytes"] / process["bytes"] if process["bytes"] else None
    return (
        str(process["pid"]),
        process["state"],
        device(process, width),
        units.size(process["bytes"]),
        "-" if share is None else text.percent(share),
    )


def device(process: Row, width: int | None) -> str:
    """`nvidia:0`, as `gcr devices` numbers it; the UUID until the daemon has asked the driver for the number."""
    known: str = process.get("label") or process["device"] or "-"
    return known if width is None or process.get("label") else known[:SHORT_UUID]


def _notes(process: Row) -> list[str]:
    """Returns the strategy where data is not handed over, and the reasons why some bytes are not covered."""
    uncovered = process.get("uncovered") or {}
    reasons = [f"{reason} {units.size(count)}" for reason, count in sorted(uncovered.items())]
    return [*(["copyout"] if process.get("strategy") == "copyout" else []), *reasons]
