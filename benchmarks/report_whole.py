"""The figures of whole processes, against the goals: lines of the report's table."""

from collections.abc import Iterator, Mapping
from typing import Any

GB = 1e9
Row = Mapping[str, Any]
Line = tuple[str, str, str, str]  # what, figure, goal, met


def lines(found: Mapping[str, Row]) -> Iterator[Line]:
    for size in (8, 32):
        if row := found.get(f"whole-{size}"):
            yield from _of(f"{size} GiB", row)
    if (ours := found.get("whole-8")) and (theirs := found.get("criu-8")):
        yield from _beside(ours, theirs)
    if (ours := found.get("whole-context")) and (theirs := found.get("criu-8") or found.get("criu-context")):
        yield from _pages_alone(ours, theirs["context"])


def _of(size: str, row: Row) -> Iterator[Line]:
    generations = row["generations"]
    right = sum(each["right"] for each in generations)
    yield f"{size} and processes: generations that came back right", f"{right} of {len(generations)}", "all", ""
    for each in generations:
        out = each["out"]
        text = f"{each['gone_s']:.2f} s; {out['bytes_written'] / GB:.2f} of {out['bytes_total'] / GB:.2f} GB written"
        yield f"{size} and processes: stop, durable", text, "", ""
        yield f"{size} and processes: restore to the first right answer, {each['way']}", _shares(each), "", ""
    if len(generations) > 1:
        out = generations[1]["out"]
        share = out["bytes_written"] / out["bytes_total"]
        yield f"{size} and processes: second image, 1 % changed", f"{share:.1%}", "<= 5 %", _met(share <= 0.05)


def _shares(each: Row) -> str:
    """Returns the seconds of a restore, and its parts."""
    back = each["back"]
    processes, phases = back["processes_s"], back["phases_s"]
    parts = {
        "memory of the host": processes["brought"],
        "processes": processes["made"] - processes["brought"],
        "device": phases["loaded"],
        "control": phases["back"] - phases["loaded"],
    }
    told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    return f"{each['answered_s']:.2f} s ({told})"


def _beside(ours: Row, theirs: Row) -> Iterator[Line]:
    """Compares with CRIU and the driver's own checkpoint of the same program in the same run."""
    whole, first = theirs["8 GiB"], ours["generations"][0]
    cached, cold = (next(each for each in ours["generations"] if each["way"] == way) for way in ("page cache", "cold"))
    yield _half("stop, durable, the first image", first["gone_s"], whole["page cache"]["synced_s"], "durable as well")
    yield _half("the same", first["gone_s"], whole["page cache"]["out_s"], "in the page cache alone")
    for each in (cached, cold):
        yield _half(f"restore, {each['way']}", each["answered_s"], whole[each["way"]]["answered_s"], each["way"])
    out, back = first["out"]["phases_s"], cached["back"]["phases_s"]
    yield _share("device and control, out", out["vram_free"] - out["prepared"], whole["page cache"]["out_s"], 5)
    yield _share("device and control, in", back["back"] - back["room"], whole["page cache"]["answered_s"], 5)
    pages, alone = _pages(out), theirs["context"]["page cache"]
    yield _share("host pages, out, durable, of CRIU's with the context", pages, alone["synced_s"], 1)
    yield _share(
        "host pages, in, of CRIU's with the context", cached["back"]["processes_s"]["made"], alone["answered_s"], 1
    )


def _pages_alone(ours: Row, theirs: Row) -> Iterator[Line]:
    """Compares the pages of the host and the context where there is hardly any device memory."""
    first, cached = ours["generations"][0], next(each for each in ours["generations"] if each["way"] == "page cache")
    out, back = theirs["page cache"]["synced_s"], theirs["page cache"]["answered_s"]
    yield _share("context alone: host pages, out, durable", _pages(first["out"]["phases_s"]), out, 1)
    yield _share("context alone: host pages, in, page cache", cached["back"]["processes_s"]["made"], back, 1)
    yield _share("context alone: stop, durable", first["gone_s"], out, 1)
    yield _share("context alone: restore to the first right answer, page cache", cached["answered_s"], back, 1)


def _pages(out: Row) -> float:
    """Returns the seconds that a stop takes for the host's pages: CRIU's own, and those after the device's bytes."""
    return float(out["dumped"] - out["left"] + out["published"] - max(out["held"], out["dumped"]))


def _half(what: str, ours: float, theirs: float, way: str) -> Line:
    return _share(f"8 GiB, {what}, beside CRIU with its plugin, {way}", ours, theirs, 2)


def _share(what: str, ours: float, theirs: float, part: int) -> Line:
    share = ours / theirs
    return what, f"{ours:.2f} of {theirs:.2f} s: {share:.2f}", f"<= 1/{part}", _met(share <= 1 / part)


def _met(met: bool) -> str:
    return "yes" if met else "NO"
