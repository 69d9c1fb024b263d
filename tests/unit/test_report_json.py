"""The whole JSON of the daemon's reports, byte by byte, in every strategy."""

import importlib.resources
import json
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from reported import checkpointed, job_info, process, restored
from test_reports import MIB, ONE, OTHER, table
from test_reports import process as seen

from gcr import schemas
from gcr.api.answers import Answer
from gcr.api.barriers import Barrier
from gcr.api.events import ProgressEvent
from gcr.api.listings import ArenaReady, ImageInfo, ImageState, JobInfo, OnlyCopy, PartInfo, PartOf
from gcr.api.reports import Report, SwapReport
from gcr.daemon import reports
from gcr.daemon.images.imaging import Imaging
from gcr.daemon.images.shown import reported
from gcr.daemon.jobs import Job, Program
from gcr.daemon.labels import Labels
from gcr.engine.node import Course, World
from gcr.engine.work import Options
from gcr.errors import GcrError
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.processes import ProcessIdentity, identify
from gcr.protocol.operations.image import ParentFound, Written
from gcr.protocol.operations.worker import Drained, Moved

MARKS = {"stop": 100.25, "handed_over": 100.5, "frozen": 101.0, "drained": 100.75, "vram_free": 101.5, "running": 102.0}
PHASES = {"stop": 0.25, "handed_over": 0.5, "drained": 0.75, "frozen": 1.0, "vram_free": 1.5, "running": 2.0}
HEAD = {"job": "llm", "simulated": True, "state": "running"}
IMAGE = {
    "image": "warm",
    "cut": "device",
    "parent": None,
    "bytes_total": 6,
    "bytes_changed": None,
    "bytes_zero": 2,
    "bytes_written": 3,
    "dedup_ratio": 2.0,
    "parent_refused": None,
}


def row(pid: int, device: str, size: int, strategy: str = "handoff", **more: object) -> dict[str, object]:
    counts = {"uncovered": {}, "handles": int(size > 0), "pinned_host_bytes": 0, "contexts": 0}
    who = {"pid": pid, "state": "running", "strategy": strategy, "device": device}
    return {**who, "bytes": size, "covered_bytes": size, **counts, **more}


def rows(strategy: str = "handoff") -> list[dict[str, object]]:
    return [row(7, ONE, 2 * MIB, strategy), row(7, OTHER, 4 * MIB, strategy), row(8, "", 0)]


CHECKPOINT = {
    **HEAD,
    "strategy": "handoff",
    "bytes": 6 * MIB,
    "bytes_copied": 5 * MIB + 3,
    "snapshot_bytes": 5,
    "streamed": False,
    "vram_free_s": 1.5,
    "stop_s": 1.25,
    "drain_s": 0.5,
    "drain_bytes_per_s": 10.0 * MIB,
    "control_s": 0.5,
    "link_bytes_per_s": 5e9,
    "durable_s": None,
    "vram_after_bytes": 3,
    "resident_bytes": 0,
    "processes": rows(),
    "phases_s": PHASES,
}
NOTHING = {"bytes": 0, "bytes_copied": 3, "drain_s": 0.0, "drain_bytes_per_s": None}
BY_DRIVER = {
    "strategy": "driver",
    "bytes_copied": 6 * MIB,
    "snapshot_bytes": 0,
    "drain_s": 0.75,
    "drain_bytes_per_s": 8.0 * MIB,
    "control_s": 0.75,
    "link_bytes_per_s": None,
    "vram_after_bytes": 0,
}
RESTORE = {
    **HEAD,
    "bytes": 2 * MIB,
    "refill_s": 0.5,
    "refill_bytes_per_s": 4.0 * MIB,
    "control_s": 0.125,
    "link_bytes_per_s": 7e9,
    "total_s": 2.0,
    "cold": True,
    "streamed": False,
    "resident_bytes": 0,
    "phases_s": PHASES,
    "moved": {ONE: OTHER},
}
STAYS = {(7, ONE): 2 * MIB, (7, OTHER): 4 * MIB}
SLOWER = {"bytes": 6 * MIB, "refill_s": 2.0, "refill_bytes_per_s": 3.0 * MIB, "control_s": 2.0, "cold": False}
PS = {
    "job": "llm",
    "pid": 7,
    "state": "running",
    "started": "2025-01-01T00:00:00+00:00",
    "simulated": True,
    "backend": "nvidia",
    "command": ["python", "serve.py"],
    "image": None,
    "images": [],
    "only_in": None,
    "processes": [
        {**each, "label": "nvidia:0" if each["device"] == ONE else None, "resident_bytes": 0, "shared": []}
        for each in rows()
    ],
    "arena": {"wanted_bytes": 6, "ready_bytes": 5},
    "changing": False,
    "cut": None,
}


