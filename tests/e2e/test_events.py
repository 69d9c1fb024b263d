"""Events of a real job: a follower hears of its begin, swaps, failures and end, and of the next daemon."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import jsonschema
from machine import PATIENCE, Machine, kill, until

from gcr import schemas


def heard(said: Path) -> list[dict[str, Any]]:
    """Returns the lines so far, each held against the schema."""
    found = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
    for line in found:
        jsonschema.Draft202012Validator(schemas.load("events")).validate(line)
    return found


def test_a_follower_hears_of_a_job_from_its_begin_to_its_end_and_of_the_next_daemon(machine: Machine) -> None:
    said, first = machine.folder / "said", machine.daemon()
    command = f"exec {sys.executable} -m gcr events --follow --json > {said}"
    follower = machine.begin_other("sh", "-c", command)

    def until_heard(event: str, times: int = 1) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            rows = [line for line in heard(said) if line["event"] == event]
            return rows[times - 1] if len(rows) >= times else None

        row: dict[str, Any] = until(found, PATIENCE, f"{event}, {times}")
        return row

    assert until_heard("daemon_started")["pid"] == first
    job, before = machine.start()
    pid = machine.target("llm")
    gone, _ = machine.leave(), machine.come_back()
    assert machine.gcr("restore", "llm").code == 3
    machine.inject("checkpoint.staged fail")
    assert machine.gcr("checkpoint", "llm").code == 4
    assert job.ask() == before
    machine.end_by_pid(pid)

    done, failed, refused = until_heard("checkpoint_done"), until_heard("checkpoint_failed"), until_heard("job_ended")
    assert (done["job"], done["state"], done["simulated"]) == ("llm", "suspended", True)
    assert (done["bytes"], done["stop_s"]) == (gone.body["bytes"], gone.body["stop_s"])
    assert done["took_s"] >= done["vram_free_s"] > 0
    assert (failed["exit"], failed["state"]) == (4, "running")
    assert refused["state"] in ("running", "exited")

    rows = heard(said)
    assert [row["seq"] for row in rows] == [*range(1, len(rows) + 1)]
    of_job = [row["event"] for row in rows if row.get("job") == "llm" and not row["event"].startswith("process_")]
    assert of_job == [
        *("job_registered", "checkpoint_begun", "checkpoint_done", "restore_begun", "restore_done"),
        *("restore_begun", "restore_failed", "checkpoint_begun", "checkpoint_failed", "job_ended"),
    ]
    assert [row["event"] for row in rows if row.get("pid") == pid] == ["process_attached", "process_ended"]
    commands = [row["transaction"] for row in rows if "transaction" in row]
    assert commands[::2] == commands[1::2] and len({*commands}) == 4

    kill(first)
    second = machine.daemon()
    again = until_heard("daemon_started", 2)
    assert (again["pid"], again["seq"]) == (second, 1)
    follower.send_signal(signal.SIGINT)
    assert follower.wait(PATIENCE) == 130


def test_top_shows_the_devices_own_count_and_the_last_swap_of_a_job(machine: Machine) -> None:
    machine.start()
    assert machine.gcr("top", "--once").body["jobs"][0]["last_swap"] is None
    gone = machine.leave()
    top = machine.gcr("top", "--once").body
    jsonschema.Draft202012Validator(schemas.load("top")).validate(top)
    (job,), (device,) = top["jobs"], top["devices"]
    swap = job["last_swap"]
    assert job["state"] == "suspended"
    assert (swap["event"], swap["bytes"], swap["simulated"]) == ("checkpoint_done", gone.body["bytes"], True)
    machine.come_back()
    top = machine.gcr("top").body
    assert top["jobs"][0]["last_swap"]["event"] == "restore_done"
    assert top["devices"][0]["used_bytes"] - device["used_bytes"] >= gone.body["bytes"]
