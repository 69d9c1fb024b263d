"""Every kind of event: its fields are those of the schema, it reads back, and people and the log get a line of it."""

import logging
from typing import Any, get_args

import jsonschema
import pytest
from msgspec.structs import replace

from gcr import schemas
from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent, Event, EventBatch
from gcr.cli.eventlines import render
from gcr.daemon.ledger import log_event

KINDS: tuple[type[Event], ...] = get_args(AnyEvent)
COMMAND = {"job": "llm", "transaction": "abc", "by": "uid 1, pid 2: gcr checkpoint llm"}
DONE = {**COMMAND, "state": "suspended", "simulated": True, "bytes": 5 << 30, "took_s": 0.7, "phases_s": {"stop": 0.1}}
COPY = {"copy_s": 0.6, "bytes_per_s": 54e9, "link_bytes_per_s": 55e9}
FAILED = {**COMMAND, "code": "no_room", "exit": 3, "message": "1 GiB short\n\x1b[31m", "state": None, "took_s": 0.1}
SAVE = {"job": "llm", "pid": 7, "run": "train", "step": 9}
REMOVAL = {
    "command": "prune",
    "by": "uid 1, pid 2: gcr prune --keep-last 1",
    "store": "/images",
    "images": ("warm", "warm2"),
    "count": 3,
    "took_s": 0.2,
}
FACTS: dict[str, dict[str, Any]] = {
    "daemon_started": {"pid": 7, "version": "1.2"},
    "events_missed": {"count": 1},
    "job_registered": {"job": "llm", "simulated": True, "uid": 1000},
    "job_ended": {"job": "llm", "state": "suspended"},
    "job_released": {"job": "llm"},
    "supervisor_gone": {"job": "llm"},
    "job_recovered": {"job": "llm", "was": "frozen", "state": "running", "action": "rolled back"},
    "process_attached": {"job": "llm", "pid": 7, "backend": "nvidia"},
    "process_ended": {"job": "llm", "pid": 7, "state": "running"},
    "checkpoint_begun": {**COMMAND, "image": "warm"},
    "checkpoint_done": {**DONE, **COPY, "strategy": "handoff", "stop_s": 0.69, "vram_free_s": 0.7, "image": None},
    "checkpoint_failed": FAILED,
    "restore_begun": {**COMMAND, "image": None},
    "restore_done": {**DONE, **COPY, "cold": False, "moved": {"GPU-1": "GPU-2"}},
    "restore_failed": {**FAILED, "exit": 4, "state": "suspended"},
    "image_written": {"job": "llm", "image": "warm", "durable_s": 2.0, "bytes_written": 4096},
    "image_failed": {"job": "llm", "image": "warm", "code": "store_unusable", "message": "a full disk"},
    "save_done": {**SAVE, "bytes": 5 << 30, "aside_s": 0.03, "safe_s": 0.25, "took_s": 0.4},
    "save_failed": {**SAVE, "code": "no_room", "exit": 3, "message": "short", "took_s": 0.1},
    "images_removed": {**REMOVAL, "bytes_freed": 5 << 30},
    "removal_failed": {**REMOVAL, "code": "image_needed", "exit": 3, "message": "its only copy"},
}


def named(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def made(kind: type[Event]) -> AnyEvent:
    event: Any = kind(seq=3, **FACTS[named(kind)])
    return event  # type: ignore[no-any-return]


def test_the_schema_has_each_kind_of_event_and_each_field_of_it() -> None:
    rows = {row["properties"]["event"]["const"]: row for row in schemas.load("events")["oneOf"]}
    assert {*rows} == {named(kind) for kind in KINDS} == {*schemas.load("events")["properties"]["event"]["enum"]}
    for kind in KINDS:
        row, own = rows[named(kind)], {*kind.__struct_fields__} - {"seq", "time"}
        assert {*row["properties"]} - {"event"} == own == {*row["required"]}, kind


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_a_line_is_by_the_schema_and_reads_back(kind: type[Event]) -> None:
    event = made(kind)
    line = event.line()
    assert (line["schema"], line["event"], line["seq"]) == (1, named(kind), 3)
    valid = jsonschema.Draft202012Validator(schemas.load("events"))
    valid.validate(line)
    for missing in line:
        assert not valid.is_valid({name: value for name, value in line.items() if name != missing}), missing
    batch = EventBatch(daemon="a", last=3, events=(event,))
    assert EventBatch.from_json(batch.to_json()) == batch


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_people_and_the_log_get_one_line_of_it(kind: type[Event], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gcr.daemon")
    event = made(kind)
    said = render(event)
    assert said.isprintable() and len(said.split()) > 3
    log_event(event)
    silent = isinstance(event, jobevents.DaemonStarted | jobevents.EventsMissed)
    of_job = isinstance(event, jobevents.JobEvent)
    assert [line.startswith("job llm: ") for line in caplog.messages] == [of_job] * (not silent)


def test_people_read_what_a_swap_cost_and_why_it_was_refused() -> None:
    said = render(made(jobevents.CheckpointDone))
    assert said.endswith("checkpoint done, suspended: 5.0 GiB in 0.70 s, stopped 0.69 s, 54.0 GB/s, SIMULATED")
    assert render(made(jobevents.CheckpointFailed)).endswith("checkpoint refused: no_room: 1 GiB short??[31m")
    assert render(made(jobevents.ImagesRemoved)).endswith("prune: warm, warm2 and 1 more removed, 5.0 GiB free, 0.20 s")
    refused = render(made(jobevents.RemovalFailed))
    assert refused.endswith("prune of warm, warm2 and 1 more refused: image_needed: its only copy")
    assert render(made(jobevents.SaveDone)).endswith(
        "save done: 5.0 GiB of step 9 of run train, process 7 in 0.40 s, ran on after 0.03 s"
    )
    unsaid = replace(made(jobevents.SaveFailed), run="", step=None)
    assert render(unsaid).endswith("save of process 7 refused: no_room: short")
    assert render(made(jobevents.RestoreFailed)).partition("restore ")[2].startswith("failed and rolled back, susp")


def test_levels_in_the_log_keep_what_there_are_thousands_of_out_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gcr.daemon")
    many = (jobevents.JobRegistered, jobevents.ProcessAttached, jobevents.ProcessEnded, jobevents.SaveDone)
    for kind in (*many, jobevents.RestoreBegun):
        log_event(made(kind))
    assert caplog.messages == []
    log_event(made(jobevents.SupervisorGone))
    log_event(made(jobevents.ImageFailed))
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
