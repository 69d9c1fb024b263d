"""Programs that end at random instants around checkpoints and restores of their job, on simulated devices or a GPU.

    python endings.py OUT.json [--instants N] [--ways WAY,WAY] [--simulate nvidia] [--lanes N] [--seconds S]

One job is a host with device memory, which starts programs that end (tests/victims/ending_victim.c). For each of them
the job is checkpointed and restored, and the program ends at a random instant of that. Both commands must succeed at
the first try, the program must leave the code that it leaves bare, and the host's memory must be what it was.
OUT.json is written after every few instants; a later call goes on from it.
"""

import argparse
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcr.errors import GcrError
from gcr.rendezvous.client import Client

VICTIM = Path(__file__).resolve().parents[1] / "victims" / "ending_victim.c"
WAYS = (
    "return",
    "thread",
    "quick",
    "handlers",
    "daemon",
    "exec",
    "another",
    "reset",
    "release",
    "unload",
    "_exit",
    "killed",
)
DRIVERS = {"nvidia": "-DVENDOR_CUDA", "amd": "-DVENDOR_HIP", "ascend": "-DVENDOR_ACL"}
CODE = 7
KILLED = 137
HEARD_S = 60.0  # seconds until a program that was started says so
ENDED_S = 20.0  # seconds from the restore until the program has ended; it is suspended for ever otherwise
COMMAND_S = 60.0
AROUND_S = 0.02  # seconds before the checkpoint, and after the restore, that are instants as well
KEEP_EVERY = 20
PIECE_INSTANTS, PIECE_SECONDS, PIECE_LANES, BARE_TIMES = 25, 360.0, 4, 3
RECENT = 20
Result = dict[str, Any]


def compiled(folder: Path, vendor: str = "nvidia") -> Path:
    program = folder / "ending_victim"
    words = [
        "cc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        DRIVERS[vendor],
        "-o",
        str(program),
        str(VICTIM),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(words, check=True, timeout=60)
    return program


def expected(way: str) -> int:
    return KILLED if way == "killed" else CODE


@dataclass
class Tally:
    """Results of the instants of one way."""

    instants: int = 0
    checkpoints: Counter[str] = field(default_factory=Counter)  # "done", or an error's code
    restores: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    ended_in: Counter[str] = field(default_factory=Counter)  # in which part of the swap the program was to end
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> Result:
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Tally":
        counters = {name: Counter(body[name]) for name in ("checkpoints", "restores", "codes", "ended_in")}
        return cls(instants=body["instants"], failures=list(body["failures"]), **counters)


@dataclass
class Swap:
    """Durations of a swap's parts, from the last swaps; so instants are spread over all of it."""

    out: list[float] = field(default_factory=lambda: [0.1])
    back: list[float] = field(default_factory=lambda: [0.1])

    def span(self) -> float:
        return statistics.median(self.out[-RECENT:]) + statistics.median(self.back[-RECENT:])


class Host:
    """The job: spoken to line by line. `client`: how this thread reaches the daemon. `how`: it is checkpointed."""

    def __init__(
        self,
        name: str,
        program: Path,
        world: Sequence[str],
        env: Mapping[str, str],
        client: Client,
        how: Mapping[str, bool],
    ) -> None:
        self.name = name
        self._how = how
        self._client = client
        words = [sys.executable, "-m", "gcr", "run", "--name", name, *world, "--", str(program), "host"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, env=dict(env), stdin=pipe, stdout=pipe, bufsize=0)
        self._heard = b""
        assert self.hear(HEARD_S) == "ready"

    def tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n".encode())

    def hear(self, patience: float) -> str | None:
        """The next line; None if there is none in time, or no more."""
        assert self._process.stdout
        end = time.monotonic() + patience
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            more = self._process.stdout.read(4096) if ready else b""
            if not more:
                return None
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def command(self, command: str) -> tuple[str, str]:
        """ "done", or the error's code; and its message."""
        try:
            how = self._how if command == "checkpoint" else {}
            self._client.request(command, {"target": self.name, **how}, timeout=COMMAND_S)
        except GcrError as error:
            return error.code, error.message
        return "done", ""

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


@dataclass
class Lane:
    """One job, and the instants that meet it one after the other."""

    host: Host
    chance: random.Random
    swap: Swap = field(default_factory=Swap)

    def instant(self, way: str, tally: Tally) -> bool:
        """False: the job is of no more use."""
        begin = self.chance.uniform(0.0, AROUND_S)
        gap = self.chance.uniform(0.0, AROUND_S)
        ends = self.chance.uniform(0.0, begin + self.swap.span() + gap + AROUND_S)
        self.host.tell(f"{way} {int(ends * 1000)} {CODE}")
        if (up := self.host.hear(HEARD_S)) != "up":
            return self._fail(tally, f"it said {up!r}, not that it is up")
        tally.instants += 1
        time.sleep(begin)
        out = self._timed("checkpoint", self.swap.out, tally.checkpoints)
        time.sleep(gap)
        back = self._timed("restore", self.swap.back, tally.restores) if out[0] == "done" else ("done", "")
        tally.ended_in[self._part(ends, begin, gap)] += 1
        if (out[0], back[0]) != ("done", "done"):
            tally.failures.append(f"ends after {ends:.3f} s: checkpoint {out}, restore {back}")
        return self._judge(way, tally)

    def _timed(self, command: str, times: list[float], counts: Counter[str]) -> tuple[str, str]:
        began = time.monotonic()
        answer = self.host.command(command)
        times.append(time.monotonic() - began)
        counts[answer[0]] += 1
        return answer

    def _part(self, ends: float, begin: float, gap: float) -> str:
        parts = {"before": begin, "checkpoint": self.swap.out[-1], "suspended": gap, "restore": self.swap.back[-1]}
        for name, length in parts.items():
            if ends < length:
                return name
            ends -= length
        return "after"

    def _judge(self, way: str, tally: Tally) -> bool:
        said = self.host.hear(ENDED_S)
        if said is None:
            tally.codes["none"] += 1
            return self._fail(tally, f"{way}: it has not ended: suspended for ever")
        code = said.removeprefix("ended ")
        tally.codes[code] += 1
        if code != str(expected(way)):
            tally.failures.append(f"{way}: its code is {code}, bare it is {expected(way)}")
        self.host.tell("?")
        right = self.host.hear(ENDED_S)
        return right == "right" or self._fail(tally, f"the host's memory is {right}")

    @staticmethod
    def _fail(tally: Tally, why: str) -> bool:
        tally.failures.append(why)
        return False


@dataclass
class Run:
    """All ways, each with so many instants; several jobs at once."""

    program: Path
    env: Mapping[str, str]
    connect: Callable[[], Client] = Client.connect
    world: Sequence[str] = ()
    ways: Sequence[str] = WAYS
    instants: int = 10
    seconds: float = 1e9
    seed: int = 0
    out: Path | None = None
    how: Mapping[str, bool] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def go(self, lanes: int = 1) -> Result:
        self._load()
        end = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self._lane, args=(number, end)) for number in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._keep()
        return self.result()

    def result(self) -> Result:
        ways = {way: self.tallies[way].as_json() for way in self.ways}
        whole = all(self.tallies[way].instants >= self.instants for way in self.ways)
        clean = not any(self.tallies[way].failures for way in self.ways)
        count = sum(self.tallies[way].instants for way in self.ways)
        return {"ok": whole and clean, "whole": whole, "instants": count, "ways": ways}

    def _lane(self, number: int, end: float) -> None:
        chance = random.Random(f"{self.seed} {number} {sum(t.instants for t in self.tallies.values())}")
        made = 0
        while time.monotonic() < end and self._next_way() is not None:
            with self.connect() as client:
                host = Host(
                    f"endings-{os.getpid()}-{number}-{made}", self.program, self.world, self.env, client, self.how
                )
                made += 1
                try:
                    self._use(Lane(host, chance), end)
                finally:
                    host.close()

    def _use(self, lane: Lane, end: float) -> None:
        while time.monotonic() < end and (way := self._next_way()) is not None:
            mine = Tally()
            useful = lane.instant(way, mine)
            self._add(way, mine)
            if not useful:
                return

    def _next_way(self) -> str | None:
        """The one with the fewest instants."""
        with self._lock:
            way = min(self.ways, key=lambda one: self.tallies[one].instants)
            return way if self.tallies[way].instants < self.instants else None

    def _add(self, way: str, mine: Tally) -> None:
        with self._lock:
            tally = self.tallies[way]
            tally.instants += mine.instants
            tally.failures += mine.failures
            for name in ("checkpoints", "restores", "codes", "ended_in"):
                getattr(tally, name).update(getattr(mine, name))
            if sum(one.instants for one in self.tallies.values()) % KEEP_EVERY == 0:
                self._keep()

    def _load(self) -> None:
        there = json.loads(self.out.read_text()) if self.out and self.out.exists() else {"ways": {}}
        self.tallies = {way: Tally() for way in self.ways}
        self.tallies |= {way: Tally.from_json(body) for way, body in there["ways"].items() if way in self.ways}

    def _keep(self) -> None:
        if self.out:
            fresh = self.out.with_suffix(".fresh")
            fresh.write_text(json.dumps(self.result(), indent=1))
            fresh.replace(self.out)


