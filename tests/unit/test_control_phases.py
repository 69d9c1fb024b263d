"""Control state on its way to other devices, by a driver that finishes what a dead caller began and does not say so."""

import time
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from gcr.control import ControlPhase
from gcr.engine import control_phases as module
from gcr.engine.control_phases import ControlPhases
from gcr.errors import DeviceShared, DriverError, Lost, MoveRefused, PeerGone, RolledBack
from gcr.job.placement import Placement

A, B, C = DEVICES = "GPU-a", "GPU-b", "GPU-c"
EXCHANGED = {A: B, B: A}
TURNED = {A: B, B: C, C: A}


@dataclass
class Driver:
    """`at`: where each device of the checkpoint is. A call `in_flight` is over after so many looks."""

    phase_now: ControlPhase = ControlPhase.CHECKPOINTED
    at: dict[str, str] = field(default_factory=lambda: {each: each for each in DEVICES})
    refusals: int = 0
    deaths: int = 0  # of the caller, in so many restores
    looks: int = 3
    calls: list[str] = field(default_factory=list)
    in_flight: dict[str, str] | None = None

    def phase(self, _pid):
        if self.in_flight is not None:
            self.looks -= 1
            if self.looks <= 0:
                self._land(self.in_flight)
        return self.phase_now

    def free_bytes(self):
        return dict.fromkeys(DEVICES, 0)

    def lock(self, _pid, _deadline):
        self._step("lock", ControlPhase.RUNNING, ControlPhase.LOCKED)

    def checkpoint(self, _pid, _deadline):
        self._step("checkpoint", ControlPhase.LOCKED, ControlPhase.CHECKPOINTED)

    def unlock(self, _pid, _deadline):
        self._step("unlock", ControlPhase.LOCKED, ControlPhase.RUNNING)

    def restore(self, _pid, pairs, _deadline):
        self.calls.append("restore")
        assert not pairs or (sorted(pairs) == sorted(pairs.values()) == sorted(DEVICES))
        if self.phase_now != ControlPhase.CHECKPOINTED or self.in_flight is not None:
            raise DriverError("illegal state")
        if self.refusals:
            self.refusals -= 1
            raise DriverError("no")
        if self.deaths:
            self.deaths -= 1
            self.in_flight = dict(pairs)
            raise PeerGone("the helper is gone")
        self._land(pairs)

    def _land(self, pairs):
        self.at = {each: pairs.get(at, at) for each, at in self.at.items()}
        self.phase_now, self.in_flight = ControlPhase.LOCKED, None

    def _step(self, name, source, target):
        self.calls.append(name)
        if self.phase_now != source:
            raise DriverError("illegal state")
        self.phase_now = target

    @property
    def moved(self):
        return {each: at for each, at in self.at.items() if each != at}


@dataclass
class Scene:
    driver: Driver = field(default_factory=Driver)
    placement: Placement = field(default_factory=Placement)
    written: list[tuple[dict, dict | None, int]] = field(default_factory=list)  # and how many calls there were before

    def note(self):
        place = self.placement
        self.written.append((dict(place.now), place.tried and dict(place.tried), len(self.driver.calls)))

    def phases(self, onto=None):
        return ControlPhases(4711, lambda: self.driver, self.placement, onto or {}, self.note)

    def thaw(self, onto=None):
        self.phases(onto).to(ControlPhase.RUNNING, 30.0)
        assert self.driver.moved == self.placement.now == (onto or {})
        assert self.placement.tried is None

    def freeze(self):
        self.phases().await_answer()
        self.phases().to(ControlPhase.CHECKPOINTED, 30.0)

    def successor(self):
        """Returns the knowledge of a daemon that starts now."""
        now, tried, _ = self.written[-1] if self.written else ({}, None, 0)
        return replace(self, placement=Placement(now, tried))


@pytest.fixture
def scene():
    return Scene()


def test_a_restore_in_place_is_written_down_before_and_after(scene):
    scene.thaw()
    assert scene.written == [({}, {}, 0), ({}, None, 1)]
    scene.freeze()
    scene.thaw()
    assert scene.driver.calls == ["restore", "unlock", "lock", "checkpoint", "restore", "unlock"]