def course(**more: float) -> Course:
    return Course("checkpoint", 1, 60.0, began=100.0, marks={**MARKS, **more})


def job(copied_out: bool = False) -> Job:
    made = Job("llm", "", World("nvidia", simulated=True), program=Program(("python", "serve.py"), 7, 1735689600.0))
    made.processes = {7: seen({0: 2 * MIB, 1: 4 * MIB}), 8: Process("llm", ProcessIdentity(8, 1))}
    made.processes[7].copied_out = copied_out
    return made


def work(done_to: Job, **more: object) -> Any:
    books = SimpleNamespace(table=table((ONE, 2 * MIB), (OTHER, 4 * MIB)))
    found = {
        "course": course(),
        "targets": [SimpleNamespace(pid=7, process=done_to.processes[7], books=books)],
        "drained": {
            (7, ONE): Drained(2 * MIB, 0.5, copied=MIB, handles=1, snapshot=0),
            (7, OTHER): Drained(4 * MIB, 0.25, copied=4 * MIB, handles=1, snapshot=0),
        },
        "copied_live": 3,
        "snapshot_bytes": 5,
        "stream": None,
        "count": SimpleNamespace(after={ONE: 1, OTHER: 2}, resident={}),
        "options": Options(),
    }
    return SimpleNamespace(**found | more)


def by_driver() -> Any:
    suspended = SimpleNamespace(suspension=SimpleNamespace(bytes_by_device={ONE: 6 * MIB}))
    return SimpleNamespace(course=course(), before={ONE: 6 * MIB}, after={ONE: 0}, process=suspended)


def copied_out() -> Report:
    return reports.of_checkpoint(gone := job(True), work(gone, drained={}, stream=object()), 5e9)


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def live_data_only() -> Report:
    return reports.of_checkpoint(there := job(), work(there, options=Options(Way.DATA_ONLY, live=True)), 5e9)


def restore(**resident: int) -> Report:
    there = {(7, device): size for device, size in resident.items()}
    done = {"course": course(control_s=0.125), "refilled": {(7, ONE): Moved(2 * MIB, 0.5)}, "resident": there}
    how = SimpleNamespace(**done, data_only=False, cold=True, streamed=False)
    return reports.of_restore(job(), cast("Any", how), 7e9, {ONE: OTHER})


def left_running() -> Report:
    return reports.of_glance(there := job(), work(there), 5e9)


