"""CuPy: its memory pools, an elementwise kernel of its own and cuBLAS.

--pool: its own pool over cudaMalloc, or the driver's by cudaMallocAsync. Results come to the host through CuPy's pool
of pinned memory. Each step has temporaries of other sizes than the last, and now and then the pools give back what is
free.
"""

import hashlib

import cupy
import cupyx
from dialogue import parser, perform

WIDTH, MIXES = 1024, 8
GIVE_BACK_EVERY = 16


class Arrays:
    def __init__(self) -> None:
        self.matrix = cupy.random.default_rng(3).random((WIDTH, WIDTH), dtype=cupy.float32)
        self.mix = cupy.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a * 0.5f + b * 0.25f", "mix")
        self.steps = 0

    def step(self) -> str:
        for _ in range(MIXES):
            product = self.matrix @ self.matrix
            self.matrix = self.mix(self.matrix, product / cupy.abs(product).max())
        pieces = [self.matrix[: 16 + 16 * ((self.steps + index) % 15)].copy() for index in range(4)]
        self.steps += 1
        if self.steps % GIVE_BACK_EVERY == 0:
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
        return digest_of(cupy.concatenate(pieces))

    def digest(self) -> str:
        return digest_of(self.matrix)


def digest_of(array: cupy.ndarray) -> str:
    host = cupyx.empty_pinned(array.shape, array.dtype)
    array.get(out=host)
    return hashlib.sha256(host.tobytes()).hexdigest()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--pool", choices=["own", "async"], default="own")
    options = arguments.parse_args()
    if options.pool == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    perform(options, Arrays())


if __name__ == "__main__":
    main()