@pytest.mark.parametrize("onto", [EXCHANGED, TURNED])
def test_a_move_is_written_down_before_and_after(scene, onto):
    scene.thaw(onto)
    assert scene.written == [({}, onto, 0), (onto, None, 1)]


def test_frozen_again_it_is_there_and_comes_back_from_there(scene):
    scene.thaw(EXCHANGED)
    scene.freeze()
    scene.successor().thaw(TURNED)
    assert scene.driver.moved == TURNED


def test_frozen_again_it_also_comes_home(scene):
    scene.thaw(TURNED)
    scene.freeze()
    scene.successor().thaw()


def test_a_refused_move_is_asked_for_once_and_it_is_where_it_was(scene):
    scene.driver.refusals = 1
    with pytest.raises(MoveRefused) as refused:
        scene.thaw(EXCHANGED)
    assert refused.value.hint
    assert (scene.placement, scene.driver.calls) == (Placement(), ["restore"])
    assert scene.written[-1] == ({}, None, 1), "a successor waits for no answer"
    scene.freeze()
    scene.thaw()


def test_a_move_that_cannot_be_written_down_is_not_begun(scene):
    with pytest.raises(RolledBack):
        structs.replace(scene.phases(EXCHANGED), note=full).to(ControlPhase.RUNNING, 30.0)
    assert (scene.placement, scene.driver.calls) == (Placement(), [])
    scene.thaw()


def test_any_other_refusal_is_waited_out(scene):
    scene.driver.refusals = 2
    scene.thaw()
    assert scene.driver.calls.count("restore") == 3


@pytest.mark.parametrize("then", [{}, EXCHANGED, TURNED])
@pytest.mark.parametrize("by_successor", [False, True])
@pytest.mark.parametrize("first", [{}, EXCHANGED])
def test_a_call_that_outlives_its_caller_is_waited_for(scene, first, then, by_successor):
    scene.driver.deaths = 1
    with pytest.raises(PeerGone):
        scene.thaw(first)
    scene = scene.successor() if by_successor else scene
    scene.freeze()
    assert (scene.placement.now, scene.placement.tried) == (first, None)
    assert scene.written[-1] == (first, None, 1), "written before it was frozen again"
    assert scene.driver.calls == ["restore", "checkpoint"]
    scene.successor().thaw(then)


def test_one_that_refuses_because_of_an_earlier_call_goes_where_that_leads(scene, monkeypatch):
    """No caller waited long enough for that, and the next request was refused."""
    monkeypatch.setattr(module, "UNANSWERED", 0.05)
    scene.driver.deaths, scene.driver.looks = 1, 1 << 30
    with pytest.raises(PeerGone):
        scene.thaw(EXCHANGED)
    scene.freeze()
    with pytest.raises(MoveRefused):
        scene.thaw(TURNED)
    scene.driver.looks = 1
    scene.successor().freeze()
    assert scene.driver.moved == EXCHANGED
    scene.successor().thaw()


