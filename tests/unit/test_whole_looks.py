"""The end of a helper that may still have CRIU look at what it can do here; a save beside the device memory's way."""

import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon.commands import whole
from gcr.daemon.commands.whole import Whole
from gcr.engine.node import Course
from gcr.engine.transaction import Transaction
from gcr.errors import PeerGone
from gcr.imageerrors import ImageFailed, NotDumped
from gcr.testing.machine import PATIENCE


class Helper:
    """Looks until it may end, and notes what happens to it."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.may_end = Event()
        self.channel = SimpleNamespace(close=lambda: self.happened.append("closed"))

    def look(self, _asked: object) -> None:
        self.may_end.wait(30)
        self.happened.append("looked")


@pytest.fixture
def helper() -> Helper:
    return Helper()


def saving(helper: Helper) -> Whole:
    world = SimpleNamespace(backend="amd", simulated=False, environment={})
    job = SimpleNamespace(processes={}, world=world)
    return Whole(cast("Any", None), cast("Any", job), cast("Any", None), 1007, cast("Any", helper))


def test_a_helper_is_ended_once_criu_has_looked(helper: Helper) -> None:
    """Ended before, CRIU may leave a child behind that it had stopped."""
    begun = saving(helper)
    begun.look()
    Timer(0.1, helper.may_end.set).start()
    begun.close()
    assert helper.happened == ["looked", "closed"]


def test_a_helper_that_looks_for_too_long_is_ended(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LOOKED_S", 0.05)
    begun = saving(helper)
    begun.look()
    begun.close()
    assert helper.happened == ["closed"]
    helper.may_end.set()


def test_a_helper_that_does_not_look_is_ended_at_once(helper: Helper) -> None:
    saving(helper).close()
    assert helper.happened == ["closed"]


@pytest.mark.parametrize("taken", [False, True])
def test_the_folder_is_made_once_and_goes_with_the_save_or_with_its_stack(
    helper: Helper, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = list[Path]()
    monkeypatch.setattr(helper, "prepare", lambda folder, _seconds, _covered: folders.append(folder), raising=False)
    begun = saving(helper)
    begun._ready.looking.set_result(cast("Any", SimpleNamespace(pids=[])))
    begun.prepare(0)
    begun.prepare(0)
    (folder,) = folders
    with ExitStack() as stack:
        if taken:
            assert begun._ready.taken(stack) == folder
        begun.close()
        assert folder.exists() == taken
        assert begun._ready.taken(stack) == (None if taken else folder)
    assert not folder.exists()


class Image:
    """Device memory on its way to a store: until it may end, or is given up."""

    def __init__(self, seconds: float) -> None:
        self.order = SimpleNamespace(name="night")
        self.happened, self.given_up, self._seconds = list[str](), Event(), seconds

    def lend_held(self, _targets: object) -> None:
        self.happened.append("lent")

    def write_held(self, *_: object) -> None:
        if self.given_up.wait(self._seconds):
            raise PeerGone("the helper was ended")
        self.happened.append("held")

    def ready(self) -> SimpleNamespace:
        return SimpleNamespace(kill=self.given_up.set)

    def publish(self, *_: object, left: bool) -> None:
        self.left = left
        self.happened.append("published")


class Dumper(Helper):
    """A helper whose CRIU fails, or waits for the device memory to be on its way."""

    def __init__(self, image: Image, error: Exception | None = None) -> None:
        super().__init__()
        self.may_end.set()
        self._image, self._error = image, error

    def dump(self, _folder: object, _seconds: float) -> None:
        if self._error:
            raise self._error
        self._image.happened.append("dumped")

    def check(self) -> None:
        self._image.happened.append("checked")


def saved(image: Image, dumper: Dumper, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = saving(dumper)
    made.job.begun, made.job.token, made.job.name = [], "t", "llm"
    made.job.decision = SimpleNamespace(decided_at=1.0)
    made.course, made.ends = Course("checkpoint", 1, 60.0, lambda _event: None), True
    made._ready.looking.set_result(cast("Any", SimpleNamespace(pids=[])))
    monkeypatch.setattr(whole, "suspended", lambda *_: [])
    monkeypatch.setattr(Whole, "_described", lambda _self, _imaging: SimpleNamespace(write=lambda _folder: None))
    with Transaction("llm") as undo:
        made._save(cast("Any", image), folder, undo)
        undo.commit()


def test_criu_saves_the_processes_while_device_memory_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image(0.3)
    saved(image, Dumper(image), tmp_path, monkeypatch)
    assert image.happened == ["lent", "dumped", "held", "published", "checked"]
    assert image.left


def test_where_criu_fails_nothing_waits_for_device_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(PATIENCE)
    began = time.monotonic()
    with pytest.raises(NotDumped, match="it says no") as caught:
        saved(image, Dumper(image, NotDumped("it says no")), tmp_path, monkeypatch)
    assert time.monotonic() - began < PATIENCE / 2
    assert "the helper was ended" in "".join(caught.value.__notes__)
    assert image.happened == ["lent"]


def test_where_device_memory_is_not_written_the_image_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image(PATIENCE)
    image.given_up.set()
    with pytest.raises(ImageFailed, match="the helper was ended"):
        saved(image, Dumper(image), tmp_path, monkeypatch)
    assert image.happened == ["lent", "dumped"]
