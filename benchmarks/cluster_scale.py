"""Simulates cuts over 10 to 10,000 nodes: `python benchmarks/cluster_scale.py --out FILE`; no device, no network.

`--cost` measures the coordinator's own work instead. `--images` simulates the distribution of 1 TiB to 8 to 64 nodes.
`--draw FOLDER` draws the plots of docs/cluster-scale.md from FILE.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from cluster_simulation import plots
from cluster_simulation.cost import carried, decided
from cluster_simulation.distribution import Receivers, sharings
from cluster_simulation.study import COSTS, study


def read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes()) if path.exists() else {"simulated": True, "rows": []}


def write(path: Path, found: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def simulate(path: Path, only: str) -> None:
    """Runs the series again that have names with this beginning, and keeps the results of the others."""
    found = read(path)
    found["assumed_cost_s"] = COSTS
    for name, rows in study().items():
        if name.startswith(only):
            print(name, flush=True)
            new = [msgspec.to_builtins(row) for row in rows]
            series = {row["series"] for row in new}
            found["rows"] = [row for row in found["rows"] if row["series"] not in series] + new
            write(path, found)


def measure(path: Path) -> None:
    found = read(path)
    found["cost"] = {
        "measured": "seconds of a processor, of this process alone",
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "decided": [msgspec.to_builtins(decided(nodes)) for nodes in (10, 100, 1000, 10_000)],
        "carried": {str(nodes): carried(nodes) for nodes in (10, 100, 1000, 4000)},
    }
    write(path, found)


def images(path: Path, only: str) -> None:
    """Runs the distributions again that have names with this beginning, and keeps the results of the others."""
    found = read(path)
    for name, assumed in sharings().items():
        if name.startswith(only):
            began = time.process_time()
            row = msgspec.to_builtins(Receivers(assumed, seed=1).run(name))
            rows = [row for row in found["rows"] if row["series"] != name]
            found["rows"] = [*rows, {**row, "assumed": msgspec.to_builtins(assumed), "bound_s": assumed.bound_s}]
            print(f"{name}: {time.process_time() - began:.0f} s of a processor", flush=True)
            write(path, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default="", help="the beginning of the names of the series to run")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--draw", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.cost:
        measure(options.out)
    elif options.images:
        images(options.out, options.only)
    elif options.draw:
        for name, drawn in plots.drawn(read(options.out)).items():
            (options.draw / name).write_text(drawn)
    else:
        simulate(options.out, options.only)


if __name__ == "__main__":
    main()
