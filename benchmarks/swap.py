"""Swap a GPU program out and in, by gcr and by others, and what gcr costs while it does nothing. See README.md."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import beside  # noqa: E402
import control  # noqa: E402
import firsts  # noqa: E402
import host_memory  # noqa: E402
import images  # noqa: E402
import kept_copy  # noqa: E402
import later  # noqa: E402
import link  # noqa: E402
import overhead  # noqa: E402
import report  # noqa: E402
import resident  # noqa: E402
import saves  # noqa: E402
import serve_image  # noqa: E402
import serve_swaps  # noqa: E402
import standstill  # noqa: E402
import swaps  # noqa: E402
import testbed  # noqa: E402
import whole  # noqa: E402
from program import stop_daemon  # noqa: E402

BUDGET_SECONDS = 400.0
GIB = 1 << 30
LIVE_GIB = 18.0


def _first_with_hugepages() -> Any:
    with testbed.hugepages(40 * GIB) as reserved:
        try:
            return {"reserved_bytes": reserved, **swaps.first(32)}
        finally:
            stop_daemon()  # its arena lies in them


def pieces(gib: float = images.STATE_GIB) -> dict[str, Callable[[], Iterator[Any]]]:
    """Each yields more and more of its result; the last one is all of it. gib: of state in those of images."""
    sized = {
        f"{who}-{size}": _at_once(lambda measure=measure, size=size: measure(size))
        for who, measure in (("gcr", swaps.by_gcr), ("driver", swaps.by_driver), ("saver", swaps.by_saver))
        for size in (1, 8, 32)
    }
    return {
        "link": _at_once(link.measure),
        **sized,
        "first": _at_once(lambda: swaps.first(32)),
        "first-checkpoint": lambda: firsts.checkpoints(gib),
        "host-memory": host_memory.measure,
        "first-live": lambda: firsts.live(min(gib, LIVE_GIB)),
        "first-hugepages": _at_once(_first_with_hugepages),
        "cold": _at_once(lambda: swaps.cold(32)),
        "cold10": _at_once(lambda: later.piece(32)),
        "handles": _at_once(lambda: swaps.by_gcr(15.625, more=("--buffers", "800"), flags=("--data-only",))),
        "lowvram": _at_once(lambda: swaps.low_vram(8)),
        "control": control.measure,
        "control-copies": beside.copies,
        "control-at-once": beside.at_once,
        "image-full": lambda: images.full(images.program(gib)),
        "image-streamed": lambda: images.streamed(images.program(gib)),
        "image-live": lambda: images.live(images.program(gib)),
        "image-growing": lambda: images.growing(images.program(gib)),
        "image-training": lambda: images.training([sys.executable, str(HERE / "train_step.py"), "busy", str(gib)]),
        "image-standstill": lambda: standstill.measure(gib),
        "resident-8": lambda: resident.measure(images.program(8)),
        "resident-32": lambda: resident.measure(images.program(32)),
        "kept-copy": lambda: kept_copy.measure(images.program(gib)),
        "serve-room": lambda: serve_swaps.of_gcr(testbed.gib_of_two(gib), serve_swaps.Parked.AWAY),
        "serve-there": lambda: serve_swaps.of_gcr(testbed.gib_of_two(gib), serve_swaps.Parked.THERE),
        "serve-warm": lambda: serve_swaps.of_gcr(testbed.gib_of_two(gib), serve_swaps.Parked.WARM),
        "serve-image": lambda: serve_image.from_image(gib),
        "serve-others": lambda: serve_swaps.of_others(testbed.gib_of_two(gib)),
        "saves": lambda: saves.blocked(gib),
        "saves-others": lambda: saves.blocked(gib, ways=saves.OTHERS),
        "saves-every": saves.every,
        "saves-pccheck": lambda: saves.every(way="pccheck"),
        "saves-trained": lambda: saves.trained(gib),
        "whole-8": lambda: whole.measure(images.program(8)),
        "whole-context": lambda: whole.measure(images.program(whole.CONTEXT_GIB)),
        "whole-32": lambda: whole.measure(images.program(32)),
        "criu-context": lambda: whole.by_criu({"context": images.program(whole.CONTEXT_GIB)}),
        "criu-8": lambda: whole.by_criu({"context": images.program(whole.CONTEXT_GIB), "8 GiB": images.program(8)}),
    }


def _at_once(measure: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    return lambda: iter([measure()])


OVERHEAD = overhead.pieces()


def names() -> list[str]:
    return [*pieces(), *OVERHEAD]


def run(piece: str, out: Path, pairs: int | None = None, gib: float = images.STATE_GIB) -> None:
    """Run one piece and write OUT/PIECE.json; an overhead piece goes on where an earlier run stopped.

    pairs: of an overhead piece; else its arm's usual number. gib: of state in the pieces of images.
    """
    facts = testbed.facts()
    print(f"{facts['device']}, driver {facts['driver']}, kernel {facts['kernel']}, {facts['checkpoint_api']}")
    path = out / f"{piece}.json"
    started = time.monotonic()
    for result in _results(piece, path, pairs, gib):
        seconds = time.monotonic() - started
        path.write_text(json.dumps({"piece": piece, "machine": facts, "seconds": seconds, "result": result}, indent=1))
    if piece in OVERHEAD:
        print(overhead.describe(_earlier(path)))
    print(f"{piece}: {time.monotonic() - started:.0f} s, {path}")


def _results(piece: str, path: Path, pairs: int | None, gib: float) -> Iterator[Any]:
    return _overhead(piece, path, pairs) if piece in OVERHEAD else pieces(gib)[piece]()


def _overhead(piece: str, path: Path, pairs: int | None) -> Iterator[dict[str, Any]]:
    """Results that grow by a pair each."""
    kind, arm = OVERHEAD[piece]
    deadline = time.monotonic() + BUDGET_SECONDS
    with tempfile.TemporaryDirectory() as build:
        work = overhead.workload(kind, Path(build))
        for known in overhead.more_pairs(
            arm, work, _earlier(path), deadline, pairs or overhead.wanted_pairs(kind, arm)
        ):
            yield {"arm": arm, "pairs": known}


def _earlier(path: Path) -> list[overhead.Pair]:
    if not path.exists():
        return []
    found = json.loads(path.read_text())["result"]
    if not isinstance(found, dict):
        raise SystemExit(f"benchmark: {path} is of an older version, whose pairs were whole runs; move it away")
    pairs: list[overhead.Pair] = found["pairs"]
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the pieces")
    parser.add_argument("--piece", action="append", default=[], help="run one; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"), help="folder of the results")
    parser.add_argument("--pairs", type=int, default=None, help="of an overhead piece")
    parser.add_argument("--gib", type=float, default=images.STATE_GIB, help="of state in image-*")
    parser.add_argument("--warm", type=int, default=0, help="GiB of host memory to touch first (virtual machines)")
    parser.add_argument("--report", action="store_true", help="merge what is in the folder into a table")
    options = parser.parse_args()
    known = names()
    if options.list:
        print("\n".join(known))
    if unknown := [piece for piece in options.piece if piece not in known]:
        parser.error(f"no such piece: {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.warm:
        testbed.warm_host_memory(options.warm)
    for piece in options.piece:
        run(piece, options.out, options.pairs, options.gib)
    if options.report:
        print(report.render(options.out))


if __name__ == "__main__":
    main()
