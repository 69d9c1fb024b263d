"""A set of numbers of which some can be taken from a random place, without a look at all of them."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random


class Bag:
    """Adds, removes and finds a number in constant time."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers: list[int] = []
        self._places: dict[int, int] = {}
        for number in numbers:
            self.add(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def add(self, number: int) -> bool:
        """Returns whether the number was not in the bag."""
        if number in self._places:
            return False
        self._places[number] = len(self._numbers)
        self._numbers.append(number)
        return True

    def discard(self, number: int) -> bool:
        """Returns whether the number was in the bag."""
        place = self._places.pop(number, None)
        if place is None:
            return False
        last = self._numbers.pop()
        if last != number:
            self._numbers[place], self._places[last] = last, place
        return True

    def some(self, most: int, random: Random) -> Sequence[int]:
        """Returns `most` different numbers, or all, from a random place on."""
        count = len(self._numbers)
        start = int(random.random() * count)
        found = self._numbers[start : start + most]
        return found + self._numbers[: min(start, most - len(found))]
