"""Draws the plots of a study as SVG, for light and dark pages."""

from collections.abc import Callable, Sequence
from math import log10
from typing import Any

from msgspec import Struct

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 208, 44, 52  # around the field; the names of the lines are on the right
LIGHT = {"ink": "#1f2328", "faint": "#59636e", "line": "#d1d9e0"}
DARK = {"ink": "#e6edf3", "faint": "#9198a1", "line": "#3d444d"}
LIGHT_COLOURS = ("#1a7f37", "#0969da", "#bc4c00", "#8250df", "#cf222e")
DARK_COLOURS = ("#3fb950", "#4493f8", "#db6d28", "#ab7df8", "#f85149")


class Line(Struct, frozen=True):
    """given_up: of each point, whether a cut was given up there, which is drawn hollow"""

    name: str
    points: Sequence[tuple[float, float]]
    given_up: Sequence[bool]
    dashed: bool = False


class Plot(Struct, frozen=True):
    """x is logarithmic. `most`: the upper end of y · percent: y is a share"""

    title: str
    x: str
    xs: Sequence[float]
    most: float
    steps: int
    lines: Sequence[Line]
    percent: bool = False


class Pen(Struct, frozen=True):
    plot: Plot
    ink: dict[str, str]
    colours: Sequence[str]

    def drawn(self) -> str:
        title = self.plot.title
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"'
        parts = [f'{head} font-family="system-ui, sans-serif">', f"<title>{title}</title>"]
        parts += [self._text(LEFT, 24, title, self.ink["ink"], "start", 15), *self._grid()]
        for number, line in enumerate(self.plot.lines):
            parts += self._line(line, self.colours[number % len(self.colours)])
        return "\n".join([*parts, *self._names(), "</svg>", ""])

    def _x(self, value: float) -> float:
        low, high = log10(self.plot.xs[0]), log10(self.plot.xs[-1])
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value / self.plot.most, 1.0) * (HEIGHT - TOP - BOTTOM)

    def _grid(self) -> list[str]:
        parts = []
        for step in range(self.plot.steps + 1):
            value = self.plot.most * step / self.plot.steps
            y, told = self._y(value), f"{value * 100:g} %" if self.plot.percent else f"{value:g}"
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{self.ink["line"]}"/>')
            parts.append(self._text(LEFT - 8, y + 4, told, self.ink["faint"], "end"))
        for value in self.plot.xs:
            parts.append(self._text(self._x(value), HEIGHT - BOTTOM + 20, f"{value:,g}", self.ink["faint"], "middle"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [*parts, self._text(middle, HEIGHT - 10, self.plot.x, self.ink["ink"], "middle")]

    def _line(self, line: Line, colour: str) -> list[str]:
        way = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in line.points)
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts = [f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
        for (x, y), given_up in zip(line.points, line.given_up, strict=True):
            fill = "none" if given_up else colour
            at = f'cx="{self._x(x):.1f}" cy="{self._y(y):.1f}"'
            parts.append(
                f'<circle {at} r="{6 if given_up else 3.5}" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            )
        return parts

    def _names(self) -> list[str]:
        """The names of the lines, in the order in which the lines end, from the top."""
        numbered = sorted(enumerate(self.plot.lines), key=lambda each: -each[1].points[-1][1])
        parts = []
        for place, (number, line) in enumerate(numbered):
            y, colour = TOP + 14 + 26 * place, self.colours[number % len(self.colours)]
            dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
            start = WIDTH - RIGHT + 18
            parts.append(f'<path d="M{start} {y - 4}h22" stroke="{colour}" stroke-width="2"{dashes}/>')
            parts.append(self._text(start + 28, y, line.name, self.ink["ink"], "start"))
        return parts

    @staticmethod
    def _text(x: float, y: float, words: str, colour: str, anchor: str, size: int = 12) -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def drawn(found: dict[str, Any]) -> dict[str, str]:
    """Returns the files, by name, from the results of a study."""
    plots: dict[str, Callable[[dict[str, Any]], Plot]] = {
        "time": _time,
        "messages": _messages,
        "stragglers": _stragglers,
        "deaths": _deaths,
    }
    files = {}
    for name, plotted in plots.items():
        plot = plotted(found)
        files[f"cluster-scale-{name}-light.svg"] = Pen(plot, LIGHT, LIGHT_COLOURS).drawn()
        files[f"cluster-scale-{name}-dark.svg"] = Pen(plot, DARK, DARK_COLOURS).drawn()
    return files


_SIZES = (10, 100, 1000, 10_000)
_NAMES = {
    "growth, 5us": "5 µs a message",
    "growth, 100us": "100 µs a message",
    "growth, 1ms": "1 ms a message",
    "each second, 100us": "100 µs, each second",
    "each second, 1ms": "1 ms, each second",
    "relays, 100us": "100 µs, relays",
    "relays, 1ms": "1 ms, relays",
}


def _time(found: dict[str, Any]) -> Plot:
    series = ("growth, 5us", "growth, 100us", "growth, 1ms", "relays, 100us", "relays, 1ms")
    lines = [_of(found, name, "time_s", _NAMES[name], name.startswith("relays")) for name in series]
    return Plot("Simulated: seconds to a cut (hollow: given up; at the top: more)", "nodes", _SIZES, 12.0, 6, lines)


def _messages(found: dict[str, Any]) -> Plot:
    series = ("growth, 5us", "growth, 100us", "growth, 1ms", "each second, 100us", "each second, 1ms")
    lines = [_of(found, name, "messages_a_node", _NAMES[name], name.startswith("each")) for name in series]
    return Plot("Simulated: messages a node (hollow: given up; at the top: more)", "nodes", _SIZES, 24.0, 6, lines)


def _stragglers(found: dict[str, Any]) -> Plot:
    lines = [_of(found, f"stragglers, {nodes}", "time_s", f"{nodes:,} nodes") for nodes in (100, 1000, 10_000)]
    title = "Simulated: seconds to a cut (hollow: given up)"
    return Plot(title, "share of stragglers", (0.001, 0.01, 0.1), 120.0, 6, lines)


def _deaths(found: dict[str, Any]) -> Plot:
    lines = [_of(found, f"deaths, {nodes}", "given_up", f"{nodes:,} nodes") for nodes in (100, 1000, 10_000)]
    xs = (0.001, 0.01, 0.1, 1.0)
    return Plot("Simulated: cuts given up", "deaths a node and hour", xs, 1.0, 4, lines, percent=True)


def _of(found: dict[str, Any], series: str, what: str, name: str, dashed: bool = False) -> Line:
    rows = [row for row in found["rows"] if row["series"] == series and row["x"] > 0]
    hollow = [what != "given_up" and row["given_up"] > 0.5 for row in rows]
    return Line(name, [(row["x"], row[what]) for row in rows], hollow, dashed)