NEVER_FREE = {"vram_free_s": None, "stop_s": 1.75, "control_s": None, "vram_after_bytes": None}
MADE = {
    "handoff": (lambda: reports.of_checkpoint(there := job(), work(there), 5e9), CHECKPOINT),
    "copyout": (
        copied_out,
        {**CHECKPOINT, **NOTHING, "strategy": "copyout", "streamed": True, "processes": rows("copyout")},
    ),
    "live, data only": (live_data_only, {**CHECKPOINT, "strategy": "live", "control_s": None}),
    "left running": (left_running, {**CHECKPOINT, **NEVER_FREE, "phases_s": without(PHASES, "vram_free")}),
    "resident": (
        lambda: reports.of_checkpoint(
            there := job(), work(there, count=SimpleNamespace(after={ONE: 1, OTHER: 2}, resident=STAYS)), 5e9
        ),
        {**CHECKPOINT, "vram_free_s": None, "vram_after_bytes": 3 + 6 * MIB, "resident_bytes": 6 * MIB},
    ),
    "restore of what was resident": (
        lambda: restore(GPU=MIB),
        {**RESTORE, "bytes": 3 * MIB, "resident_bytes": MIB},
    ),
    "driver": (
        lambda: reports.of_driver_checkpoint(job(), by_driver()),
        without({**CHECKPOINT, **BY_DRIVER}, "phases_s"),
    ),
    "restore": (restore, RESTORE),
    "driver's restore": (
        lambda: reports.of_driver_restore(job(), by_driver(), {}),
        without({**RESTORE, **SLOWER, "link_bytes_per_s": None, "moved": {}}, "phases_s"),
    ),
    "ps": (
        lambda: reports.of_job(
            there := job(), Labels({there.world: {ONE: "nvidia:0"}}), ArenaReady(wanted_bytes=6, ready_bytes=5)
        ),
        PS,
    ),
    "with an image": (lambda: checkpointed(**IMAGE), {**checkpointed().to_json(), **IMAGE}),
    "by a caller": (lambda: restored().timed(0.75), {**restored().to_json(), "wall_s": 0.75}),
    "swap": (
        lambda: SwapReport(out=checkpointed(wall_s=0.5), back=restored(wall_s=0.25)).timed(0.75),
        {
            "out": {**checkpointed().to_json(), "wall_s": 0.5},
            "in": {**restored().to_json(), "wall_s": 0.25},
            "wall_s": 0.75,
        },
    ),
    "damaged image": (lambda: ImageInfo(image="warm", damaged="gone"), {"image": "warm", "damaged": "gone"}),
}


def test_a_process_that_ended_on_its_way_back_has_no_row() -> None:
    """A migration gives no job away that has only such processes. One that is suspended may be away, in an image."""
    there = job()
    del there.processes[8]
    labels, myself = Labels({there.world: {ONE: "nvidia:0"}}), identify(os.getpid())
    assert myself
    for state, rows in ((State.RESTORING, 0), (State.SUSPENDED, 2), (State.RUNNING, 2)):
        there.processes[7]._state = state
        assert len(reports.of_job(there, labels, None).processes) == rows
    there.processes[7]._state = State.RESTORING
    there.processes[7].identity = myself
    assert len(reports.of_job(there, labels, None).processes) == 2


@pytest.mark.parametrize("how", MADE)
def test_the_json_of_a_report_is_what_it_was_to_the_byte(how: str) -> None:
    make, expected = MADE[how]
    assert json.dumps(make().to_json()) == json.dumps(expected)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("how", MADE)
def test_the_reader_makes_the_same_report_of_it(how: str) -> None:
    made = MADE[how][0]()  # type: ignore[no-untyped-call]
    again = type(made).from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.to_json() == made.to_json()


COST = Written(parent="cold", bytes_total=6, bytes_changed=4, bytes_zero=2, bytes_written=3, parent_refused="why")
DURABLE = {"durable_s": 0.5, "parent": "cold", "bytes_changed": 4, "parent_refused": "why"}
UNKNOWN = {"parent": "cold", "bytes_total": None, "bytes_zero": None, "bytes_written": None, "dedup_ratio": None}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, {**IMAGE, **UNKNOWN, "parent": None, "durable_s": None}),
        ({"upon": ParentFound("cold", None)}, {**IMAGE, **UNKNOWN, "durable_s": None}),
        ({"cost": COST, "durable_s": 0.5, "upon": ParentFound("old", "why")}, {**IMAGE, **DURABLE}),
        (
            {"cost": replace(COST, bytes_written=0), "durable_s": 0.5},
            {**IMAGE, **DURABLE, "bytes_written": 0, "dedup_ratio": None},
        ),
    ],
)
def test_an_image_adds_what_is_known_of_it_to_the_report(known: dict[str, Any], expected: dict[str, Any]) -> None:
    imaging = Imaging(cast("Any", SimpleNamespace(name="warm", whole=False)), cast("Any", None), **known)
    assert reported(imaging, checkpointed()).to_json() == {**checkpointed().to_json(), **expected}


def named(command: str, *path: str) -> set[str]:
    """Returns the fields that the schema of a command has at a path."""
    there = schemas.load(command)
    for step in path:
        there = there["properties"][step] if step != "[]" else there["items"]
    return {*there["properties"]} - {"schema", "command", "ok"}


