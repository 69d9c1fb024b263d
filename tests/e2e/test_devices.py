"""Jobs on two devices that reach each other's memory: there and back, onto the same devices and onto others."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import TOLD, VICTIMS, Machine, Victim, kill, until
from two_devices import Job, bare, command, three_devices
from worlds import SLOW, slowly

LEAST = 20 << 20  # bytes that the job has on its two devices
CONTEXT = 16 << 20  # what a context of the simulated device costs
MOST_DANGEROUS = {"checkpoint": "handed_over", "restore": "refilled"}


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = three_devices(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def test_both_devices_are_left_and_come_back(machine: Machine) -> None:
    job = Job.start(machine)
    assert all(mine > 0 for _, mine in map(job.counted().get, job.devices))  # type: ignore[misc]
    for _ in range(2):
        gone = job.leave()
        assert gone.body["bytes"] >= LEAST
        assert {mine for _, mine in job.counted().values()} == {0}
        assert all(used <= CONTEXT for used, _ in job.counted().values())  # a worker's
        job.come_back()
    assert job.said == bare(machine, 7)


@pytest.mark.parametrize("command", [slowly("checkpoint"), "restore"])
def test_a_process_dies_while_both_are_on_their_way(machine: Machine, command: str) -> None:
    """The process dies when most is in flight; of two workers one does."""
    job = Job.start(machine)
    step = MOST_DANGEROUS[command]
    for module in ("gcr.worker", "gcr.control_helper", "gcr.daemon", "gcr run"):
        if command == "restore":
            job.leave()
        with machine.held_at(f"{command}.{step}"):
            running = machine.command(command)
            machine.wait_held()
            kill(job.victim.supervisor.pid if module == "gcr run" else machine.children(module)[-1])
        running.result(timeout=60)
        if machine.settled() != "running":
            job.come_back()
        job.is_whole()
    job.leave()
    assert {mine for _, mine in job.counted().values()} == {0}
    job.come_back()


def test_they_are_exchanged_and_exchanged_again(machine: Machine) -> None:
    """The second time they are named as `gcr devices` does, and memory that came by import leaves the new devices."""
    job = Job.start(machine)
    first, second = job.devices
    job.leave()
    job.come_back(second, first)
    job.leave()
    assert {mine for _, mine in job.counted().values()} == {0}
    back = machine.gcr("restore", "llm", "--device", "0=1", "--device", f"{second}={first}")
    assert (back.code, back.body["moved"]) == (0, {first: second, second: first}), back.body
    job.devices = first, second
    job.is_whole()
    job.leave()
    job.come_back()
    assert job.said == bare(machine, 8)


def test_one_moves_to_an_unused_device(machine: Machine) -> None:
    job = Job.start(machine)
    first, second = job.devices
    (free,) = set(job.counted()) - {first, second}
    job.leave()
    job.come_back(first, free)
    assert job.counted()[second][0] <= CONTEXT
    assert job.counted()[free][0] >= LEAST // 2
    job.leave()
    assert all(used <= CONTEXT for used, _ in job.counted().values())
    job.come_back(free, first)
    job.leave()
    job.come_back(first, second)
    assert job.said == bare(machine, 8)


@SLOW
def test_it_wanders_over_all_of_them(machine: Machine) -> None:
    """A worker that it came back to has not gone on with host memory that another one has now."""
    job = Job.start(machine, "--mib", "12")  # several segments each
    first, second = job.devices
    (third,) = set(job.counted()) - {first, second}
    for devices in ((third, second), (third, first), (second, first), (second, third), (first, second)):
        job.leave()
        job.come_back(*devices)


def test_what_is_refused_leaves_the_job_suspended_and_touches_nothing(machine: Machine) -> None:
    job = Job.start(machine)
    first, _ = job.devices
    assert code_of(machine, "0=1") == (3, "wrong_state")  # it runs
    job.leave()
    refused = {
        "unknown": ["0=7"],
        "unknown by UUID": [f"{first}=GPU-00000000-0000-0000-0000-000000000000"],
        "not used by the job": ["2=0"],
        "two onto one": ["0=2", "1=2"],
        "one onto two": ["0=1", f"{first}=2"],
        "onto one that stays": ["0=1"],
        "onto one that is said to stay": ["0=1", "1=1"],
    }
    for what, moves in refused.items():
        assert code_of(machine, *moves) == (3, "wrong_device"), what
        assert machine.job("llm")["state"] == "suspended", what  # type: ignore[index]
    assert code_of(machine, "0:1") == code_of(machine, "0=") == code_of(machine, "0=1", "0=2") == (2, "usage")
    assert machine.gcr("restore", "llm", "--device", "0=0").body["moved"] == {}
    job.is_whole()


def test_it_comes_back_on_a_device_that_is_hidden_from_it(machine: Machine) -> None:
    """Seen on an H200: control state does, and the driver takes no memory of that device in (3): it makes its own."""
    job = Job.start(machine, visible="0,1")
    first, second = job.devices
    (hidden,) = set(job.counted()) - {first, second}
    job.leave()
    job.come_back(first, hidden)
    job.leave()
    job.come_back()
    job.leave()
    job.come_back(hidden, second)
    job.leave()
    job.come_back(first, second)
    job.leave()
    job.come_back(second, first)
    assert job.said == bare(machine, 10)


@SLOW
def test_what_leaves_a_hidden_device_can_be_taken_back(machine: Machine) -> None:
    """There the process takes nothing in, also not what it just gave out."""
    job = Job.start(machine, visible="0,1")
    first, second = job.devices
    (hidden,) = set(job.counted()) - {first, second}
    job.leave()
    job.come_back(first, hidden)
    for step in ("quiesced", "handed_over", "frozen", "drained", "staged"):
        machine.inject(f"checkpoint.{step} fail")
        failed = machine.ask("checkpoint", "llm")
        assert (failed.code, machine.settled()) == (4, "running"), (step, failed.body)
        job.is_whole()
    for step in ("handed_over", "staged"):
        with machine.held_at(f"checkpoint.{step}"):
            running = machine.command("checkpoint")
            machine.wait_held()
            kill(machine.children("gcr.daemon")[-1])
        running.result(timeout=60)
        assert machine.settled() == "running", step
        job.is_whole()
    assert machine.ask("checkpoint", "llm").body["strategy"] == "copyout"
    job.come_back(first, second)
    job.leave()
    job.come_back()


def code_of(machine: Machine, *moves: str) -> tuple[int, str]:
    words = [word for move in moves for word in ("--device", move)]
    answer = machine.gcr("restore", "llm", *words)
    return answer.code, answer.body["error"]["code"]


def test_no_room_on_the_other_device(machine: Machine) -> None:
    job = Job.start(machine)
    first, second = job.devices
    (free,) = set(job.counted()) - {first, second}
    taker = taker_on(machine, 2)
    job.leave()
    refused = machine.ask("restore", "llm", devices={second: free})
    error = refused.body["error"]
    assert (refused.code, error["code"], error["state"]) == (3, "no_room", "suspended")
    job.come_back()
    job.leave()
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    job.come_back(first, free)


@SLOW
def test_no_room_on_one_of_two_exchanged_devices(machine: Machine) -> None:
    """Bytes that left one device are not taken for the other's afterwards."""
    job = Job.start(machine)
    first, second = job.devices
    job.leave()
    taker = taker_on(machine, list(job.counted()).index(min(first, second)))
    refused = machine.ask("restore", "llm", devices={first: second, second: first})
    assert (refused.code, refused.body["error"]["code"]) == (3, "no_room")
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    job.come_back()
    job.leave()
    job.come_back(second, first)


