"""The record of a migration says which node has the job, and no stage but those that follow comes after another."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.errors import NoRecord
from gcr.job.migrations import (
    Migration,
    Migrations,
    Stage,
    refuse_to_leave,
    refuse_to_return,
    refuse_to_run,
)
from gcr.job.roundimages import image_of
from gcr.migrationerrors import GivenAway, MigrationUnderWay, NoSuchMigration

ID, OTHER = "a" * 32, "b" * 32
FOLLOWS = {
    *((Stage.COPYING, Stage.LEAVING), (Stage.LEAVING, Stage.LEAVING), (Stage.LEAVING, Stage.GIVEN)),
    *((Stage.GIVEN, Stage.GIVEN), (Stage.COPYING, Stage.KEPT), (Stage.LEAVING, Stage.KEPT), (Stage.KEPT, Stage.KEPT)),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Migrations:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Migrations.here()


def record(stage: Stage, id: str = ID) -> Migration:
    return Migration(id=id, job="llm", stage=stage, peer="node-2", store="/s")


def test_a_question_makes_no_folder_and_a_record_makes_one_of_its_own(here: Migrations) -> None:
    """A job comes back where nothing can be written."""
    assert (here.of("llm"), here.all()) == (None, [])
    refuse_to_run("llm", None)
    refuse_to_return("llm")
    assert not here.folder.parent.exists()
    here.begin(record(Stage.COPYING))
    assert {each.stat().st_mode & 0o777 for each in (here.folder, here.folder.parent)} == {0o700}


@given(st.lists(st.sampled_from([Stage.LEAVING, Stage.GIVEN, Stage.KEPT]), max_size=6))
def test_a_job_that_was_given_away_or_kept_stays_so(tmp_path_factory: pytest.TempPathFactory, asked: list[Stage]):
    here, stage = Migrations(tmp_path_factory.mktemp("records")), Stage.COPYING
    here.begin(record(stage))
    for wanted in asked:
        try:
            here.move("llm", ID, wanted)
        except (GivenAway, MigrationUnderWay):
            assert (stage, wanted) not in FOLLOWS
        else:
            assert (stage, wanted) in FOLLOWS
            stage = wanted
        assert here.of("llm") == record(stage)


def test_one_migration_of_a_job_at_a_time(here: Migrations):
    here.begin(record(Stage.COPYING))
    with pytest.raises(MigrationUnderWay):
        here.begin(record(Stage.COPYING, OTHER))
    with pytest.raises(NoSuchMigration):
        here.move("llm", OTHER, Stage.LEAVING)
    assert here.end("llm", OTHER) is None
    assert here.end("llm", ID, (Stage.GIVEN,)) is None
    assert here.end("llm", ID) == record(Stage.COPYING)
    assert here.of("llm") is None


@pytest.mark.parametrize(
    ("stage", "run", "back"),
    [
        (Stage.COPYING, None, None),
        (Stage.LEAVING, MigrationUnderWay, MigrationUnderWay),
        (Stage.GIVEN, GivenAway, GivenAway),
        (Stage.KEPT, None, None),
        (Stage.ARRIVING, MigrationUnderWay, None),
    ],
)
def test_other_commands_are_refused(here: Migrations, stage: Stage, run: type | None, back: type | None):
    here.begin(record(stage))
    for refusal, kind in ((lambda: refuse_to_run("llm", None), run), (lambda: refuse_to_return("llm"), back)):
        if kind is None:
            refusal()
            continue
        with pytest.raises(kind) as caught:
            refusal()
        assert "node-2" in str(caught.value)
    if stage is Stage.ARRIVING:
        refuse_to_run("llm", ID)
        with pytest.raises(MigrationUnderWay):
            refuse_to_run("llm", OTHER)


def test_a_slow_coordinator_stops_no_job_for_a_migration_that_is_over(here: Migrations):
    refuse_to_leave("llm", "night")
    for stage in (None, Stage.COPYING, Stage.KEPT, Stage.GIVEN):
        if stage:
            here.begin(record(stage))
        with pytest.raises(NoSuchMigration):
            refuse_to_leave("llm", image_of(ID, 3))
        here.end("llm", ID)
    here.begin(record(Stage.LEAVING))
    refuse_to_leave("llm", image_of(ID, 3))
    with pytest.raises(NoSuchMigration):
        refuse_to_leave("llm", image_of(OTHER, 3))


def test_a_record_that_is_damaged_is_not_taken_for_none(here: Migrations):
    here.begin(record(Stage.GIVEN))
    path = here.folder / "llm.json"
    path.write_bytes(path.read_bytes().replace(b"given", b"kepts"))
    for act in (lambda: here.of("llm"), lambda: refuse_to_run("llm", None), lambda: refuse_to_return("llm")):
        with pytest.raises(NoRecord):
            act()
