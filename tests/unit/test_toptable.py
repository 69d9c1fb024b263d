"""The tables of `gcr top`: a line a job, with its last swap; a terminal's width is kept to."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from reported import job_info, process

from gcr.api.jobevents import CheckpointDone, RestoreDone
from gcr.api.listings import DeviceInfo
from gcr.cli import toptable

AGO = (datetime.now(UTC) - timedelta(hours=2, seconds=5)).isoformat()
COMMAND: dict[str, Any] = {"time": AGO, "job": "llm", "transaction": "1", "by": "me"}
FACTS: dict[str, Any] = {"state": "running", "simulated": True, "took_s": 0.71, "bytes": 3 << 30, "phases_s": {}}
DONE: dict[str, Any] = {**COMMAND, **FACTS, "copy_s": 0.1, "bytes_per_s": 54.1e9, "link_bytes_per_s": None}
HOW: dict[str, Any] = {"strategy": "handoff", "stop_s": 0.6, "image": None}
LEFT: dict[str, Any] = {**DONE, **HOW, "state": "suspended"}
OUT, RESIDENT = (CheckpointDone(**LEFT, vram_free_s=free) for free in (0.7, None))
COPIED = CheckpointDone(**DONE, **HOW, vram_free_s=None)
IN = RestoreDone(**{**DONE, "bytes_per_s": None}, cold=False, moved={})
TWO = (process(pid=1, bytes=1 << 30), process(pid=1, bytes=1 << 30), process(pid=2))
LLM = job_info(processes=TWO, command=("python", "serve\x1b.py"), simulated=True)
DEVICE = DeviceInfo(
    backend="nvidia", index=0, uuid="GPU-1", name="H200", total_bytes=4 << 30, used_bytes=1 << 30, simulated=True
)


def test_a_job_is_a_line_with_its_last_swap() -> None:
    lines = toptable.of_jobs([(LLM, each) for each in (OUT, RESIDENT, COPIED, IN, None)], None).splitlines()
    cells = [re.split(r" {2,}", line) for line in lines[1:]]
    assert [row[:4] for row in cells] == [["llm", "running", "2", "2.0 GiB"]] * 5
    assert [row[5:9] for row in cells] == [
        ["out 2h ago", "0.71 s", "3.0 GiB", "54.1 GB/s"],
        ["out 2h ago", "0.71 s", "3.0 GiB", "54.1 GB/s"],
        ["copied 2h ago", "0.71 s", "3.0 GiB", "54.1 GB/s"],
        ["in 2h ago", "0.71 s", "3.0 GiB", "-"],
        ["-", "-", "-", "-"],
    ]
    assert {row[9] for row in cells} == {"SIMULATED python serve?.py"}


def test_a_narrow_terminal_cuts_and_nothing_is_said_to_be_nothing() -> None:
    for table in (toptable.of_jobs([(LLM, OUT)], 40), toptable.of_devices([(DEVICE, 5)], 40)):
        assert [len(line) <= 40 for line in table.splitlines()] == [True, True]
    assert "SIMULATED" in toptable.of_devices([(DEVICE, 5)], None)
    assert (toptable.of_devices([], 80), toptable.of_jobs([], 80)) == ("no devices", "no jobs")