def taker_on(machine: Machine, index: int) -> Victim:
    """A stranger that has all that is left of a device."""
    taker = machine.stranger("env", f"CUDA_VISIBLE_DEVICES={index}", sys.executable, TOLD)
    assert int(taker.ask("everything")) > 0
    return taker


def test_two_processes_move_as_one(machine: Machine) -> None:
    pair = machine.run("llm", sys.executable, str(VICTIMS / "pair_victim.py"))
    pids = machine.targets("llm", 2)
    said = pair.ask()
    for old, new in ((0, 2), (2, 1), (1, 0)):
        assert machine.ask("checkpoint", "llm").body["vram_after_bytes"] == 0
        back = machine.ask("restore", "llm", devices={str(old): str(new)})
        assert back.code == 0, back.body
        rows = machine.job("llm")["processes"]  # type: ignore[index]
        assert {(row["pid"], row["device"]) for row in rows} == {(pid, *back.body["moved"].values()) for pid in pids}
        assert pair.ask() == said


def test_a_process_that_is_shown_one_device_only(machine: Machine) -> None:
    """It goes on with its device 0, whichever that is."""
    job = machine.told("llm", before=("env", "CUDA_VISIBLE_DEVICES=1"))
    said = job.ask()
    for old, new in (("1", "0"), ("0", "2"), ("2", "1")):
        assert machine.ask("checkpoint", "llm").body["vram_after_bytes"] == 0
        back = machine.ask("restore", "llm", devices={old: new})
        assert back.code == 0, back.body
        (row,) = machine.job("llm")["processes"]  # type: ignore[index]
        assert [row["device"]] == list(back.body["moved"].values())
        assert job.ask() == said


