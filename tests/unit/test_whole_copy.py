"""A copy that an image takes and a process may come back from: it has every byte, and says what the parent has."""

import random

from host_device import ABOUT, ACTS, LONG, Act, Device, act, baseline, image, look, process, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.hashing import CHUNK_BYTES
from gcr.memory.partial import Where
from gcr.worker.hostcopy import HostCopy
from gcr.worker.taking import copy_live, copy_out

BIG = 5 * CHUNK_BYTES


def unchanged(device: Device, parent: dict[int, bytes], id: int) -> list[bool]:
    """Returns for each chunk of an allocation whether the parent has the same bytes at its place."""
    now, then = device.holds(id), parent.get(id, b"")
    chunks = [slice(at, at + CHUNK_BYTES) for at in range(0, len(now), CHUNK_BYTES)]
    return [len(then) == len(now) and now[each] == then[each] for each in chunks]


def has_every_byte(made: HostCopy, device: Device) -> bool:
    """Returns whether the segments alone have what lies on the device. Raises WrongState where it is not whole."""
    made.seal(ABOUT)
    found = sealed(made)
    everywhere = {id: bytes([Where.HERE]) * len(each) for id, each in found.chunks.items()}
    bytes_here = image(made, {}, type(found)(found.table, everywhere))
    return bytes_here == {id: device.holds(id) for id in device.memory_of}


@settings(max_examples=40)
@given(acts=st.lists(ACTS, min_size=3, max_size=3), live=st.booleans(), paranoid=st.booleans())
def test_it_has_every_byte_and_names_exactly_what_the_parent_has(
    acts: list[list[Act]], live: bool, paranoid: bool
) -> None:
    device, ids = Device(), iter(range(1, 1000))
    device.put(next(ids), random.Random(1).randbytes(BIG))
    act(device, acts[0], ids)
    parent = {id: device.holds(id) for id in device.memory_of}
    act(device, acts[1], ids)
    with process(device, leaves_copies=True) as held:
        made = held.copy(1)
        look(made, device)
        made.reserve_known(sum(made.memory.sizes.values()))
        made.compare_with(baseline(parent), whole=True)
        if live:
            copy_live(made, LONG, lambda _: None)
            act(device, acts[2], ids)
            look(made, device)
        copy_out(made, LONG, lambda _: None, paranoid)
        assert has_every_byte(made, device)
        places = sealed(made).chunks
        told = Where.BOTH if paranoid else Where.PARENT
        assert {id: [each == told for each in places[id]] for id in places} == {
            id: unchanged(device, parent, id) for id in device.memory_of
        }
        held.forget_copy(1)
        later = held.copy(2)  # what is left for the next copy has no parent
        look(later, device)
        later.reserve_known(sum(later.memory.sizes.values()))
        copy_out(later, LONG, lambda _: None)
        assert has_every_byte(later, device)
        assert not any(Where.PARENT in each or Where.BOTH in each for each in sealed(later).chunks.values())
