"""The pieces that a receiver lacks, and how rare each is."""

from array import array
from collections.abc import Iterable, Sequence

from gcr.swarm.bag import Bag


class Missing:
    """Pieces are numbers from 0 on. `sizes`: bytes of each · `left`: those that are missing

    unheld: the missing ones that no peer has, the last resort not counted
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.left = sizes, set(range(len(sizes)))
        self.least = min(sizes, default=0)
        self.unheld = Bag(range(len(sizes)))
        self._holders = array("I", bytes(4 * len(sizes)))  # peers that have a piece and are no last resort
        self._given = array("I", bytes(4 * len(sizes)))  # how often peers gave it to others

    def hold(self, piece: int) -> None:
        """One peer more has the piece."""
        self._holders[piece] += 1
        self.unheld.discard(piece)

    def release(self, piece: int) -> None:
        """One peer less has the piece."""
        self._holders[piece] -= 1
        if not self._holders[piece] and piece in self.left:
            self.unheld.add(piece)

    def give(self, pieces: Iterable[int]) -> None:
        """A peer gave these pieces to others."""
        given = self._given
        for piece in pieces:
            given[piece] += 1

    def came(self, piece: int) -> None:
        self.left.remove(piece)
        self.unheld.discard(piece)

    def rarity(self, piece: int) -> int:
        """Returns how many peers have the piece, or were given it."""
        return self._holders[piece] + self._given[piece]