def bare(program: Path, ways: Sequence[str], times: int, env: Mapping[str, str]) -> Result:
    """The codes that the programs leave without gcr."""
    found: dict[str, Counter[str]] = {way: Counter() for way in ways}
    for way in ways:
        for number in range(times):
            words = [str(program), way, str(number), str(CODE)]
            done = subprocess.run(words, env=dict(env), stdout=subprocess.DEVNULL, timeout=HEARD_S, check=False)
            found[way][str(done.returncode if done.returncode >= 0 else 128 - done.returncode)] += 1
    return {way: dict(codes) for way, codes in found.items()}


def piece() -> Result:
    """Runs a piece of tests/gpu/device.sh: 25 instants each. Continues an earlier call. Raises NotYet in between."""
    from outlive import NotYet

    out = Path(sys.argv[1]) / "endings-so-far.json"
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        run = Run(program, os.environ, instants=PIECE_INSTANTS, seconds=PIECE_SECONDS, out=out)
        found = run.go(PIECE_LANES)
        if not found["whole"]:
            raise NotYet(PIECE_SECONDS)
        return {**found, "bare": bare(program, WAYS, BARE_TIMES, os.environ)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--instants", type=int, default=10)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--simulate", default="")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args()
    world = ["--simulate", asked.simulate] if asked.simulate else []
    with tempfile.TemporaryDirectory() as folder:
        ways = asked.ways.split(",")
        run = Run(
            compiled(Path(folder), asked.simulate or "nvidia"),
            os.environ,
            Client.connect,
            world,
            ways,
            asked.instants,
            asked.seconds,
        )
        run.out = asked.out
        found = run.go(asked.lanes)
    print(json.dumps(found, indent=1))
    return 0 if found["ok"] else 3 if not found["whole"] else 1


if __name__ == "__main__":
    sys.exit(main())
