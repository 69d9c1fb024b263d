"""Measures a request in the front of `gcr serve`: processor time, answers a second, added latency. Uses no device.

    python benchmarks/front.py --seconds 5 --out FILE

The server and the clients are one C program (front_load.c), which says what it costs itself. One client alone gives the
added latency, against the same client and server without a front; several together give the answers a second.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CLIENTS = (1, 16, 64)
PATHS = {"v1": "/v1/chat/completions", "upstream": "/upstream/a/v1/chat/completions"}
FILE = """
[serve]
port = 0
[models.a]
command = "a {port}"
"""


def built(folder: Path) -> Path:
    program = folder / "front_load"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    words = [compiler, "-O2", "-D_GNU_SOURCE", "-o", str(program), str(HERE / "front_load.c")]
    subprocess.run(words, check=True)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Standing:
    """A job that is there and stays (`gcr.serve.upstream.Jobs`)."""

    def __init__(self, port: int) -> None:
        from gcr.serve.upstream import Found

        self._found = {"a": Found(pid=os.getpid(), port=port, bytes=1)}

    async def find(self) -> Mapping[str, Any]:
        return self._found

    async def room(self) -> int | None:
        return None

    async def healthy(self, model: object, job: object) -> None:
        return None


def serve(port: int, file: Path) -> None:
    """A front alone in this process. Prints its port; at SIGTERM its processor time so far."""
    import signal

    import uvloop

    from gcr.listening import listening
    from gcr.serve.config import load
    from gcr.serve.server import Server

    config = load(file)

    async def main() -> None:
        ending = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
        server = Server(config, Standing(port))  # type: ignore[arg-type]
        with listening(config.host, config.port, "another port") as sock:
            await server.listen(sock)
            while server.pool.models["a"].state != "ready":
                await asyncio.sleep(0.01)
            print(sock.getsockname()[1], flush=True)
            await ending.wait()
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def child(*words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, **more) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def cpu_of(pid: int) -> float:
    """Returns the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asked(program: Path, port: int, clients: int, seconds: float, path: str) -> dict[str, Any]:
    words = [str(program), "ask", str(port), str(clients), str(seconds), path]
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))


def row(program: Path, port: int, pid: int, clients: int, seconds: float, path: str) -> dict[str, Any]:
    before = cpu_of(pid)
    found = asked(program, port, clients, seconds, path)
    used = cpu_of(pid) - before
    answers = found["answers"]
    return {
        "clients": clients,
        "answers_per_s": answers / found["seconds"],
        "failed": found["failed"],
        "p50_s": found["p50_s"],
        "p99_s": found["p99_s"],
        "cpu_s_per_answer": used / answers,
        "client_cpu_s_per_answer": found["cpu_s"] / answers,
    }


def measured(program: Path, folder: Path, seconds: float) -> dict[str, Any]:
    port = free_port()
    file = folder / "gcr.toml"
    file.write_text(FILE)
    rows: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count(), "date": time.strftime("%F")}
    with child(str(program), "serve", str(port)) as server:
        time.sleep(0.3)
        rows["bare"] = [row(program, port, server.pid, each, seconds, "/v1/x") for each in CLIENTS]
        words = [sys.executable, str(HERE / "front.py"), "--serve", str(port), "--file", str(file)]
        with child(*words) as front:
            assert front.stdout
            at = int(front.stdout.readline())
            for name, path in PATHS.items():
                asked(program, at, 4, 0.5, path)
                rows[name] = [row(program, at, front.pid, each, seconds, path) for each in CLIENTS]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measured(built(Path(folder)), Path(folder), options.seconds)
    for name in ("bare", *PATHS):
        for each in found[name]:
            print(name, {key: float(f"{value:.3g}") for key, value in each.items()})
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
