"""Judges a victim's run: all conditions are stated here, and the verdict follows from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from victims import Victim, Wanted

COVERED_SHARE = 0.99  # of device bytes, at least
INFLATION = 0.03  # of the device's own count, at most
UNSUPPORTED = "unsupported_state"
Result = Mapping[str, Any]


def faults(victim: Victim, run: Result) -> list[str]:
    """Returns the faults: another result than bare, a failed swap, a checkpoint that should have been refused."""
    if failed := run.get("failed"):
        return [f"{failed}{_first(run['gcr']['errors'])}"]
    return [*_of_output(run), *_of_swaps(victim, run)]


def shortfalls(run: Result) -> list[str]:
    """Goals that are missed by a program which works."""
    found = []
    if (share := covered_share(run)) is not None and share < COVERED_SHARE:
        found.append(f"covered {share:.3f} instead of {COVERED_SHARE}")
    if (more := inflation(run)) is not None and more > INFLATION:
        found.append(f"{more:.1%} more device memory instead of {INFLATION:.0%}")
    if left := [swap["out_vram_after_bytes"] for swap in run["gcr"]["swaps"] if swap["out_vram_after_bytes"]]:
        found.append(f"the device counted up to {max(left)} bytes still, after {len(left)} checkpoints")
    return found


def verdict(victim: Victim, run: Result | None) -> str:
    if run is None:
        return "not run"
    if found := faults(victim, run):
        return f"NO: {'; '.join(found)}"
    how = "swapped, same output" if run["gcr"]["swaps"] else "refused, runs as bare"
    return "; ".join([how, *shortfalls(run)])


def _of_output(run: Result) -> Iterator[str]:
    for where in ("bare", "gcr"):
        if code := run[where]["exit"]:
            yield f"{where}: exit code {code}"
    if run["difference"]:
        yield f"output differs in {run['difference']}"


def _of_swaps(victim: Victim, run: Result) -> Iterator[str]:
    swaps, errors, wanted = run["gcr"]["swaps"], run["gcr"]["errors"], run["swaps_wanted"]
    refused = bool(errors) and not swaps and all(map(is_refusal, errors))
    if victim.wanted is Wanted.REFUSED and not refused:
        yield f"not refused: {len(swaps)} swaps{_first(errors)}"
    elif victim.wanted is Wanted.SWAPPED and (len(swaps) < wanted or errors):
        yield f"{len(swaps)} of {wanted} swaps{_first(errors)}"


def is_refusal(error: Result) -> bool:
    """Returns True if the program was refused for its kind, untouched."""
    return (error["during"], error["code"], error["state"]) == ("checkpoint", UNSUPPORTED, "running")


def _first(errors: Sequence[Result]) -> str:
    return f", {errors[0]['during']}: {errors[0]['code']}: {errors[0]['message']}" if errors else ""


def covered_share(run: Result) -> float | None:
    """The least of all swaps; None where nothing was swapped, or there was nothing to cover."""
    shares = [
        swap["covered_bytes"] / whole
        for swap in run["gcr"]["swaps"]
        if (whole := swap["covered_bytes"] + sum(swap["uncovered"].values()))
    ]
    return min(shares, default=None)


def inflation(run: Result) -> float | None:
    """Returns the share of bytes that the device counts for the program beyond bare, before the first step."""
    bare = run["bare"]["held_bytes"]
    return run["gcr"]["held_bytes"] / bare - 1 if bare else None
