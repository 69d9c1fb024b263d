"""Training steps of a small transformer, many short kernels each, in slices: see `slices.serve`."""

import sys
from pathlib import Path

from slices import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

WARM = 30


def main() -> None:
    import torch
    from torch_victim import Training

    torch.backends.cuda.matmul.allow_tf32 = True
    training = Training(width=256, layers=6)
    torch.use_deterministic_algorithms(False)
    for _ in range(WARM):
        training.step()
    serve(training.step)  # a step reads its loss back: nothing is queued when it is over


if __name__ == "__main__":
    main()
