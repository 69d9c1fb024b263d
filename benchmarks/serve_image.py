"""A server that is killed, and comes back from the image of its first start: how soon it answers again.

Beside it the same server bare: how soon it answers after its command was started anew. The image is in the page cache.
Needs CRIU (GCR_CRIU) and root.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import serve_swaps
from serve_swaps import FILE, Server, ask, bare, serving
from sharing_jobs import goal

MODEL = "one"
IMAGE_GIB = 8.0
KILLS = 3
AGAIN_SECONDS = 120.0
Row = dict[str, Any]


def killed(server: Server, flags: Sequence[str] = (), kills: int = KILLS) -> Iterator[Row]:
    """Yields the result so far. `same_pid`: an image brings a process back under its pid, a command does not."""
    found: Row = {"gib": server.gib, "kills": [], "reload_s": _reload_s(server)}
    command = json.dumps(server.command(MODEL, "{port}"))
    with serving(f'{FILE}[models.{MODEL}]\ncommand = {command}\nimage = "1"', flags) as (port, _):
        began = time.perf_counter()
        wanted = ask(port, MODEL).text
        found["first_s"] = time.perf_counter() - began  # the image among it
        for _ in range(kills):
            pid = _pid(serve_swaps.jobs())
            os.kill(pid, signal.SIGKILL)
            began = time.perf_counter()
            text = _answered(port)
            seconds = time.perf_counter() - began
            same = _pid(serve_swaps.jobs()) == pid
            found["kills"].append({"back_s": seconds, "right": text == wanted, "same_pid": same})
            yield found


def _answered(port: int) -> str:
    end = time.monotonic() + AGAIN_SECONDS
    while (answer := ask(port, MODEL)).status != 200:
        if time.monotonic() > end:
            raise SystemExit(f"benchmark: the server did not come back: {answer}")
        time.sleep(0.01)
    return answer.text


def _pid(jobs: Mapping[str, Row]) -> int:
    return int(jobs[MODEL]["pid"])


def _reload_s(server: Server) -> float:
    began = time.perf_counter()
    with bare(server, MODEL) as port:
        ask(port, MODEL)
        return time.perf_counter() - began


def judged(found: Row) -> Row:
    wrong = sum(not kill["right"] for kill in found["kills"])
    other = sum(not kill["same_pid"] for kill in found["kills"])
    goals = [goal("answers that are wrong", wrong, "0", not wrong), goal("not from the image", other, "0", not other)]
    return {**found, "goals": goals, "ok": all(each["met"] for each in goals)}


def from_image(gib: float) -> Iterator[Row]:
    return map(judged, killed(Server(min(gib, IMAGE_GIB))))
