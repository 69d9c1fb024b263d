"""Merges the pieces' JSON into one markdown table, against the goals."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import report_images
import report_judged
import report_saves
import report_whole
from overhead import ENOUGH, Arm, estimates, pieces
from slices import Estimate, log_ratio, parse
from stats import median

GB = 1e9
MIB = 1 << 20
Pieces = Mapping[str, Any]
Line = tuple[str, str, str, str]  # what, figure, goal, met


def render(folder: Path) -> str:
    pieces = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    found = {name: each["result"] for name, each in pieces.items() if "result" in each}
    lines = [line for section in _SECTIONS for line in section(found)]
    table = ["| what | figure | goal | met |", "|---|---|---|---|", *(f"| {' | '.join(line)} |" for line in lines)]
    return "\n".join([_heading(list(pieces.values())), "", *table, "", _cli_table(found)])


def _heading(pieces: Sequence[Mapping[str, Any]]) -> str:
    machines = [each["machine"] for each in pieces if "machine" in each]
    if not machines:
        return "No piece has been run."
    one = machines[-1]
    return (
        f"{one['device']}, driver {one['driver']}, {one['link']}, kernel {one['kernel']}, {one['cores']} cores, "
        f"{one['date']}; {one['checkpoint_api']}. Medians; overhead: mean loss and its one-sided 95 % upper bound "
        "(Student's t over pairs of processes)."
    )


def _of(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return median([float(row[name]) for row in rows])


def _judged(what: str, value: float, text: str, most: float, goal: str) -> Line:
    return what, text, goal, "yes" if value <= most else "NO"


def _link(found: Pieces) -> Iterator[Line]:
    if link := found.get("link"):
        rates = link["device_to_host_bytes_per_s"] / GB, link["host_to_device_bytes_per_s"] / GB
        yield "link, plain pinned copy, out / in", f"{rates[0]:.1f} / {rates[1]:.1f} GB/s", "", ""


def _shares(found: Pieces) -> Iterator[Line]:
    rows, link = found.get("gcr-32"), found.get("link")
    if not rows or not link:
        return
    for what, name, direction, least in (
        ("drain of 32 GiB, share of the link", "out_drain_bytes_per_s", "device_to_host_bytes_per_s", 0.92),
        ("refill of 32 GiB, share of the link", "in_refill_bytes_per_s", "host_to_device_bytes_per_s", 0.88),
    ):
        share = _of(rows, name) / link[direction]
        yield what, f"{share:.3f}", f">= {least}", "yes" if share >= least else "NO"


def _whole(found: Pieces) -> Iterator[Line]:
    for size in (1, 8, 32):
        rows = found.get(f"gcr-{size}")
        if not rows:
            continue
        out, back = _of(rows, "out_vram_free_s"), _of(rows, "in_total_s")
        out_goal = max(_of(rows, "out_drain_s"), _of(rows, "out_control_s")) + 0.12
        in_goal = max(_of(rows, "in_refill_s"), _of(rows, "in_control_s")) + 0.15
        yield _judged(f"checkpoint of {size} GiB", out, f"{out:.3f} s", out_goal, f"<= {out_goal:.3f} s")
        yield _judged(f"restore of {size} GiB", back, f"{back:.3f} s", in_goal, f"<= {in_goal:.3f} s")
        wrong = sum(not row["bytes_right"] for row in rows)
        left = max(row["target_vram_after"] for row in rows)
        yield _judged(f"{size} GiB: cycles with a wrong byte", wrong, f"{wrong} of {len(rows)}", 0, "0")
        yield _judged(f"{size} GiB: target's VRAM after", left, f"{left} B", 0, "0")
        if kept := [row["out_bytes"] - row["device_freed"] for row in rows if "device_freed" in row]:
            text = f"{-max(kept) / MIB:.0f} MiB more than the job's data"
            yield _judged(f"{size} GiB: the whole device's use fell by", max(kept), text, 0, ">= the data")


def _peers(found: Pieces) -> Iterator[Line]:
    for size in (1, 8, 32):
        gcr = found.get(f"gcr-{size}")
        for piece, name in ((f"driver-{size}", "the driver's own"), (f"saver-{size}", "torch_memory_saver")):
            rows = found.get(piece)
            if not rows:
                continue
            out, back = _of(rows, "out_s"), _of(rows, "in_s")
            yield f"{name}, {size} GiB, out / in", f"{out:.3f} / {back:.3f} s", "", ""
            if gcr:
                yield from _ratios(name, size, out / _of(gcr, "out_vram_free_s"), back / _of(gcr, "in_total_s"))


def _ratios(name: str, size: int, out: float, back: float) -> Iterator[Line]:
    goals = (18.0, 8.0) if size == 32 and name == "the driver's own" else (0.0, 0.0)
    for what, value, least in (("checkpoint", out, goals[0]), ("restore", back, goals[1])):
        goal, met = (f">= {least:.0f} x", "yes" if value >= least else "NO") if least else ("", "")
        yield f"{what} of {size} GiB, {name} / gcr", f"{value:.1f} x", goal, met


def _first(found: Pieces) -> Iterator[Line]:
    for piece, what in (("first", "first checkpoint / warm"), ("first-hugepages", "first / warm, huge pages")):
        if rows := found.get(piece):
            first, warm = rows["first"]["out_vram_free_s"], _of(rows["warm"], "out_vram_free_s")
            yield _judged(what, first / warm, f"{first:.3f} / {warm:.3f} s = {first / warm:.2f}", 1.25, "<= 1.25")


def _just_grown(found: Pieces) -> Iterator[Line]:
    for way, what in (("cold", "a new daemon"), ("grown", "a job that has grown")):
        if rows := found.get("first-checkpoint", {}).get(way):
            first, second = rows["first_s"], rows["second_s"]
            text = f"{first:.3f} s, the next {second:.3f} s{'' if _right(rows) else ', WRONG BYTES'}"
            yield _judged(f"checkpoint 3 s after the allocation, {what}", first, text, 2.5, "<= 2.5 s")


def _right(rows: Mapping[str, Any]) -> bool:
    return all(rows[which]["bytes_right"] for which in ("first", "second"))


def _first_live(found: Pieces) -> Iterator[Line]:
    if rows := found.get("first-live", {}).get("images"):
        stops = [row["stop_s"] * 1e3 for row in rows]
        text = f"{stops[0]:.0f} ms, the next {', '.join(f'{stop:.0f}' for stop in stops[1:])} ms"
        yield _judged("stop of the first live image", stops[0], text, 30.0, "<= 30 ms")


def _resident(found: Pieces) -> Iterator[Line]:
    for size in (8, 32):
        if ways := found.get(f"resident-{size}"):
            kept, plain, freed = ways["kept"], ways["plain"], ways["freed"]
            back, copied = _of(kept, "in_total_s"), _of(plain, "in_total_s")
            yield _judged(f"{size} GiB back, memory still there", back, f"{back:.3f} s", 0.3, "<= 0.3 s")
            yield _judged(f"{size} GiB back, copied from the host", copied, f"{copied:.3f} s", 1.0, "<= 1.0 s")
            yield f"{size} GiB of resident memory: room after", f"{_of(freed, 'room_s'):.3f} s", "", ""
            least = min(row["device_freed"] for row in (*plain, *freed))
            short = max(row["out_bytes"] for row in plain) - least
            yield _judged(f"{size} GiB: data left on the device when asked for", short, f"{max(short, 0)} B", 0, "0")
            wrong = sum(not row["bytes_right"] for rows in ways.values() for row in rows)
            yield _judged(
                f"{size} GiB, resident: cycles with a wrong byte", wrong, f"{wrong} of {3 * len(kept)}", 0, "0"
            )


def _kept_copy(found: Pieces) -> Iterator[Line]:
    if ways := found.get("kept-copy"):
        for way, what in (("fresh", "everything copied"), ("kept", "what changed copied")):
            for share in sorted({row["share"] for row in ways.get(way, ()) if row["share"] is not None}):
                rows = [row for row in ways[way] if row["share"] == share]
                text = f"{_of(rows, 'out_vram_free_s'):.3f} s, {_of(rows, 'out_bytes_copied') / (1 << 30):.2f} GiB"
                yield f"out, {share:.0%} changed, {what}", text, "", ""
        wrong = sum(not row["bytes_right"] for rows in ways.values() for row in rows)
        yield _judged("kept copies: cycles with a wrong byte", wrong, f"{wrong}", 0, "0")


def _cold(found: Pieces) -> Iterator[Line]:
    if row := found.get("cold"):
        warm = _of(row["warm"], "in_total_s")
        text = f"{row['in_total_s']:.3f} s (warm {warm:.3f} s)"
        yield f"restore, worker gone ({row['worker_gone_by']})", text, "its own row", ""


def _later(found: Pieces) -> Iterator[Line]:
    if row := found.get("cold10"):
        warm = _of(row["warm"], "in_total_s")
        minutes, worker = row["seconds_suspended"] / 60, "there" if row["workers_before"] else "gone"
        right = "" if row["bytes_right"] else ", WRONG BYTES"
        text = f"{row['in_total_s']:.3f} s (warm {warm:.3f} s){right}"
        yield f"restore after {minutes:.1f} min, worker {worker}", text, "its own row", ""


def _handles(found: Pieces) -> Iterator[Line]:
    if rows := found.get("handles"):
        over = [row["out_stop_s"] - row["out_drain_s"] for row in rows]
        count = max(row["handles"] for row in rows)
        text = f"{median(over) * 1e3:.0f} ms over the copy, {count} handles"
        yield _judged("stop, 16 GiB, --data-only", median(over), text, 0.150, "<= 150 ms")


def _low_vram(found: Pieces) -> Iterator[Line]:
    if row := found.get("lowvram"):
        ok = row["bytes_right"] and row["free_before"] < 256 * MIB
        text = f"{row['free_before'] / MIB:.0f} MiB free: {row['out_vram_free_s']:.3f} s"
        yield "checkpoint with < 256 MiB of VRAM free", text, "succeeds", "yes" if ok else "NO"


def _overhead(found: Pieces) -> Iterator[Line]:
    for piece, (kind, arm) in pieces().items():
        if kind == "alloc" or piece not in found:
            continue
        for name, (rate, typical) in estimates(found[piece]["pairs"]).items():
            yield _loss(f"loss of {name} rate, {_ARMS[arm]}", rate, arm)
            yield f"the same of a typical {name}", _said(typical), "", ""
    if alloc := found.get("overhead-alloc"):
        yield from _allocations([parse(each) for each in alloc["pairs"]])


def _loss(what: str, found: Estimate, arm: Arm) -> Line:
    if arm is not Arm.SHIMMED:
        return what, _said(found), "", ""
    if found.pairs < ENOUGH:
        return what, _said(found), "< 1 %", f"too few: {ENOUGH} pairs wanted"
    return _judged(what, found.at_most, _said(found), 0.01, "< 1 %")


def _said(found: Estimate) -> str:
    return f"{found.loss:.2%}, at most {found.at_most:.2%}, scatter {found.scatter:.2%}, {found.pairs} pairs"


def _allocations(pairs: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for name in pairs[0] if pairs else ():
        times = median([math.exp(-log_ratio(each[name])) for each in pairs])
        most = 1.0 if int(name) < MIB else 1.5
        what = f"allocate + free of {name} B, shimmed / bare"
        yield _judged(what, times, f"{times:.2f} x, {len(pairs)} pairs", most, f"<= {most}")


def _cli_table(found: Pieces) -> str:
    head = ["| gcr, CLI wall | checkpoint | restore |", "|---|---|---|"]
    sizes = [size for size in (1, 8, 32) if found.get(f"gcr-{size}")]
    rows = [
        f"| {size} GiB | {_of(found[f'gcr-{size}'], 'out_cli_wall_s'):.3f} s "
        f"| {_of(found[f'gcr-{size}'], 'in_cli_wall_s'):.3f} s |"
        for size in sizes
    ]
    return "\n".join([*head, *rows])


_ARMS = {
    Arm.SHIMMED: "under gcr",
    Arm.INERT: "shim without daemon",
    Arm.NULL: "bare against bare (noise)",
    Arm.BESIDE: "bare, an idle job of gcr beside",
}
_SECTIONS: Sequence[Callable[[Pieces], Iterator[Line]]] = (
    _link,
    _shares,
    _whole,
    _peers,
    _first,
    _just_grown,
    _first_live,
    _resident,
    _kept_copy,
    _cold,
    _later,
    _handles,
    _low_vram,
    _overhead,
    report_images.lines,
    report_saves.lines,
    report_whole.lines,
    report_judged.lines,
)
