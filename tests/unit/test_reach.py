"""Moves that part devices of which one uses memory of the other."""

import pytest
from msgspec.structs import replace

from gcr.drain import HandleSpec
from gcr.engine.joint import Borrowed
from gcr.engine.reach import Use, foreign_uses, own_uses, parted
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.peers.shares import Foreign
from gcr.protocol.wire import MappingRecord

A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"
CROSS = [Use(11, 11, A, B), Use(11, 11, B, A)]


def everything(_device: str, _peer: str) -> bool:
    return True


class Asked:
    """Tells that devices reach each other but for these pairs, in this direction. questions: the pairs asked for."""

    def __init__(self, *apart: tuple[str, str]) -> None:
        self.apart, self.questions = set(apart), list[tuple[str, str]]()

    def __call__(self, device: str, peer: str) -> bool:
        self.questions.append((device, peer))
        return (device, peer) not in self.apart


def test_devices_that_reach_each_other_may_be_moved_to():
    assert parted(CROSS, {B: C, C: B}, everything) is None


def test_the_devices_of_a_use_are_named_as_they_would_be():
    found = parted(CROSS, {B: C, C: B}, Asked((C, A)))
    assert found == Use(11, 11, home=A, device=C)
    assert parted(CROSS, {B: C, C: B}, Asked((A, C))) == Use(11, 11, home=C, device=A)


def test_two_devices_exchanged_are_asked_about_in_the_other_direction():
    asked = Asked((A, B))
    assert parted([Use(11, 12, home=A, device=B)], {A: B, B: A}, asked) == Use(11, 12, home=B, device=A)
    assert asked.questions == [(A, B)]


def test_what_does_not_move_is_not_asked_about():
    asked = Asked((B, A))
    assert parted([*CROSS, Use(11, 11, A, A), Use(11, 11, D, D)], {C: D, D: C}, asked) is None
    assert asked.questions == []


def test_each_pair_is_asked_about_once():
    asked = Asked()
    assert parted([*CROSS, *CROSS, Use(12, 11, A, B)], {B: C, C: B}, asked) is None
    assert asked.questions == [(C, A), (A, C)]


@pytest.mark.parametrize(("read", "write"), [(0b11, 0b10), (0b10, 0b11), (0b11, 0b11)])
def test_a_table_says_which_devices_use_the_memory_of_which(read, write):
    spec = HandleSpec(5, 10, 1, 0, 0, 0)
    mappings = (MappingRecord(5, 4096, 0, 10, read, write), MappingRecord(9, 8192, 0, 10, 0b11, 0b11))
    table = SealedTable("llm", 11, 1, 7, {0: A, 1: B, 2: C}, (SealedHandle(spec, A, 0),), mappings, ())
    assert [*own_uses(11, [table])] == [Use(11, 11, A, A), Use(11, 11, A, B)]
    elsewhere = replace(table, handles=(SealedHandle(replace(spec, id=9), B, 0),))
    assert Use(11, 11, B, A) in [*own_uses(11, [table, elsewhere])]


def test_memory_of_another_process_lies_where_the_holder_sees_it():
    held = [Foreign(1, 10, 7, 5, device=0, devices=0b10), Foreign(2, 10, 8, 5, device=1, devices=0)]
    owners = [Borrowed(1, 12, 5), Borrowed(2, 13, 5)]
    assert [*foreign_uses(11, held, owners, {0: A, 1: B})] == [Use(11, 12, A, B)]
