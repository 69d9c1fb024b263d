"""Jobs of several processes, and `gcr run` as a parent like any other."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from machine import VICTIMS, Machine, Victim, alive, until
from worlds import slowly

CONTEXT = 16 << 20  # what a context of the simulated device costs
PAIR = str(VICTIMS / "pair_victim.py")


def pair(machine: Machine) -> tuple[Victim, str]:
    job = machine.run("pair", sys.executable, PAIR)
    machine.targets("pair", 2)
    return job, job.ask()


def swap(machine: Machine, job: Victim, before: str) -> None:
    gone = machine.ask("checkpoint", job.name)
    assert gone.code == 0, gone.body
    assert gone.body["vram_after_bytes"] == 0
    back = machine.ask("restore", job.name)
    assert back.code == 0, back.body
    assert job.ask() == before


# ---- two processes -----------------------------------------------------------------------------------------------


def test_two_processes_go_and_come_back_as_one(machine: Machine) -> None:
    job, before = pair(machine)
    gone = machine.gcr("checkpoint", "pair")
    assert (gone.code, gone.body["state"], gone.body["vram_after_bytes"]) == (0, "suspended", 0)
    assert len({row["pid"] for row in gone.body["processes"]}) == 2
    job.tell()
    assert job.silent()
    assert machine.gcr("restore", "pair").code == 0
    assert job.hear() == before
    swap(machine, job, before)


def test_either_pid_names_the_job(machine: Machine) -> None:
    job, before = pair(machine)
    first, second = machine.targets("pair", 2)
    assert machine.ask("checkpoint", first).body["job"] == "pair"
    assert machine.ask("restore", second).body["job"] == "pair"
    assert job.ask() == before


@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("checkpoint", "handed_over"),
        pytest.param("checkpoint", "decided", marks=pytest.mark.slow),  # test_deaths.py has these of one process
        ("checkpoint", "committed_one"),
        pytest.param("restore", "mapped", marks=pytest.mark.slow),
        ("restore", "opened_one"),
    ],
)
def test_the_daemon_dies_between_the_first_process_and_the_second(machine: Machine, command: str, step: str) -> None:
    job, before = pair(machine)
    if command == "restore":
        assert machine.ask("checkpoint", "pair").code == 0
    machine.inject(f"{command}.{step} die")
    done = machine.gcr(command, "pair")
    assert done.code != 0
    if machine.until_state("pair", "running", "suspended") == "suspended":
        until(lambda: used(machine) == CONTEXT * len(machine.children("gcr.worker")) or None, 10, "the device is free")
        assert machine.ask("restore", "pair").code == 0
    assert job.ask() == before
    swap(machine, job, before)


def used(machine: Machine) -> int:
    """Returns the bytes that the device counts, of all processes."""
    script = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used)"
    return int(machine.bare(sys.executable, "-c", script))


@pytest.mark.parametrize(
    ("command", "step", "order"),
    [
        pytest.param(command, step, order, marks=[] if order == chosen else pytest.mark.slow)
        for command, step, chosen in (
            ("checkpoint", "prepared", ""),
            ("checkpoint", "drained", "--late"),
            ("checkpoint", "decided", ""),
            ("restore", "back", "--late"),
        )
        for order in ("", "--late")
    ],
)
def test_one_of_two_dies_and_the_other_goes_on(machine: Machine, command: str, step: str, order: str) -> None:
    """The child dies: the first process of the job, or with --late the second."""
    job = machine.run("pair", sys.executable, PAIR, *order.split())
    pids = machine.targets("pair", 2)
    (child,) = [pid for pid in pids if parent_of(pid) in pids]
    if command == "restore":
        assert machine.ask("checkpoint", "pair").code == 0
    with machine.held_at(f"{command}.{step}"):
        running = machine.begin(command, "pair", "--timeout", "30")
        machine.wait_held()
        os.kill(child, signal.SIGKILL)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    survives(machine, job, "pair")


@pytest.mark.parametrize("way", ["killed", slowly("exec")])
def test_one_of_two_ends_while_both_are_suspended(machine: Machine, way: str) -> None:
    """The restore brings the other one back, at the first try."""
    job = machine.run("pair", sys.executable, PAIR)
    pids = machine.targets("pair", 2)
    (child,) = [pid for pid in pids if parent_of(pid) in pids]
    if way == "exec":
        job.ask("later 0.2 " + b"import os; os.execv('/bin/false', ['false'])".hex() + "h")
    assert machine.ask("checkpoint", "pair").code == 0
    if way == "killed":
        os.kill(child, signal.SIGKILL)
    else:
        until(lambda: machine.job("pair")["processes"][1:] == [] or None, 10, "it has become another program")
    back = machine.ask("restore", "pair")
    assert (back.code, back.body.get("state")) == (0, "running"), back.body
    survives(machine, job, "pair")


def test_an_image_of_what_is_left(machine: Machine, tmp_path: Path) -> None:
    job = machine.run("pair", sys.executable, PAIR)
    pids = machine.targets("pair", 2)
    (child,) = [pid for pid in pids if parent_of(pid) in pids]
    with machine.held_at("checkpoint.drained"):
        running = machine.begin(
            "checkpoint", "pair", "--image", "left", "--wait", "durable", "--store", str(tmp_path / "store")
        )
        machine.wait_held()
        os.kill(child, signal.SIGKILL)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    survives(machine, job, "pair")


def survives(machine: Machine, job: Victim, name: str) -> None:
    until(lambda: len({row["pid"] for row in machine.job(name)["processes"]}) == 1 or None, 20, "the dead one is gone")
    if machine.until_state(name, "running", "suspended") == "suspended":
        assert machine.ask("restore", name).code == 0
    said = job.ask()
    assert said.startswith("parent 3 held, digest") and said.endswith("child gone")
    swap(machine, job, said)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_wait_that_the_drivers_own_lock_lets_through_is_answered_without_it(machine: Machine) -> None:
    """r580 faults in cuStreamSynchronize of a checkpointed process; the simulated driver does too."""
    job = machine.told("llm")
    assert machine.ask("checkpoint", "llm").code == 0
    assert job.ask("synchronise") == "ok"
    assert machine.ask("restore", "llm").code == 0
    assert job.ask("synchronise") == "ok"


# ---- what programs do --------------------------------------------------------------------------------------------


def test_a_child_that_never_touches_the_device(machine: Machine) -> None:
    job = machine.told("llm")
    child = int(job.ask("child idle"))
    before = job.ask()
    swap(machine, job, before)
    assert machine.targets("llm") == [machine.target("llm")] and child not in machine.targets("llm")
    assert alive(child)
    os.kill(child, signal.SIGKILL)


def test_a_child_made_between_two_swaps_is_of_the_job(machine: Machine) -> None:
    job = machine.told("llm")
    before = job.ask()
    swap(machine, job, before)
    child = int(job.ask("child gpu"))
    assert child in machine.targets("llm", 2)
    swap(machine, job, before)
    assert alive(child)


def test_a_program_that_closes_every_descriptor(machine: Machine) -> None:
    job = machine.told("llm")
    before = job.ask()
    swap(machine, job, before)
    assert job.ask("close_all") == "1"
    assert job.ask() == before
    until(lambda: machine.ask("checkpoint", "llm").code == 0 or None, 10, "its agent has come back")
    assert machine.ask("restore", "llm").code == 0
    assert job.ask() == before


def test_a_program_that_closes_every_descriptor_when_it_starts(machine: Machine) -> None:
    victim = str(VICTIMS / "told_victim.py")
    script = f"import os, runpy, sys; sys.path.insert(0, {str(VICTIMS)!r}); os.closerange(3, 4096)"
    job = machine.run("llm", sys.executable, "-c", f"{script}; runpy.run_path({victim!r}, run_name='__main__')")
    swap(machine, job, job.ask())


def test_paths_longer_than_a_sockets_address(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    (folder / "run").mkdir(mode=0o700, parents=True)
    machine = Machine(folder)
    try:
        job = machine.told("llm")
        swap(machine, job, job.ask())
    finally:
        machine.close()


# ---- a parent like any other -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_run_returns_the_programs_code(machine: Machine, script: str, code: int) -> None:
    job = machine.run("llm", sys.executable, "-c", script, ready=False)
    assert job.supervisor.wait(20) == code
    assert machine.job("llm") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_go_on_to_the_program(machine: Machine, number: signal.Signals) -> None:
    script = f"import signal; print('ready', flush=True); print(signal.sigwait([{int(number)}]).name, flush=True)"
    script = f"import signal; signal.pthread_sigmask(0, [{int(number)}]); {script}"
    job = machine.run("llm", sys.executable, "-c", script)
    job.supervisor.send_signal(number)
    assert job.hear() == number.name
    assert job.supervisor.wait(10) == 0


def test_no_other_thread_takes_a_signal_from_the_supervisor(machine: Machine) -> None:
    """One that the kernel gave to another thread would be neither forwarded nor acted on."""
    job = machine.run("llm", sys.executable, "-c", "print('ready', flush=True); input()")
    wanted = sum(1 << number - 1 for number in (1, 2, 10, 12, 15, signal.SIGCHLD))
    others = [t for t in Path(f"/proc/{job.supervisor.pid}/task").iterdir() if int(t.name) != job.supervisor.pid]
    masks = [re.search(r"^SigBlk:\s*(\w+)$", (t / "status").read_text(), re.MULTILINE) for t in others]
    assert {int(mask[1], 16) & wanted for mask in masks if mask} == {wanted}
    job.tell("")
    assert job.supervisor.wait(10) == 0


def test_a_signal_that_was_ignored_stays_ignored(machine: Machine) -> None:
    """Programs under nohup rely on this."""
    script = "import signal; print(signal.getsignal(signal.SIGHUP).name, flush=True); input()"
    ignoring = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-m", "gcr", "run", "--simulate", "nvidia", "--", sys.executable, "-c", script]
    process = machine.begin_other(sys.executable, "-c", ignoring, *command)
    job = Victim("llm", process)
    assert job.hear() == "SIG_IGN"
    process.send_signal(signal.SIGHUP)
    job.tell("end")
    assert process.wait(10) == 0


def test_descriptors_the_caller_left_open_are_the_programs(machine: Machine) -> None:
    reading, writing = os.pipe()
    script = f"import os; os.write({writing}, b'passed on')"
    command = [sys.executable, "-m", "gcr", "run", "--simulate", "nvidia", "--", sys.executable, "-c", script]
    subprocess.run(command, env=machine.env, pass_fds=[writing], check=True, timeout=30)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "passed on"


def test_a_signal_that_ends_the_program_is_its_code(machine: Machine) -> None:
    job = machine.told("llm")
    assert machine.ask("checkpoint", "llm").code == 0
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.supervisor.wait(10) == 128 + signal.SIGTERM
    until(lambda: machine.job("llm") is None or None, 10, "the job is forgotten")


def test_a_report_of_the_last_checkpoint(machine: Machine) -> None:
    report = machine.folder / "report.json"
    command = ["run", "--name", "llm", "--simulate", "nvidia", "--report", str(report), "--", sys.executable]
    process = machine.begin_other(sys.executable, "-m", "gcr", *command, str(VICTIMS / "told_victim.py"))
    job = machine.ready(Victim("llm", process))
    gone = machine.gcr("checkpoint", "llm").body
    back = machine.gcr("restore", "llm").body
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0
    written = json.loads(report.read_text())
    assert written["job"] == job.name
    assert written["bytes"] == gone["bytes"] == back["bytes"] > 0


def test_detached(machine: Machine) -> None:
    pipe = machine.folder / "pipe"
    os.mkfifo(pipe)
    script = f"exec {sys.executable} {VICTIMS / 'told_victim.py'} <{pipe} >{machine.folder / 'out'}"
    answer = machine.gcr("run", "-d", "--name", "llm", "--simulate", "nvidia", "--", "sh", "-c", script, timeout=20)
    assert (answer.code, answer.body["job"], answer.body["detached"]) == (0, "llm", True)
    with pipe.open("w") as told:
        machine.targets("llm")
        assert machine.ask("checkpoint", "llm").code == 0
        assert machine.ask("restore", "llm").code == 0
        print("?", file=told)
    until(lambda: machine.job("llm") is None or None, 10, "it ends with its input")
    said = (machine.folder / "out").read_text().splitlines()
    assert said[0] == "ready" and said[1].startswith("4 held, digest")


def test_what_cannot_be_started(machine: Machine) -> None:
    answer = machine.gcr("run", "--simulate", "nvidia", "--", "/no/such/program")
    assert (answer.code, answer.body["error"]["code"]) == (125, "cannot_start")
    until(lambda: not machine.ask("ps").body["jobs"] or None, 10, "the daemon has heard that its supervisor left")


def test_a_pipe_stays_a_pipe(machine: Machine) -> None:
    command = [sys.executable, "-m", "gcr", "run", "--simulate", "nvidia", "--", "cat"]
    done = subprocess.run(command, env=machine.env, input="through\n", capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "through\n")


def test_a_worker_ends_when_its_jobs_are_suspended_and_the_restore_is_cold_and_right(machine: Machine) -> None:
    machine.extra["GCR_WORKER_IDLE_S"] = "0.2"
    job = machine.told("llm")
    before = job.ask()
    until(lambda: machine.children("gcr.worker") or None, 20, "a worker is there as long as the job runs")
    time.sleep(2.5)
    assert machine.children("gcr.worker"), "the job runs: its worker keeps its context"
    assert machine.ask("checkpoint", "llm").code == 0
    until(lambda: not machine.children("gcr.worker") or None, 20, "no job runs on the device")
    back = machine.ask("restore", "llm")
    assert (back.code, back.body["cold"]) == (0, True)
    assert job.ask() == before


def test_no_worker_for_a_device_that_the_job_does_not_use(machine: Machine) -> None:
    machine.devices = 2
    machine.told("llm")
    until(lambda: machine.children("gcr.worker") or None, 20, "a worker for the device it uses")
    time.sleep(2.5)
    assert len(machine.children("gcr.worker")) == 1


def test_a_program_whose_thread_local_data_is_larger_than_a_small_stack(machine: Machine) -> None:
    """The C library lays thread-local data on each thread's stack, our agent's too."""
    program = machine.folder / "c_victim"
    source = VICTIMS / "c_victim.c"
    assert "_Thread_local" in source.read_text()
    subprocess.run(["cc", "-O1", "-o", program, source, "-ldl", "-lpthread"], check=True, timeout=60)
    job = machine.run("c", str(program), "2", "2", "1000000", ready=False)
    machine.targets("c")
    assert machine.ask("checkpoint", "c").code == 0
    assert machine.ask("restore", "c").code == 0
    assert job.supervisor.poll() is None


def test_what_ended_after_it_came_back_leaves_nothing_on_the_device(machine: Machine) -> None:
    """Workers hold what they gave back to it, and its job is over as soon as its supervisor says so."""
    for _ in range(4):
        job, _before = machine.start()
        machine.leave()
        machine.come_back()
        job.supervisor.communicate(timeout=30)
        until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
        try:
            until(lambda: used(machine) == CONTEXT * len(machine.children("gcr.worker")) or None, 10, "it is free")
        except AssertionError as error:
            error.add_note(f"{used(machine)} B, workers {machine.children('gcr.worker')}, {holders(machine)}")
            raise


def holders(machine: Machine) -> list[str]:
    """Returns the processes that have device memory open, each with the file."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if (target := str(link.readlink())).startswith(f"{machine.simulated}/physical"):
                found.append(f"{link.parts[2]} {(link.parents[1] / 'comm').read_text().strip()}: {target}")
    return found
