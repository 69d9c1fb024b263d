"""Measures how long a job stands still while it moves between two nodes of one machine, through TCP and TLS.

    python benchmarks/migrate.py --gib 1 --mib-per-s 10 --repeat 3 --out FILE          SIMULATED devices
    python benchmarks/migrate.py --gib 0.25 --host-mib 2048 --out FILE                 much memory on the host
    GCR_CRIU=… python benchmarks/migrate.py --gib 32 --mib-per-s 320 --device --move 0=1 --out FILE
    GCR_CRIU=… python benchmarks/migrate.py --gib 16 --launches 200 --parts 4 --device --out FILE

The nodes are those of tests/e2e/moving_nodes.py: each has files of its own, and with simulated devices processes of its
own. Their stores are in memory. The program writes some MiB of its device memory each second; its output has to be that
of a bare run: `printed` is a digest of it, which bare_moving.py compares. Needs root and CRIU (GCR_CRIU). `stop`: the
parts of the stop, in seconds from the first closed gate.

With `--launches` the program does not rest: it has the device work in each step, and writes `parts` MiB. `pace` has its
steps a second for some seconds before the command, and from the command's begin to the standstill.
"""

import argparse
import json
import os
import sys
import time
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "e2e"))

from moving_nodes import TwoNodes  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
PAUSE_S = 0.1
ALONE_S, LOOK_S = 6.0, 0.01


class Steps:
    """Counts the lines of the program's output, on a thread: one for each step. `seen`: when there were how many."""

    def __init__(self, out: Path) -> None:
        self._out, self._over = out, Event()
        self.seen: list[tuple[float, int]] = []
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        count = 0
        with self._out.open("rb") as out:
            while not self._over.wait(LOOK_S):
                if more := out.read().count(b"\n"):
                    count += more
                    self.seen.append((time.monotonic(), count))

    def end(self, began: float) -> dict[str, float]:
        """Returns the steps a second before `began`, and from there to the longest pause: the standstill."""
        self._over.set()
        self._thread.join()
        stands = max(range(1, len(self.seen)), key=lambda at: self.seen[at][0] - self.seen[at - 1][0])
        alone = [each for each in self.seen if each[0] < began]
        during = [each for each in self.seen[:stands] if each[0] >= began]
        rates = [(some[-1][1] - some[0][1]) / (some[-1][0] - some[0][0]) for some in (alone, during)]
        return {"alone": rates[0], "during": rates[1], "slower": 1 - rates[1] / rates[0], "s": during[-1][0] - began}


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Moves one job once. Raises AssertionError where it did not move."""
    size = int(given.gib * GIB)
    memory = {} if given.device else {"GCR_SIM_MEMORY": str(size + 256 * MIB)}
    extra = {**memory, "GCR_LOG_LEVEL": "INFO", "GCR_SEGMENT_BYTES": str(GIB)}
    simulate = None if given.device else "nvidia"
    nodes = TwoNodes(Path("/dev/shm") / f"gcr-moving-{os.getpid()}", extra, simulate, not given.device)
    try:
        out = nodes.run("--size", str(size), "--host", str(given.host_mib * MIB), *_paced(given))
        steps = Steps(out) if given.launches else None
        time.sleep(ALONE_S if steps else 0)
        began = time.monotonic()
        said = nodes.migrate(*(("--device", given.move) if given.move else ()))
        assert said.code == 0, (said.body, said.stderr)
        pace = {"pace": steps.end(began)} if steps else {}
        count = nodes.end(out)
        within = said.body["bytes_sent"] - sum(each["bytes_sent"] for each in said.body["rounds"])
        told = {name: said.body[name] for name in ("rounds", "bytes_sent", "stop", "wall_s")}
        all_of_it = sha256(out.read_bytes()).hexdigest()
        return {"steps": count, "printed": all_of_it, "bytes_sent_in_stop": within, **pace, **told}
    finally:
        nodes.close()


def _paced(given: argparse.Namespace) -> list[str]:
    words = ["--launches", str(given.launches)] if given.launches else ["--pause", str(PAUSE_S)]
    return [*words, "--parts", str(given.parts)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1.0)
    options.add_argument("--mib-per-s", type=float, default=10.0, help="device memory that the program writes")
    options.add_argument(
        "--host-mib", type=int, default=0, help="noise on the host; it writes a page of it 10 times a second"
    )
    options.add_argument("--launches", type=int, default=0, help="kernels in each step, without a pause between steps")
    options.add_argument("--parts", type=int, default=1, help="MiB of device memory that such a step writes")
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--device", action="store_true", help="a real device")
    options.add_argument("--move", metavar="OLD=NEW", help="to another device of the machine, by number")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    if not given.launches:
        given.parts = max(1, round(given.mib_per_s * PAUSE_S))
    runs = [measured(given) for _ in range(given.repeat)]
    found = {"simulated": not given.device, "gib": given.gib, "mib_per_s": given.mib_per_s}
    found |= {"host_mib": given.host_mib, "launches": given.launches, "parts": given.parts, "move": given.move}
    text = json.dumps(found | {"runs": runs}, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
