"""The picture of a run: its saves over time, how long the training waited for them, and the last step by tensor.

A run may have thousands of steps and tensors. So a section has a bounded number of rows, and one for all others.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from gcr import units
from gcr.checkpoints.anatomy import RunAnatomy, SavedStep
from gcr.checkpoints.contents import Saved
from gcr.cli import text
from gcr.cli.picture import Figure, Picture, Row, Section, bytes_of, seconds, when

MOST_ROWS = 40  # of a section, besides the one for all others
_MOST_SAID = 5  # steps that cannot be read

_SAVES = "Bytes of the state, and bytes written for it: what the store did not have."
_STALLS = "Seconds from the call of save: until all bytes were on the host, until they were written, "
_STALLS += "and, with the bar, that the training waited."
_CHANGED = "Bytes changed since step {before:,}, which are {changed} in all, and bytes of each."
_ALONE = "Bytes. There is no step to compare with."


def of_run(run: RunAnatomy) -> Picture:
    last = run.steps[-1]
    about = f"run of a training ({run.backend}), step {last.step:,} saved {when(last.created)}"
    sections = (_saves(run.steps), _stalls(run.steps), _contents(run))
    return Picture("run", run.run, about, False, [*_facts(run)], [each for each in sections if each])


def _facts(run: RunAnatomy) -> Iterator[tuple[str, str]]:
    yield "steps", f"{run.count:,}: {run.first:,}" + (f" to {run.last:,}" if run.count > 1 else "")
    if unread := run.count - len(run.steps) - len({each.step for each in run.damaged} - {s.step for s in run.steps}):
        yield "left out", f"{text.plural(unread, 'earlier step')}, to take no longer"
    for each in run.damaged[-_MOST_SAID:]:
        yield "damaged", f"step {each.step:,}: {each.error}"
    if len(run.damaged) > _MOST_SAID:
        yield "damaged", f"{text.plural(len(run.damaged) - _MOST_SAID, 'earlier step')} as well"
    if run.newest.by_file:
        yield "tensors", f"files stand for them: {run.newest.by_file}"
    if world := run.steps[-1].world:
        yield "saved by", text.plural(world, "rank")
    yield "on disk", f"{units.size(run.bytes_on_disk)} in {text.plural(run.packs, 'pack')}"
    if compressed := [each for each in run.steps if each.bytes_stored < each.bytes_written]:
        yield "compressed", _compressed(compressed)
    yield "chunks", f"up to {units.size(run.chunk_bytes)}"
    yield "written by", ", ".join(f"{name} {version}" for name, version in run.versions.items())


def _compressed(steps: Sequence[SavedStep]) -> str:
    """Says what was compressed of these steps, and to what. It is not the same as on disk: old packs go."""
    written, stored = (sum(getattr(each, name) for each in steps) for name in ("bytes_written", "bytes_stored"))
    of = f"{units.size(written)} of {text.plural(len(steps), 'step')}, the last is {steps[-1].step:,}"
    return f"to {100 * stored / written:.0f} %: {of}"


def _saves(steps: Sequence[SavedStep]) -> Section:
    most, written = max(each.bytes_total for each in steps), sum(each.bytes_written for each in steps)
    earlier, shown = steps[:-MOST_ROWS], steps[-MOST_ROWS:]
    rows = [_save(each, most) for each in shown]
    if earlier:
        total, new = (sum(getattr(each, name) for each in earlier) for name in ("bytes_total", "bytes_written"))
        rows.insert(0, Row("", text.plural(len(earlier), "earlier step"), 0, 0, 0, bytes_of(total), bytes_of(new)))
    return Section("Saves", Figure(written, f"{units.size(written)} written"), rows, _SAVES)


def _save(step: SavedStep, most: int) -> Row:
    total, written = step.bytes_total, min(step.bytes_written, step.bytes_total)
    name = f"{step.step:,}  {when(step.created)}"
    return Row("written", name, 0, written, most, bytes_of(total), bytes_of(step.bytes_written), rest=total)


def _stalls(steps: Sequence[SavedStep]) -> Section | None:
    """Returns None where no save has noted how long it took, or how long the training waited."""
    timed = [each for each in steps if "returned" in each.timings]
    if not timed:
        return None
    most, total = max(map(_waited, timed)), sum(map(_waited, timed))
    earlier, shown = timed[:-MOST_ROWS], timed[-MOST_ROWS:]
    rows = [_stall(f"{each.step:,}", [each], most) for each in shown]
    if earlier:
        rows.insert(0, _stall(f"mean of {text.plural(len(earlier), 'earlier step')}", earlier, most))
    return Section("Stalls", Figure(total, f"{seconds(total).text} in all"), rows, _STALLS)


def _stall(name: str, steps: Sequence[SavedStep], most: float) -> Row:
    waited, drained, written = sum(map(_waited, steps)) / len(steps), _mean(steps, "drained"), _mean(steps, "written")
    return Row("", name, 0, waited, most, seconds(drained), seconds(waited), between=seconds(written))


def _waited(step: SavedStep) -> float:
    """Returns for how long `save`, and steps of optimizers because of it, have held up the training."""
    return step.timings["returned"] + step.timings.get("held", 0.0)


def _mean(steps: Sequence[SavedStep], mark: str) -> float:
    found = [each.timings[mark] for each in steps if mark in each.timings]
    return sum(found) / len(found) if found else 0.0


def _contents(run: RunAnatomy) -> Section:
    found, before = run.newest.contents, run.newest.before
    most = max((each.bytes for each in found), default=0)
    rows = [_row(each.name, [each], most) for each in found[:MOST_ROWS]]
    if rest := [*islice(found, MOST_ROWS, None)]:
        rows.append(_row(f"{len(rest):,} others", rest, 0))
    name = "Files" if run.newest.by_file else "Tensors"
    changed = units.size(sum(each.bytes_changed or 0 for each in found))
    note = _ALONE if before is None else _CHANGED.format(before=before, changed=changed)
    total = sum(each.bytes for each in found)
    return Section(name, Figure(total, f"{units.size(total)}, step {run.newest.step:,}"), rows, note)


def _row(name: str, items: Sequence[Saved], most: int) -> Row:
    total, changed = sum(each.bytes for each in items), sum(each.bytes_changed or 0 for each in items)
    compared = all(each.bytes_changed is not None for each in items)
    aside = bytes_of(changed) if compared else Figure(0, "")
    return Row("changed", name, 0, changed if most else 0, most, aside, bytes_of(total), rest=total if most else 0)
