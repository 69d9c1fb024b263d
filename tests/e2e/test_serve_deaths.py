"""`kill -9` of `gcr serve`, of gcr's other processes and of servers, while clients ask both models.

Each request is answered rightly, or refused by name, or broken off by the death of `gcr serve` itself, or cut in the
middle of its answer by the death of its server. No server ends that was not killed, and after each death both models
answer again.
"""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from machine import kill, until
from serve_victim import answer_of
from served import PATTERNS, Served

CLIENTS, DEATHS = 8, 200
PAUSE = 0.3  # seconds at most until the next death
AGAIN_SECONDS = 90.0  # for both models to answer after a death
REFUSED = {502: {"upstream_gone"}, 503: {"model_failed", "deadline", "no_room", "shutting_down"}}


@dataclass
class Clients:
    """Ask until they are told to end. `epoch`: grows when `gcr serve` is killed, and when it is there again."""

    served: Served
    over: threading.Event = field(default_factory=threading.Event)
    epoch: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def ask_on(self, number: int) -> None:
        turn = 0
        while not self.over.is_set():
            model, prompt = ("chat", "embed")[(number + turn) % 2], f"{number} {turn}"
            self.answered[self.outcome(model, prompt)] += 1
            turn += 1

    def outcome(self, model: str, prompt: str) -> str:
        before = self.epoch
        try:
            status, text = self.served.post(model, prompt)
        except AssertionError as broken:
            if before % 2 == 0 and self.epoch == before:
                self.wrong.append(f"{model} {prompt}: {broken}"[:500])
            time.sleep(0.05)
            return "broken off"
        except http.client.IncompleteRead:
            return "cut"
        if status == 200:
            if text != answer_of(model, prompt, PATTERNS[model]):
                self.wrong.append(f"{model} {prompt}: {text}")
            return "right"
        code = json.loads(text)["error"]["code"]
        if code not in REFUSED.get(status, ()):
            self.wrong.append(f"{model} {prompt}: {status} {text}")
        return str(code)

    def both_answer(self) -> bool:
        return all(self.outcome(model, "after a death") == "right" for model in PATTERNS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_deaths_under_load(served: Served) -> None:
    machine, chance = served.machine, random.Random(8)
    served.start()
    clients = Clients(served)
    pids: dict[str, int] = {}

    def known() -> dict[str, int]:
        return {name: int(machine.job(name)["pid"]) for name in PATTERNS}

    def serve_dies() -> None:
        clients.epoch += 1
        served.kill()
        served.start()
        clients.epoch += 1

    def one_of(module: str) -> None:
        kill(chance.choice(until(lambda: machine.children(module), 10, f"there is a {module}")))

    def a_server_dies() -> None:
        name = chance.choice(list(PATTERNS))
        kill(pids.pop(name))

    parties: list[Callable[[], None]] = [
        serve_dies,
        lambda: one_of("gcr.daemon"),
        lambda: one_of("gcr.worker"),
        lambda: one_of("gcr.control_helper"),
        a_server_dies,
    ]
    died: Counter[int] = Counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        asking = [pool.submit(clients.ask_on, number) for number in range(CLIENTS)]
        try:
            for number in range(DEATHS):
                until(clients.both_answer, AGAIN_SECONDS, f"both answer after death {number}, {dict(died)}")
                now = known()
                assert {name: now[name] for name in pids} == pids, "a server ended that was not killed"
                pids.update(now)
                time.sleep(chance.uniform(0.0, PAUSE))
                party = chance.randrange(len(parties))
                died[party] += 1
                parties[party]()
                assert clients.wrong == []
            until(clients.both_answer, AGAIN_SECONDS, "both answer after the last death")
        finally:
            clients.over.set()
        for each in asking:
            each.result()
    print(dict(clients.answered), dict(died))
    assert clients.wrong == []
    assert clients.answered["cut"] <= CLIENTS * (died[parties.index(serve_dies)] + died[parties.index(a_server_dies)])
    assert clients.answered["right"] > DEATHS
