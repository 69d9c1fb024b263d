"""Addresses for the arena's segments, on real reservations of this process."""

import random
from itertools import pairwise

import pytest

from gcr.errors import NoRoom
from gcr.memory import addresses, hostmap
from gcr.memory.addresses import HUGE_PAGE, Addresses

MIB = 1 << 20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(addresses, "LEAST_BYTES", 16 * MIB)
    made = Addresses()
    yield made
    made.close()


def test_small_segments_share_a_reservation_and_lie_at_huge_pages(small):
    taken = [small.take(2 * MIB) for _ in range(8)]
    assert len(set(taken)) == 8 and len(small._reserved) == 1
    assert all(address % HUGE_PAGE == 0 for address in taken)


def test_another_reservation_is_made_where_all_addresses_are_in_use(small):
    taken = [small.take(6 * MIB) for _ in range(100)]
    assert len(set(taken)) == 100 and len(small._reserved) == 50
    assert small.take(64 * MIB) not in taken


def test_what_is_given_back_is_taken_again_whatever_its_size(small):
    for size in (2, 4, 6, 16, 10, 2):
        for _ in range(50):
            small.give_back(small.take(size * MIB), size * MIB)
    assert len(small._reserved) == 1 and len(small._free) == 1


def test_no_two_that_are_taken_overlap(small):
    chance, taken = random.Random(3), dict[int, int]()
    for _ in range(3000):
        if taken and chance.random() < 0.5:
            address = chance.choice(list(taken))
            small.give_back(address, taken.pop(address))
        else:
            size = chance.choice((2, 4, 8, 12)) * MIB
            taken[small.take(size)] = size
        stretches = sorted([(at, at + size) for at, size in taken.items()] + small._free)
        assert all(before[1] <= after[0] for before, after in pairwise(stretches))
    for address, size in taken.items():
        small.give_back(address, size)
    assert sum(end - begin for begin, end in small._free) == sum(each.size - HUGE_PAGE for each in small._reserved)


def test_a_kernel_that_gives_no_addresses_is_no_room(small, monkeypatch):
    taken = small.take(16 * MIB)

    def refuse(_size):
        raise OSError(12, "mmap")

    monkeypatch.setattr(hostmap, "reserve", refuse)
    with pytest.raises(NoRoom, match="address") as caught:
        small.take(4 * MIB)
    assert caught.value.missing == 4 * MIB
    small.give_back(taken, 16 * MIB)
    assert small.take(4 * MIB) == taken


def test_giving_back_after_the_end_is_no_error(small):
    taken = small.take(2 * MIB)
    small.close()
    small.give_back(taken, 2 * MIB)
    assert small._free == []
