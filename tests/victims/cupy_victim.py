"""CuPy: its memory pool, an elementwise kernel of its own and cuBLAS."""

import argparse
import hashlib
import time

import cupy
from dialogue import say, serve


class Arrays:
    def __init__(self) -> None:
        self.matrix = cupy.random.default_rng(3).random((1024, 1024), dtype=cupy.float32)
        self.mix = cupy.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a * 0.5f + b * 0.25f", "mix")

    def step(self) -> None:
        product = self.matrix @ self.matrix
        self.matrix = self.mix(self.matrix, product / cupy.abs(product).max())

    def digest(self) -> str:
        return hashlib.sha256(cupy.asnumpy(self.matrix).tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--interactive", action="store_true")
    options = parser.parse_args()
    arrays = Arrays()
    if options.interactive:
        arrays.step()
        serve(arrays.digest)
        return
    for _number in range(options.steps):
        arrays.step()
        time.sleep(options.pause)
    say(f"digest {arrays.digest()}")


if __name__ == "__main__":
    main()
