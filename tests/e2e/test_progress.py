"""Progress reports of a checkpoint and a restore, over a simulated link that is slow on purpose."""

import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from machine import Machine, Victim, until
from worlds import slowly

MIB = 1 << 20
RATE = 400 * MIB  # bytes per second of the simulated link
HELD, LESS = 640 * MIB, 512 * MIB
LINE = re.compile(
    r"(draining|refilling) +(?:[━╸╺]+ +)?(\d+) % +([\d.]+) MiB +([\d.]+) [MG]B/s +(?:(\d+) % of link +)?([\d.]+) s left"
)


@pytest.fixture
def slow(machine: Machine) -> Machine:
    machine.extra["GCR_SIM_BPS"] = str(RATE)
    machine.memory = 2048 * MIB
    return machine


def big(machine: Machine, held: int = HELD) -> Victim:
    job = machine.told("llm")
    job.ask(f"hold 10 {held // 10}")
    return job


def told(machine: Machine, command: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the reports on the way, and the answer."""
    reports: list[dict[str, Any]] = []
    with machine.connected() as client:
        answer = client.request(command, {"target": "llm"}, timeout=60, on_progress=reports.append)
    return [report for report in reports if report["phase"] in ("draining", "refilling")], answer


def measure_the_link(machine: Machine) -> None:
    """The worker does so in the background, when there is plenty of room on the device."""

    def measured() -> bool:
        workers = machine.ask("status").body["workers"]
        return any(worker.get("link_out_bytes_per_s") for worker in workers)

    until(measured, 30, "the link is measured")


@pytest.mark.alone
def test_bytes_only_grow_and_the_rate_is_the_links(slow: Machine) -> None:
    slow.extra["GCR_PREPARE_ARENA"] = "no"
    big(slow, LESS)
    for command, rate in (("checkpoint", "drain_bytes_per_s"), ("restore", "refill_bytes_per_s")):
        reports, answer = told(slow, command)
        grow(reports, answer[rate])


def grow(reports: list[dict[str, Any]], truth: float) -> None:
    done = [report["bytes"] for report in reports]
    total = reports[0]["total_bytes"]
    assert (done[0], done[-1]) == (0, total)
    assert total >= LESS
    assert done == sorted(done)
    assert len(set(done)) >= 6
    assert truth <= RATE * 1.1
    for report in reports[len(reports) // 2 : -1]:
        assert truth / 2 < report["bytes_per_s"] < RATE * 1.3  # a busy machine is slower at one time than at another
        assert report["left_s"] == pytest.approx((total - report["bytes"]) / report["bytes_per_s"])
        assert "link_share" not in report  # never measured: no figure


@pytest.mark.alone
def test_the_share_of_a_link_that_was_measured(slow: Machine) -> None:
    big(slow, LESS)
    measure_the_link(slow)
    for command in ("checkpoint", "restore"):
        reports, answer = told(slow, command)
        link = answer["link_bytes_per_s"]
        assert link <= RATE * 1.1
        shares = [report["link_share"] * link for report in reports if "link_share" in report]
        assert shares == pytest.approx([report["bytes_per_s"] for report in reports if "link_share" in report])
        assert len(shares) >= 6


@pytest.mark.alone
def test_piped_it_is_a_line_a_second_on_stderr(slow: Machine) -> None:
    slow.extra["GCR_PREPARE_ARENA"] = "no"
    big(slow)
    began = time.monotonic()
    ran = subprocess.run(command("checkpoint"), env=slow.env, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - began
    assert "VRAM free in" in ran.stdout
    found = [LINE.search(line) for line in ran.stderr.splitlines()]
    percents = [int(line[2]) for line in found if line]
    assert percents == sorted(percents)
    assert 1 <= len(percents) <= 1 + took
    assert "\x1b" not in ran.stderr


@pytest.mark.parametrize("columns", [slowly(80), 120])
def test_on_a_terminal_every_figure_is_there(slow: Machine, columns: int) -> None:
    slow.extra["GCR_SIM_BPS"] = str(RATE // 4)
    big(slow)
    measure_the_link(slow)
    drawn = on_a_terminal(slow, "checkpoint", columns)
    frames = [line for line in (LINE.search(text) for text in re.split(r"[\r\n]", plain(drawn))) if line]
    assert len({line[2] for line in frames}) >= 3, drawn
    assert any(line[5] for line in frames), drawn
    assert ("━" in drawn) is (columns == 120)


def command(name: str) -> list[str]:
    return [sys.executable, "-m", "gcr", name, "llm"]


def on_a_terminal(machine: Machine, name: str, columns: int) -> str:
    master, slave = os.openpty()
    env = {**machine.env, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(command(name), env=env, stdout=subprocess.DEVNULL, stderr=slave) as child:
        os.close(slave)
        drawn = b""
        try:
            while chunk := os.read(master, 65536):
                drawn += chunk
        except OSError:  # EIO: the last writer has closed the terminal
            pass
        assert child.wait(30) == 0
    os.close(master)
    return drawn.decode()


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
