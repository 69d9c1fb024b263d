"""Measures how long a job stands still while it moves between two nodes of one machine, through TCP and TLS.

    python benchmarks/migrate.py --gib 1 --mib-per-s 10 --repeat 3 --out FILE          SIMULATED devices
    python benchmarks/migrate.py --gib 0.25 --host-mib 2048 --out FILE                 much memory on the host
    GCR_CRIU=… python benchmarks/migrate.py --gib 32 --mib-per-s 320 --device --move 0=1 --out FILE

The nodes are those of tests/e2e/moving_nodes.py: each has files of its own, and with simulated devices processes of its
own. Their stores are in memory. The program writes some MiB of its device memory each second; its output has to be that
of a bare run, which the tests compare. Needs root and CRIU (GCR_CRIU). `stop`: the parts of the stop, in seconds from
the first closed gate.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "e2e"))

from moving_nodes import TwoNodes  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
PAUSE_S = 0.1


def measured(gib: float, mib_per_s: float, host_mib: int, device: bool, move: str | None) -> dict[str, Any]:
    """Moves one job once. `move`: to another device, OLD=NEW. Raises AssertionError where it did not move."""
    size = int(gib * GIB)
    memory = {} if device else {"GCR_SIM_MEMORY": str(size + 256 * MIB)}
    extra = {**memory, "GCR_LOG_LEVEL": "INFO", "GCR_SEGMENT_BYTES": str(GIB)}
    nodes = TwoNodes(Path("/dev/shm") / f"gcr-moving-{os.getpid()}", extra, None if device else "nvidia", not device)
    try:
        parts = max(1, round(mib_per_s * PAUSE_S))
        out = nodes.run(
            "--size", str(size), "--parts", str(parts), "--pause", str(PAUSE_S), "--host", str(host_mib * MIB)
        )
        said = nodes.migrate(*(("--device", move) if move else ()))
        assert said.code == 0, (said.body, said.stderr)
        steps = nodes.end(out)
        within = said.body["bytes_sent"] - sum(each["bytes_sent"] for each in said.body["rounds"])
        told = {name: said.body[name] for name in ("rounds", "bytes_sent", "stop", "wall_s")}
        return {"steps": steps, "bytes_sent_in_stop": within, **told}
    finally:
        nodes.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1.0)
    options.add_argument("--mib-per-s", type=float, default=10.0, help="device memory that the program writes")
    options.add_argument(
        "--host-mib", type=int, default=0, help="noise on the host; it writes a page of it 10 times a second"
    )
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--device", action="store_true", help="a real device")
    options.add_argument("--move", metavar="OLD=NEW", help="to another device of the machine, by number")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    runs = [measured(given.gib, given.mib_per_s, given.host_mib, given.device, given.move) for _ in range(given.repeat)]
    found = {"simulated": not given.device, "gib": given.gib, "mib_per_s": given.mib_per_s}
    found |= {"host_mib": given.host_mib, "move": given.move, "runs": runs}
    text = json.dumps(found, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
