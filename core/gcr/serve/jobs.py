"""The jobs of `gcr serve` on this machine: started by `gcr run --detach`, parked and woken by the daemon.

A job has its model's name, so a `gcr serve` that was killed finds it again, and its command line has its port. Calls
that block run on threads of their own.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import aiohttp

from gcr import processes
from gcr.api.listings import DeviceList, JobInfo
from gcr.api.reports import CheckpointReport
from gcr.api.requests import DevicesRequest, NextJob
from gcr.errors import DaemonUnavailable, GcrError, NameTaken, NotAllKnown, UnsupportedState, WrongState
from gcr.library import calls
from gcr.library.answers import checked
from gcr.library.job import Job
from gcr.rendezvous.client import Client
from gcr.serve import origin
from gcr.serve.commands import filled, port_in
from gcr.serve.config import ModelConfig, Parking, environment_of
from gcr.serve.ports import LOOPBACK
from gcr.serve.upstream import Found, Moved, Next
from gcr.serveerrors import ModelTaken, NeverHealthy

log = logging.getLogger(__name__)
T = TypeVar("T")

AWAITED_S = 20.0  # processes of a former daemon come back within
HEALTH_S = 0.05  # between two looks at a server's health, at first
SLOWEST_HEALTH_S = 1.0
ANSWER_S = 5.0  # a server that is healthy answers within
LAST_WORDS, SHOWN = 4096, 160  # bytes of its output that are looked at, and letters of its last line
END_S = 10.0  # between SIGTERM and SIGKILL
_PARKED = frozenset({"suspended", "data_suspended"})
_PARK_PHASES = ("stop_s", "drain_s", "control_s", "vram_free_s")
_LEAVE_PHASES = ("control_s",)  # the second step of a park; the first one has told the others
_WAKE_PHASES = ("refill_s", "control_s", "total_s")


class NodeJobs:
    """Implements `upstream.Jobs`. `options`: of `gcr run`, for every job."""

    def __init__(
        self, models: Mapping[str, ModelConfig], options: Sequence[str] = (), parking: Parking | None = None
    ) -> None:
        self._models, self._options, self._parking = models, tuple(options), parking or Parking()
        self._threads = ThreadPoolExecutor(2 * len(models) + 2, thread_name_prefix="gcr-serve")

    async def find(self) -> Mapping[str, Found]:
        """Raises ModelTaken for a job of a model's name that has another command."""
        return await self._call(self._find)

    async def room(self) -> int | None:
        return await self._call(_room)

    async def start(self, model: ModelConfig, port: int) -> Found:
        """Raises CannotStart and others of Refused."""
        end = time.monotonic() + END_S
        while True:
            try:
                await self._run(model, port)
            except NameTaken:  # one that is ending, or that was started just before this gcr serve
                found = (await self.find()).get(model.name)
                if found and _lives(found):
                    return found
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(HEALTH_S)
                continue
            if found := (await self.find()).get(model.name):
                return found
            raise await self._call(lambda: _ended_early(model.name))

    async def restored(self, model: ModelConfig) -> Found | None:
        end = time.monotonic() + END_S
        while there := (await self.find()).get(model.name):
            if _lives(there) or time.monotonic() > end:
                return None  # `start` finds it
            await asyncio.sleep(HEALTH_S)
        try:
            if not await self._call(lambda: origin.restored(model, self._options)):
                return None
            if found := (await self.find()).get(model.name):
                return found
            raise await self._call(lambda: _ended_early(model.name))
        except GcrError:
            left = (await self.find()).get(model.name)
            if left and left.parked:  # its processes came back and its memory did not, for lack of room say
                await self.end(model.name, left)
            raise

    async def saved(self, model: ModelConfig) -> None:
        await self._call(lambda: origin.saved(model, self._options))

    async def healthy(self, model: ModelConfig, job: Found) -> None:
        url, pause = f"http://{LOOPBACK}:{job.port}{model.beginning.health}", HEALTH_S
        limit = aiohttp.ClientTimeout(total=ANSWER_S)
        end = time.monotonic() + model.beginning.longest
        async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(force_close=True)) as session:
            while not await _answers(session, url):
                if not _lives(job):
                    raise await self._call(lambda: _ended_early(model.name))
                if time.monotonic() > end:
                    raise NeverHealthy(
                        f"{model.name}: no 200 from {url} within {model.beginning.longest:g} s", hint=_logs(model.name)
                    )
                await asyncio.sleep(pause)
                pause = min(SLOWEST_HEALTH_S, pause * 1.2)

    async def park(self, name: str, context_later: bool, then: Next | None = None) -> Moved:
        report = await self._call(lambda: self._parked(Job(name, None), context_later, then))
        context, memory = report.state == "data_suspended", report.resident_bytes > 0
        return Moved(bytes=report.bytes, seconds=_phases(report, _PARK_PHASES), context=context, memory=memory)

    async def wake(self, name: str) -> Moved:
        report = await self._call(lambda: Job(name, None).restore())
        return Moved(bytes=report.bytes, seconds=_phases(report, _WAKE_PHASES))

    async def leave(self, name: str, memory: bool) -> Mapping[str, float]:
        found = (await self.find()).get(name)
        if found is None or not found.context:
            raise WrongState(f"{name} is not parked, or its context has left", hint="gcr ps")
        try:
            report = await self._call(lambda: self._staying(name, Job(name, None).checkpoint, not memory))
        except WrongState:
            left = (await self.find()).get(name)
            if left is None or not left.parked or left.context:
                raise
            return {}  # the daemon was faster: another program wanted the room
        return _phases(report, _LEAVE_PHASES)

    async def end(self, name: str, job: Found) -> None:
        await self._call(lambda: _end(job))

    def _parked(self, job: Job, context_later: bool, then: Next | None = None) -> CheckpointReport:
        data_only = bool(self._parking.data_only)
        later = context_later and not data_only
        ahead = NextJob(then.name, then.bytes) if then else None
        return self._staying(job.name, partial(job.checkpoint, data_only=data_only, context_later=later, then=ahead))

    def _staying(
        self, name: str | int, checkpoint: Callable[..., CheckpointReport], stays: bool = True
    ) -> CheckpointReport:
        """Has the memory stay resident if that is configured. Where gcr refuses that, it leaves the device at once."""
        if not (stays and self._parking.resident):
            return checkpoint()
        try:
            return checkpoint(resident=True)
        except UnsupportedState as cannot:
            log.info("%s: it is parked without its memory staying: %s", name, cannot)
            return checkpoint()

    async def _run(self, model: ModelConfig, port: int) -> None:
        words = ["run", "--detach", "--name", model.name, *self._options, "--", *filled(model.command, port)]
        with TemporaryFile() as said, TemporaryFile() as error:  # a pipe would stay open as long as the job
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "gcr", "--json", *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=error,
                env=environment_of(model),
                cwd=model.surroundings.folder,
                start_new_session=True,
            )
            code = await process.wait()
            said.seek(0)
            error.seek(0)
            checked("run", code, said.read(), error.read())

    def _find(self) -> Mapping[str, Found]:
        rows = {row.job: row for row in _rows() if row.job in self._models and row.state != "exited"}
        return {name: _found(self._models[name], row) for name, row in rows.items() if row.pid is not None}

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _rows() -> Sequence[JobInfo]:
    """Returns all jobs, once those of a former daemon have come back."""
    end = time.monotonic() + AWAITED_S
    while True:
        try:
            return calls.jobs()
        except (NotAllKnown, DaemonUnavailable):
            if time.monotonic() > end:
                raise
            time.sleep(HEALTH_S)


