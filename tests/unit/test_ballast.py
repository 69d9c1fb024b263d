"""Room that a process may ask for on its way back."""

from types import SimpleNamespace

import pytest

from gcr.engine import ballast
from gcr.engine.ballast import Room, WayBack, way_back
from gcr.engine.turns import Turns
from gcr.errors import NoRoom, PeerGone
from gcr.job.suspension import Suspension

DEVICE, OTHER = "GPU-1", "GPU-2"


def target(free, **data):
    """A process with data on devices, or a context alone where it has none, and what is free on each."""
    sizes = {name.replace("_", "-"): size for name, size in data.items()} or dict.fromkeys(free, 0)
    return SimpleNamespace(
        bytes_by_device={device: size for device, size in sizes.items() if size},
        devices=sorted(sizes),
        free_bytes=lambda devices: {d: free[d] for d in devices},
    )


def test_a_full_device_spares_nothing():
    alone = target({DEVICE: 0}, GPU_1=100)
    room = Room([alone])
    room.look()
    assert room.spare(DEVICE) == 0


def test_what_is_free_is_spare_whatever_the_program_allocates_meanwhile():
    alone = target({DEVICE: 30}, GPU_1=100)
    room = Room([alone])
    room.look()
    assert room.spare(DEVICE) == 30
    alone.bytes_by_device[DEVICE] = 120
    assert room.spare(DEVICE) == 10
    alone.bytes_by_device[DEVICE] = 140  # another process freed something as well
    assert room.spare(DEVICE) == 0


def test_processes_on_one_device_share_it():
    free = {DEVICE: 30, OTHER: 7}
    both = [target(free, GPU_1=100), target(free, GPU_1=50, GPU_2=5)]
    room = Room(both)
    room.look()
    assert (room.spare(DEVICE), room.spare(OTHER)) == (15, 7)


def test_a_context_without_data_has_its_share_as_well():
    """The driver's need for it at a restore is ballast like any other, margin included."""
    free = {DEVICE: 30, OTHER: 8}
    both = [target(free, GPU_1=100, GPU_2=0), target(free, GPU_2=5)]
    room = Room(both)
    room.look()
    assert (room.spare(DEVICE), room.spare(OTHER)) == (30, 4)
    alone = Room([target({DEVICE: 12})])
    alone.look()
    assert alone.spare(DEVICE) == 12


def test_a_process_without_a_device_asks_for_nothing():
    room = Room([target({})])
    room.look()
    assert room.spare(DEVICE) == 0


class Workers:
    """One worker's ballast, of a target with a hold. `most`: bytes that its device has free."""

    def __init__(self, most):
        self.most, self.held, self.turns, self.resident = most, [], Turns(), 0
        worker = SimpleNamespace(device=DEVICE, handles=SimpleNamespace(hold_ballast=self.hold, drop_ballast=self.drop))
        self.saved, self.dropped, self.suspension = True, 0, Suspension()
        self.target = SimpleNamespace(
            hold="7.1",
            devices=[DEVICE],
            workers=lambda: [worker],
            node=SimpleNamespace(
                turns=self.turns, config=SimpleNamespace(control_s=1.0), make_way=lambda *how: self.evict(*how)
            ),
            process=SimpleNamespace(job="llm", suspension=self.suspension),
            control_state=SimpleNamespace(is_saved=lambda: self.saved),
            free_bytes=lambda devices: dict.fromkeys(devices, self.most),
        )

    def hold(self, _hold, size):
        if size > self.most:
            raise NoRoom("no room", missing=size - self.most)
        self.held.append(size)

    def evict(self, device, size, beside):
        assert (device, size, beside) == (DEVICE, 10, ["7.1"])
        self.most, self.resident = self.most + self.resident, 0

    def drop(self, _hold):
        if self.dropped is None:
            raise PeerGone("the worker is gone")
        self.dropped += 1

    def kept(self):
        """Returns the way back, once the ballast is held or is not to be had."""
        kept = WayBack(self.target, {DEVICE: [11, 10]})
        kept.keep()
        kept._taking.join(10)  # as `settle`, which may come before it has begun
        kept.settle()
        return kept


@pytest.mark.parametrize(("most", "held"), [(11, [11]), (10, [10]), (9, [])])
def test_the_largest_ballast_that_there_is_room_for_is_held(most, held):
    workers = Workers(most)
    workers.kept()
    assert workers.held == held
    assert workers.suspension.unheld_by_device == ({} if held else {DEVICE: 10})


def test_the_driver_is_asked_where_its_room_was_held():
    workers = Workers(10)
    kept = workers.kept()
    workers.most = 0  # by the device's own count: it lags
    with way_back(workers.target, kept):
        assert workers.dropped == 1


@pytest.mark.parametrize("dies", [False, True])
def test_the_driver_is_not_asked_where_its_room_was_not_held_and_is_not_there(dies):
    workers = Workers(10 if dies else 9)
    kept = workers.kept()
    if dies:
        workers.dropped, workers.most = None, 9
    for given_up in (kept, None):  # a recovery comes later, and knows of no ballast
        with pytest.raises(NoRoom), way_back(workers.target, given_up):
            pytest.fail("the driver was asked")
        assert workers.suspension.unheld_by_device == {DEVICE: 10}
    workers.most = 10
    with way_back(workers.target):
        assert workers.turns._under_way  # no other takes it meanwhile
    assert workers.suspension.unheld_by_device == {}


def test_resident_memory_of_others_gives_way_to_a_process_that_the_driver_takes_back():
    """A job's head start may have taken the room before the ballast could."""
    workers = Workers(9)
    kept = workers.kept()
    workers.resident = 1
    with way_back(workers.target, kept):
        assert (workers.most, workers.resident) == (10, 0)


def test_a_process_that_the_driver_has_not_saved_needs_no_room():
    workers = Workers(9)
    workers.kept()
    workers.saved = False
    with way_back(workers.target):
        pass


def test_none_is_taken_once_it_is_settled_however_long_a_driver_takes_its_room(monkeypatch):
    monkeypatch.setattr(ballast, "SETTLED_WITHIN", 0.05)
    workers = Workers(11)
    kept = WayBack(workers.target, {DEVICE: [11, 10]})
    with workers.turns.taking([DEVICE], 1.0):
        kept.keep()
        late = kept._taking
        kept.settle()
        assert late.is_alive()  # it waits for its turn still
    late.join(10)
    assert workers.held == []
