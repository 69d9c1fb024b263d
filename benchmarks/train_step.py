"""Training steps of a transformer in slices, see `slices.serve`.

`short`: many short kernels, the host is what takes the time; `busy`: long ones, it is the device. A second word: GiB
that the program has in all, most of which it only keeps.
"""

import sys
from pathlib import Path
from typing import Any

from slices import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

WARM = {"short": 30, "busy": 8}
MODELS = {"short": (256, 6), "busy": (3072, 4)}  # width, layers
GIB, BUFFER = 1 << 30, 512 << 20


def main() -> None:
    import torch
    from torch_victim import Training

    kind = sys.argv[1]
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):  # a host makes half a billion parameters slowly
        training = Training(*MODELS[kind])
    torch.use_deterministic_algorithms(False)
    for _ in range(WARM[kind]):
        training.step()
    kept: list[Any] = []
    if len(sys.argv) > 2:
        while torch.cuda.memory_reserved() + BUFFER <= float(sys.argv[2]) * GIB:
            kept.append(torch.empty(BUFFER // 4, dtype=torch.int32, device="cuda").random_())
    serve(training.step)  # a step reads its loss back: nothing is queued when it is over


if __name__ == "__main__":
    main()
