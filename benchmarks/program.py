"""A running program that answers: bare, or under `gcr run`."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

VICTIMS = Path(__file__).resolve().parents[1] / "tests" / "victims"
START_SECONDS = 240.0
ANSWER_SECONDS = 240.0  # torch.save of all it holds, to a slow disk
END_SECONDS = 20.0
COMMAND_SECONDS = 240.0
REGISTER_SECONDS = 30.0

GCR = (sys.executable, "-m", "gcr")


def fill(gib: float, *more: str) -> list[str]:
    return [sys.executable, str(VICTIMS / "torch_fill.py"), "--gib", str(gib), *more]


class Program:
    """Started, and ready when this returns. `job`: the name to run it under gcr by, or None for bare.

    flags: of `gcr run`. With `wait=False` it is ready only after `await_ready`: several may start at once.
    """

    def __init__(
        self,
        command: Sequence[str],
        job: str | None,
        environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        self.job = job
        full = [*GCR, "run", "--name", job, *flags, "--", *command] if job else list(command)
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, **(environment or {})}
        )
        self.pid = self._process.pid
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        said = self._read_line(START_SECONDS)
        if said != "ready":
            raise SystemExit(f"benchmark: the program said {said!r} instead of ready")
        if self.job:
            self.pid = self._job_pid()

    def _job_pid(self) -> int:
        give_up = time.monotonic() + REGISTER_SECONDS
        while time.monotonic() < give_up:
            for job in gcr("ps")["jobs"]:
                if job["job"] == self.job:
                    return int(job["pid"])
            time.sleep(0.1)
        raise SystemExit(f"benchmark: gcr ps never showed {self.job}")

    @property
    def supervisor(self) -> int | None:
        """Its pid, where there is one."""
        return self._process.pid if self.job else None

    def ask(self, question: str = "digest") -> str:
        """One line for one line. `digest`: of all the program holds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n".encode())
        return self._read_line(ANSWER_SECONDS)

    def _read_line(self, seconds: float) -> str:
        line = b""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not ready.select(seconds):
                    raise SystemExit(f"benchmark: no answer in {seconds:.0f} s")
                byte = self._process.stdout.read(1)
                if not byte:
                    raise SystemExit(f"benchmark: the program ended with {self._process.wait(END_SECONDS)}")
                line += byte
        return line.decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_SECONDS)


def gcr(*words: str) -> dict[str, Any]:
    """A gcr command's JSON, with `cli_wall_s` as seen from outside. Ends the benchmark when it fails."""
    started = time.monotonic()
    done = subprocess.run(
        [*GCR, *words, "--json"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    wall = time.monotonic() - started
    if not done.stdout.strip():
        raise SystemExit(f"benchmark: gcr {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if not answer["ok"]:
        raise SystemExit(f"benchmark: gcr {' '.join(words)}: {json.dumps(answer['error'])}\n{done.stderr[-2000:]}")
    return {**answer, "cli_wall_s": wall}


def stop_daemon() -> None:
    """So that the next job starts with everything cold. There may be none."""
    subprocess.run([*GCR, "daemon", "stop"], capture_output=True, timeout=COMMAND_SECONDS, check=False)


@contextmanager
def daemons_with(setting: str, value: str) -> Iterator[None]:
    """Gives daemons that start within it this environment variable."""
    before = os.environ.get(setting)
    os.environ[setting] = value
    try:
        yield
    finally:
        stop_daemon()
        if before is None:
            del os.environ[setting]
        else:
            os.environ[setting] = before
