"""A front of `gcr serve` with jobs that are no processes: their servers listen in this process."""

import asyncio
import contextlib
import functools
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from msgspec.structs import replace

from gcr.errors import GcrError, NoSuchJob
from gcr.listening import listening, url_of
from gcr.serve.config import ModelConfig, ServeConfig, load
from gcr.serve.server import Server
from gcr.serve.status import Seen
from gcr.serve.upstream import Found, Moved, Next

PATIENCE = 30.0
TIGHT = {"total": 10, "sizes": {"a": 6, "b": 6}}  # of FakeJobs: the device has room for one model


@dataclass
class FakeJobs:
    """Jobs whose servers are aiohttp's, in this loop. `raises`: the next call of that name raises these, in turn."""

    way: float = 0.0  # seconds that each way takes
    end_s: float = 0.0  # seconds until an end is seen
    total: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    contexts: bool = False  # of parked models stay on the device, as with `data_only`
    memory: bool = True  # of parked models stays there, too
    raises: dict[str, list[GcrError]] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    nexts: list[Next | None] = field(default_factory=list)  # that the parks were told of
    jobs: dict[str, Found] = field(default_factory=dict)
    servers: dict[str, "FakeServer"] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)  # the port of each server that was saved
    pids: int = 100

    async def find(self) -> Mapping[str, Found]:
        return dict(self.jobs)

    async def room(self) -> int | None:
        return self.total

    async def start(self, model: ModelConfig, port: int) -> Found:
        await self._do("start", model.name)
        return await self._server(model.name, port)

    async def _server(self, name: str, port: int) -> Found:
        self.pids += 1
        server = self.servers[name] = FakeServer(name)
        await server.listen(port)
        self.jobs[name] = Found(pid=self.pids, port=port, bytes=self.sizes.get(name, 0))
        return self.jobs[name]

    async def restored(self, model: ModelConfig) -> Found | None:
        await self._do("restored", model.name)
        return await self._server(model.name, self.images[model.name]) if model.name in self.images else None

    async def saved(self, model: ModelConfig) -> None:
        assert not self.servers[model.name].heads, f"{model.name} had a request before it was saved"
        await self._do("saved", model.name)
        self.images[model.name] = self.jobs[model.name].port

    async def healthy(self, model: ModelConfig, job: Found) -> None:
        await self._do("healthy", model.name)

    async def park(self, name: str, context_later: bool = False, then: Next | None = None) -> Moved:
        assert not self.servers[name].active, f"{name} was parked in the middle of a request"
        await self._do("park", name)
        assert not self.servers[name].active, f"{name} got a request while it was parked"
        self.servers[name].parked = True
        self.nexts.append(then)
        context = self.contexts or context_later
        self._set(name, parked=True, context=context, memory=self.memory)
        seconds = {"stop": self.way}
        return Moved(bytes=self.sizes.get(name, 0), seconds=seconds, context=context, memory=self.memory)

    async def wake(self, name: str) -> Moved:
        await self._do("wake", name)
        self.servers[name].parked = False
        self._set(name, parked=False, context=False, memory=False)
        return Moved(bytes=self.sizes.get(name, 0), seconds={"refill": self.way})

    async def leave(self, name: str, memory: bool) -> Mapping[str, float]:
        assert self.jobs[name].context, f"the context of {name} has left already"
        await self._do("leave" if memory else "follow", name)
        self._set(name, context=False, memory=self.jobs[name].memory and not memory)
        return {"control": 0.25}

    async def end(self, name: str, job: Found) -> None:
        """The one that has just died, or that the pool gives up. A slow end must not touch its successor."""
        server, gone = self.servers[name], self.jobs.get(name)
        self.done.append(("end", name))
        if gone and gone.pid == job.pid:
            self.jobs.pop(name)
            await server.close()
        await asyncio.sleep(self.end_s)

    async def die(self, name: str) -> None:
        """The server ends by itself."""
        await self.servers[name].close()
        self.jobs.pop(name, None)

    def ways(self, what: str) -> list[str]:
        return [name for each, name in self.done if each == what]

    async def _do(self, what: str, name: str) -> None:
        self.done.append((what, name))
        await asyncio.sleep(self.way)
        if self.raises.get(what):
            raise self.raises[what].pop(0)
        if what in ("park", "wake") and name not in self.jobs:
            raise NoSuchJob(f"no job {name}")

    def _set(self, name: str, **changed: bool) -> None:
        self.jobs[name] = replace(self.jobs[name], changing=False, **changed)

    def evict(self, name: str) -> None:
        """Another program has the room of a parked model's memory."""
        self._set(name, memory=False)

    def change(self, name: str) -> None:
        """A command has its turn at the job from here on."""
        self.jobs[name] = replace(self.jobs[name], changing=True)


