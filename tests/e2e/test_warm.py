"""A command that is forked from the warm process is what it would be after the start of an interpreter."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm
import warm_fork
import warm_popen
from machine import Machine, alive, kill, until
from worlds import AMD, ASCEND, NVIDIA, World, at

from gcr import processes
from gcr.testing.machine import simulated_driver

PROBE = """
import ctypes, locale, os, resource, signal, sys, threading
from pathlib import Path

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def stream(s):
    return [s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(), s.seekable(), s.closed]

def descriptors():
    return {fd: os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")}

facts = {
    "signals": {s.name: str(signal.getsignal(s)).partition(" at ")[0] for s in signal.Signals},
    "mask": [s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "descriptors": descriptors(),
    "environment": dict(os.environ),
    "home": os.path.expanduser("~"),
    "arguments": sys.argv, "orig": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "stdin": sys.stdin.read(),
    "threads": [len(os.listdir("/proc/self/task")), threading.active_count()],
    "main": threading.current_thread() is threading.main_thread(),
    "groups": [os.getpgrp(), os.getsid(0)],
    "locale": locale.setlocale(locale.LC_ALL), "folder": os.getcwd(),
    "name": __name__, "file": __file__, "registered": sys.modules["__main__"].__dict__ is globals(),
    "overwritten": ctypes.string_at(libc.malloc(3000), 3000) == bytes([0xff ^ 165]) * 3000,
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIM")
               if name != "RLIM_INFINITY"},
    "parent": [os.getppid(), os.getsid(0) == os.getpid()],
    "shown": [os.fsdecode(Path("/proc/self", file).read_bytes()) for file in ("cmdline", "environ")],
    "marks": sorted(name for name in sys.modules if name.startswith("mark")),
}
if __name__ == "__main__":
    import json
    print(json.dumps(facts, sort_keys=True))
"""
# What each call of a backend's own finds, and which files of simulated drivers the process has mapped after it.
DRIVER = """
import ctypes, importlib, sys
vendor, *names = sys.argv[1:]
backend = getattr(importlib.import_module(f"gcr_{vendor}.backend"), f"{vendor.capitalize()}Backend")()
print(backend.devices(), backend.probe())
for name in names:
    ctypes.CDLL(name)
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if "/sim/" in line}))
"""
LIBRARIES = {
    "nvidia": ("libcuda.so.1", "libnvidia-ml.so.1"),
    "amd": ("libamdhip64.so.7", "librocm_smi64.so"),
    "ascend": ("libascendcl.so", "libacl_rt.so", "libruntime.so", "libdcmi.so"),
}
PATIENCE = 30.0
in_each = pytest.mark.parametrize("world", [NVIDIA, AMD, ASCEND], ids=lambda world: world.name)
as_children = pytest.mark.skipif(
    not warm_fork.possible(), reason="this kernel or processor forks no child of a parent's, or keeps its command line"
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module where commands find it."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


def ran(module: str, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return warm.run(module, *arguments, env={**os.environ, **env}, timeout=PATIENCE)


def seen_inside(done: "subprocess.CompletedProcess[str]") -> dict[str, object]:
    """Returns the facts without those that only a child of the tests shares with a new process."""
    facts = json.loads(done.stdout)
    others = ("parent",) if warm_fork.possible() else ("parent", "shown")
    return {name: value for name, value in facts.items() if name not in others}


def environment(world: World) -> dict[str, str]:
    """Returns the environment of programs of this world, which a warm process forks from here on."""
    env = {**os.environ, **world.environment()}
    if path := env.get("PYTHONPATH"):
        warm.expect(path, world.vendor)
    return env


@in_each
def test_it_finds_all_as_a_new_interpreter_does(module, world: World):
    name, env = module("probe", PROBE), {**environment(world), "GCR_HERE": "ünd", "HOME": "/nowhere"}
    command = [sys.executable, "-m", name, "one", "--two", "ü\udcff"]
    new = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    done = warm.run(*command[2:], env=env, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (new.returncode, new.stderr) == (0, "")
    assert seen_inside(done) == seen_inside(new)


def test_it_reads_the_stdin_of_the_tests(module, tmp_path):
    name = module("reads", "import sys; print(repr(sys.stdin.readline()), sys.stdin.buffer.read())")
    (tmp_path / "words").write_text("first\nsecond")
    before = os.dup(0)
    with (tmp_path / "words").open() as words:
        os.dup2(words.fileno(), 0)
        try:
            assert ran(name).stdout == "'first\\n' b''\n"  # the rest is in the buffer of the text
        finally:
            os.dup2(before, 0)
            os.close(before)


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("import os; os._exit(255)", 255, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_it_would(module, code, exit_code, stderr):
    done = ran(module("ends", code))
    assert (done.returncode, done.stderr) == (exit_code, stderr)


def test_what_cannot_be_written_at_the_exit_is_told(module):
    name = module("closes", "import os; print('more', end=''); os.close(1)")
    new = subprocess.run([sys.executable, "-m", name], capture_output=True, timeout=PATIENCE)
    done = ran(name)
    assert (done.returncode, done.stdout) == (new.returncode, new.stdout.decode())
    assert done.stderr == new.stderr.decode()


def test_a_failure_is_told_and_handlers_of_the_exit_run(module):
    done = ran(module("fails", "import atexit\natexit.register(print, 'bye')\n1 / 0"))
    assert (done.returncode, done.stdout) == (1, "bye\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_nothing_of_one_command_is_left_in_the_next(module):
    module("mark_of_the_first", "")
    leave = "import os, signal, sys, mark_of_the_first, gcr.config\n"
    leave += "gcr.config.LEFT = sys.LEFT = os.environ['LEFT'] = 'x'; signal.signal(15, signal.SIG_IGN); os.umask(0o777)"
    look = "import os, signal, sys, gcr.config; print(hasattr(sys, 'LEFT'), hasattr(gcr.config, 'LEFT'), "
    look += "os.environ.get('LEFT'), 'mark_of_the_first' in sys.modules, signal.getsignal(15), os.umask(0o77))"
    umask = os.umask(0o022)
    os.umask(umask)
    assert ran(module("first", leave)).returncode == 0
    assert ran(module("second", look)).stdout == f"False False None False {int(signal.SIG_DFL)} {umask}\n"


def test_processes_are_told_apart(module):
    name = module("slow", "import os, sys, time; time.sleep(float(sys.argv[1])); print(os.getpid(), sys.argv[1])")
    with ThreadPoolExecutor(4) as several:
        done = list(several.map(lambda seconds: ran(name, seconds).stdout.split(), ["0.3", "0.1", "0.2", "0"]))
    assert [words[1] for words in done] == ["0.3", "0.1", "0.2", "0"]
    assert len({words[0] for words in done}) == 4
    assert threading.active_count() < 10


def test_one_that_does_not_end_is_killed_and_the_next_runs(module, tmp_path):
    code = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid()))\n"
    code += "print('on', flush=True); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        warm.run(module("hangs", code), env=os.environ, timeout=2.0)
    assert caught.value.output == b"on\n"
    assert ran(module("next", "print(1)")).stdout == "1\n"  # told after the end of the first
    assert not Path("/proc", (tmp_path / "pid").read_text(), "cwd").exists()


def test_what_is_read_at_the_start_needs_a_new_interpreter(module, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "brought.py").write_text("print('here')")
    name = module("needs", "import sys, brought; print(sys.flags.utf8_mode)")
    assert ran(name, PYTHONPATH=str(tmp_path / "more"), PYTHONUTF8="1").stdout == "here\n1\n"


def test_a_large_output_comes_whole(module):
    done = ran(module("large", "import sys; print('x' * (1 << 20)); print('y' * (1 << 20), file=sys.stderr)"))
    assert (len(done.stdout), len(done.stderr)) == ((1 << 20) + 1, (1 << 20) + 1)


@in_each
def test_it_finds_the_drivers_of_its_world(module, tmp_path, world: World):
    name, simulated = module("driver", DRIVER), {"GCR_SIM_STATE": str(tmp_path / "state"), "GCR_SIM_DEVICES": "2"}
    env = {**environment(world), **simulated_driver(world.vendor), **simulated}
    command = [sys.executable, "-m", name, world.vendor, *LIBRARIES[world.vendor]]
    new = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    done = warm.run(*command[2:], env=env, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (new.returncode, new.stdout, new.stderr)
    assert new.returncode == 0, new.stderr


@in_each
def test_it_loads_nothing_that_reads_the_environment(world: World):
    """Modules of gcr read it when they are asked: the warm process has loaded them in another one."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import os, sysconfig, warm_process; known = []\n"
    code += "sysconfig.get_config_vars()  # the standard library looks for the home, for installers\n"
    code += "kind = type(os.environ); read = kind.__getitem__\n"
    code += "kind.__getitem__ = lambda self, name: known.append(name) or read(self, name)\n"
    code += "warm_process.load(sys.argv[2]); names = ('GCR', 'XDG', 'HOME', 'ROCM', 'HIP', 'ASCEND')\n"
    code += "print(sorted({name for name in known if name.startswith(names)}))"
    here = str(Path(warm.__file__).parent)
    command, env = [sys.executable, "-c", code, here, world.vendor], {**os.environ, **world.environment()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "[]\n", done.stderr


@pytest.fixture
def probe(module, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a command that the warm process forks, as it does programs of gcr."""
    name = module("probe", PROBE)
    monkeypatch.setattr(warm_popen, "PROGRAMS", (name,))
    return [sys.executable, "-m", name, "one"]


def forked(pid: int, path: str | None = os.environ.get("PYTHONPATH")) -> bool:
    """Returns whether a process shares its stack's place with the warm process, which no exec gives it."""
    found, warm_one = processes.identify(pid), processes.identify(warm.warm(path).process.pid)
    assert found and warm_one and warm_one.stack
    return found.stack == warm_one.stack


@as_children
@pytest.mark.parametrize(("perturb", "world"), [("165", NVIDIA), ("", NVIDIA), ("165", AMD), ("165", ASCEND)])
def test_a_child_finds_all_as_a_new_interpreter_does(probe, tmp_path, perturb, world: World):
    reading, writing = os.pipe()
    env = {**environment(world), "GCR_HERE": "ünd", "MALLOC_PERTURB_": perturb}
    how = {"env": env, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    warm.warm(env.get("PYTHONPATH"))  # or it would begin with what is set now, and keep it for the tests after this one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        started = [each(probe, **how, start_new_session=True, pass_fds=[writing]) for each in STARTERS]
        new, done = (json.loads(process.communicate(timeout=PATIENCE)[0]) for process in started)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, ignored)
        os.close(reading)
        os.close(writing)
    for facts, process in zip((new, done), started, strict=True):
        assert facts.pop("groups") == [process.pid] * 2
    assert done == new
    assert (done["overwritten"], str(writing) in done["descriptors"]) == (bool(perturb), True)
    assert [process.returncode for process in started] == [0, 0]


STARTERS = (subprocess.Popen, warm.popen)


@as_children
def test_a_child_is_waited_for_and_killed_as_any_other(module, monkeypatch):
    name = module("waits", "import sys; sys.stdin.read(); sys.exit(7)")
    monkeypatch.setattr(warm_popen, "PROGRAMS", (name,))
    first, second = (warm.popen([sys.executable, "-m", name], stdin=subprocess.PIPE) for _ in range(2))
    assert forked(first.pid) and forked(second.pid)
    assert (first.poll(), second.poll()) == (None, None)
    second.kill()
    for process in (first, second):
        process.communicate(timeout=PATIENCE)
    assert (first.returncode, second.returncode) == (7, -signal.SIGKILL)


@as_children
@pytest.mark.parametrize("machine", [at(NVIDIA), at(AMD), at(ASCEND)], indirect=True)
def test_the_processes_of_a_machine_are_forked_and_have_their_parents(machine: Machine) -> None:
    job = machine.told("llm", "alloc 1 1")
    machine.leave()
    path = machine.env.get("PYTHONPATH")
    (daemon,), (worker,), (helper,) = map(machine.children, ("gcr.daemon", "gcr.worker", "gcr.control_helper"))
    parents = [processes.parent_pid(pid) for pid in (job.supervisor.pid, daemon, worker, helper)]
    assert parents == [os.getpid(), job.supervisor.pid, daemon, daemon]
    assert all(forked(pid, path) for pid in (job.supervisor.pid, daemon, worker, helper))
    warm_ones = [pid for pid in processes.descendants(daemon) if pid not in (worker, helper)]
    assert len(warm_ones) == 1
    kill(daemon)
    until(lambda: not alive(warm_ones[0]), PATIENCE, "the daemon's warm process has ended")
