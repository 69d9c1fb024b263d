"""Two processes of which the first holds many allocations of 2 MiB; the second imports some of them.

Interactive: prints `ready`, answers each line with digests. Before each answer, the first process writes to one half
of all allocations, the second to the other half of those that it imports. Each makes its allocations in the same way
whether they are imported or not. The parent uses no device.
"""

import argparse
import ctypes
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from os import getpid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

from cuda_driver import driver
from dialogue import say
from p2p_model import GRANULE
from sharing import Piece, Sharing

EDGE = 4096  # bytes of a half that are written and read
HALVES = OWN, THEIRS = 0, GRANULE // 2


class Side:
    """`writes`: which half of its allocations this process writes to."""

    def __init__(self, options: argparse.Namespace) -> None:
        driver.cuInit(0)
        device = driver.cuDeviceGet(min(options.side, options.devices - 1))
        context = driver.cuDevicePrimaryCtxRetain(device)
        driver.cuCtxSetCurrent(context)
        self.sharing = Sharing(device, context, options.group, options.side)
        self.writes = HALVES[options.side]
        self.pieces: list[Piece] = []
        self.rounds = 0

    def do(self, line: str) -> str:
        word, *rest = line.split()
        return str(getattr(self, word)(rest))

    def make(self, count: Sequence[str]) -> str:
        made = [self.sharing.lend("asked") for _ in range(int(count[0]))]
        self.pieces = [piece for piece, _ in made]
        return " ".join(word for _, word in made)

    def take(self, words: Sequence[str]) -> str:
        self.pieces = [self.sharing.take("asked", word) for word in words]
        return "ok"

    def write(self, _: Sequence[str]) -> str:
        self.rounds += 1
        for number, piece in enumerate(self.pieces):
            data = hashlib.sha256(f"{self.writes} {number} {self.rounds}".encode()).digest() * (EDGE // 32)
            driver.cuMemcpyHtoD_v2(piece.address + self.writes, data, EDGE)
        return "ok"

    def digest(self, _: Sequence[str]) -> str:
        state, edge = hashlib.sha256(), ctypes.create_string_buffer(EDGE)
        for piece in self.pieces:
            for half in HALVES:
                driver.cuMemcpyDtoH_v2(edge, piece.address + half, EDGE)
                state.update(edge.raw)
        return state.hexdigest()


def serve(options: argparse.Namespace) -> None:
    side = Side(options)
    for line in sys.stdin:
        say(side.do(line))


class Pair:
    def __init__(self, options: argparse.Namespace) -> None:
        more = [f"--group=handles-{getpid()}", f"--devices={options.devices}"]
        command = [sys.executable, __file__, *more]
        pipe = subprocess.PIPE
        self.sides = [
            subprocess.Popen([*command, f"--side={side}"], stdin=pipe, stdout=pipe, text=True, bufsize=1)
            for side in range(2)
        ]
        words = self.ask(0, f"make {options.handles}").split()
        self.ask(1, f"take {' '.join(words[: options.shared])}")

    def ask(self, side: int, line: str) -> str:
        process = self.sides[side]
        assert process.stdin and process.stdout
        process.stdin.write(f"{line}\n")
        return process.stdout.readline().strip() or sys.exit(f"side {side} ended")

    def answer(self, word: str) -> str:
        return " ".join(self.ask(side, word) for side in range(2))

    def close(self) -> None:
        for process in self.sides:
            assert process.stdin
            process.stdin.close()
        for process in self.sides:
            process.wait()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handles", type=int, default=800)
    parser.add_argument("--shared", type=int, default=0, help="of them, which the second process imports")
    parser.add_argument("--devices", type=int, default=2, help="1: both processes use the first")
    parser.add_argument("--side", type=int, help="of one of the processes; their parent gives this and the next one")
    parser.add_argument("--group")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.side is not None:
        serve(options)
        return
    pair = Pair(options)
    pair.answer("write")
    say("ready")
    for line in sys.stdin:
        say(pair.answer(line.strip()))
    pair.close()


if __name__ == "__main__":
    main()
