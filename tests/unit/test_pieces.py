"""The walk over pieces against an oracle that has a list of single bytes."""

from itertools import accumulate, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.memory.pieces import NotInPieces, Pieces

Byte = tuple[int, int]  # the number of a piece, and the offset in it


@st.composite
def lines(draw: st.DrawFn) -> tuple[Pieces, list[Byte | None]]:
    """Returns pieces with gaps between some, empty ones among them, and each byte of the line; None in a gap."""
    starts, ends, flat = list[int](), list[int](), list[Byte | None]()
    for number, (gap, size) in enumerate(draw(st.lists(st.tuples(st.sampled_from([0, 0, 2]), st.integers(0, 9))))):
        flat += [None] * gap
        starts.append(len(flat))
        flat += [(number, at) for at in range(size)]
        ends.append(len(flat))
    return Pieces(starts, ends), flat


def stretches_within(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Returns stretches in any order, which may overlap, be empty, or go beyond the line."""
    return st.lists(st.tuples(st.integers(-2, size + 2), st.integers(0, size + 2)), max_size=5)


@given(st.data(), lines(), st.integers(1, 12))
def test_every_byte_of_each_stretch_comes_once_in_order_and_from_its_place(
    data: st.DataObject, line: tuple[Pieces, list[Byte | None]], most: int
) -> None:
    pieces, flat = line
    stretches = data.draw(stretches_within(len(flat)))
    wanted = list[tuple[int, int, Byte]]()
    beyond = False
    for number, (offset, size) in enumerate(stretches):
        for done in range(size):
            place = flat[offset + done] if 0 <= offset + done < len(flat) else None
            beyond = beyond or place is None
            if not beyond and place is not None:
                wanted.append((number, done, place))
    found = list[tuple[int, int, Byte]]()
    try:
        for cut in pieces.cuts(stretches, most):
            assert 0 < cut.size <= most
            found += [(cut.stretch, cut.done + byte, (cut.piece, cut.at + byte)) for byte in range(cut.size)]
        raised = False
    except NotInPieces:
        raised = True
    assert raised == beyond
    assert found == wanted


@given(lines(), st.integers(0, 50), st.integers(0, 50))
def test_cuts_are_as_few_as_the_borders_of_pieces_allow(
    line: tuple[Pieces, list[Byte | None]], offset: int, size: int
) -> None:
    pieces, flat = line
    touched = flat[offset : offset + size]
    if None in touched or offset + size > len(flat):
        return
    assert len([*pieces.cuts([(offset, size)])]) == len([*groupby(touched, key=lambda byte: byte and byte[0])])


@given(st.lists(st.integers(0, 9)))
def test_pieces_back_to_back_have_no_gap_and_begin_at_0(sizes: list[int]) -> None:
    line = Pieces.back_to_back(iter(sizes))
    assert [*line.starts] == [*accumulate(sizes, initial=0)][:-1]
    assert [*line.ends] == [*accumulate(sizes)]
    assert line.size == sum(sizes)
    assert sum(cut.size for cut in line.cuts([(0, line.size)])) == line.size


def test_a_byte_that_is_in_no_piece_is_named() -> None:
    with pytest.raises(NotInPieces, match="byte 9 of the line is in none of 2 pieces"):
        [*Pieces([0, 10], [9, 20]).cuts([(5, 10)])]
