"""Results that were judged when they were made: lines of the report's table."""

from collections.abc import Iterator, Mapping
from typing import Any

Line = tuple[str, str, str, str]  # what, figure, goal, met


def lines(found: Mapping[str, Any]) -> Iterator[Line]:
    for piece, result in found.items():
        for goal in result.get("goals", ()) if isinstance(result, Mapping) else ():
            yield f"{piece}: {goal['what']}", f"{goal['value']:.4g}", goal["goal"], _met(goal["met"])
    for kind, row in found.get("sharing-standstill", {}).get("kinds", {}).items():
        if "median_ms" in row:
            text = (
                f"{row['median_ms']:.1f} ms, 99 of 100 within {row['p99_ms']:.1f} ms, {len(row['standstills'])} samples"
            )
            most = f"<= {row.get('most_median_ms', 30.0):.0f} ms, 1 s"
            yield f"all ranks of `{kind}` stand still after", text, most, _met(row["met"])
    for piece in ("sharing-heartbeat", "sharing-devices"):
        if piece in found:
            yield f"{piece}: same output as bare, no failure", "", "", _met(found[piece]["ok"])


def _met(met: bool) -> str:
    return "yes" if met else "NO"
