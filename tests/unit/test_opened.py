"""An image that a job comes back from, by a helper that says what the test wants."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from imaging import described
from msgspec.structs import replace

from gcr.daemon.images.imaging import NO_TIMEOUT
from gcr.daemon.images.opened import SEVERAL_FROM, OpenedImage, opened
from gcr.engine.node import Course
from gcr.errors import PeerGone
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.files.manifest import Cut, Manifest
from gcr.image.write.placing import Counts
from gcr.image.write.publishing import Contents
from gcr.imageerrors import Damaged, WrongImage
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.memory.layout import SealedTable
from gcr.peers.image import StorePlace
from gcr.processes import ProcessIdentity
from gcr.protocol.seqpacket import close_all

SIZES = [3 * CHUNK_BYTES, 100]
STORE = StorePlace("/nowhere")


def manifest() -> Manifest:
    return described("warm", SIZES)(Contents([], bytes(32), bytes(32), Counts()))


@dataclass
class Helper:
    """`told`: what was asked of it."""

    error: Exception | None = None
    cut: Cut = Cut.DEVICE
    size: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def channel(self) -> Any:
        return SimpleNamespace(close=lambda: self.told.append("close"))

    def manifest(self, _store: StorePlace, name: str, *_how: object) -> Manifest:
        self.told.append(f"manifest {name}")
        found = manifest()
        return replace(found, cut=self.cut, costs=replace(found.costs, bytes_total=self.size))

    def lend_slots(self, device: str, *_how: object) -> None:
        self.told.append(f"slots of {device}")

    def read(self, pid: int, _device: str, slot: int, *_how: object) -> None:
        self.told.append(f"read {pid}" + (f" into {slot}" if slot else ""))

    def load(self, pid: int, *_how: object) -> list[int]:
        self.told.append(f"load {pid}")
        return []

    def open(self, _store: StorePlace, _manifest: Manifest, *_how: object) -> None:
        self.told.append("open")
        if self.error:
            raise self.error


def target(generation: int = 4, transaction: int = 9, pid: int = 7) -> Any:
    identity = ProcessIdentity(pid, 8, 3)
    return SimpleNamespace(
        pid=pid,
        bytes_by_device={"GPU-1": sum(SIZES)},
        process=SimpleNamespace(identity=identity),
        transaction=transaction,
        generation=generation,
    )


def open_(helper: Helper, *targets: Any, unhurried: bool = True, course: Course | None = None) -> Any:
    course = course or Course("restore", 1, 60)
    return opened(("warm", STORE), targets or (target(),), lambda: cast("Any", helper), course, 5.0, unhurried)


def test_it_is_open_within_the_block_and_its_helper_ends_with_it() -> None:
    helper = Helper()
    with open_(helper) as image:
        assert helper.told == ["manifest warm", "open"]
        assert (image.size(7, "GPU-1"), [*image.windows(7, "GPU-1", 1 << 30)]) == (sum(SIZES), [(0, sum(SIZES))])
    assert helper.told[-1] == "close"


@pytest.mark.parametrize("stranger", [target(generation=5), target(transaction=8)])
def test_an_image_of_another_cut_is_not_opened(stranger: Any) -> None:
    helper = Helper()
    with pytest.raises(WrongImage), open_(helper, stranger):
        pass
    assert helper.told == ["manifest warm", "close"]


def test_a_helper_that_finds_damage_ends_too() -> None:
    helper = Helper(Damaged("a pack"))
    with pytest.raises(Damaged), open_(helper):
        pass
    assert helper.told[-1] == "close"


def test_a_large_image_is_read_by_two_helpers_each_for_some_of_the_slots() -> None:
    first, second = Helper(size=SEVERAL_FROM), Helper()
    both = iter([first, second])
    with opened(
        ("warm", STORE), [target()], lambda: cast("Any", next(both)), Course("restore", 1, 60), 5.0, True
    ) as image:
        assert image
        image.lend_slots("GPU-1", 1, [])
        for slot in (1, 2, 3, 4):
            image.read(7, "GPU-1", slot, [(0, 1)])
        image.whole(7)
    assert first.told == [
        "manifest warm",
        "open",
        "slots of GPU-1",
        "read 7 into 2",
        "read 7 into 4",
        "load 7",
        "close",
    ]
    assert second.told == ["open", "slots of GPU-1", "read 7 into 1", "read 7 into 3", "close"]


def test_damage_that_the_second_helper_finds_ends_both() -> None:
    first, second = Helper(size=SEVERAL_FROM), Helper(Damaged("a pack"))
    both = iter([first, second])
    with (
        pytest.raises(Damaged),
        opened(("warm", STORE), [target()], lambda: cast("Any", next(both)), Course("restore", 1, 60), 5.0, True),
    ):
        pass
    assert (first.told[-1], second.told[-1]) == ("close", "close")


def test_where_no_second_helper_can_be_started_the_first_reads_all() -> None:
    first = Helper(size=SEVERAL_FROM)
    answers = iter([first])

    def start() -> Any:
        if helper := next(answers, None):
            return helper
        raise PeerGone("no process can be started")

    with opened(("warm", STORE), [target()], start, Course("restore", 1, 60), 5.0, True) as image:
        assert image
        for slot in (1, 2):
            image.read(7, "GPU-1", slot, [(0, 1)])
    assert first.told == ["manifest warm", "open", "read 7 into 1", "read 7 into 2", "close"]


def test_without_an_image_no_helper_is_started() -> None:
    with opened(None, [], cast("Any", None), Course("restore", 1, 60), 5.0, True) as image:
        assert image is None


@pytest.mark.parametrize(("unhurried", "timeout"), [(True, NO_TIMEOUT), (False, 60)])
def test_the_disk_may_take_its_time_without_a_deadline(unhurried: bool, timeout: float) -> None:
    course = Course("restore", 1, 60)
    with open_(Helper(), unhurried=unhurried, course=course):
        assert course.timeout == timeout


def test_workers_get_tables_whose_bytes_are_nowhere_yet() -> None:
    with open_(Helper()) as image:
        fds = image.tables(7)
        tables = [SealedTable.from_fd(fd) for fd in fds]
        close_all(fds)
        assert [(table.devices, table.segments) for table in tables] == [({"GPU-1"}, ())]
        assert tables[0].handles == manifest().processes[0].table.handles
        assert image.tables(8) == []


def test_of_what_it_does_not_have_it_says_so() -> None:
    image = OpenedImage(manifest(), [cast("Any", Helper())], "/nowhere", Course("restore", 1, 60), 5.0)
    for pid, device in ((8, "GPU-1"), (7, "GPU-2")):
        with pytest.raises(WrongImage, match=f"has nothing of process {pid} on device {device}"):
            image.size(pid, device)


def test_processes_that_a_container_brought_back_are_known_by_the_pids_of_the_image() -> None:
    known = ProcessDecision(70, 80, {}, {}, imaged=7)
    kept = KeptImage(STORE.path, "warm")
    record = DecisionRecord("llm", 9, "checkpoint", 1.0, (known,), "nvidia", True, image=kept)
    helper, course, back = Helper(cut=Cut.PROCESS), Course("restore", 1, 60), target(pid=70)
    with opened(("warm", STORE), [back], lambda: cast("Any", helper), course, 5.0, True, record) as image:
        assert image
        assert (image.size(70, "GPU-1"), [*image.windows(70, "GPU-1", 1 << 30)]) == (sum(SIZES), [(0, sum(SIZES))])
        (table,) = image.tables(70)
        assert SealedTable.from_fd(table).pid == 70
        close_all([table])
        image.read(70, "GPU-1", 0, [(1, 2)])
        image.whole(70)
    assert helper.told[-3:] == ["read 7", "load 7", "close"]
    other = replace(record, image=KeptImage(STORE.path, "cold"))
    with (
        pytest.raises(WrongImage, match="process 7, which is gone"),
        opened(("warm", STORE), [back], lambda: cast("Any", helper), course, 5.0, True, other),
    ):
        pass