def _found(model: ModelConfig, row: JobInfo) -> Found:
    port = port_in(model.command, row.command)
    if port is None:
        text = f"job {row.job}, pid {row.pid}, has another command than the model: {' '.join(row.command)}"
        raise ModelTaken(text, hint=f"end it, or give the model another name: gcr ps {row.job}")
    return Found(
        pid=row.pid or 0,
        port=port or model.port or 0,
        start=processes.start_time(row.pid or 0),
        parked=row.state in _PARKED,
        context=row.state == "data_suspended",
        memory=any(each.resident_bytes for each in row.processes),
        lost=row.state == "lost",
        changing=row.changing or row.state not in (*_PARKED, "running", "lost"),
        bytes=row.bytes,
    )


def _room() -> int | None:
    with Client.connect() as client:
        devices = client.ask(DevicesRequest(), DeviceList, timeout=30.0).devices
    return sum(each.total_bytes for each in devices) or None


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, allow_redirects=False) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _ended_early(name: str) -> GcrError:
    """Returns the error of a job that is no longer there, with its exit code where that is known."""
    try:
        code: int | None = Job(name, _last_pid(name)).wait(1.0)
    except GcrError:
        code = None
    how = "with an exit code that is not known" if code is None else f"with code {code}"
    forked = ", or went to the background" if code == 0 else ""
    return NeverHealthy(f"{name} ended {how}{forked} before it answered", hint=f"{_logs(name)}{_last_words(name)}")


def _last_words(name: str) -> str:
    """Returns the last line that a job printed, for a hint: it is for the operator, and no client sees it."""
    from gcr.job import runs

    try:
        (last, *_) = runs.runs_of(name)
        with Path(last.log or "").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS))
            lines = log.read().decode(errors="replace").split("\n")
    except (OSError, ValueError, GcrError):
        return ""
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f", which ends with: {''.join(c for c in said if c.isprintable())[:SHOWN]}" if said else ""


def _last_pid(name: str) -> int | None:
    from gcr.job import runs

    found = runs.runs_of(name)
    return found[0].pid if found else None


def _logs(name: str) -> str:
    return f"gcr logs {name}"


def _lives(job: Found) -> bool:
    """Returns whether its program runs. A zombie, which still has its name and its pid, does not."""
    identity = processes.identify(job.pid)
    return identity is not None and identity.start_time == job.start and processes.alive(identity)


def _end(job: Found) -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        identity = processes.identify(job.pid)
        if identity is None or identity.start_time != job.start:
            return
        with suppress(ProcessLookupError):
            os.kill(job.pid, sent)
        end = time.monotonic() + END_S
        while processes.alive(identity) and time.monotonic() < end:
            time.sleep(0.02)


def _phases(report: Any, names: Sequence[str]) -> dict[str, float]:
    values = {name.removesuffix("_s"): getattr(report, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
