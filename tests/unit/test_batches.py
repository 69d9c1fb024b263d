"""Descriptors in several messages: none is lost, none is sent twice, and none stays open after an error."""

import os
from collections.abc import Iterator

import pytest
from channels import open_descriptors

from gcr.errors import RolledBack, UsageError
from gcr.protocol.batches import BATCH, Incoming, batches, counted, gathered, paged


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH])
def test_batches_are_all_in_order_and_small_enough(count: int) -> None:
    items, found = [*range(count)], [*batches(range(count))]
    assert [item for _, part in found for item in part] == items
    assert [offset for offset, _ in found] == [*range(0, count, BATCH)]
    assert all(0 < len(part) <= BATCH for _, part in found)


def test_pages_are_gathered_until_there_are_no_more() -> None:
    assert gathered([[1, 2], [3]]) == [1, 2, 3]
    assert gathered([]) == []


def test_a_page_that_fails_leaves_no_descriptor_open() -> None:
    def pages() -> Iterator[list[int]]:
        yield [os.dup(0), os.dup(0)]
        raise OSError("gone")

    before = open_descriptors()
    with pytest.raises(OSError, match="gone"):
        gathered(pages())
    assert open_descriptors() == before


def test_descriptors_of_several_messages_come_together_by_their_key() -> None:
    incoming = Incoming()
    first, other, last = [11, 12], [21], [13]
    assert incoming.add("a", first, 0, 3) is None
    assert incoming.add("b", other, 0, 1) == [21]
    assert incoming.add("a", last, 2, 3) == [11, 12, 13]
    assert (first, other, last) == ([], [], []), "they are the receiver's now"
    assert incoming.add("a", [14], 0, 2) is None, "nothing is left of the former"


@pytest.mark.parametrize(("offset", "count"), [(1, 1), (3, 1), (2, 3)])
def test_a_message_that_does_not_follow_the_one_before_is_refused(offset: int, count: int) -> None:
    incoming, fds = Incoming(), [21] * count
    incoming.add("a", [11, 12], 0, 4)
    with pytest.raises(UsageError, match="come after 2"):
        incoming.add("a", fds, offset, 4)
    assert fds == [21] * count, "they are still the caller's"
    assert incoming.add("a", [13, 14], 2, 4) == [11, 12, 13, 14]


def test_the_first_message_begins_anew_and_closes_what_an_earlier_attempt_left() -> None:
    incoming, before = Incoming(), open_descriptors()
    incoming.add("a", [os.dup(0), os.dup(0)], 0, 3)
    assert incoming.add("a", [21], 0, 1) == [21]
    assert open_descriptors() == before


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1])
def test_a_source_is_asked_page_by_page_until_it_has_no_more(count: int) -> None:
    assert paged(lambda at, limit: [*range(count)][at : at + limit], count, "a keeper") == [*range(count)]


def test_a_source_that_gives_more_than_it_can_have_is_given_up_and_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    with pytest.raises(RolledBack, match="a keeper gives more descriptors than the 3"):
        paged(lambda _at, _limit: [os.dup(0), os.dup(0)], 3, "a keeper")
    assert open_descriptors() == before


@pytest.mark.parametrize("first", [0, 1, BATCH])
@pytest.mark.parametrize("more", [0, 1, BATCH, BATCH + 1])
def test_a_source_that_says_its_number_is_asked_until_it_has_given_all(first: int, more: int) -> None:
    asked, all_of_them = [], [*range(first + more)]

    def page(at: int, limit: int) -> list[int]:
        asked.append(at)
        return all_of_them[at : at + limit]

    assert counted(page, len(all_of_them), "a worker", all_of_them[:first]) == all_of_them
    assert asked == [*range(first, first + more, BATCH)], "it is not asked once more"


@pytest.mark.parametrize(("total", "first", "pages"), [(3, 1, [1]), (3, 0, []), (3, 1, [3]), (1, 2, []), (0, 1, [])])
def test_a_source_that_gives_another_number_than_it_says_leaves_no_descriptor_open(
    total: int, first: int, pages: list[int]
) -> None:
    before, left = open_descriptors(), iter(pages)

    def page(_at: int, _limit: int) -> list[int]:
        return [os.dup(0) for _ in range(next(left, 0))]

    with pytest.raises(RolledBack, match=f"gave {first + sum(pages)} descriptors, and said that it has {total}"):
        counted(page, total, "a worker", [os.dup(0) for _ in range(first)])
    assert open_descriptors() == before


def test_the_beginning_of_what_does_not_come_is_closed() -> None:
    incoming, before = Incoming(), open_descriptors()
    incoming.add("a", [os.dup(0)], 0, 2)
    incoming.drop("b")
    assert open_descriptors() == before + 1
    incoming.drop("a")
    assert open_descriptors() == before
