"""Images that are the only copy of a job: the record names them, and they are not removed."""

from pathlib import Path

import pytest
from imaging import CIPHERS, bytes_of, described, mapped, read
from msgspec.structs import replace

from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import ImageNeeded, StoreBusy
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.journal import Journal, standing


@pytest.fixture(params=CIPHERS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store(tmp_path / "store", CIPHERS[request.param])


def record(image: KeptImage | None) -> DecisionRecord:
    processes = (ProcessDecision(7, 8, {"GPU-1": 100}, {"GPU-1": 0}),)
    return DecisionRecord("llm", 9, "checkpoint", 1.5, processes, "nvidia", True, image=image)


@pytest.mark.parametrize("image", [None, KeptImage("/store", "warm", True)])
def test_a_decision_says_which_image_has_the_bytes(tmp_path: Path, image: KeptImage | None) -> None:
    journal = Journal(tmp_path / "journal")
    journal.decide(record(image))
    assert (
        [each.image for each in journal.records()]
        == [image]
        == [each.image for each in standing(tmp_path / "journal").records]
    )
    (tmp_path / "journal" / "other.json").write_text("{}")
    found = standing(tmp_path / "journal")
    assert (len(found.records), found.unreadable) == (1, {"other"}), "what is damaged is told, and left as it is"
    assert (tmp_path / "journal" / "other.json").exists()


def imaged(store: Store, only_copy: bool) -> None:
    with ImageWriter(store, "warm") as writer:
        writer.add([(mapped(bytes_of(1, 100)), ())])
        writer.commit(lambda contents: replace(described("warm", [100])(contents), only_copy=only_copy))


def test_what_a_job_needs_is_not_removed(store: Store) -> None:
    imaged(store, only_copy=True)
    with pytest.raises(ImageNeeded, match="llm"):
        store.remove(["warm"], lambda: {"warm": "llm"})
    assert read(store, "warm")
    assert store.remove(["warm"], dict) > 0 and store.images.names() == []


@pytest.mark.parametrize("only_copy", [True, False])
def test_a_needed_reader_is_asked_while_no_writer_writes(store: Store, only_copy: bool) -> None:
    """A job may be about to need it; where it was no only copy, none can be."""
    imaged(store, only_copy)
    asked: list[bool] = []
    with ImageWriter(store, "other"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcr.image.store.removal.NEEDED_SECONDS", 0.1)
        if only_copy:
            with pytest.raises(StoreBusy):
                store.remove(["warm"], lambda: asked.append(True) or {})  # type: ignore[func-returns-value]
        else:
            store.remove(["warm"], lambda: asked.append(True) or {})  # type: ignore[func-returns-value]
    assert store.images.names() == (["warm"] if only_copy else [])
    assert not asked
