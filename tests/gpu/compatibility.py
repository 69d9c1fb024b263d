"""Makes docs/compatibility.md of what device.sh left: `compatibility.py OUT COMMIT... > docs/compatibility.md`.

Of several folders, each with the commit it was measured at, the first that has a piece counts. Says of each victim what
was found, and of those that were not run that they were not.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import judging
from victims import PIECES, Victim

MIB = 1 << 20
MOST_OF_A_CELL = 300  # characters: what a program said at its end may be long
HEADINGS = {
    "victims-torch": "PyTorch",
    "victims-others": "Others",
    "victims-offload": "Pinned host memory",
    "victims-two": "Two GPUs",
    "shared-training": "Processes that share device memory: training",
    "shared-graphs": "Processes that share device memory: collectives in a captured graph",
    "shared-others": "Processes that share device memory: symmetric memory, a queue",
    "all-ranks": "Processes that share device memory: more than two GPUs",
    "all-fsdp": "Processes that share device memory: FSDP2 on more than two GPUs",
    "nccl": "Two GPUs, NCCL through host memory",
    "nccl-sockets": "Two GPUs, NCCL through sockets",
}
Result = Mapping[str, Any]
HEAD = (
    "program",
    "version",
    "swaps",
    "same output",
    "covered share",
    "handles",
    "pinned MiB",
    "more VRAM",
    "checkpoint s",
    "control s",
    "restore s",
    "control back s",
    "steps/s bare, under gcr",
    "verdict",
)
INTRODUCTION = """\
# Compatibility

Programs that were swapped on a real GPU while they computed. This page is generated
(`tests/gpu/compatibility.py`) from what `tests/gpu/device.sh` left; nothing in it is written by hand or simulated.

Each program is in `tests/victims` and needs no environment variable or changed line for gcr. It runs under `gcr run`
until it has been checkpointed and restored as often as the table says, at random instants while it computes; then it
runs bare, in another process, for as many steps. **Same output** means every line: the value of each step, and a digest
of what it holds at the end. The other columns:

- **covered share**: bytes that gcr moves / all device bytes of the program, the least of all swaps; what the rest is
  stands below the table.
- **handles**, **pinned MiB** (page-locked host memory): of the program at its last checkpoint.
- **more VRAM**: the devices' own count for the program's processes under gcr against bare, both held before their first
  step.
- **checkpoint**, **restore**: `vram_free_s` and `total_s`; **control**, **control back**: `control_s` of both, the
  driver's part. Medians. Other programs of this table were starting, ending or running bare on the same machine
  meanwhile; only one at a time was swapped.
- **steps/s**: of the first second and a half under gcr, and of the same steps bare. No measurement of overhead (that is
  in [benchmarks](benchmarks.md)): one run each, beside others.
- **verdict**: follows from conditions in `tests/gpu/judging.py`. A program that is refused must be refused each time,
  before anything of it is touched, and run as bare.
"""


def render(measured: Sequence[tuple[Path, str]]) -> str:
    """Renders the results in folders, with their commits. Raises SystemExit if no victim has been run."""
    found = {name: _first(measured, name) for name in PIECES}
    if not any(piece["result"]["runs"] for piece, _ in found.values() if piece):
        raise SystemExit(f"no victim has been run: none of {', '.join(PIECES)} is there")
    return "\n".join([INTRODUCTION, *(_section(name, *found[name]) for name in PIECES)])


def _first(measured: Sequence[tuple[Path, str]], name: str) -> tuple[Result | None, str]:
    for folder, commit in measured:
        if (path := folder / f"{name}.json").exists():
            return json.loads(path.read_text()), commit
    return None, ""


def _section(name: str, piece: Result | None, commit: str) -> str:
    runs = piece["result"]["runs"] if piece else {}
    lines = [_row(victim, runs.get(victim.name)) for victim in PIECES[name]]
    table = [_line(HEAD), _line(["---"] * len(HEAD)), *map(_line, lines)]
    return "\n".join([f"## {HEADINGS[name]}", "", _machine(piece, commit), "", *table, "", *_below(runs)])


def _machine(piece: Result | None, commit: str) -> str:
    if piece is None:
        return "Not run."
    one = piece["machine"]
    devices = f"{piece['result']['devices']} × {one['device']}"
    return (
        f"{devices}, driver {one['driver']}, {one['link']}, Linux {_release(one['kernel'])}, "
        f"{one['cores']} cores, Python {one['python']}, {one['date']}; gcr at {commit}."
    )


def _release(kernel: str) -> str:
    """Without what its builder added."""
    return kernel.partition("-")[0]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/')[:MOST_OF_A_CELL] for cell in cells)} |"


def _row(victim: Victim, run: Result | None) -> list[str]:
    name = f"{victim.what} (`{victim.name}`)"
    said = judging.verdict(victim, run)
    if run is None or "failed" in run:
        return [name, run["version"] if run else "", *[""] * (len(HEAD) - 3), said]
    swaps, bare = run["gcr"]["swaps"], run["bare"]
    return [
        name,
        run["version"],
        str(len(swaps)),
        "NO" if run["difference"] else "yes",
        _share(run),
        *([str(swaps[-1]["handles"]), str(swaps[-1]["pinned_host_bytes"] // MIB)] if swaps else ["", ""]),
        _more(run),
        *(_median(swaps, name) for name in ("out_vram_free_s", "out_control_s", "in_total_s", "in_control_s")),
        f"{_rate(bare)}, {_rate(run['gcr'])}",
        said,
    ]


def _share(run: Result) -> str:
    share = judging.covered_share(run)
    return "" if share is None else f"{share:.4f}"


def _more(run: Result) -> str:
    more = judging.inflation(run)
    return "" if more is None else f"{more:+.2%} of {run['bare']['held_bytes'] // MIB} MiB"


def _median(swaps: Sequence[Result], name: str) -> str:
    values = [swap[name] for swap in swaps if swap[name] is not None]
    return f"{statistics.median(values):.3f}" if values else ""


def _rate(outcome: Result) -> str:
    rate = outcome["steps_per_s"]
    return "?" if rate is None else f"{rate:.4g}"


def _below(runs: Mapping[str, Result]) -> Iterator[str]:
    """Yields the facts that fit into no table: uncovered bytes by reason, and messages of refusals."""
    for name, run in runs.items():
        swaps, errors = run["gcr"]["swaps"], run["gcr"]["errors"]
        if left := _most_left(swaps):
            yield f"- `{name}`, left to the driver: {', '.join(f'{r} {s / MIB:.1f} MiB' for r, s in left.items())}."
        if errors:
            first = errors[0]
            yield f"- `{name}`, {len(errors)} times no {first['during']}: `{first['code']}`, “{first['message']}”"
    yield ""


def _most_left(swaps: Sequence[Result]) -> Mapping[str, int]:
    most: dict[str, int] = {}
    for swap in swaps:
        for reason, size in swap["uncovered"].items():
            most[reason] = max(size, most.get(reason, 0))
    return {reason: size for reason, size in most.items() if size}


if __name__ == "__main__":
    words = sys.argv[1:]
    print(render([(Path(folder), commit) for folder, commit in zip(words[::2], words[1::2], strict=True)]))
