"""A Triton kernel over PyTorch tensors: loads its own module and launches through the driver."""

import argparse
import hashlib
import time

import torch
import triton
import triton.language as tl
from dialogue import say, serve

SIZE = 1 << 22


@triton.jit
def mix(source, target, count, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(source + place, mask=inside)
    tl.store(target + place, value * factor + place, mask=inside)


class Mixer:
    def __init__(self) -> None:
        self.one = torch.arange(SIZE, dtype=torch.int32, device="cuda")
        self.two = torch.empty_like(self.one)

    def step(self, number: int) -> None:
        mix[(triton.cdiv(SIZE, 1024),)](self.one, self.two, SIZE, 2 * number + 3, BLOCK=1024)
        self.one, self.two = self.two, self.one

    def digest(self) -> str:
        return hashlib.sha256(self.one.cpu().numpy().tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--interactive", action="store_true")
    options = parser.parse_args()
    mixer = Mixer()
    if options.interactive:
        mixer.step(0)
        serve(mixer.digest)
        return
    for number in range(options.steps):
        mixer.step(number)
        time.sleep(options.pause)
    say(f"digest {mixer.digest()}")


if __name__ == "__main__":
    main()
