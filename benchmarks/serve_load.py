"""Many clients of two models behind `gcr serve`, which swaps the models: wrong answers, and processes that grow."""

import http.client
import json
import random
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from program import GCR
from serve_swaps import MODELS, Parked, Row, Server, ask, do, served
from sharing_jobs import goal
from stats import median

LOAD_GIB, CLIENTS, LOAD_SWAPS, LOAD_SECONDS = 1.0, 50, 500, 240.0
LOOK_SECONDS = 0.5
MORE_BYTES, MORE_FDS = 64 << 20, 32  # that a process may have grown by under load, from a tenth of it on


@dataclass
class Load:
    """Clients that ask until they are told to end."""

    port: int
    wanted: Mapping[str, str]
    over: threading.Event = field(default_factory=threading.Event)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, number: int) -> None:
        chance = random.Random(number)
        while not self.over.is_set():
            model = chance.choice(list(MODELS))
            try:
                answer = ask(self.port, model)
                right = (answer.status, answer.text) == (200, self.wanted[model])
                bad, took = "" if right else f"{answer.status} {answer.text[:200]}", answer.first_s
            except (OSError, http.client.HTTPException) as error:
                bad, took = repr(error), 0.0
            with self._lock:
                self.answers += 1
                self.waits.append(took)
                self.wrong += [f"{model}: {bad}"] if bad else []


def load(
    server: Server,
    swaps: int = LOAD_SWAPS,
    seconds: float = LOAD_SECONDS,
    clients: int = CLIENTS,
    flags: Sequence[str] = (),
) -> Row:
    """Asks both models at once until there were so many parks, or for so long."""
    with served(server, Parked.AWAY, flags) as (port, process):
        made = Load(port, {model: ask(port, model).text for model in MODELS})
        began, first = time.monotonic(), parks(port)
        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(made.client, number) for number in range(clients)]
            early: Mapping[str, tuple[int, int]] = {}
            while (done := parks(port) - first) < swaps and time.monotonic() - began < seconds:
                if not early and done >= swaps / 10:
                    early = sizes(process.pid)
                time.sleep(LOOK_SECONDS)
            late = sizes(process.pid)
            made.over.set()
            for each in asking:
                each.result()
        took = time.monotonic() - began
        done = parks(port) - first
    grown = {name: [late[name][0] - early[name][0], late[name][1] - early[name][1]] for name in late if name in early}
    waits = sorted(made.waits)
    return {
        "gib": server.gib,
        "clients": clients,
        "seconds": took,
        "swaps": done,
        "answers": made.answers,
        "wrong": made.wrong[:20],
        "wrong_count": len(made.wrong),
        "wait_p50_s": median(waits),
        "wait_p99_s": waits[min(len(waits) - 1, round(0.99 * len(waits)))],
        "grown": grown,
    }


def parks(port: int) -> int:
    lines = do(port, "/metrics", "GET").decode().splitlines()
    counts = [line for line in lines if line.startswith('gcr_serve_swaps_total{direction="park"')]
    return int(sum(float(line.rpartition(" ")[2]) for line in counts))


def sizes(serve: int) -> dict[str, tuple[int, int]]:
    """Returns the anonymous memory, in bytes, and the number of descriptors of each process of gcr."""
    done = subprocess.run([*GCR, "daemon", "status", "--json"], capture_output=True, text=True, timeout=60, check=True)
    status = json.loads(done.stdout)
    pids = {"serve": serve, "daemon": status["pid"]}
    pids |= {f"worker {number}": each["pid"] for number, each in enumerate(status["workers"])}
    return {name: (_resident(pid), len(list(Path(f"/proc/{pid}/fd").iterdir()))) for name, pid in pids.items()}


def _resident(pid: int) -> int:
    """Returns the anonymous resident bytes of a process: an arena's are no growth of its own."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def judged_load(runs: Sequence[Row], swaps: int) -> Row:
    """Judges several runs of `load` together."""
    wrong, done = sum(run["wrong_count"] for run in runs), sum(run["swaps"] for run in runs)
    grown = [name for run in runs for name, (size, fds) in run["grown"].items() if size > MORE_BYTES or fds > MORE_FDS]
    goals = [
        goal("requests lost or answered wrongly", wrong, "0", not wrong),
        goal("processes that grew", len(grown), "0", not grown),
        goal("swaps", done, f">= {swaps}", done >= swaps),
    ]
    return {"runs": list(runs), "goals": goals, "ok": all(each["met"] for each in goals)}
