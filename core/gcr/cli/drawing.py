"""A picture as `gcr inspect` draws it on a terminal."""

import math
from collections.abc import Iterator

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gcr.cli.picture import Picture, Row, Section

BAR = 30  # columns, where names leave them
_LEAST_BAR, _LEAST_NAME = 10, 12


def on_terminal(picture: Picture) -> str:
    """Text, in colours where stdout shows them."""
    shown = Console()
    with shown.capture() as captured:
        shown.print(Group(*_drawn(picture, shown)))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def _drawn(picture: Picture, console: Console) -> Iterator[RenderableType]:
    yield Text(f"{picture.name}  ", style="bold").append(picture.about, style="not bold")
    rows = Table.grid(padding=(0, 2))
    if picture.is_simulated:
        rows.add_row("", "SIMULATED device")
    for name, what in picture.facts:
        rows.add_row(name, Text(what))
    yield Padding(rows, (0, 0, 0, 2))
    for section in picture.sections:
        yield Padding(Text(f"{section.name}: {section.total.text}", style="bold"), (1, 0, 0, 0))
        if section.note:
            yield Padding(Text(section.note, style="dim"), (0, 0, 0, 2))
        yield _bars(section, console.width)


def _bars(section: Section, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    figures = [[each.text for each in (row.aside, row.between, row.amount) if each] for row in section.rows]
    columns = [max(map(len, column)) for column in zip(*figures, strict=True)]
    for number in range(2 + len(columns)):
        table.add_column(justify="left" if number < 2 else "right", no_wrap=True)
    room = width - 2 - 2 * (1 + len(columns)) - sum(columns)  # for name and bar
    bar = min(BAR, max(_LEAST_BAR, room - max((len(row.name) for row in section.rows), default=0)))
    for row, shown in zip(section.rows, figures, strict=True):
        table.add_row(Text(_end_of(row.name, max(_LEAST_NAME, room - bar))), _bar(row, bar), *shown)
    return Padding(table, (0, 0, 0, 2))


def _end_of(name: str, most: int) -> str:
    """Names of tensors that are alike differ at their ends."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _bar(row: Row, width: int) -> RenderableType:
    if not row.whole:
        return Text("")
    if row.rest is None:
        return Bar(row.whole, row.begin, row.end, width=width, color="cyan")
    first, both = (math.ceil(width * end / row.whole) for end in (row.end, row.rest))
    return Text("█" * first, style="cyan").append("░" * (both - first))
