"""Stand-ins for what the steps of a checkpoint act on, which record their calls."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from gcr.config import Config
from gcr.engine.node import Course
from gcr.engine.progress import Meter
from gcr.engine.transaction import Transaction
from gcr.engine.turns import Turns
from gcr.engine.work import Options, Work
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.peers.shares import NOTHING
from gcr.processes import identify
from gcr.protocol.operations.worker import CopiedLive, Drained, Moved

DEVICE = "GPU-1"


SIZE = 6 << 20


class Recorder:
    """Says which of its methods were called; answers with `answers`, of a list one at a time, and raises errors."""

    def __init__(self, name: str, said: list[str], **answers: Any) -> None:
        self.name, self.said, self.answers = name, said, answers

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **_: Any) -> Any:
            self.said.append(f"{self.name}.{method}")
            answer = self.answers.get(method)
            if isinstance(answer, list):
                answer = answer.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return call


def drained(**other: Any) -> Drained:
    return replace(Drained(SIZE, 1.0, copied=SIZE, handles=1, snapshot=0), **other)


class RecordedWorker(Recorder):
    """A worker whose parts record under its own name."""

    handles = copies = rings = property(lambda self: self)


class Target(Recorder):
    """A process of a job on one device, with its agent, worker and keeper."""

    def __init__(self, said: list[str], state: State, way: Way, pid: int = 0, **answers: Any) -> None:
        super().__init__("target", said, **answers)
        done = drained()
        identity = identify(1)
        assert identity
        self.agent = Recorder("agent", said)
        self.agent.channel = SimpleNamespace(closed=SimpleNamespace(is_set=lambda: False))
        self.process = Process("llm", identity, state, way, peer=self.agent)  # type: ignore[arg-type]
        self.pid, self.hold, self.owner, self.transaction = identity.pid, "1.1", "llm/1", 7
        self.bytes_by_device, self.devices = {DEVICE: SIZE}, [DEVICE]
        self.keeps_context, self.copy, self.shares, self.borrowed = False, None, NOTHING, ()
        self.world = SimpleNamespace(backend="nvidia", simulated=False, environment=())
        allocation = SimpleNamespace(spec=SimpleNamespace(size=SIZE))
        table = SimpleNamespace(bytes=SIZE, of_device=lambda _device: [allocation], mappings=list, ordinals={})
        self.books = SimpleNamespace(table=table)
        answers = {"drain": done, "seal": lambda *_: [], "make_room": True, **answers}
        answers = {"copy_on": Moved(SIZE, 2.0), "copy_live": CopiedLive(SIZE, 1.0, copied=SIZE), **answers}
        self.its_worker = RecordedWorker("worker", said, **answers)
        self.its_worker.device = DEVICE
        self.its_keeper = Recorder("keeper", said, **answers)
        self.exports = Recorder("exports", said, export_new=1)
        self.imports = Recorder("imports", said, **answers)
        self.control_state = Recorder("control", said, **answers)
        self.spare = Recorder("spare", said)

    def worker(self, _device: str) -> Recorder:
        return self.its_worker

    def workers(self) -> list[Recorder]:
        return [self.its_worker]

    def keeper(self) -> Recorder:
        return self.its_keeper


class Journal(Recorder):
    def decide(self, record: Any) -> None:
        self.said.append(f"decide {record.kind}")


class Made:
    """A checkpoint in which one step is done."""

    def __init__(self, state: State, way: Way = Way.WHOLE, live: bool = False, **answers: Any) -> None:
        self.said: list[str] = []
        self.target = Target(self.said, state, way, **answers)
        self.node = SimpleNamespace(config=Config(), journal=Journal("journal", self.said), occupying=self.occupying)
        self.node.warm_worker = lambda *_: self.target.its_worker
        self.node.turns = Turns()
        self.target.node = self.node
        self.course = Course("checkpoint", 7, 60.0)
        self.work = Work.of("llm", [self.target], self.node, self.course, Options(way, live))  # type: ignore
        count: Any = SimpleNamespace(
            look_before=self._says("look"), look_without_data=self._says("look without"), resident={}
        )
        count.wait = self._says("wait")
        ballasts: Any = Recorder("ballasts", self.said, of=5)
        ballasts.room, ballasts.given_up = Recorder("room", self.said), self.given_up
        self.work.count, self.work.ballasts = count, ballasts
        self.meter = Meter(self.course, "draining", {(1, DEVICE): SIZE})
        self.undo = Transaction("llm")

    def _says(self, word: str) -> Any:
        return lambda *_, **__: self.said.append(word)

    @contextmanager
    def occupying(self, _device: str) -> Any:
        self.said.append("occupied")
        yield
        self.said.append("free")

    @contextmanager
    def given_up(self, _target: Target) -> Any:
        self.said.append("ballasts.given_up")
        yield

    @property
    def state(self) -> State:
        return self.target.process.state

    def does(self, step: Any) -> list[str]:
        """Returns what was said by the step."""
        self.said.clear()
        step.do(self.undo)
        return list(self.said)

    def undone(self, failed: int = 0) -> list[str]:
        """Returns what was said by its undo."""
        self.said.clear()
        self.undo.roll_back(None)
        assert len(self.undo.failed) == failed
        return list(self.said)