WHOLE = job_info(
    image=ImageState(name="warm", state="durable", durable_s=1.0, error=None),
    only_in=OnlyCopy(image="warm", store="/s"),
    processes=(process(),),
    arena=ArenaReady(wanted_bytes=1, ready_bytes=1),
)


PART = PartOf(image="night", cut="0", rank=0, nodes=1, node="n")


@pytest.mark.parametrize(
    ("command", "path", "answer"),
    [
        ("checkpoint", (), checkpointed(**IMAGE, host_bytes=7, wall_s=1.0)),
        ("restore", (), restored(wall_s=1.0, processes_s={"made": 1.0}, without=(4711,))),
        ("swap", ("out",), checkpointed(**IMAGE, wall_s=1.0)),
        ("swap", ("in",), restored(wall_s=1.0)),
        ("ps", ("jobs", "[]"), WHOLE),
        ("ps", ("jobs", "[]", "processes", "[]"), process()),
        (
            "images",
            ("images", "[]"),
            PartInfo(image="warm", damaged=None, part=PART),
        ),
    ],
)
def test_every_field_of_a_schema_is_in_the_answer(command: str, path: tuple[str, ...], answer: Answer) -> None:
    assert named(command, *path) <= {*answer.to_json()}


@pytest.mark.parametrize("wrong", [{"bytes": "5"}, {"moved": []}, {"job": None}, {"phases_s": {"stop": None}}])
def test_a_report_of_another_shape_is_a_typed_error(wrong: dict[str, object]) -> None:
    told = restored().to_json()
    assert type(restored()).from_json(told) == restored()
    with pytest.raises(GcrError, match="no RestoreReport"):
        type(restored()).from_json({**told, **wrong})


def test_a_report_and_what_is_in_it_cannot_be_changed() -> None:
    report = checkpointed(processes=(process(),), phases_s={"stop": 1.0})
    for change in (
        lambda: setattr(report, "bytes", 1),
        lambda: report.phases_s.update(stop=2.0),  # type: ignore[attr-defined]
        lambda: report.processes[0].uncovered.update(pool=5),  # type: ignore[attr-defined]
    ):
        with pytest.raises(AttributeError):
            change()


EVENT = ProgressEvent(phase="draining", bytes=0, total_bytes=4, bytes_per_s=2.0, left_s=2.0, link_share=0.5)


def test_an_event_has_only_the_figures_that_are_known() -> None:
    assert ProgressEvent(phase="stopping").to_json() == {"phase": "stopping"}
    told = {"phase": "draining", "bytes": 0, "total_bytes": 4, "bytes_per_s": 2.0, "left_s": 2.0, "link_share": 0.5}
    assert json.dumps(replace(EVENT, job="llm").to_json()) == json.dumps({"job": "llm", **told})
    assert ProgressEvent.from_json({**told, "weather": "fine"}) == EVENT
    with pytest.raises(GcrError, match="no ProgressEvent"):
        ProgressEvent.from_json({**told, "bytes": "5"})


def test_words_that_are_not_utf_8_are_told_as_they_are() -> None:
    """Python has bytes of a command line, or of a path, that are no text as lone surrogates."""
    word = os.fsdecode(b"caf\xe9")
    job = job_info(command=("cat", word), only_in=OnlyCopy(image="warm", store=f"/{word}"))
    told = json.loads(json.dumps(job.to_json()))
    assert (told["command"], told["only_in"]["store"]) == (["cat", word], f"/{word}")
    assert JobInfo.from_json(told) == job


@pytest.mark.parametrize("command", ["ps", "top"])
def test_the_schemas_know_every_barrier(command: str) -> None:
    text = json.dumps(schemas.load(command))
    assert json.dumps([*(each.value for each in Barrier), None]) in text


def test_each_schema_names_its_command() -> None:
    files = [path.name for path in importlib.resources.files(schemas).iterdir() if path.name.endswith(".json")]
    assert len(files) > 30
    for name in {file.removesuffix(".json") for file in files} - {"error", "events", "several"}:
        command = name if name == "inspect-kernels" else name.replace("-", " ")
        assert schemas.load(name)["properties"]["command"] == {"const": command}
