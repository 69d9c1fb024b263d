"""The table of jobs keeps to a terminal's width; a pipe gets everything."""

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace
from reported import job_info, process

from gcr.api.listings import JobInfo, OnlyCopy
from gcr.cli import jobtable

UUID = "GPU-00000000-0000-0000-0000-000000000001"


PROCESS = process(device=UUID, label="nvidia:0", bytes=36 << 30, covered_bytes=36 << 30)


def job(**more: Any) -> JobInfo:
    started = (datetime.now(UTC) - timedelta(hours=2.5)).isoformat()
    command = ("/opt/venv/bin/python", "serve.py", "--port", "8000")
    made = {"job": "llm-large", "pid": 4711, "started": started, "command": command, "processes": (PROCESS,)}
    return job_info(**made | more)


def test_eighty_columns_have_the_device_the_age_and_the_program() -> None:
    head, line = jobtable.table([job()], 80).splitlines()
    assert head.split() == list(jobtable.HEAD)
    assert line.split()[:8] == ["llm-large", "4711", "running", "nvidia:0", "36.0", "GiB", "100", "%"]
    assert line.endswith("  2h   python serve.py --p…")
    assert max(map(len, (head, line))) <= 80


def test_notes_have_a_line_of_their_own_and_a_narrow_terminal_has_no_command() -> None:
    simulated = job(simulated=True, only_in=OnlyCopy(image="warm", store="/s"))
    for width in (40, 62, 80, 200):
        lines = jobtable.table([simulated, job()], width).splitlines()
        assert len(lines) == 4
        assert lines[2].startswith("  SIMULATED, in image warm ONLY")
        assert max(map(len, lines)) <= width
        assert ("COMMAND" in lines[0]) == (width >= 80)


def test_a_pipe_gets_whole_names_on_one_line_each_and_no_control_characters() -> None:
    unnamed = job(command=("/bin/sh", "-c", "a\nb\x1b[31m"), processes=(replace(PROCESS, label=None),))
    (line,) = jobtable.table([unnamed], None).splitlines()[1:]
    assert UUID in line
    assert line.endswith("-      /bin/sh -c a?b?[31m")
    assert UUID[:12] in jobtable.table([unnamed], 80)
    assert UUID not in jobtable.table([unnamed], 80)


def test_a_job_without_a_process_on_a_device_is_a_line_as_well() -> None:
    (line,) = jobtable.table([job(processes=(), pid=None)], None).splitlines()[1:]
    assert line.split()[:6] == ["llm-large", "-", "running", "-", "-", "-"]


def test_what_is_on_the_device_of_a_suspended_job_is_a_note() -> None:
    row = process(state="suspended", bytes=2 << 30, covered_bytes=2 << 30, resident_bytes=1 << 30)
    assert "1.0 GiB on the device" in jobtable.table([job_info(processes=(row,))], None)
    assert "on the device" not in jobtable.table([job_info(processes=(process(),))], None)
