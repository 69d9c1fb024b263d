"""What the ranks of p2p_victim.py must say, in plain Python: it knows no device, no driver and no process.

Everything follows from the numbers of the ranks and of the pieces, and from what was done so far.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
WORDS = 512  # of each rank's data, which the ranks add up
HEAD = 64  # words at the begin of a piece that kernels change
ROUNDS = 4  # without a wait between them
SHIFT = 1 << 21
GRANULE = 2 << 20
SMALL = 300 << 10
SIZES = {  # of a piece, by the way in which it is lent
    "asked": GRANULE,
    "twice": GRANULE,
    "cached": GRANULE,
    "event": GRANULE,
    "queued": GRANULE,
    "legacy": GRANULE,
    "small": SMALL,
}
WAYS = tuple(SIZES)
SIDES = "owner", "borrower"
TAIL = 128 << 10  # bytes at the end of a rank's meeting place that nothing changes


def half_of_piece(owner: int, number: int) -> int:
    """Returns the 32 bits that fill a new piece."""
    return (0x1000_0000 + 0x10_0001 * number + 257 * owner) & 0xFFFF_FFFF


def half_of_tail(rank: int) -> int:
    return 0x5A00_0000 + 65_537 * rank


def added(epoch: int, rank: int) -> int:
    return epoch * SHIFT + rank


def changed(epoch: int, rank: int, side: str) -> int:
    """Returns what a rank adds to the head of a piece, in an epoch in which it does."""
    return epoch * 101 + rank * 7 + SIDES.index(side)


def life(step: int) -> Iterator[str]:
    """Yields what follows the rounds of a step: each piece is made, taken a step later, and freed in either order."""
    yield f"make {WAYS[step % len(WAYS)]}"
    for age in (1, 3, 4):
        number = step - age
        if number < 0:
            continue
        first = number // len(WAYS) % 2
        yield {1: f"take {number}", 3: f"drop {number} {SIDES[first]}", 4: f"drop {number} {SIDES[1 - first]}"}[age]


@dataclass
class Piece:
    """One for each rank, which it lends to its right neighbour. `values`: of each word of the head, by owner."""

    number: int
    way: str
    values: list[int]
    held: set[str] = field(default_factory=lambda: {"owner"})

    def content(self, owner: int) -> bytes:
        half = struct.pack("<I", half_of_piece(owner, self.number))
        return struct.pack("<Q", self.values[owner]) * HEAD + half * (SIZES[self.way] // 4 - 2 * HEAD)


class Model:
    def __init__(self, ranks: int) -> None:
        self.ranks, self.epoch, self.steps, self.made = range(ranks), 0, 0, 0
        self.data = [[splitmix(rank, word) for word in range(WORDS)] for rank in self.ranks]
        self.pieces: dict[int, Piece] = {}

    def answer(self, line: str) -> str:
        word, *rest = line.split()
        if word in ("step", "rounds", "make", "take", "drop"):
            return str(getattr(self, word)(*rest))
        return self.digest()

    def run(self, steps: int, warm: int = 0) -> list[str]:
        """Returns the lines of a whole run (dialogue.perform)."""
        for _ in range(warm):
            self.step()
        said = [f"step {number} {self.step()}" for number in range(steps)]
        return [*said, f"steps {steps}", f"digest {self.digest()}"]

    def step(self) -> str:
        said = self.rounds()
        for line in life(self.steps):
            self.answer(line)
        self.steps += 1
        return said

    # ---- the life of a piece ----------------------------------------------------------------------------------

    def make(self, way: str) -> str:
        halves = (half_of_piece(rank, self.made) for rank in self.ranks)
        self.pieces[self.made] = Piece(self.made, way, [half << 32 | half for half in halves])
        self.made += 1
        return f"made {self.made - 1}"

    def take(self, number: str) -> str:
        self.pieces[int(number)].held.add("borrower")
        return f"took {number}"

    def drop(self, number: str, side: str) -> str:
        piece = self.pieces[int(number)]
        piece.held.remove(side)
        if not piece.held:
            del self.pieces[int(number)]
        return f"dropped {number}"

    # ---- what the kernels do ----------------------------------------------------------------------------------

    def left(self, rank: int) -> int:
        return (rank - 1) % len(self.ranks)

    def rounds(self) -> str:
        for turn in range(ROUNDS):
            self.epoch += 1
            sums = (sum(words) for words in zip(*self.data, strict=True))
            more = sum(added(self.epoch, rank) for rank in self.ranks)
            same = [(word + more) & MASK for word in sums]
            self.data = [same] * len(self.ranks)
            if turn < len(SIDES):
                self.change(SIDES[turn])
        return " ".join(map(self.result, self.ranks))

    def change(self, side: str) -> None:
        for piece in self.pieces.values():
            for rank in self.ranks if side in piece.held else ():
                owner = rank if side == "owner" else self.left(rank)
                piece.values[owner] = (piece.values[owner] + changed(self.epoch, rank, side)) & MASK

    def result(self, rank: int) -> str:
        """Returns a hash of the digests that the rank's kernels make."""
        heads = [[piece.values[owner]] * HEAD for piece, owner in self.held(rank)]
        return sha256(b"".join(struct.pack("<Q", digest(words)) for words in [self.data[rank], *heads]))[:16]

    def held(self, rank: int) -> Iterator[tuple[Piece, int]]:
        """Yields each piece that a rank has mapped, and whose it is."""
        for piece in self.pieces.values():
            if "owner" in piece.held:
                yield piece, rank
            if "borrower" in piece.held:
                yield piece, self.left(rank)

    def digest(self) -> str:
        """Returns a hash of all bytes that a rank reaches, for each."""
        tails = b"".join(struct.pack("<I", half_of_tail(rank)) * (TAIL // 4) for rank in self.ranks)
        return " ".join(
            sha256(struct.pack(f"<{WORDS}Q", *self.data[rank]) + tails + self.contents(rank)) for rank in self.ranks
        )

    def contents(self, rank: int) -> bytes:
        return b"".join(piece.content(owner) for piece, owner in self.held(rank))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- the simulated kernels (shim/sim/kernels/basic.c) ----------------------------------------------------------------


def splitmix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def digest(words: list[int]) -> int:
    found = 0x243F6A8885A308D3
    for index, word in enumerate(words):
        found = ((found ^ (word + index) & MASK) * 0x100000001B3 + (found >> 29)) & MASK
    return found