def test_what_it_frees_as_soon_as_it_is_back_is_let_go(machine: Machine) -> None:
    job = machine.told("llm", "alloc 4 4194304", before=("env", "CUDA_VISIBLE_DEVICES=1"))
    before = machine.ask("checkpoint", "llm").body["bytes"]
    with machine.held_at("restore.running"):
        running = machine.asking.submit(machine.ask, "restore", "llm", devices={"1": "0"})
        machine.wait_held()
        assert job.ask("free_some 2") == "ok"
    assert running.result(timeout=60).code == 0
    gone = machine.ask("checkpoint", "llm")
    assert (gone.code, gone.body.get("bytes")) == (0, before - 2 * 4194304), gone.body
    assert machine.ask("restore", "llm").code == 0


@pytest.mark.parametrize("machine", [{"GCR_SIM_QUIRKS": "noexport"}], indirect=True)
def test_what_the_process_copies_itself_moves_as_well(machine: Machine) -> None:
    job = Job.start(machine)
    first, second = job.devices
    assert job.leave().body["strategy"] == "copyout"
    job.come_back(second, first)
    job.leave()
    job.come_back()


def test_a_process_that_gcr_did_not_start_moves_as_well(machine: Machine) -> None:
    stranger = machine.begin_bare(*command("--interactive"))
    pid = stranger.supervisor.pid
    assert stranger.ask("step 5") == "ok"
    said, (first, second) = stranger.ask(), stranger.ask("where").split()
    assert machine.gcr("checkpoint", str(pid)).body["strategy"] == "driver"
    assert machine.gcr("restore", str(pid), "--device", "0=1").body["error"]["code"] == "wrong_device"
    (machine.simulated / "faults").write_text(f"checkpoint.restore@{pid}:1:fail=1\n")
    error = machine.gcr("restore", str(pid), "--device", "0=1", "--device", "1=0").body["error"]
    assert (error["code"], error["state"]) == ("move_refused", "suspended")
    back = machine.gcr("restore", str(pid), "--device", "0=1", "--device", "1=0")
    assert (back.code, back.body["moved"]) == (0, {first: second, second: first}), back.body
    assert stranger.ask() == said
    assert stranger.ask("where").split() == [second, first]


