"""An image as `gcr inspect` draws it, on a terminal or as a page for a browser: the same picture, by rich."""

import io
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gcr.cli import text
from gcr.image.anatomy import bytes_by_device, origins, phases, size_classes
from gcr.image.manifest import Manifest

WIDTH = 100  # columns, where nobody says how many there are
BAR = 30
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{{stylesheet}}
body {{{{ color: {{foreground}}; background-color: {{background}}; margin: 2rem; }}}}
pre {{{{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; line-height: 1.25; }}}}
</style>
</head>
<body><pre><code>{{code}}</code></pre></body>
</html>
"""


def on_terminal(manifest: Manifest, console: Console | None = None) -> str:
    """Text, in colours where stdout shows them."""
    shown = console or Console()
    with shown.capture() as captured:
        shown.print(_drawn(manifest))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def as_page(manifest: Manifest) -> str:
    """HTML that needs no other file."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(_drawn(manifest))
    title = f"gcr: image {manifest.name}"  # a name that may be one has nothing to escape
    return console.export_html(code_format=PAGE.format(title=title))


def _drawn(manifest: Manifest) -> RenderableType:
    parts = (_facts(manifest), _sizes(manifest), _origins(manifest), _timeline(manifest))
    return Group(*(part for found in parts for part in found))


def _facts(manifest: Manifest) -> Iterator[RenderableType]:
    made = datetime.fromtimestamp(manifest.created).strftime("%Y-%m-%d %H:%M:%S")
    yield Text(f"{manifest.name}  ", style="bold").append(f"of job {manifest.job}, {made}", style="not bold")
    rows = Table.grid(padding=(0, 2))
    if manifest.simulated:
        rows.add_row("", "SIMULATED device")
    rows.add_row("cut", manifest.cut.value)
    pids = ", ".join(str(process.table.pid) for process in manifest.processes)
    rows.add_row("processes", f"{pids} ({manifest.backend})")
    for device, size in bytes_by_device(manifest).items():
        rows.add_row("device", f"{manifest.models.get(device, '?')}, {device}: {text.size(size)}")
    rows.add_row("parent", manifest.parent or "none")
    rows.add_row("written by", ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    yield Padding(rows, (0, 0, 0, 2))


def _sizes(manifest: Manifest) -> Iterator[RenderableType]:
    classes = size_classes(manifest)
    yield _title("Allocations", sum(each.count for each in classes))
    most = max((each.bytes for each in classes), default=0)
    rows = [
        (f"up to {text.size(each.limit)}", _bar(0, each.bytes, most), f"{each.count:,}", text.size(each.bytes))
        for each in classes
    ]
    yield _table(rows)


def _origins(manifest: Manifest) -> Iterator[RenderableType]:
    total = manifest.bytes_total
    yield _title("Bytes", text.size(total))
    meaning = {"zero": "zero, stored nowhere", "shared": "shared, stored before", "written": "written for this image"}
    named = {meaning[name]: size for name, size in origins(manifest).items()}
    if manifest.bytes_changed is not None:
        named[f"changed since {manifest.parent}"] = manifest.bytes_changed
    yield _table([(name, _bar(0, size, total), _share(size, total), text.size(size)) for name, size in named.items()])


def _timeline(manifest: Manifest) -> Iterator[RenderableType]:
    found = phases(manifest)
    if not found:
        return
    end = max(phase.end for phase in found)
    yield _title("Checkpoint", text.seconds(end))
    yield _table(
        [(each.name, _bar(each.begin, each.end, end), text.seconds(each.end - each.begin), "") for each in found]
    )


def _title(name: str, of: object) -> RenderableType:
    return Padding(Text(f"{name}: {of}", style="bold"), (1, 0, 0, 0))


def _share(size: int, total: int) -> str:
    return text.percent(size / total) if total else ""


def _bar(begin: float, end: float, whole: float) -> RenderableType:
    return Bar(whole or 1, begin, end, width=BAR, color="cyan") if whole else Text("")


def _table(rows: Sequence[tuple[RenderableType, ...]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 2))
