"""Runs programs on simulated machines of their own, each with a deadline."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from warm_texts import WarmText

from gcr.native import sim_dir

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEADLINE = 60.0
MiB = 1 << 20
CONTEXT = 16 * MiB  # what a context costs, by default


class Machine:
    """One simulated machine. `settings` are the simulator's environment variables without GCR_SIM_."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.state = directory / "machine"
        libraries = sim_dir("nvidia")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("GCR_", "CUDA_", "LD_"))}
        self.env |= {f"GCR_SIM_{name}": str(value) for name, value in settings.items()}
        self.env |= {
            "GCR_SIM_STATE": str(self.state),
            "GCR_SIM_KERNELS": str(libraries / "kernels.so"),
            "LD_LIBRARY_PATH": str(libraries),
            "PYTHONPATH": str(HERE),
        }

    def command(self, program: str) -> list[str]:
        return [sys.executable, "-c", "from gpu import *\n" + textwrap.dedent(program)]

    def run(self, program: str, **env: str) -> list[str]:
        """The lines a program printed. It must succeed."""
        done = self.attempt(program, **env)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.splitlines()

    def attempt(self, program: str, **env: str) -> subprocess.CompletedProcess[str]:
        command, pipe = self.command(program), subprocess.PIPE
        with WarmText(
            command, env=self.env | env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                said = process.communicate(timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, *said)

    @contextmanager
    def start(self, program: str, stdin: int = subprocess.PIPE, **env: str) -> Iterator["Program"]:
        process = WarmText(self.command(program), env=self.env | env, stdin=stdin, stdout=subprocess.PIPE, text=True)
        try:
            yield Program(process)
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE)

    def faults(self, text: str) -> None:
        """Replace the rules of the machine's fault file, at once for every process."""
        self.state.mkdir(mode=0o700, exist_ok=True)
        scratch = self.state / "faults.new"
        scratch.write_text(text)
        scratch.rename(self.state / "faults")

    def used(self, device: int = 0) -> int:
        """Bytes in use on a device, as a process without a context sees them."""
        program = """
            import pynvml
            pynvml.nvmlInit()
            say(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(%d)).used)
        """
        return int(self.run(program % device)[0])


class Program:
    """A running program that talks by lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def hear(self) -> str:
        assert self.process.stdout
        return _with_deadline(self.process.stdout.readline).strip()

    def tell(self, line: str = "go") -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str = "go") -> str:
        self.tell(line)
        return self.hear()

    def quiet(self, seconds: float) -> bool:
        """Returns True if the process printed nothing for so many seconds."""
        import select

        assert self.process.stdout
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE)


def listener_of(pid: int) -> bytes:
    """Returns the abstract name of the driver's service in a process."""
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    (name,) = [name for name in names if name.startswith("@gcr-sim-") and name.endswith(f"-{pid}")]
    return name.replace("@", "\0", 1).encode()


def _with_deadline(read: Callable[[], str]) -> str:
    import threading

    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(read()), daemon=True)
    reader.start()
    reader.join(DEADLINE)
    assert lines, "no answer before the deadline"
    return lines[0]
