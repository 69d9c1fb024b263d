"""`gcr serve` from its begin to its end: locks, jobs of an earlier one, the listening socket, signals."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence

import uvloop
from aiohttp import web

from gcr.listening import BACKLOG, listening, url_of
from gcr.serve import policies, seat
from gcr.serve.config import ClientLimits, ServeConfig
from gcr.serve.edge import Clients
from gcr.serve.front import Front
from gcr.serve.jobgauges import JobsNow, jobs_of_daemon
from gcr.serve.jobmetrics import JobMetrics, follow
from gcr.serve.jobs import NodeJobs
from gcr.serve.lane import Lane
from gcr.serve.metrics import Metrics, Row
from gcr.serve.pool import Pool
from gcr.serve.proxy import Proxy
from gcr.serve.schedule import Schedule
from gcr.serve.status import Seen, Status, seen_by_daemon
from gcr.serve.upstream import Jobs
from gcr.serveerrors import BadServeConfig

log = logging.getLogger(__name__)

OTHER_DESCRIPTORS = 64  # of this process: its log, the daemon, threads
CALL_S = 0.5  # between two looks at the time of day
_OTHER_PORT = "another port in [serve], or end the program that has it"
LAST_WORDS_S = 1.0  # connections are closed so long after the last request had its grace


class Server:
    """One running front. `async with` it: it listens within, and is closed with grace after."""

    def __init__(self, config: ServeConfig, jobs: Jobs, ask: Callable[[], Seen] = seen_by_daemon) -> None:
        self.metrics = Metrics()
        self.proxy = Proxy(keeps_authorization=config.token is None)
        self.pool = Pool(config, jobs, policies.chosen(config.policy), self.metrics, self._quiet)
        times = {each.name: each.unasked.wake for each in config.models.values()}
        self.schedule = Schedule(times, time.time())
        self.lane = Lane(config, self.pool, self.metrics)
        self.metrics.watch(self._rows)
        self.status = Status(self._rows, ask)
        front = Front(config, self.pool, self.proxy, self.metrics, self.status)
        web_server = web.Server(
            front.handle,
            handler_cancellation=True,  # a client that leaves: its request ends at once
            access_log=None,
            keepalive_timeout=config.clients.idle,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(web_server, shutdown_timeout=LAST_WORDS_S)
        self.clients = Clients(config.clients, web_server, self.lane)
        self._running: list[asyncio.Task[None]] = []
        self._listening: asyncio.Server | None = None

    async def listen(self, listening: socket.socket) -> None:
        await self.pool.adopt()
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self.clients.connection, sock=listening, backlog=BACKLOG)
        self._running = [asyncio.create_task(each()) for each in (self.pool.run, self.clients.run, self._calling)]

    async def close(self) -> None:
        if self._listening:
            self._listening.close()
        await self.pool.close()
        for task in self._running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.clients.close()
        await self._runner.cleanup()
        await self.proxy.close_all()
        self.lane.links.close_all()

    async def _calling(self) -> None:
        """Calls models at their times of day; the pool's next step brings them."""
        while True:
            for name in self.schedule.due(time.time()):
                self.pool.models[name].call(asyncio.get_running_loop().time())
            await asyncio.sleep(CALL_S)

    async def _quiet(self, model: str) -> None:
        self.lane.links.close(model)
        await self.proxy.close(model)

    def _rows(self) -> list[Row]:
        models = self.pool.models.items()
        return [Row(name, each.state, each.active, len(each.queue), each.bytes) for name, each in models]


def run(config: ServeConfig, options: Sequence[str], told: Callable[[str], object]) -> None:
    """Serves until SIGTERM or SIGINT. `options`: of `gcr run`; `told`: hears the URL once it listens.

    Raises PortInUse, ModelTaken, BadServeConfig.
    """
    check_descriptors(config.clients)
    with (
        seat.taken(config.models),
        listening(config.host, config.port, _OTHER_PORT) as sock,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(config, options, sock, told))


async def _serve(
    config: ServeConfig, options: Sequence[str], sock: socket.socket, told: Callable[[str], object]
) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    server = Server(config, NodeJobs(config.models, options, config.parking))
    try:
        follow(JobMetrics(server.metrics.registry).count, server.status.note)
        JobsNow(server.metrics.registry, jobs_of_daemon).follow()
        await server.listen(sock)
        told(url_of(sock))
        await ending.wait()
        log.info("ending: %s", config.on_stop)
    finally:
        await server.close()


def check_descriptors(limits: ClientLimits) -> None:
    """Raises BadServeConfig where this process may not have a descriptor for each connection, and one to a server."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * limits.connections + OTHER_DESCRIPTORS
    if most != resource.RLIM_INFINITY and most < needed:
        text = f"serve.clients.connections: {limits.connections} need {needed} descriptors, and the limit is {most}"
        raise BadServeConfig(text, hint=f"ulimit -n {needed}, or fewer connections")
