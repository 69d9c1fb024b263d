"""The figures of ranks that share device memory, against the goals: lines of the report's table."""

from collections.abc import Iterator, Mapping
from typing import Any

JUDGED = ("sharing-rates", "sharing-swap", "sharing-handles")
Line = tuple[str, str, str, str]  # what, figure, goal, met


def lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Line]:
    for piece in JUDGED:
        for goal in found.get(piece, {}).get("goals", ()):
            yield f"{piece}: {goal['what']}", f"{goal['value']:.4g}", goal["goal"], _met(goal["met"])
    for kind, row in found.get("sharing-standstill", {}).get("kinds", {}).items():
        if "median_ms" in row:
            text = (
                f"{row['median_ms']:.1f} ms, 99 of 100 within {row['p99_ms']:.1f} ms, {len(row['standstills'])} samples"
            )
            yield f"all ranks of `{kind}` stand still after", text, "<= 30 ms, 1 s", _met(row["met"])
    for piece in ("sharing-heartbeat", "sharing-devices"):
        if piece in found:
            yield f"{piece}: same output as bare, no failure", "", "", _met(found[piece]["ok"])


def _met(met: bool) -> str:
    return "yes" if met else "NO"
