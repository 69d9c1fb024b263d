"""`gcr serve` from its begin to its end: locks, jobs of an earlier one, the listening socket, signals."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence

import uvloop
from aiohttp import web

from gcr.serve import policies, seat
from gcr.serve.config import ServeConfig
from gcr.serve.front import Front
from gcr.serve.jobmetrics import JobMetrics
from gcr.serve.jobs import NodeJobs
from gcr.serve.metrics import Metrics, Row
from gcr.serve.pool import Pool
from gcr.serve.proxy import Proxy
from gcr.serve.upstream import Jobs
from gcr.serveerrors import PortInUse

log = logging.getLogger(__name__)

KEEPALIVE_S = 75.0
BACKLOG = 1024
LAST_WORDS_S = 1.0  # connections are closed so long after the last request had its grace


class Server:
    """One running front. `async with` it: it listens within, and is closed with grace after."""

    def __init__(self, config: ServeConfig, jobs: Jobs) -> None:
        self._config = config
        self.metrics = Metrics()
        self.proxy = Proxy(keeps_authorization=config.token is None)
        self.pool = Pool(config, jobs, policies.chosen(config.policy), self.metrics, self.proxy.close)
        self.metrics.watch(self._rows)
        front = Front(config, self.pool, self.proxy, self.metrics)
        web_server = web.Server(
            front.handle,
            handler_cancellation=True,  # a client that leaves: its request ends at once
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(web_server, shutdown_timeout=LAST_WORDS_S)
        self._running: asyncio.Task[None] | None = None
        self._site: web.SockSite | None = None

    async def listen(self, listening: socket.socket) -> None:
        await self.pool.adopt()
        await self._runner.setup()
        self._site = web.SockSite(self._runner, listening, backlog=BACKLOG)
        await self._site.start()
        self._running = asyncio.create_task(self.pool.run())

    async def close(self) -> None:
        if self._site:
            await self._site.stop()
        await self.pool.close()
        if self._running:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self._runner.cleanup()
        await self.proxy.close_all()

    def _rows(self) -> list[Row]:
        models = self.pool.models.items()
        return [Row(name, each.state, each.active, len(each.queue), each.bytes) for name, each in models]


def run(config: ServeConfig, options: Sequence[str], told: Callable[[str], object]) -> None:
    """Serves until SIGTERM or SIGINT. `options`: of `gcr run`; `told`: hears the URL once it listens.

    Raises PortInUse, ModelTaken, BadServeConfig.
    """
    with (
        seat.taken(config.models),
        listening(config.host, config.port) as sock,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(config, options, sock, told))


async def _serve(
    config: ServeConfig, options: Sequence[str], sock: socket.socket, told: Callable[[str], object]
) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    server = Server(config, NodeJobs(config.models, options, config.data_only))
    try:
        JobMetrics(server.metrics.registry).follow()
        await server.listen(sock)
        told(url_of(sock))
        await ending.wait()
        log.info("ending: %s", config.on_stop)
    finally:
        await server.close()


def listening(host: str, port: int) -> socket.socket:
    """Raises PortInUse."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        text = f"cannot listen on {host}, port {port}: {error.strerror}"
        raise PortInUse(text, hint="another port in [serve], or end the program that has it") from error
    return made


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
