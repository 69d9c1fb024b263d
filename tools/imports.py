"""Draws which folders of core import which: `python tools/imports.py docs/pictures/imports.svg`.

`--core FOLDER --loose` draws another tree, with a box for each module that lies in no folder. An arrow that others
imply is left out. A red arrow goes up: its two ends import each other, directly or by way of others.
"""

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

CORE = Path(__file__).parents[1] / "core" / "gcr"
ROOT = "errors, interfaces"  # and settings: modules in no folder
DOORS = {"__init__", "__main__", "simulated"}  # they start what lies above them
SPLIT = "image"  # its folders are drawn apart
PER_ROW, WIDTH, HEIGHT, ACROSS, DOWN, EDGE = 9, 132, 26, 150, 74, 20
INK, LINE, UP = "#57606a", "#8c959f", "#cf222e"
Graph = Mapping[str, set[str]]


def modules(core: Path) -> dict[str, Path]:
    """Every module by its dotted name without `gcr.`; a folder's own is the folder's name."""
    named = {".".join(path.relative_to(core).with_suffix("").parts): path for path in core.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gcr":
            base = (node.module or "").removeprefix("gcr").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                if found := next((name for name in (inner, base) if name in known), None):
                    yield found


def room(core: Path, name: str, loose: bool) -> str:
    parts = name.split(".")
    own = parts[:2] if parts[0] == SPLIT else parts[:1]
    inside = next((".".join(each) for each in (own, own[:1]) if core.joinpath(*each).is_dir()), None)
    return inside or (name if loose else ROOT)


def rooms(core: Path, loose: bool) -> Graph:
    known = modules(core)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        if name in DOORS:
            continue
        own = room(core, name, loose)
        targets = {room(core, target, loose) for target in imported(path, known) if target not in DOORS}
        graph.setdefault(own, set()).update(targets - {own})
    joined = {name for one in graph for name in (one, *graph[one]) if graph[one]}
    return {name: graph[name] for name in graph if name in joined}


def reach(graph: Graph, start: str) -> set[str]:
    """Everything that a room imports, by way of others too."""
    seen: set[str] = set()
    todo = list(graph.get(start, ()))
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            todo += graph.get(each, ())
    return seen


def drawn(graph: Graph) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Arrows down that no other arrows imply, and arrows of circles."""
    below = {name: reach(graph, name) for name in graph}
    circle = [(one, to) for one in graph for to in graph[one] if one in below.get(to, ())]
    down = [
        (one, to)
        for one in graph
        for to in graph[one]
        if (one, to) not in circle and not any(_implies(below, other, to) for other in graph[one] - {to})
    ]
    return sorted(down), sorted(circle)


def _implies(below: Graph, other: str, to: str) -> bool:
    """One arrow to a circle stands for all."""
    return to in below.get(other, ()) and (other not in below.get(to, ()) or other < to)


def ranks(graph: Graph) -> dict[str, int]:
    """Rows from the bottom: one more than the highest of what a room imports, those of its circle apart."""
    below = {name: reach(graph, name) for name in graph}
    found: dict[str, int] = {}

    def rank(name: str) -> int:
        if name not in found:
            found[name] = 0
            lower = [to for to in below[name] if name not in below.get(to, ())]
            found[name] = max((rank(to) + 1 for to in lower), default=0)
        return found[name]

    for name in sorted(graph):
        rank(name)
    return found


def places(graph: Graph) -> dict[str, tuple[int, int]]:
    """The upper left corner of each box."""
    rank = ranks(graph)
    found: dict[str, tuple[int, int]] = {}
    row = 0
    for height in sorted(set(rank.values()), reverse=True):
        names = sorted(name for name in rank if rank[name] == height)
        for first in range(0, len(names), PER_ROW):
            part = names[first : first + PER_ROW]
            left = (PER_ROW - len(part)) * ACROSS // 2 + EDGE + (row % 2) * 18
            found.update({name: (left + place * ACROSS, EDGE + row * DOWN) for place, name in enumerate(part)})
            row += 1
    return found


def svg(graph: Graph) -> str:
    at = places(graph)
    down, circle = drawn(graph)
    width, height = PER_ROW * ACROSS + 2 * EDGE, max(y for _, y in at.values()) + HEIGHT + EDGE
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for arrows, colour in ((down, LINE), (circle, UP)):
        lines += [_arrow(at[one], at[to], colour) for one, to in arrows]
    lines += [_box(name, *corner) for name, corner in sorted(at.items())]
    return "\n".join([*lines, "</svg>", ""])


def _arrow(start: tuple[int, int], end: tuple[int, int], colour: str) -> str:
    (x, y), (u, v) = start, end
    middle = WIDTH // 2
    ends = f'x1="{x + middle}" y1="{y + HEIGHT // 2}" x2="{u + middle}" y2="{v + HEIGHT // 2}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1"/>'


def _box(name: str, x: int, y: int) -> str:
    size = f'x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"'
    words = f'<text x="{x + WIDTH // 2}" y="{y + 17}" font-size="11" text-anchor="middle" fill="{INK}">{name}</text>'
    return f'<rect {size} rx="4" fill="#f6f8fa" stroke="{LINE}"/>{words}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--core", type=Path, default=CORE)
    parser.add_argument("--loose", action="store_true")
    options = parser.parse_args()
    graph = rooms(options.core, options.loose)
    options.picture.write_text(svg(graph))
    _, circle = drawn(graph)
    print(f"{len(graph)} boxes, {sum(map(len, graph.values()))} arrows, {len(circle)} of them in circles")


if __name__ == "__main__":
    main()
