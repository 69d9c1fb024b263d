"""Two models of which one is on the device at a time: how much longer a request waits for its first token.

Ways: by `gcr serve`, where room must be made for the model that is asked for (`room`), and where that model was parked
when it had nothing to do, and its memory is on the device still (`there`), its context as well (`warm`); by servers
that sleep and wake by torch_memory_saver (`saver`); by ending one and starting the other (`reload`). A request's added
time is its time to the first byte, less the median of the same request to a model that is there. Each answer must be
that of the first time. Each model has 16 GiB where the arena's limit on this host has no room for two of the size that
is asked for (`testbed.gib_of_two`).
"""

import http.client
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from overhead import start_daemon
from program import GCR
from sharing_jobs import goal
from stats import median

from gcr_nvidia import devices

HERE = Path(__file__).resolve().parent
MODELS = {"one": 11, "two": 13}  # seeds
TOKENS = 4
TURNS, SLEEPS, RELOADS, BASE = 100, 8, 3, 15
SETTLE_SECONDS = 15.0  # for gcr to prepare
START_SECONDS, ANSWER_SECONDS, END_SECONDS = 150.0, 120.0, 30.0
ROOM_S, ROOM_LAST_S, THERE_S = 1.0, 1.5, 0.3
FILE = """
[serve]
port = 0
hold = "50ms"
"""
IDLE = "300ms"
PARKED_SECONDS = 30.0
GONE_SECONDS = 1.0  # a context leaves while the other model comes in
Row = dict[str, Any]


class Parked(StrEnum):
    """What of a parked model is on the device: nothing, since the other one has the room, or its memory, or all."""

    AWAY = "away"
    THERE = "there"
    WARM = "warm"


@dataclass(frozen=True)
class Server:
    """Words of the command of a model's server, but for its name and port. `more`: for a rehearsal."""

    gib: float
    more: Sequence[str] = ()

    def command(self, model: str, port: str, *flags: str) -> list[str]:
        program = [sys.executable, str(HERE / "model_server.py"), "--port", port, "--gib", str(self.gib)]
        return [*program, "--seed", str(MODELS[model]), *self.more, *flags]


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    first_s: float  # until the first byte of the body
    whole_s: float


def ask(port: int, model: str, prompt: str = "hello", tokens: int = TOKENS) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    began = time.perf_counter()
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": prompt, "tokens": tokens}))
        answer = connection.getresponse()
        first = answer.read(1)
        first_s = time.perf_counter() - began
        text = (first + answer.read()).decode()
        return Answer(answer.status, text, first_s, time.perf_counter() - began)
    finally:
        connection.close()


# ---- by gcr serve -----------------------------------------------------------------------------------------------


def served(
    server: Server, parked: Parked, flags: Sequence[str] = ()
) -> AbstractContextManager[tuple[int, subprocess.Popen[str]]]:
    """Yields the port of a `gcr serve` with both models, and its process.

    parked: each is parked when it is idle; AWAY: there is room for one of them at a time
    """
    return serving("\n".join(_file(server, parked)), flags)


@contextmanager
def serving(text: str, flags: Sequence[str] = ()) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Yields the port of a `gcr serve` with this file, and its process."""
    start_daemon()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gcr.toml"
        file.write_text(text)
        words = [*GCR, "serve", *flags, "--json", str(file)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            said = json.loads(process.stdout.readline() or "{}")
            if not said.get("ok"):
                raise SystemExit(f"benchmark: gcr serve: {said}")
            yield int(said["url"].rpartition(":")[2]), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=END_SECONDS)
            endjobs()


def _file(server: Server, parked: Parked) -> Iterator[str]:
    yield FILE
    if parked is Parked.THERE:
        yield "data_only = false"
    if parked is Parked.AWAY:
        yield f"resident = false\nmemory = {int(1.7 * server.gib * (1 << 30)) + (1 << 20)}"
    for model in MODELS:
        yield f"[models.{model}]\ncommand = {json.dumps(server.command(model, '{port}'))}"
        if parked is not Parked.AWAY:
            yield f'idle = "{IDLE}"'


def endjobs() -> None:
    for job in jobs().values():
        subprocess.run(["kill", "-9", str(job["pid"])], check=False)


def jobs() -> Mapping[str, Row]:
    done = subprocess.run([*GCR, "ps", "--json"], capture_output=True, text=True, timeout=60, check=True)
    return {job["job"]: job for job in json.loads(done.stdout)["jobs"] if job["pid"]}


def by_gcr(server: Server, parked: Parked, turns: int = TURNS, flags: Sequence[str] = ()) -> Iterator[Row]:
    """Yields the result so far, again and again."""
    with served(server, parked, flags) as (port, _):
        wanted = {model: ask(port, model).text for model in MODELS}
        time.sleep(SETTLE_SECONDS)
        found: Row = {"gib": server.gib, "parked": parked, "base": {}, "turns": []}
        for model in MODELS:
            ask(port, model)
            found["base"][model] = [ask(port, model).first_s for _ in range(BASE)]
        pids = {name: int(job["pid"]) for name, job in jobs().items()}
        for number in range(turns):
            model = list(MODELS)[number % 2]
            if parked is not Parked.AWAY:
                await_parked(port, model)
            answer = ask(port, model)
            found["turns"].append(_turn(answer, model, wanted, found["base"]) | _left(pids[_other(model)]))
            yield found


def _left(pid: int) -> Row:
    """Returns what the device counts of a parked process at most a second after the other one's answer, and when."""
    began = time.monotonic()
    while (left := sum(devices.bytes_of(pid).values())) and time.monotonic() - began < GONE_SECONDS:
        time.sleep(0.01)
    return {"left_bytes": left, "left_s": time.monotonic() - began}


