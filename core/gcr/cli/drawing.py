"""An image as `gcr inspect` draws it on a terminal."""

from collections.abc import Iterator

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gcr.cli.picture import Row, Section, facts, made, sections
from gcr.image.files.manifest import Manifest

BAR = 30  # columns


def on_terminal(manifest: Manifest, repeated: int, console: Console | None = None) -> str:
    """Text, in colours where stdout shows them."""
    shown = console or Console()
    with shown.capture() as captured:
        shown.print(Group(*_drawn(manifest, repeated)))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def _drawn(manifest: Manifest, repeated: int) -> Iterator[RenderableType]:
    of = f"of job {manifest.source.job}, {made(manifest)}"
    yield Text(f"{manifest.name}  ", style="bold").append(of, style="not bold")
    rows = Table.grid(padding=(0, 2))
    if manifest.source.simulated:
        rows.add_row("", "SIMULATED device")
    for name, what in facts(manifest):
        rows.add_row(name, Text(what))
    yield Padding(rows, (0, 0, 0, 2))
    for section in sections(manifest, repeated):
        yield Padding(Text(f"{section.name}: {section.total.text}", style="bold"), (1, 0, 0, 0))
        yield _bars(section)


def _bars(section: Section) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for row in section.rows:
        table.add_row(row.name, _bar(row), row.aside.text, row.amount.text)
    return Padding(table, (0, 0, 0, 2))


def _bar(row: Row) -> RenderableType:
    return Bar(row.whole, row.begin, row.end, width=BAR, color="cyan") if row.whole else Text("")
