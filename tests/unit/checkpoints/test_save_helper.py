"""A save helper writes the share that its program would have written. A helper that dies costs one save."""

import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

from gcr.checkpoints import helper
from gcr.checkpoints.helper import SaveHelper
from gcr.checkpoints.loading import Step
from gcr.checkpoints.region import Region
from gcr.checkpoints.run import Run, run_in
from gcr.checkpoints.saving import Framework, Saving
from gcr.checkpoints.share import File, Share
from gcr.errors import PeerGone

SMALL = 32 << 10
SIZES = [100_000, 0, 5, SMALL, 300_001]


@pytest.fixture(autouse=True)
def all_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "WORTH_BYTES", 0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path / "store", "train")


@pytest.fixture
def saver() -> Iterator[SaveHelper]:
    found = SaveHelper()
    yield found
    found.close()


def files_in(regions: Sequence[Region], seed: int) -> list[File]:
    """Returns files of random bytes: in each region in turn, and every third one elsewhere."""
    drawn, places = Random(seed), [0] * len(regions)
    found: list[File] = []
    for number, size in enumerate(SIZES * 2):
        which, data = number % (len(regions) + 1), bytearray(drawn.randbytes(size))
        if which < len(regions) and size:
            memory = regions[which].memory(places[which], size)
            places[which] += size
            memory[:] = data
            found.append((f"0.{number}", memoryview(memory).cast("B")))
        else:
            found.append((f"0.{number}", memoryview(data)))
    return found


def saved(run: Run, step: int, write: Callable[[], Share]) -> None:
    saving = Saving(run, step, SMALL)
    try:
        saving.commit([write()], b"what it is", 1, Framework("torch", {"torch": "2.13"}))
    finally:
        saving.close()


def right(run: Run, step: int, files: Sequence[File]) -> bool:
    with Step(run, step) as found:
        return all(bytes(found.read(name, 0, len(data))) == bytes(data) for name, data in files)


def pid_of(saver: SaveHelper) -> int:
    assert saver._process
    return saver._process.pid


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_step_has_the_bytes_wherever_they_lay(
    run: Run, saver: SaveHelper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    if is_encrypted:
        (tmp_path / "key").write_text(os.urandom(32).hex())
        (tmp_path / "key").chmod(0o600)
        monkeypatch.setenv("GCR_KEY_FILE", str(tmp_path / "key"))
    regions = [Region.made(1 << 20), Region.made(1 << 20)]
    for step in (1, 2):
        files = files_in(regions, step)
        saved(run, step, lambda files=files: saver.write(regions, run, step, files, SMALL))  # noqa: B023
        assert right(run, step, files)
        assert run.verify(step) >= sum(SIZES)
    assert run.steps() == [1, 2]


def test_a_pack_of_steps_that_go_is_no_place(run: Run, saver: SaveHelper) -> None:
    """The step has a third of it. With less than a quarter it would be written again."""
    data = bytearray(Random(1).randbytes(12 * SMALL))
    saved(run, 1, lambda: saver.write([], run, 1, [("0.0", memoryview(data))], SMALL))
    for blocks, going, written in [(2, [], 0), (4, run.going(2, 1, None), 0), (2, run.going(2, 1, None), 2)]:
        share = saver.write([], run, 2, [("0.0", memoryview(data)[: blocks * SMALL])], SMALL, going=going)
        assert share.part.counts.written == written * SMALL


def test_while_there_is_a_helper_it_writes_small_shares_and_the_record_too(
    run: Run, saver: SaveHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "WORTH_BYTES", 1 << 30)
    monkeypatch.setattr(helper, "write_share", lambda *_words: pytest.fail("this process has written"))
    saver._start()
    files = files_in([], 3)
    write = partial(saver.write, [])
    saving = Saving(run, 3, SMALL)
    saving.commit([write(run, 3, files, SMALL)], b"what it is", 1, Framework("torch", {"torch": "2.13"}), write)
    assert right(run, 3, files)


def test_a_helper_that_is_killed_costs_one_save_whenever_that_is(run: Run, saver: SaveHelper) -> None:
    drawn, regions, kept, lost = Random(7), [Region.made(16 << 20)], list[int](), list[int]()
    regions[0].memory(0, 16 << 20)[:] = Random(1).randbytes(16 << 20)
    longest, end = 0.0, time.monotonic() + 60
    for step in itertools.count(1):
        if (step > 12 and lost) or time.monotonic() > end:
            break
        files: list[File] = [("0.0", memoryview(regions[0].memory(0, (16 << 20) - step)).cast("B"))]
        saver.write([], run, 0, [("0", memoryview(b"x"))])  # there is a helper
        began, after = time.monotonic(), drawn.uniform(0, 1.5) * longest
        process = saver._process
        killer = subprocess.Popen(["sh", "-c", f"sleep {after}; kill -9 {pid_of(saver)}"]) if longest else None
        try:
            saved(run, step, lambda: saver.write(regions, run, step, files, SMALL))  # noqa: B023
            kept.append(step)
            longest = max(longest, time.monotonic() - began)
        except PeerGone as error:
            assert "save helper was ended by signal 9" in error.message
            lost.append(step)
        if killer:
            assert killer.wait() == 0 and process and process.wait() == -signal.SIGKILL
        assert run.steps() == kept
    assert kept and lost
    assert all(run.verify(step) for step in kept)


def test_a_helper_that_is_stopped_costs_one_save(
    run: Run, saver: SaveHelper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(helper, "LOOK_S", 0.05)
    monkeypatch.setattr(helper, "ANSWER_S", 0.2)
    files = files_in([], 1)
    saved(run, 1, lambda: saver.write([], run, 1, files, SMALL))
    os.kill(stopped := pid_of(saver), signal.SIGSTOP)
    with pytest.raises(PeerGone, match="ended by signal 9"):
        saved(run, 2, lambda: saver.write([], run, 2, files_in([], 2), SMALL))
    saved(run, 3, lambda: saver.write([], run, 3, files, SMALL))
    assert run.steps() == [1, 3]
    assert f"process {stopped}, does not answer" in caplog.text


def test_the_helper_ends_with_its_program_also_where_a_child_has_the_socket() -> None:
    program = (
        "import os, time; from gcr.checkpoints import helper; found = helper.SaveHelper(); found._start()\n"
        "if os.fork(): print(found._process.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        pid = int(running.stdout.readline())
        (child,) = (int(each) for each in _children(running.pid) if int(each) != pid)
        running.kill()
    end = time.monotonic() + 10
    try:
        while Path(f"/proc/{pid}/exe").exists():  # a zombie has none
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_it_is_no_part_of_the_job_and_stands_behind_the_program(
    saver: SaveHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD", "GCR_TOKEN", "GCR_JOB"):
        monkeypatch.setenv(name, "")
    saver._start()
    names = {each.partition(b"=")[0] for each in Path(f"/proc/{pid_of(saver)}/environ").read_bytes().split(b"\0")}
    assert not names & {b"LD_PRELOAD", b"GCR_TOKEN", b"GCR_JOB"}
    assert os.getpriority(os.PRIO_PROCESS, pid_of(saver)) > os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getsid(pid_of(saver)) == pid_of(saver)


def test_where_none_can_start_this_process_writes_and_says_so_once(
    run: Run, saver: SaveHelper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            files = files_in([], step)
            saved(run, step, lambda files=files: saver.write([], run, step, files, SMALL))  # noqa: B023
            assert right(run, step, files)
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("saves are written by the training's own process: no save helper starts: [Errno 2]")