class FakeServer:
    """Answers what it was asked, and says its own name."""

    def __init__(self, name: str) -> None:
        self.name, self.parked, self.active, self.left = name, False, 0, 0
        self.outlives = False  # the next end of the front
        self.hold = asyncio.Event()
        self.hold.set()
        self.heads: list[Mapping[str, str]] = []
        self._runner: web.ServerRunner | None = None

    async def listen(self, port: int) -> None:
        server = web.Server(self.handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()

    async def close(self) -> None:
        if self.outlives:
            self.outlives = False
        elif self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert not self.parked, f"{self.name} was asked while it was parked"
        self.active += 1
        self.heads.append(request.headers)
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.active -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked: dict[str, Any] = json.loads(body) if body.startswith(b"{") else {}
        if pieces := asked.get("pieces"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(pieces):
                await response.write(f"data: {number}\n\n".encode().ljust(asked.get("size", 0)))
                await self.hold.wait()
            if asked.get("cut"):
                assert request.transport
                request.transport.abort()
            return response
        await self.hold.wait()
        said = {"from": self.name, "path": request.raw_path, "prompt": asked.get("prompt"), "bytes": len(body)}
        return web.json_response(said, headers={"X-Own": "kept"})


CONFIG = """
[serve]
port = 0
hold = 0
grace = "5s"
{serve}
[models.a]
command = "a {{port}}"
aliases = ["org/A"]
{a}
[models.b]
command = "b {{port}}"
{b}
"""


def config_of(folder: Path, serve: str = "", a: str = "", b: str = "") -> ServeConfig:
    path = folder / "gcr.toml"
    path.write_text(CONFIG.format(serve=serve, a=a, b=b))
    return load(path)


@dataclass
class Client:
    """Speaks to the front."""

    url: str
    session: aiohttp.ClientSession
    server: Server
    jobs: FakeJobs

    async def ask(self, model: str, prompt: str = "hi", **more: Any) -> tuple[int, Any]:
        body = io.BytesIO(json.dumps({"model": model, "prompt": prompt, **more}).encode())
        async with self.session.post(f"{self.url}/v1/completions", data=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}", **more) as answer:
            return answer.status, await answer.text()

    async def until(self, probe: Any, what: str) -> None:
        """Waits until the probe is true."""
        async with asyncio.timeout(PATIENCE):
            while not probe():
                await asyncio.sleep(0.005)
        assert probe(), what

    def state(self, name: str) -> str:
        return str(self.server.pool.models[name].state)


@contextlib.asynccontextmanager
async def front(
    config: ServeConfig, jobs: FakeJobs, ask: Callable[[], Seen] = lambda: Seen((), ())
) -> AsyncIterator[Client]:
    server = Server(config, jobs, ask)
    with listening(config.host, config.port, "") as sock:
        await server.listen(sock)
        async with aiohttp.ClientSession() as session:
            try:
                yield Client(url_of(sock), session, server, jobs)
            finally:
                await session.close()
                await server.close()
                for each in jobs.servers.values():
                    await each.close()


def code_of(answer: tuple[int, Any]) -> tuple[int, str]:
    status, body = answer
    return status, body["error"]["code"]


def served(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in a loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    return run
