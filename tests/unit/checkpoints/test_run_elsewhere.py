"""A run in a bucket, for which a folder stands that is asked for objects. Steps pass through a folder here."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from imaging import bytes_of

from gcr.checkpoints.elsewhere import Elsewhere
from gcr.checkpoints.loading import Step
from gcr.checkpoints.run import Run, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.faults import InjectedFault
from gcr.image.crypto.cipher import PLAIN
from gcr.image.files.manifest import Manifest
from gcr.image.remote.remote import Remote
from gcr.imageerrors import Damaged, NoSuchImage, StepExists, WrongImage, WrongKey

DATA = bytes_of(1, 600_000)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in ("pull", "push"):
        monkeypatch.setattr(f"gcr.image.remote.{module}.remote_at", Remote)
    (tmp_path / "away").mkdir()
    return tmp_path / "away"


@pytest.fixture
def run(tmp_path: Path, away: Path) -> Run:
    return Run(tmp_path / "here", "train", away.as_uri())


@pytest.fixture
def other(tmp_path: Path, away: Path) -> Run:
    """Returns the same run on another machine."""
    return Run(tmp_path / "there", "train", away.as_uri())


def save(run: Run, step: int, data: bytes = DATA) -> Manifest:
    saving = Saving(run, step)
    share = write_share(run, step, [("0.0", memoryview(bytearray(data)))])
    return saving.commit([share], b"what it is", 1, Framework("torch", {}))


def read(run: Run, step: int) -> bytes:
    with Step(run, step) as found:
        return bytes(found.read("0.0", 0, found.size("0.0")))


def test_a_step_is_saved_there_and_read_on_another_machine(run: Run, other: Run, away: Path) -> None:
    assert (other.steps(), other.latest(), other.folder.exists()) == ((), None, False)
    save(run, 1)
    assert save(run, 2, DATA + b"more").costs.bytes_written < 300_000  # but for its end it is here
    assert (other.steps(), other.latest()) == ([1, 2], 2)
    assert (read(other, 2), read(other, 1), read(run, 1)) == (DATA + b"more", DATA, DATA)
    assert other.verify(2) > 600_000
    assert save(other, 3).costs.bytes_written == 0
    assert run.steps() == [1, 2, 3]


def test_here_is_the_last_step_alone(run: Run) -> None:
    for step in (1, 2, 3):
        save(run, step, bytes_of(step, 100_000))
    assert run.store().images.names() == [run.image(3)]
    assert len([*(run.folder / "packs").iterdir()]) <= 2  # the last step's, and the record's
    with pytest.raises(StepExists, match="has step 2 already"):
        save(run, 2)


def test_a_step_that_was_not_pushed_is_none(
    run: Run, other: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1)
    (tmp_path / "faults").write_text("checkpoint.pushed fail\n")
    monkeypatch.setenv("GCR_FAULTS", str(tmp_path / "faults"))
    with pytest.raises(InjectedFault):
        save(run, 2, bytes_of(2, 1000))
    for each in (run, other):
        assert each.steps() == [1]
        with pytest.raises(NoSuchImage, match="has no step 2"):
            read(each, 2)
    assert read(other, 1) == DATA
    assert run.store().images.names() == [run.image(1)]


def test_a_folder_that_is_ahead_of_an_emptied_bucket_is_no_hindrance(run: Run, other: Run, away: Path) -> None:
    save(run, 1)
    away.rename(away.with_name("former"))
    away.mkdir()
    assert run.steps() == ()
    save(run, 1, bytes_of(5, 5000))
    assert (read(other, 1), read(run, 1)) == (bytes_of(5, 5000), bytes_of(5, 5000))


def test_a_step_here_that_is_another_there_is_brought_again(run: Run, other: Run, away: Path) -> None:
    save(run, 1)
    away.rename(away.with_name("former"))
    away.mkdir()
    save(other, 1, bytes_of(5, 5000))
    assert read(run, 1) == bytes_of(5, 5000)


def test_a_list_that_makes_no_sense_is_refused(run: Run, away: Path) -> None:
    save(run, 1)
    steps = away / "images/train.steps"
    for wrong in ("", "[]", '{"format": 1}', '{"format": 1, "steps": ["x"]}'):
        steps.write_text(wrong)
        with pytest.raises(Damaged, match="no list of steps"):
            run.steps()
    steps.write_text('{"format": 2}')
    with pytest.raises(WrongImage, match="this gcr reads 1"):
        run.steps()


def test_the_key_is_that_of_the_bucket(run: Run, other: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("GCR_KEY_FILE", str(tmp_path / "key"))
    save(run, 1)
    assert (other.steps(), read(other, 1)) == ([1], DATA)
    monkeypatch.delenv("GCR_KEY_FILE")
    with pytest.raises(WrongKey):
        Elsewhere(run.url, "train").steps(PLAIN)


def test_ranks_that_want_the_same_step_take_turns(run: Run, other: Run) -> None:
    save(run, 1)
    with ThreadPoolExecutor(4) as ranks:
        assert [*ranks.map(lambda _: read(other, 1), range(4))] == [DATA] * 4


def test_the_folder_of_a_bucket_is_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one, other = (run_in(f"s3://bucket/{prefix}", "train") for prefix in ("one/", "other"))
    assert one.url == "s3://bucket/one"
    assert one.folder.parent == other.folder.parent == tmp_path / "gcr/training"
    assert one.folder != other.folder
    assert run_in("s3://bucket/one", "train", tmp_path / "mine").folder == tmp_path / "mine"
