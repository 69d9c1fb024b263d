"""Training steps of a small transformer, many short kernels each: prints {"steps_per_s": ...}, from the median step."""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

WARM, STEPS = 30, 150


def main() -> None:
    import torch
    from torch_victim import Training

    torch.backends.cuda.matmul.allow_tf32 = True
    training = Training(width=256, layers=6)
    torch.use_deterministic_algorithms(False)
    seconds = []
    for number in range(WARM + STEPS):
        started = time.perf_counter()
        training.step()
        if number >= WARM:
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"steps_per_s": 1 / statistics.median(seconds)}), flush=True)


if __name__ == "__main__":
    main()
