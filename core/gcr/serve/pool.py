"""The pool of models: who waits, who answers, and who is on the way to or from the device.

All of it runs on one event loop and none of it blocks: `jobs` does what takes long. A model is parked when no request
is with it, and gets none from the moment that is decided. Requests wait in a queue of their model, until their turn or
their deadline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from gcr.errors import GcrError, Lost, NoRoom, NoSuchJob
from gcr.policy import Policy
from gcr.serve import refusals
from gcr.serve.beginning import from_image, to_image
from gcr.serve.config import END, ServeConfig
from gcr.serve.contexts import Contexts, stay_of
from gcr.serve.metrics import Metrics
from gcr.serve.model import Model, Waiter
from gcr.serve.plan import next_in, plan
from gcr.serve.ports import free_port
from gcr.serve.refusals import Refusal
from gcr.serve.room import TIGHT_S, Room
from gcr.serve.states import AWAY, CHANGING, HOLDS_ROOM, Event, State
from gcr.serve.upstream import Found, Jobs

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the jobs
TICK_S = 0.1  # between two looks at the clock: idle times, pauses after failures
SETTLED_S = 60.0  # a checkpoint or restore of a gcr serve that was killed has ended by then
KEPT_S = 10.0  # a model that could not be parked is left alone for so long

Quiet = Callable[[str], Awaitable[object]]


async def _nothing(_name: str) -> None:
    return None


class Pool:
    """Use `run` as a task. `quiet` is awaited before a model is parked: it closes idle connections to it."""

    def __init__(
        self, config: ServeConfig, jobs: Jobs, policy: Policy, metrics: Metrics, quiet: Quiet = _nothing
    ) -> None:
        self.models = {name: Model(each, _told) for name, each in config.models.items()}
        self._config, self._jobs, self._policy = config, jobs, policy
        self._contexts = Contexts(jobs, stay_of(config.parking), partial(metrics.phases, "park"))
        self._metrics, self._quiet = metrics, quiet
        self._room = Room(config.memory)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._look = asyncio.Event()

    # ---- requests -----------------------------------------------------------------------------------------------

    async def acquire(self, name: str, deadline: float) -> Found:
        """Waits for the model's turn, and returns where it listens. `release` ends it. Raises Refusal."""
        model, now = self.models[name], _now()
        if self._closing:
            raise Refusal(refusals.SHUTTING_DOWN, "gcr serve is shutting down")
        if model.open:
            model.begin(now)
        else:
            await self._turn(model, now, deadline)
        assert model.job
        return model.job

    def at_once(self, name: str) -> Found | None:
        """Begins a request as `acquire` does, where the model's turn is now; returns None otherwise."""
        model = self.models[name]
        if self._closing or not model.open:
            return None
        model.begin(_now())
        return model.job

    def release(self, name: str) -> None:
        """Ends a request that `acquire` began."""
        model = self.models[name]
        model.finish(_now())
        if model.active == 0 and any(each.queue for each in self.models.values()):
            self.step()

    def suspect(self) -> None:
        """Has the jobs looked at now: a server did not answer a connection, or closed it."""
        self._look.set()

    async def _turn(self, model: Model, now: float, deadline: float) -> None:
        paused = model.track.begins > now and model.state in (State.FAILED, *AWAY)
        if paused and not model.may_wait(deadline):
            raise model.failure(now)
        if len(model.queue) >= self._config.queue:
            text = f"{len(model.queue)} requests wait for {model.name} already"
            raise Refusal(refusals.QUEUE_FULL, text, model.track.way_s)
        waiter = Waiter(asyncio.get_running_loop().create_future(), now, deadline)
        model.queue.append(waiter)
        self.step()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter.turn
        except BaseException as error:
            self._left(model, waiter)
            if isinstance(error, TimeoutError):
                failed = f": {model.track.why}" if model.track.failures else ""
                text = f"{model.name} ({model.state}) had no turn within {_now() - now:.1f} s{failed}"
                raise Refusal(refusals.DEADLINE, text, model.track.way_s) from None
            raise
        finally:
            self._metrics.waited(model.name, _now() - now)

    def _left(self, model: Model, waiter: Waiter) -> None:
        """Takes back a request that no longer waits; it may have got its turn in the same instant."""
        turn = waiter.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.release(model.name)
        with suppress(ValueError):
            model.queue.remove(waiter)

    # ---- models -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        looking = asyncio.create_task(self._looking())
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self.step()
        finally:
            looking.cancel()

    async def close(self) -> None:
        """Refuses what waits, lets requests go on for the grace, and ends the jobs if that is configured."""
        self._closing = True
        for model in self.models.values():
            model.refuse(Refusal(refusals.SHUTTING_DOWN, "gcr serve is shutting down"))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.grace):
                while any(model.active for model in self.models.values()):
                    await asyncio.sleep(0.02)
        while self._tasks:  # a job is not left between two states
            self._give_up_starting()
            await asyncio.wait(self._tasks, timeout=TICK_S)
        await self._contexts.settle()
        if self._config.on_stop == END:
            await asyncio.gather(*(self._ended(model) for model in self.models.values()))

    def _give_up_starting(self) -> None:
        """Waits for no server to become healthy: its job is there, and the next `gcr serve` finds it."""
        for model in self.models.values():
            if model.state is State.STARTING and model.job and model.work:
                model.work.cancel()

    def step(self) -> None:
        """Does what is to be done now. Every change of a state, and every new request for a model that is away, ends
        here.
        """
        now = _now()
        if self._closing:
            return
        for model in self.models.values():
            if model.state is State.FAILED and model.track.begins <= now:
                model.move(Event.RETRY)
            model.grant(now)  # one that has just come answers what waited for it before it may leave again
        views = [model.view(now, self._config.hold) for model in self.models.values()]
        found = plan(views, self._room.at(now), self._policy, now)
        if found.broken:
            self._metrics.failed("", "policy")
        for name, model in self.models.items():
            model.draining = name in found.drain
        for name in found.stuck:
            self._no_room(self.models[name], now)
        for name in found.park:
            self._begin(self.models[name], Event.PARK, self._park)
        for name in found.begin:
            model = self.models[name]
            if model.state is State.COLD:
                self._begin(model, Event.START, self._start)
            else:
                self._begin(model, Event.WAKE, self._wake)
        for model in self.models.values():
            model.grant(now)

    def _no_room(self, model: Model, now: float) -> None:
        kept = ", ".join(
            each.name for each in self.models.values() if each.config.pinned or each.track.stays_until > now
        )
        beside = f" beside {kept}" if kept else ""
        model.track.crowded = False
        text = f"there is no room on the device{beside}{self._room.said(model.need, now)}"
        model.failed(now, text, refusals.NO_ROOM)
        model.track.helps = any(each.track.stays_until > now for each in self.models.values())  # else pinned ones stay
        self._metrics.failed(model.name, refusals.NO_ROOM.code)
        model.give_up(now)

    def _begin(self, model: Model, event: Event, work: Callable[[Model], Coroutine[Any, Any, None]]) -> None:
        model.move(event)
        task = model.work = asyncio.create_task(self._worked(model, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _worked(self, model: Model, work: Callable[[Model], Coroutine[Any, Any, None]]) -> None:
        """Leaves the model in a lasting state, whatever happens."""
        began = _now()
        try:
            await work(model)
            self._metrics.moved(model.name, work.__name__.strip("_"), _now() - began)
        except GcrError as error:
            self._missed(model, error)
        except Exception:
            log.exception("%s: a bug in gcr serve", model.name)
            self._missed(model, GcrError("a bug in gcr serve; its log has the traceback"))
        self.step()

    async def _start(self, model: Model) -> None:
        began = _now()
        by_command = False
        await self._contexts.leave()
        if model.job is None:
            model.job = await from_image(self._jobs, model.config, self._metrics)
        if model.job is None:
            by_command = True
            ports = {each.job.port for each in self.models.values() if each.job}
            model.job = await self._jobs.start(model.config, model.config.port or free_port(ports))
        await self._jobs.healthy(model.config, model.job)
        if by_command:
            await to_image(self._jobs, model.config, self._metrics)
        found = (await self._jobs.find()).get(model.name)
        if self._room.total is None:
            self._room.total = await self._jobs.room()
        if found is None:
            raise NoSuchJob(f"{model.name} ended just after it was healthy")
        model.job = found
        model.takes(found.bytes, self._room)
        model.track.failures = 0
        model.move(Event.HEALTHY)
        model.arrived(_now(), _now() - began)

    async def _park(self, model: Model) -> None:
        await self._quiet(model.name)
        now = _now()
        views = [each.view(now, self._config.hold) for each in self.models.values()]
        idle = not any(each.wanted for each in views)
        awaited = any(each.awaited for each in self.models.values())
        then = next_in(views, self._room.at(now), self._policy, now)
        done = await self._contexts.park(model.name, idle, awaited, then)
        model.takes(done.bytes, self._room)
        self._metrics.phases("park", done.seconds)
        model.draining = False
        model.move(Event.PARKED)
        for each in self.models.values():
            each.track.crowded = False

    async def _wake(self, model: Model) -> None:
        began = _now()
        done = await self._contexts.wake(model.name)
        self._metrics.phases("wake", done.seconds)
        model.track.failures = 0
        model.move(Event.WOKEN)
        model.arrived(_now(), _now() - began)

    def _missed(self, model: Model, error: GcrError) -> None:
        """Notes what did not work, and has requests refused that have no time until the next try."""
        hint = f" ({error.hint})" if error.hint else ""
        log.warning("%s: %s while %s: %s%s", model.name, error.code, model.state, error.message, hint)
        now = _now()
        if isinstance(error, Lost | NoSuchJob) or model.state is State.STARTING:
            model.failed(now, error.message)
            self._died(model)
        elif model.state is State.PARKING:
            model.track.stays_until, model.track.why = now + KEPT_S, error.message
            model.move(Event.KEPT)
        elif model.state is State.WAKING:
            model.move(Event.STAYED)
            if not isinstance(error, NoRoom):
                model.failed(now, error.message)
            elif self._noted(model, error, now):
                return
        self._metrics.failed(model.name, error.code)
        if model.state is not State.READY:
            model.give_up(now)

    def _noted(self, model: Model, error: NoRoom, now: float) -> bool:
        """Notes how much room there really is, so that the plan parks another model. Returns whether there is one."""
        others = [each.bytes or 0 for each in self.models.values() if each.state is State.READY]
        need = model.bytes or 0
        if others:
            model.track.crowded = True
            self._room.found(max(sum(others) + need - (error.missing or 1), need, *others), now)
            return True
        alone = not any(each.state in HOLDS_ROOM for each in self.models.values())
        if alone and self._room.exceeded(need, now):  # the others shall not leave in vain for it, again and again
            text = f"the device refused it, with no other model there{self._room.said(need, now)}: {error.message}"
            model.failed(now, text, refusals.NO_ROOM, TIGHT_S)
        else:
            model.failed(now, error.message)
        return False

    def _died(self, model: Model) -> None:
        job, model.job = model.job, None
        self._contexts.stays(model.name, False)
        model.draining = False
        model.move(Event.DIED)
        if job:
            task = asyncio.create_task(self._buried(model.name, job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _buried(self, name: str, job: Found) -> None:
        """Sees that no process of a job is left, which would keep its name, port and memory.

        Connections first: those of a later time belong to the next server.
        """
        await self._quiet(name)
        with suppress(GcrError):
            await self._jobs.end(name, job)

    async def _ended(self, model: Model) -> None:
        if model.job:
            with suppress(GcrError):
                await self._jobs.end(model.name, model.job)

    # ---- jobs as they are ---------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Goes on with jobs of an earlier `gcr serve`, once no command has its turn at them. Raises GcrError."""
        found, end = await self._jobs.find(), _now() + SETTLED_S
        while any(job.changing for job in found.values()) and _now() < end:
            await asyncio.sleep(TICK_S)
            found = await self._jobs.find()
        for name, job in found.items():
            model = self.models[name]
            model.job = job
            if job.parked:
                model.takes(job.bytes, self._room)
                self._contexts.parked(name, job.context, job.memory)
                model.move(Event.FOUND_PARKED)
            else:
                self._begin(model, Event.FOUND_RUNNING, self._start)
            log.info("%s: found its job, pid %d", name, job.pid)
        self.step()

    async def _looking(self) -> None:
        """Compares the models with their jobs, every second and when one is suspected to have died."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            self._look.clear()
            before = {name: (model.job, model.state) for name, model in self.models.items()}
            try:
                found = await self._jobs.find()
            except GcrError as error:
                log.warning("cannot look at the jobs: %s", error)
                self._metrics.failed("", error.code)
                continue
            for name, model in self.models.items():
                if (model.job, model.state) == before[name] and model.state not in CHANGING:
                    self._compared(model, found.get(name))
            self.step()

    def _compared(self, model: Model, found: Found | None) -> None:
        if model.job is None or (found and found.changing):
            return
        if found is None or found.lost or found.pid != model.job.pid:
            log.warning("%s: its server, pid %d, has died", model.name, model.job.pid)
            self._metrics.failed(model.name, "died")
            model.died(_now(), f"its server, pid {model.job.pid}, has died")
            self._died(model)
        elif found.parked and model.state is State.READY:
            self._contexts.stays(model.name, found.context)
            model.move(Event.FOUND_PARKED)
        elif found.parked and model.state is State.PARKED:
            self._contexts.seen(model.name, found.context, found.memory)
        elif not found.parked and model.state is State.PARKED:
            self._contexts.stays(model.name, False)
            model.move(Event.FOUND_RUNNING)


def _told(name: str, state: State, event: Event) -> None:
    log.info("%s: %s", name, state)


def _now() -> float:
    return asyncio.get_running_loop().time()