def await_parked(port: int, model: str) -> None:
    give_up = time.monotonic() + PARKED_SECONDS
    while json.loads(do(port, "/health", "GET"))["models"][model] != "parked":
        if time.monotonic() > give_up:
            raise SystemExit(f"benchmark: {model} was not parked")
        time.sleep(0.02)


def _other(model: str) -> str:
    return next(each for each in MODELS if each != model)


def _turn(answer: Answer, model: str, wanted: Mapping[str, str], base: Mapping[str, Sequence[float]]) -> Row:
    right = answer.status == 200 and answer.text == wanted[model]
    added = answer.first_s - median(base[model])
    return {"model": model, "first_s": answer.first_s, "added_s": added, "whole_s": answer.whole_s, "right": right}


# ---- by others --------------------------------------------------------------------------------------------------


@contextmanager
def bare(server: Server, model: str, *flags: str) -> Iterator[int]:
    """Yields the port of a healthy server without gcr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(server.command(model, str(port), *flags), start_new_session=True)
    try:
        await_healthy(port)
        yield port
    finally:
        subprocess.run(["pkill", "-9", "-s", str(process.pid)], check=False)
        process.wait(END_SECONDS)


def await_healthy(port: int) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        try:
            do(port, "/health", "GET")
            return
        except OSError:
            time.sleep(0.01)
    raise SystemExit("benchmark: a server did not become healthy")


def do(port: int, path: str, method: str = "POST") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request(method, path, b"")
        return connection.getresponse().read()
    finally:
        connection.close()


def by_saver(server: Server, turns: int = SLEEPS) -> Iterator[Row]:
    """One server sleeps, the other one wakes, and is asked."""
    found: Row = {"gib": server.gib, "base": {}, "turns": []}
    with ExitStack() as stack:
        ports, wanted = {}, {}
        for model in MODELS:
            ports[model] = stack.enter_context(bare(server, model, "--saver"))
            wanted[model] = ask(ports[model], model).text
            found["base"][model] = [ask(ports[model], model).first_s for _ in range(BASE)]
            do(ports[model], "/sleep")
        there = next(iter(MODELS))
        do(ports[there], "/wake")
        for _ in range(turns):
            began, there, gone = time.perf_counter(), _other(there), there
            do(ports[gone], "/sleep")
            do(ports[there], "/wake")
            before = time.perf_counter() - began
            found["turns"].append(_later(before, _turn(ask(ports[there], there), there, wanted, found["base"])))
            yield found


def by_reload(server: Server, turns: int = RELOADS) -> Iterator[Row]:
    """One server ends, the other one starts, and is asked. Its weights are made on the device, not read from a disk."""
    found: Row = {"gib": server.gib, "base": {}, "turns": []}
    wanted = {}
    for model in MODELS:
        with bare(server, model) as port:
            wanted[model] = ask(port, model).text
            found["base"][model] = [ask(port, model).first_s for _ in range(BASE)]
    for number in range(turns):
        model, began = list(MODELS)[number % 2], time.perf_counter()
        with bare(server, model) as port:
            before = time.perf_counter() - began
            found["turns"].append(_later(before, _turn(ask(port, model), model, wanted, found["base"])))
        yield found


def _later(before: float, turn: Row) -> Row:
    return {**turn, **{name: turn[name] + before for name in ("first_s", "added_s", "whole_s")}}


# ---- judged -----------------------------------------------------------------------------------------------------


def judged(found: Row) -> Row:
    """Adds percentiles and goals to a result of `by_gcr`."""
    added = sorted(turn["added_s"] for turn in found["turns"])
    last = added[min(len(added) - 1, round(0.99 * len(added)))]
    facts = {"added_p50_s": median(added), "added_p99_s": last}
    wrong, left = sum(not turn["right"] for turn in found["turns"]), max(turn["left_bytes"] for turn in found["turns"])
    goals = [goal("answers that are wrong", wrong, "0", not wrong)]
    away = found["parked"] == Parked.AWAY
    most = ROOM_S if away else THERE_S
    goals.append(goal("added to the first byte, median", median(added), f"<= {most} s", median(added) <= most))
    if away:
        goals.append(goal("added to the first byte, 99 of 100", last, f"<= {ROOM_LAST_S} s", last <= ROOM_LAST_S))
        goals.append(goal("device memory of the parked process", left, "0", not left))
    return {**found, **facts, "goals": goals, "ok": all(each["met"] for each in goals)}


def of_gcr(gib: float, parked: Parked) -> Iterator[Row]:
    return map(judged, by_gcr(Server(gib), parked))


def of_others(gib: float) -> Iterator[Row]:
    """Yields what is known so far. Without torch_memory_saver there is no `saver`."""
    known: Row = {}
    ways = {"saver": by_saver} if importlib.util.find_spec("torch_memory_saver") else {}
    for name, way in {**ways, "reload": by_reload}.items():
        for found in way(Server(gib)):
            known[name] = {**found, "added_p50_s": median([turn["added_s"] for turn in found["turns"]])}
            yield known
