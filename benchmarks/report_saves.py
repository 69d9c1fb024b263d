"""Lines of the report about saves of a training's tensors, against the goals."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

MS = 1e3
GB = 1e9
DCP = ("async_save", "async_pinned")
Line = tuple[str, str, str, str]  # what, figure, goal, met


def lines(found: Mapping[str, Any]) -> Iterator[Line]:
    if ways := {**found.get("saves", {}), **found.get("saves-others", {})}:
        yield from _saves(ways)
    for name, section in _SECTIONS.items():
        if name in found:
            yield from section(found[name])


def _saves(row: Mapping[str, Any]) -> Iterator[Line]:
    for way, of_way in row.items():
        if failed := of_way.get("failed"):
            yield f"a save blocks the training: {way}", failed, "", ""
            continue
        text = f"{_blocked(of_way) * MS:.1f} ms, durable after {_of(of_way, 'done_s'):.1f} s"
        yield f"a save blocks the training: {way}", text, "", ""
    if "copy" in row:
        yield from _copy(row["copy"], [_blocked(row[way]) for way in DCP if "saves" in row.get(way, {})])
    if "window" in row:
        yield from _window(row["window"])


def _window(window: Mapping[str, Any]) -> Iterator[Line]:
    otherwise = [f"{save['way']}: {save['why']}" for save in window["saves"] if save["way"] != "window"]
    yield "saves by window that went another way", f"{len(otherwise)} {otherwise[:1] or ''}", "0", _met(not otherwise)
    took = _blocked(window)
    yield "a save by window blocks", f"{took * MS:.1f} ms", "<= 5 ms", _met(took <= 0.005)
    yield "… and then a step waits", f"{_of(window, 'waited_s') * MS:.1f} ms", "", ""
    if loads := window.get("loads"):
        yield (
            "loads of a window with a wrong byte",
            f"{0 if loads['bytes_right'] else 1}",
            "0",
            _met(loads["bytes_right"]),
        )


def _copy(copy: Mapping[str, Any], others: Sequence[float]) -> Iterator[Line]:
    staged = [save["why"] for save in copy["saves"] if save["way"] != "copy"]
    yield "saves by copy that were staged instead", f"{len(staged)} {staged[:1] or ''}", "0", _met(not staged)
    took = _blocked(copy)
    yield "a save by copy blocks", f"{took * MS:.1f} ms", "<= 30 ms", _met(took <= 0.030)
    if others:
        ratio = took / min(others)
        yield "… to the best of DCP", f"{ratio:.4f}", "<= 0.1", _met(ratio <= 0.1)
    for name, most in (("step_s", 0.01), ("step_p99_s", 0.03)):
        slower = median([save[name] / save["undisturbed_s"] for save in copy["saves"]]) - 1
        yield f"steps while a save drains, slower by ({name})", f"{slower:.4f}", f"<= {most}", _met(slower <= most)
    locked = max(save["grown_bytes"][name] for save in copy["saves"] for name in ("VmLck", "VmPin"))
    yield "host memory that the trainer pins for it", f"{locked} B", "0", _met(locked <= 0)
    yield from _loads(copy)


def _loads(copy: Mapping[str, Any]) -> Iterator[Line]:
    if loads := copy.get("loads"):
        for name, plain in (("warm_s", "plain_warm_read_bytes_per_s"), ("cold_s", "plain_read_bytes_per_s")):
            share = loads["bytes"] / loads[name] / loads[plain]
            yield f"load to the device, {name}, of a plain reader's rate", f"{share:.2f}", ">= 0.9", _met(share >= 0.9)
        yield "loads with a wrong byte", f"{0 if loads['bytes_right'] else 1}", "0", _met(loads["bytes_right"])


def _every(row: Mapping[str, Any]) -> Iterator[Line]:
    text = f"{row['slowdown']:.4f}; {row['saved']} of {row['steps']} steps, {row['written_bytes_per_s'] / GB:.2f} GB/s"
    yield "training with a save a step is slower by", text, "< 0.03", _met(row["slowdown"] < 0.03)
    yield "… writes of a plain writer's rate", f"{row['share']:.2f}", ">= 0.9", _met(row["share"] >= 0.9)


def _pccheck(row: Mapping[str, Any]) -> Iterator[Line]:
    text = f"{row['slowdown']:.4f}; {row['saved']} of {row['steps']} steps, {row['written_bytes_per_s'] / GB:.2f} GB/s"
    yield "the same by PCcheck's method: slower by", text, "", ""


def _trained(row: Mapping[str, Any]) -> Iterator[Line]:
    share = row["share"]
    yield "second save, a hundredth trained: bytes of the first's", f"{share:.4f}", "<= 0.02", _met(share <= 0.02)


def _blocked(of_way: Mapping[str, Any]) -> float:
    return _of(of_way, "call_s")


def _of(of_way: Mapping[str, Any], name: str) -> float:
    return median([float(save[name]) for save in of_way["saves"]])


def _met(so: bool) -> str:
    return "yes" if so else "NO"


_SECTIONS = {"saves-every": _every, "saves-pccheck": _pccheck, "saves-trained": _trained}
