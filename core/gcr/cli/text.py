"""Rates, times and tables as people read them."""

import shutil
import sys
from collections.abc import Sequence


def rate(bytes_per_s: float) -> str:
    """Decimal, as links are quoted: `54.1 GB/s`."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.1f} MB/s"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word if count == 1 else word + 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return columns([head, *rows])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Aligned left, two spaces apart, no trailing blanks."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def printable(text: str) -> str:
    """Returns the text on one line, without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def width() -> int | None:
    """Columns of the terminal that stdout is; None where something else reads it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cut(line: str, most: int | None) -> str:
    return line if most is None or len(line) <= most else line[: max(0, most - 1)] + "…"
