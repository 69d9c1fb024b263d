"""A hip-python program, the same for both generations: mapped and plain memory, kernels, streams, copies."""

import argparse
import hashlib
import os
import time

from dialogue import note, say, serve
from hip_calls import MIB, U64, Kernels, check, create, hip, mapped, read

WORDS = MIB // 8


class Buffers:
    """One buffer that the program maps itself and one from hipMalloc; each step changes both through kernels."""

    def __init__(self, kernels: str) -> None:
        self.kernels = Kernels(kernels)
        self.stream = check(hip.hipStreamCreateWithFlags(1))
        size = 2 * MIB
        self.mapped = mapped(create(size), size)
        self.plain = int(check(hip.hipMalloc(MIB)))
        for seed, address in enumerate((self.mapped, self.plain)):
            self.kernels.launch("fill", U64(address), U64(WORDS), U64(seed), stream=self.stream)

    def step(self, number: int) -> None:
        first, second = (self.mapped, self.plain) if number % 2 else (self.plain, self.mapped)
        self.kernels.launch("add", U64(first), U64(WORDS), U64(number), stream=self.stream)
        kind = hip.hipMemcpyKind.hipMemcpyDeviceToDevice
        check(hip.hipMemcpyAsync(second, first + MIB // 2, MIB // 2, kind, self.stream))

    def digest(self) -> str:
        check(hip.hipStreamSynchronize(self.stream))
        return hashlib.sha256(read(self.mapped, MIB) + read(self.plain, MIB)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause-ms", type=int, default=0)
    parser.add_argument("--kernels", default=os.environ.get("GCR_SIM_KERNELS"))
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--still", action="store_true", help="with --interactive: no step before an answer")
    options = parser.parse_args()
    buffers = Buffers(options.kernels)
    if options.interactive:
        steps = iter(range(1, 1 << 30))

        def answer() -> str:
            if not options.still:
                buffers.step(next(steps))
            return buffers.digest()

        serve(answer)
        return
    for number in range(options.steps):
        buffers.step(number)
        time.sleep(options.pause_ms / 1000)
    note(f"steps {options.steps}")
    say(f"digest {buffers.digest()}")


if __name__ == "__main__":
    main()
