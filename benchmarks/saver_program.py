"""torch_memory_saver on the buffers of torch_fill.py: pause and resume, timed, one JSON line a cycle.

Starts itself again with the preload that its `configure_subprocess` sets.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))
INSIDE = "GCR_BENCH_SAVER_INSIDE"


def outside() -> int:
    from torch_memory_saver import configure_subprocess

    with configure_subprocess():
        return subprocess.run([sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}, check=False).returncode


def inside(gib: float, cycles: int) -> None:
    import torch
    from torch_fill import GIB, Fill
    from torch_memory_saver import torch_memory_saver as saver

    with saver.region(enable_cpu_backup=True):
        fill = Fill(int(gib * GIB), max(1, round(gib * 2)), 0)
    before = fill.answer()
    for number in range(cycles):
        torch.cuda.synchronize()
        started = time.perf_counter()
        saver.pause()
        paused = time.perf_counter()
        saver.resume()
        torch.cuda.synchronize()
        resumed = time.perf_counter()
        row = {"cycle": number, "out_s": paused - started, "in_s": resumed - paused}
        print(json.dumps({**row, "bytes_right": fill.answer() == before}), flush=True)


if __name__ == "__main__":
    if not os.environ.get(INSIDE):
        sys.exit(outside())
    inside(float(sys.argv[1]), int(sys.argv[2]))