def test_one_that_moved_leaves_from_where_it_is(machine: Machine) -> None:
    """The daemon that moved it died and told no caller of the move."""
    stranger = machine.begin_bare(*command("--interactive"))
    pid = stranger.supervisor.pid
    assert stranger.ask("step 5") == "ok"
    said, (first, second) = stranger.ask(), stranger.ask("where").split()
    assert machine.gcr("checkpoint", str(pid)).code == 0
    machine.inject("restore.running die")
    assert machine.gcr("restore", str(pid), "--device", "0=1", "--device", "1=0").code != 0
    machine.inject()
    assert stranger.ask("where").split() == [second, first]
    machine.daemon()
    assert machine.gcr("checkpoint", str(pid)).code == 0
    assert machine.gcr("restore", str(pid)).code == 0
    assert stranger.ask("where").split() == [second, first]
    assert stranger.ask() == said


@SLOW
@pytest.mark.parametrize("machine", [{"GCR_SIM_CONTROL_MS": "6000"}], indirect=True)
def test_a_move_that_outlives_its_daemon_is_over_for_the_next_one(machine: Machine) -> None:
    """It runs where the driver brought it; it is not taken home, where there is no room."""
    stranger = machine.begin_bare("env", "CUDA_VISIBLE_DEVICES=0", sys.executable, TOLD)
    assert stranger.ask("alloc 5 1000000") == "ok"
    said, pid = stranger.ask(), stranger.supervisor.pid
    assert machine.gcr("checkpoint", str(pid)).code == 0
    threads = count_threads(pid)
    moving = machine.asking.submit(machine.gcr, "restore", str(pid), "--device", "0=1")
    (journal,) = (machine.folder / "state").glob(f"gcr/daemons/*/journal/{pid}.json")
    until(lambda: '"GPU-' in journal.read_text().partition('"tried"')[2] or None, 20, "the driver will be asked")
    until(lambda: count_threads(pid) > threads, 20, "the driver has begun")
    time.sleep(0.5)  # and has not only said in which state the process is
    kill(*machine.children("gcr.daemon"))
    assert moving.result(timeout=60).code != 0
    taker_on(machine, 0)
    machine.daemon()
    assert stranger.ask() == said
    assert machine.until_state(str(pid), "running")
    assert machine.gcr("checkpoint", str(pid)).code == 0
    assert machine.gcr("restore", str(pid)).code == 0
    assert stranger.ask() == said


def count_threads(pid: int) -> int:
    """The simulated driver has one more while it is asked for something."""
    return len([*Path(f"/proc/{pid}/task").iterdir()])


def test_a_context_that_stayed_does_not_move(machine: Machine) -> None:
    job = Job.start(machine)
    assert machine.gcr("checkpoint", "llm", "--data-only").code == 0
    assert code_of(machine, "0=1", "1=0") == (3, "unsupported_state")
    assert machine.job("llm")["state"] == "data_suspended"  # type: ignore[index]
    assert machine.gcr("restore", "llm").code == 0
    job.is_whole()


def test_jobs_that_see_one_device_each_under_a_daemon_that_either_started(machine: Machine) -> None:
    """A setting that hides devices from the program that started a daemon hides them from no other job."""
    jobs = {}
    for name, seen in (("one", "1"), ("two", "2"), ("three", "0")):
        machine.extra["CUDA_VISIBLE_DEVICES"] = seen
        jobs[name] = machine.told(name, "alloc 3 100000")
    del machine.extra["CUDA_VISIBLE_DEVICES"]
    said = {name: job.ask() for name, job in jobs.items()}
    devices = set()
    for name in jobs:
        gone = machine.ask("checkpoint", name)
        assert (gone.code, gone.body.get("vram_after_bytes")) == (0, 0), gone.body
        devices |= {row["device"] for row in gone.body["processes"]}
    assert len(devices) == len(jobs)
    for name, job in jobs.items():
        assert machine.ask("restore", name).code == 0
        assert job.ask() == said[name]
