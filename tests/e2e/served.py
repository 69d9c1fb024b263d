"""A `gcr serve` with two models on a simulated device that has room for one of them, and its clients."""

import http.client
import json
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from machine import VICTIMS, Machine
from serve_victim import answer_of, pattern

MIB = 1 << 20
DEVICE = 96 * MIB
EACH = 40 * MIB  # with their context each takes more than half of it
PATTERNS = {name: pattern(name) for name in ("chat", "embed")}

FILE = """
[serve]
port = 0
hold = "100ms"
{serve}
[models.chat]
command = {chat}
wait = "60s"
{more}
[models.embed]
command = {embed}
wait = "60s"
"""


def command(name: str, size: int = EACH) -> str:
    words = [sys.executable, str(VICTIMS / "serve_victim.py"), "--name", name, "--port", "{port}", "--bytes", str(size)]
    return json.dumps(words)


@dataclass
class Served:
    """A `gcr serve` on a machine, and what asks it."""

    machine: Machine
    url: str = ""
    process: Any = None
    asked: int = 0
    wrong: list[str] = field(default_factory=list)

    def start(self, serve: str = "", chat: str = command("chat"), more: str = "") -> "Served":
        file = self.machine.folder / "gcr.toml"
        file.write_text(FILE.format(serve=serve, chat=chat, more=more, embed=command("embed")))
        self.process = self.machine.begin("serve", *self.machine.world, str(file))
        said = json.loads(self.process.stdout.readline() or "{}")
        assert said.get("ok"), (said, self.machine.logs())
        self.url = said["url"].removeprefix("http://")
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(30))

    def post(self, model: str, prompt: str = "hi", **more: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.url, timeout=90)
        try:
            connection.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": prompt, **more}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as error:
            raise AssertionError(f"{error!r}; gcr serve: {self.process.poll()}; {self.machine.logs()}") from error
        finally:
            connection.close()

    def ask(self, model: str, prompt: str = "hi", **more: Any) -> None:
        """Asks, and holds the answer against what that model must say."""
        status, text = self.post(model, prompt, **more)
        self.asked += 1
        if (status, text) != (200, answer_of(model, prompt, PATTERNS[model])):
            self.wrong.append(f"{model} {prompt}: {status} {text}")

    def models(self) -> dict[str, str]:
        connection = http.client.HTTPConnection(self.url, timeout=10)
        connection.request("GET", "/health")
        found = json.loads(connection.getresponse().read())["models"]
        connection.close()
        return dict(found)

    def metric(self, beginning: str) -> float:
        connection = http.client.HTTPConnection(self.url, timeout=10)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))
