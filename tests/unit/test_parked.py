"""Private places of parked jobs: one rename decides, and a place that is parked is removed by nothing but its job."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
from memoryfolder import memory_in

from gcr import parked
from gcr.parked import Place, left_by, place_of, private_place

LARGE = 1 << 60
ID = "0123456789"


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return memory_in(tmp_path, monkeypatch)


def parked_place(job: str = "llm", identity: str = ID) -> Place:
    with private_place(job, identity, 1, LARGE) as place:
        assert place.commit()
    return place


def test_a_folder_elsewhere_is_no_place(tmp_path: Path) -> None:
    """A store of the user's may be called so, and is never removed."""
    place = parked_place()
    there = tmp_path / place.folder.name
    place.folder.rename(there)
    assert place_of(str(there / "store")) is None


def test_a_place_is_in_memory_and_ours_alone_and_goes_with_its_block(memory: Path) -> None:
    with pytest.raises(ZeroDivisionError), private_place("llm", ID, 1, LARGE) as place:
        assert place.folder.parent == memory
        assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
        raise ZeroDivisionError
    assert [*memory.iterdir()] == []


@pytest.mark.parametrize(("needed", "available"), [(LARGE, LARGE), (2, 3)])
def test_what_does_not_fit_in_memory_goes_to_a_disk(tmp_path: Path, needed: int, available: int) -> None:
    with private_place("llm", ID, needed, available) as place:
        assert place.folder.parent == tmp_path / "state/gcr"


def test_a_place_that_is_parked_stays_and_cannot_be_withdrawn() -> None:
    place = parked_place()
    assert (place.is_parked, place.withdraw(), place.commit()) == (True, False, False)
    assert left_by("llm", ID) == place == place_of(place.store)
    assert left_by("other", ID) is left_by("llm", "9876543210") is None
    place.remove()
    assert (place.folder.exists(), left_by("llm", ID)) == (False, None)


def test_a_place_that_was_withdrawn_cannot_be_parked() -> None:
    with private_place("llm", ID, 1, LARGE) as place:
        assert place.withdraw()
        assert not place.commit()
        assert place.withdraw()
    assert not place.commit()


def test_no_other_folder_is_a_private_place(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (memory / "gcr-parked-odd/store").mkdir(parents=True)
    (memory / "link").symlink_to(memory / "gcr-parked-odd")
    (memory / "gcr-parked-link").symlink_to(memory / "gcr-parked-odd")
    for store in ("store", "gcr-parked-none/store", "gcr-parked-odd/other", "gcr-parked-link/store"):
        assert place_of(str(memory / store)) is None
    assert left_by("odd", ID) is None
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert place_of(str(memory / "gcr-parked-odd/store")) is None


def test_what_was_left_behind_goes_and_what_is_parked_in_use_or_young_stays(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, former = parked_place(identity="9876543210"), parked_place()
    left, used = memory / f"gcr-parked-a-{ID[::-1]}-1", memory / f"gcr-parked-b-{ID[::-1]}-2"
    for folder in (left, used):
        folder.mkdir()
        (folder / "making").touch()
    lock = os.open(used, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with private_place("llm", ID, 1, LARGE):
        assert left.exists()
    monkeypatch.setattr(parked, "_YOUNG_S", -1.0)
    with private_place("llm", ID, 1, LARGE):
        pass
    os.close(lock)
    assert [each.exists() for each in (kept.folder, former.folder, left, used)] == [True, False, False, True]
