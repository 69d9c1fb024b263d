"""Draws the picture of README.md for light and dark pages: `python tools/readme_picture.py docs/pictures`.

The figures are those of docs/benchmarks.md (32 GiB on an H200).
"""

import sys
from pathlib import Path

WIDTH, HEIGHT = 880, 372
PANEL, LEFTS, NAMES = 200, (20, 340, 660), ("running", "suspended", "running again")
GCR_OUT, GCR_BACK, DRIVER_OUT, DRIVER_BACK = 0.70, 0.66, 15.7, 5.4  # seconds
SECOND = 40  # pixels
LIGHT = {
    "ink": "#1f2328",
    "faint": "#59636e",
    "line": "#8c959f",
    "data": "#1a7f37",
    "other": "#9a6700",
    "on": "#ffffff",
}
DARK = {"ink": "#e6edf3", "faint": "#9198a1", "line": "#656c76", "data": "#3fb950", "other": "#d29922", "on": "#0d1117"}


def text(
    x: float, y: float, words: str, colour: str, size: int = 14, anchor: str = "middle", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, line: str, fill: str = "none", dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} rx="6" fill="{fill}" stroke="{line}" stroke-width="1.5"{dashes}/>'


def memory(x: float, y: float, where: str, words: str, full: bool, ink: dict[str, str]) -> list[str]:
    shape = box(x, y, PANEL, 40, ink["data"] if full else ink["line"], ink["data"] if full else "none", dashed=not full)
    inside = text(x + PANEL / 2, y + 25, words, ink["on"] if full else ink["faint"], bold=full)
    return [text(x, y - 7, where, ink["faint"], 12, "start"), shape, inside]


def panel(number: int, ink: dict[str, str]) -> list[str]:
    x, away = LEFTS[number], number == 1
    program = "the same process, waiting" if away else "python serve.py"
    drawn = [text(x + PANEL / 2, 26, NAMES[number], ink["ink"], 16, bold=True), box(x, 42, PANEL, 40, ink["ink"])]
    drawn.append(text(x + PANEL / 2, 67, program, ink["ink"]))
    drawn += memory(x, 114, "GPU memory", "0 B: free for another job" if away else "32 GiB", not away, ink)
    return drawn + memory(x, 184, "host memory, pinned", "32 GiB" if away else "kept ready", away, ink)


def arrow(number: int, command: str, seconds: float, ink: dict[str, str]) -> list[str]:
    begin, end, y = LEFTS[number] + PANEL + 12, LEFTS[number + 1] - 12, 146
    middle = (begin + end) / 2
    shaft = f'<path d="M{begin} {y}H{end - 8}" stroke="{ink["ink"]}" stroke-width="2" fill="none"/>'
    head = f'<path d="M{end - 10} {y - 6}L{end} {y}L{end - 10} {y + 6}z" fill="{ink["ink"]}"/>'
    told = text(middle, y + 24, f"{seconds:.2f} s", ink["data"], 16, bold=True)
    return [shaft, head, text(middle, y - 12, command, ink["ink"], 11), told]


def bar(y: float, name: str, seconds: float, colour: str, ink: dict[str, str]) -> list[str]:
    width = seconds * SECOND
    return [
        text(148, y + 12, name, ink["ink"], 13, "end"),
        f'<rect x="158" y="{y:g}" width="{width:g}" height="15" rx="3" fill="{colour}"/>',
        text(158 + width + 8, y + 12, f"{seconds:.{2 if seconds < 1 else 1}f} s", ink["ink"], 13, "start"),
    ]


def picture(ink: dict[str, str]) -> str:
    drawn = [part for number in range(3) for part in panel(number, ink)]
    drawn += arrow(0, "gcr checkpoint", GCR_OUT, ink) + arrow(1, "gcr restore", GCR_BACK, ink)
    data, other = ink["data"], ink["other"]
    drawn += bar(258, "out: gcr", GCR_OUT, data, ink) + bar(279, "driver alone", DRIVER_OUT, other, ink)
    drawn += bar(312, "back: gcr", GCR_BACK, data, ink) + bar(333, "driver alone", DRIVER_BACK, other, ink)
    what = f"32 GiB off an H200 in {GCR_OUT:.2f} s and back in {GCR_BACK:.2f} s; "
    what += f"the driver alone: {DRIVER_OUT} and {DRIVER_BACK} s"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{what}"'
    return "\n".join([f'{head} font-family="system-ui, sans-serif">', f"<title>{what}</title>", *drawn, "</svg>", ""])


def pictures() -> dict[str, str]:
    """The files, by name."""
    return {"swap-light.svg": picture(LIGHT), "swap-dark.svg": picture(DARK)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in pictures().items():
        (folder / name).write_text(drawn)
