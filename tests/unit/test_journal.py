"""Decision records: never trusted when damaged, and kept or forgotten by a disk that fails."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace
from records import PROCESS, RECORD

from gcr.errors import UnsafeRuntime, UsageError
from gcr.job import decisions
from gcr.job.decisions import KeptImage, text_of
from gcr.job.journal import Journal, standing


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def journal(folder):
    return Journal(folder)


def test_a_decision_is_read_back_as_it_was_made(journal, folder):
    journal.decide(RECORD)
    assert list(Journal(folder).records()) == [RECORD]
    assert (folder / "llm.json").stat().st_mode & 0o777 == 0o600


def test_decisions_of_several_jobs_do_not_meet(journal):
    other = replace(RECORD, job="ddp", kind="data_only")
    journal.decide(RECORD)
    journal.decide(other)
    assert list(journal.records()) == [other, RECORD]
    journal.forget("llm")
    assert list(journal.records()) == [other]


def test_a_later_decision_of_the_job_replaces_the_earlier(journal):
    journal.decide(RECORD)
    journal.decide(replace(RECORD, transaction=8))
    assert [record.transaction for record in journal.records()] == [8]


def test_what_is_known_of_its_processes_is_amended(journal, folder):
    moved = replace(PROCESS, now={"GPU-1": "GPU-2", "GPU-2": "GPU-1"}, tried={})
    journal.decide(RECORD)
    journal.amend("llm", lambda record: replace(record, processes=(moved,)))
    assert list(Journal(folder).records()) == [replace(RECORD, processes=(moved,))]


def test_nothing_decided_cannot_be_amended(journal):
    with pytest.raises(FileNotFoundError):
        journal.amend("llm", lambda record: record)
    assert list(journal.records()) == []


def test_a_record_of_an_earlier_version_is_of_a_process_that_never_moved(journal, folder):
    journal.decide(RECORD)
    body = json.loads((folder / "llm.json").read_text())
    for name in ("now", "tried"):
        del body["record"]["processes"][0][name]
    body["digest"] = decisions._digest(body["record"])
    (folder / "llm.json").write_text(json.dumps(body))
    assert list(journal.records()) == [RECORD]


def test_forgetting_twice_is_forgetting(journal):
    journal.decide(RECORD)
    journal.forget("llm")
    journal.forget("llm")
    assert list(journal.records()) == []


def test_a_process_not_started_by_gcr_is_named_by_its_pid(journal):
    journal.decide(replace(RECORD, job="4711", kind="driver"))
    assert journal.records()[0].job == "4711"


@pytest.mark.parametrize("name", ["", "../llm", "a/b", "LLM", ".hidden", "a" * 64, "llm\n"])
def test_a_name_that_is_no_job_s_is_refused(journal, name):
    with pytest.raises(UsageError):
        replace(RECORD, job=name)
    with pytest.raises(UsageError):
        journal.forget(name)


def test_an_unknown_kind_is_refused():
    with pytest.raises(UsageError):
        replace(RECORD, kind="guess")


def test_a_journal_others_can_write_is_refused(journal, folder):
    folder.chmod(0o777)
    with pytest.raises(UnsafeRuntime):
        Journal(folder)


def damaged_variants() -> list[bytes]:
    good = text_of(RECORD)
    other = json.loads(good)
    other["record"]["transaction"] = 8
    halves = [good[:cut] for cut in range(0, len(good), 37)]
    digest_of_no_record = json.dumps({"digest": decisions._digest({}), "record": {}}).encode()
    return [
        *halves,
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(other).encode(),
        digest_of_no_record,
    ]


@pytest.mark.parametrize("content", damaged_variants())
def test_what_does_not_read_back_is_set_aside_and_reported(journal, folder, content, caplog):
    journal.decide(replace(RECORD, job="ddp"))
    (folder / "llm.json").write_bytes(content)
    assert [record.job for record in journal.records()] == ["ddp"]
    assert [path.name for path in journal.damaged()] == ["llm.damaged-1"]
    assert journal.damaged()[0].read_bytes() == content
    assert "job llm" in caplog.text
    assert [record.job for record in journal.records()] == ["ddp"]


def test_a_second_damaged_record_does_not_overwrite_the_first(journal, folder):
    for number in (b"1", b"2"):
        (folder / "llm.json").write_bytes(number)
        journal.records()
    assert [path.read_bytes() for path in journal.damaged()] == [b"1", b"2"]


def test_every_flipped_bit_is_noticed(journal, folder):
    good = text_of(replace(RECORD, processes=()))
    for bit in range(0, 8 * len(good), 11):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / "llm.json").write_bytes(flipped)
        assert not journal.records() or journal.records() == [replace(RECORD, processes=())]
    assert len(journal.damaged()) > len(good) // 2


def test_a_record_under_another_job_s_name_is_not_that_job_s(journal, folder):
    (folder / "ddp.json").write_bytes(text_of(RECORD))
    assert list(journal.records()) == []
    assert [path.name for path in journal.damaged()] == ["ddp.damaged-1"]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flipped, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["llm.json", "llm.copy"])
def test_a_successor_reads_the_other_file(journal, folder, name, harm):
    journal.decide(RECORD)
    harm(folder / name)
    assert [*standing(folder).records] == [RECORD] and not standing(folder).unreadable
    successor = Journal(folder)
    assert [*successor.records()] == [RECORD]
    successor.mend()
    assert (folder / "llm.json").read_bytes() == (folder / "llm.copy").read_bytes() == text_of(RECORD)
    successor.forget("llm")
    assert list(folder.iterdir()) == []


def test_what_another_removes_is_written_again(journal, folder):
    journal.decide(RECORD)
    shutil.rmtree(folder)
    assert journal.record("llm") == RECORD
    journal.mend()
    assert [*Journal(folder).records()] == [RECORD]


def test_a_job_without_a_readable_record_is_named_to_readers(journal, folder):
    journal.decide(RECORD)
    for name in ("llm.json", "llm.copy"):
        flipped(folder / name)
    assert standing(folder).unreadable == {"llm"}
    assert [*Journal(folder).records()] == []
    assert standing(folder).unreadable == {"llm"}, "also when the daemon has set it aside"
    journal.forget("llm")
    assert not standing(folder).unreadable


@pytest.mark.parametrize("written", [0, 10, 100, None])
def test_a_temporary_file_decides_nothing(journal, folder, written):
    (folder / "llm.json.new").write_bytes(text_of(RECORD)[:written])
    assert list(journal.records()) == []
    assert list(folder.iterdir()) == []


CALLS = ("open", "write", "fsync", "close", "rename", "unlink")


IMAGED = replace(RECORD, kind="restored", image=KeptImage("/store", "warm"))


def failing_at(monkeypatch, chosen: int, number: int) -> list[str]:
    """Every call of the disk from now on, by name; the chosen one fails. An open for reading writes nothing."""
    made = []

    def of(name, real):
        def call(*args, **kwargs):
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            made.append(name)
            if len(made) - 1 != chosen:
                return real(*args, **kwargs)
            if name == "close":
                real(*args, **kwargs)
            raise OSError(number, os.strerror(number))

        return call

    for name in CALLS:
        owner, attribute = (Path, {"rename": "replace"}.get(name, name)) if name in ("rename", "unlink") else (os, name)
        monkeypatch.setattr(owner, attribute, of(name, getattr(owner, attribute)))
    return made


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("earlier", [[], [RECORD]], ids=["first", "later"])
def test_a_disk_that_fails_at_any_call_leaves_one_decision_or_the_other(folder, monkeypatch, number, earlier):
    """After an error the former decision stands, else the new one; for the successor as well."""
    failed = set()
    for chosen in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        journal = Journal(folder)
        for record in earlier:
            journal.decide(record)
        made = failing_at(monkeypatch, chosen, number)
        try:
            journal.decide(IMAGED)
            expected = [IMAGED]
        except OSError as error:
            assert error.errno == number
            expected = earlier
            failed.add(made[chosen])
        finally:
            monkeypatch.undo()
        assert [*Journal(folder).records()] == expected == [*journal.records()]
        if chosen >= len(made):
            break
    assert {"open", "write", "fsync", "close", "rename"} <= failed


@pytest.mark.parametrize("earlier", [[], [RECORD]], ids=["first", "later"])
def test_a_failed_decision_that_the_disk_keeps_stands_for_nothing_and_goes_later(folder, monkeypatch, earlier):
    """The sync fails after the rename, and so does each call from then on: the job has been rolled back."""
    journal = Journal(folder)
    for record in earlier:
        journal.decide(record)
    real, broken = os.fsync, []

    def failing(fd):
        if broken or stat.S_ISDIR(os.fstat(fd).st_mode):
            broken.append(fd)
            raise OSError(errno.EIO, "broken")
        real(fd)

    def fails_once_broken(kind):
        act = getattr(Path, kind)

        def call(*args, **kwargs):
            if broken:
                raise OSError(errno.EIO, "broken still")
            return act(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", failing)
    for kind in ("unlink", "replace"):
        monkeypatch.setattr(Path, kind, fails_once_broken(kind))
    with pytest.raises(OSError, match=r"broken$"):
        journal.decide(IMAGED)
    assert journal.record("llm") == (earlier[0] if earlier else None)
    monkeypatch.undo()
    journal.mend()
    assert [*Journal(folder).records()] == earlier == [*journal.records()]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_what_cannot_be_forgotten_stands(journal, folder, monkeypatch, number):
    journal.decide(RECORD)
    for chosen in range(2):
        failing_at(monkeypatch, chosen, number)
        with pytest.raises(OSError, match=os.strerror(number)):
            journal.remove("llm")
        monkeypatch.undo()
        assert [*Journal(folder).records()] == [RECORD] == [*journal.records()]
    journal.remove("llm")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("chosen", [0, 1])
def test_what_is_over_and_cannot_be_removed_is_removed_later(journal, folder, monkeypatch, chosen):
    """Meanwhile it no longer stands, and a later decision on the job does."""
    for later in (False, True):
        journal.decide(RECORD)
        failing_at(monkeypatch, chosen, errno.EIO)
        journal.forget("llm")
        monkeypatch.undo()
        assert journal.record("llm") is None
        if later:
            journal.decide(IMAGED)
        journal.mend()
        assert journal.record("llm") == (IMAGED if later else None)
        assert [*Journal(folder).records()] == ([IMAGED] if later else [])


def test_only_a_record_that_outlives_a_reboot_is_waited_for(journal, monkeypatch):
    """The program stands still meanwhile, and a disk that an image is written to may take seconds to sync."""
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.decide(RECORD)
    assert not synced
    journal.decide(IMAGED)
    assert len(synced) == 2


def test_what_was_intended_is_read_until_something_is_decided(folder: Path) -> None:
    journal = Journal(folder)
    journal.intend(RECORD)
    assert Journal(folder).intended("llm") == RECORD and journal.record("llm") is None
    assert [*standing(folder).intended] == [RECORD] and not standing(folder).records
    journal.decide(RECORD)
    assert journal.intended("llm") is None and [*standing(folder).records] == [RECORD]
    journal.intend(RECORD)
    assert not standing(folder).intended  # beside a decision
    journal.forget("llm")
    assert journal.intended("llm") is None and not [*folder.iterdir()]
    journal.intend(RECORD)
    (folder / "llm.intent").write_text("{")
    assert journal.intended("llm") is None and not standing(folder).intended
    journal.give_up("llm")
    journal.give_up("llm")
    assert not [*folder.iterdir()]
