"""A real browser, driven over the pipe that Chromium offers (`--remote-debugging-pipe`): JSON, and a 0 behind it.

https://chromedevtools.github.io/devtools-protocol
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 30.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the browser itself asks no server either
    "--remote-debugging-pipe",
)


def found() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab. `requests` and `complaints`: all that it asked for, and all that it logged, since it was opened."""

    def __init__(self, commands: Any, answers: Any) -> None:
        self._commands, self._numbers = commands, count(1)
        self._frames: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[object] = []
        Thread(target=self._read, args=(answers,), daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _read(self, answers: Any) -> None:
        rest = b""
        while piece := _some(answers):
            *frames, rest = (rest + piece).split(b"\0")
            for frame in frames:
                self._frames.put(json.loads(frame))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (frame := self._next()).get("id") != number:
            pass
        assert "error" not in frame, frame
        return dict(frame["result"])

    def _next(self) -> dict[str, Any]:
        """An answer, or an event, which is noted. Raises queue.Empty."""
        frame = self._frames.get(timeout=PATIENCE)
        match frame.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(frame["params"]["request"]["url"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(frame["params"])
        return frame

    def look(self, width: int, scheme: str) -> None:
        """Shows the page on a screen of this width, in the scheme `light` or `dark`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> None:
        self.visit(path.as_uri())

    def visit(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@contextmanager
def opened(folder: Path) -> Iterator[Page]:
    """Starts a browser with its profile in this folder; it ends with the block."""
    pipes = [folder / "commands", folder / "answers"]
    for pipe in pipes:
        os.mkfifo(pipe)
    begin = 'exec "$0" "$@" 3<"$COMMANDS" 4>"$ANSWERS"'
    process = subprocess.Popen(
        ["sh", "-c", begin, str(found()), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
        env={**os.environ, "COMMANDS": str(pipes[0]), "ANSWERS": str(pipes[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with pipes[0].open("wb") as commands, pipes[1].open("rb") as answers:
        try:
            yield Page(commands, answers)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # before the pipes are closed: one of them is being read
            process.wait()


def luminance(colour: str) -> float:
    """Returns the relative luminance of a computed colour (WCAG 2.1)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def _some(answers: Any) -> bytes:
    """Returns bytes that have come; none at the end, also where the file is closed before this thread has seen it."""
    try:
        found: bytes = answers.read1(1 << 20)
    except ValueError:
        return b""
    return found