@pytest.mark.parametrize("then", [{}, EXCHANGED, TURNED])
def test_one_that_takes_longer_than_anybody_waits_is_seen_when_it_is_over(scene, then, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED", 0.05)
    scene.driver.deaths, scene.driver.looks = 1, 1 << 30
    with pytest.raises(PeerGone):
        scene.thaw(EXCHANGED)
    scene.freeze()
    assert scene.placement.tried == EXCHANGED
    scene.driver.looks = 1
    scene.thaw(then)


def test_a_call_that_never_came_to_the_driver_leaves_it_where_it_was(scene, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED", 0.05)
    scene.placement.tried = EXCHANGED
    scene.freeze()
    scene.thaw()
    assert scene.written[-1] == ({}, None, 1)


@pytest.mark.parametrize("then", [{}, TURNED])
def test_back_elsewhere_it_is_not_where_it_should_be(scene, then):
    """The daemon that was to freeze it again did not come to it."""
    scene.thaw(EXCHANGED)
    scene.thaw(then)
    scene.successor().freeze()
    scene.successor().thaw()


def test_what_was_tried_before_is_not_taken_for_where_a_plain_restore_leads(scene, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED", 0.05)
    scene.placement.tried = EXCHANGED  # and the driver never heard of it
    scene.freeze()
    scene.driver.deaths = 1
    with pytest.raises(PeerGone):
        scene.thaw()
    scene.freeze()
    assert (scene.driver.moved, scene.placement) == ({}, Placement())
    scene.successor().thaw()


@pytest.mark.parametrize("looks", range(1, 9))
def test_one_that_refuses_just_before_an_earlier_call_is_over_is_where_that_led(scene, monkeypatch, looks):
    monkeypatch.setattr(module, "UNANSWERED", 0.0)
    scene.driver.deaths, scene.driver.looks = 1, 1 << 30
    with pytest.raises(PeerGone):
        scene.thaw(EXCHANGED)
    scene.freeze()
    scene.driver.looks = looks
    scene.thaw()


def test_what_fails_before_the_driver_hears_of_it_leads_nowhere(scene, monkeypatch):
    def shared(_pid, _pairs, _deadline):
        raise DeviceShared("another process is there")

    with monkeypatch.context() as patch, pytest.raises(DeviceShared):
        patch.setattr(scene.driver, "restore", shared)
        scene.thaw()
    assert (scene.placement, scene.written[-1][:2]) == (Placement(), ({}, None))


def test_an_answer_that_never_comes_is_waited_for_once(scene, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED", 1.0)
    processes = [replace(scene, placement=Placement({}, EXCHANGED)) for _ in range(8)]
    began = time.monotonic()
    for each in (*processes, *processes):
        each.freeze()
    assert 0.9 < time.monotonic() - began < 8


@pytest.mark.parametrize("by_successor", [False, True])
def test_where_it_came_to_is_not_known_before_it_is_written_down(scene, by_successor):
    notes = iter([scene.note, full, full])

    def until_the_disk_is_full():
        next(notes, scene.note)()

    phases = structs.replace(scene.phases(EXCHANGED), note=until_the_disk_is_full)
    with pytest.raises(RolledBack):
        phases.to(ControlPhase.RUNNING, 30.0)
    assert (scene.placement.now, scene.placement.tried) == ({}, EXCHANGED)
    with pytest.raises(RolledBack):
        phases.to(ControlPhase.CHECKPOINTED, 30.0)
    assert scene.driver.phase_now == ControlPhase.LOCKED, (
        "no process is frozen from a place that the daemon does not know"
    )
    scene = scene.successor() if by_successor else scene
    scene.freeze()
    scene.successor().thaw()


@pytest.mark.parametrize("notes", [0, 1])
def test_in_place_it_comes_and_goes_though_the_disk_is_full(scene, notes):
    """Or what was decided is gone: it says nothing that the process itself does not."""
    room = iter([scene.note] * notes)

    def until_the_disk_is_full():
        next(room, full)()

    phases = structs.replace(scene.phases(), note=until_the_disk_is_full)
    phases.to(ControlPhase.RUNNING, 30.0)
    phases.to(ControlPhase.CHECKPOINTED, 30.0)
    scene.successor().thaw()


def full():
    raise RolledBack("no room")


def test_a_driver_that_loses_it_on_the_way_is_not_taken_for_one_that_refuses(scene, monkeypatch):
    def loses(_pid, _pairs, _deadline):
        scene.driver.phase_now = ControlPhase.FAILED
        raise DriverError("out of memory")

    monkeypatch.setattr(scene.driver, "restore", loses)
    with pytest.raises(Lost):
        scene.thaw(EXCHANGED)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Placement(), ""),
        (Placement({}, {}), ""),
        (Placement({A: B}), "its control state is on GPU-b instead of GPU-a"),
        (Placement({}, {A: B}), "a restore is to bring it to GPU-b instead of GPU-a"),
        (
            Placement({A: B}, {}),
            "its control state is on GPU-b instead of GPU-a; a restore is to bring it to the devices of its checkpoint",
        ),
    ],
)
def test_the_log_says_where_control_state_is_only_where_that_is_elsewhere(place: Placement, said: str) -> None:
    assert place.said() == said
