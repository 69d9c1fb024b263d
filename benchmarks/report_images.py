"""The figures of images, against the goals: lines of the report's table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stats import median

GB = 1e9
Row = Mapping[str, Any]
Line = tuple[str, str, str, str]  # what, figure, goal, met


def lines(found: Mapping[str, Row]) -> Iterator[Line]:
    for piece, section in _SECTIONS.items():
        if row := found.get(piece):
            yield from section(row)


def _hash(row: Row) -> Iterator[Line]:
    share, rates = row["share_of_copy_traffic"], (row["call_bytes_per_s"] / GB, row["copy_payload_bytes_per_s"] / GB)
    text = f"{share:.2f} of what a copy reads and writes, {row['share_of_copy_payload']:.2f} of its payload"
    yield "device hash, a whole call; payload of a copy", "{:.0f} / {:.0f} GB/s".format(*rates), "", ""
    yield "device hash, share of the device's copy rate", text, ">= 0.75", _met(share >= 0.75)


def _full(row: Row) -> Iterator[Line]:
    yield from _beside_the_disk("full image", row)
    if "unchanged_written_share" in row:
        share = row["unchanged_written_share"]
        yield "second image of an unchanged job: written", f"{share:.4%}", "<= 0.1 %", _met(share <= 0.001)


def _streamed(row: Row) -> Iterator[Line]:
    yield from _beside_the_disk(f"streamed, room for {row['arena_bytes'] >> 20} MiB", row)
    left = max(each["vram_after_bytes"] for each in row["cycles"])
    all_so = all(each["streamed"] for each in row["cycles"])
    yield (
        "streamed, out and in; target's VRAM after",
        f"{'yes' if all_so else 'NO'}; {left} B",
        "yes; 0 B",
        _met(all_so and not left),
    )


def _beside_the_disk(what: str, row: Row) -> Iterator[Line]:
    for way, name in (("written", "write_bytes_per_s"), ("restored, cold page cache", "read_bytes_per_s")):
        share = median([each[name] / each["disk"][name] for each in row["cycles"]])
        disk = median([float(each["disk"][name]) for each in row["cycles"]])
        text = f"{_of(row['cycles'], name) / GB:.2f} GB/s, {share:.2f} of the disk's {disk / GB:.2f}"
        yield (
            f"{what}, {way}",
            text,
            ">= 0.9 of a plain O_DIRECT " + ("writer" if way == "written" else "reader"),
            _met(share >= 0.9),
        )
    yield _bytes_right(what, row["cycles"])


def _live(row: Row) -> Iterator[Line]:
    cycles = row["cycles"]
    stop, written, changed = (_of(cycles, name) for name in ("stop_s", "written_share", "changed_share"))
    yield "live, 1 % changed: stop until resume", f"{stop * 1e3:.1f} ms", "<= 60 ms", _met(stop <= 0.060)
    text = f"{written:.3%} ({changed:.3%} of the chunks changed)"
    yield "live, 1 % changed: bytes written", text, "<= 1.5 %", _met(written <= 0.015)
    yield _bytes_right("live", cycles)


def _growing(row: Row) -> Iterator[Line]:
    """Of the cycle that is the nearest to its goal, or the farthest beyond it."""
    stop, handles = max(
        ((each["stop_s"], each["handles"]) for each in row["cycles"]), key=lambda one: one[0] / _allowed(one[1])
    )
    text = f"{stop * 1e3:.1f} ms, {handles} handles"
    goal = "<= 60 ms + 40 us for each"
    yield "live, allocations while all is copied: longest stop", text, goal, _met(stop <= _allowed(handles))
    yield _bytes_right("live, allocations meanwhile", row["cycles"])


def _allowed(handles: int) -> float:
    """Seconds."""
    return 0.060 + 40e-6 * handles


def _training(row: Row) -> Iterator[Line]:
    if row["during"]:
        share = median(row["during"]) / median(row["undisturbed"])
        text = f"{share:.3f} of undisturbed, {len(row['during'])} slices in {sum(row['copy_s']):.1f} s of copying"
        yield "steps/s of training while a live image is copied", text, ">= 0.97", _met(share >= 0.97)


def _standstill(row: Row) -> Iterator[Line]:
    for trained, rows in row["image"].items():
        yield f"training stands still for an image, {trained}", f"{_of(rows, 'stands_s'):.3f} s", "", ""
    for way in ("torch_save", "async_save"):
        if way in row:
            ratio, stands = row[f"image_to_{way}"], _of(row[way], "stands_s")
            text = f"{stands:.3f} s; the image's longest / its shortest: {ratio:.4f}"
            yield f"training stands still for {way}", text, "<= 0.1", _met(ratio <= 0.1)


def _bytes_right(what: str, rows: Sequence[Row]) -> Line:
    wrong = sum(not row["bytes_right"] for row in rows)
    return f"{what}: cycles with a wrong byte", f"{wrong} of {len(rows)}", "0", _met(not wrong)


def _of(rows: Sequence[Row], name: str) -> float:
    return median([float(row[name]) for row in rows])


def _met(so: bool) -> str:
    return "yes" if so else "NO"


_SECTIONS = {
    "hash": _hash,
    "image-full": _full,
    "image-streamed": _streamed,
    "image-live": _live,
    "image-growing": _growing,
    "image-training": _training,
    "image-standstill": _standstill,
}
