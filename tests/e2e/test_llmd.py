"""gcr's agent for llm-d with jobs on a simulated device: snapshots, restores, and agents that end on the way.

One test is driven by llm-d's own Python client, unchanged, where GCR_LLMD_SOURCE names a checkout of
llm-d-rl-time-slicing. Neither llm-d's orchestrator nor a cluster was there.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from machine import PATIENCE, Machine, kill, until
from test_context import CONTEXT

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: make test")

from gcr_llmd.wire import AGENT_SERVICE, MESSAGES, JobState, OperationStatus  # noqa: E402

PROGRAM = Path(sys.executable).with_name("gcr-llm-d-agent")
SOURCE = os.environ.get("GCR_LLMD_SOURCE", "")
HELD = "checkpoint.quiesced"


@dataclass
class Agent:
    """An agent of a machine, and a client of it."""

    machine: Machine
    address: str = ""
    process: Any = None
    channels: list[Any] = field(default_factory=list)

    def start(self) -> "Agent":
        self.process = self.machine.begin_other(str(PROGRAM), "--listen", "127.0.0.1:0")
        line = self.process.stdout.readline()
        assert "listening at" in line, (line, self.machine.logs())
        self.address = line.split()[-1]
        self.channels.append(grpc.insecure_channel(self.address))
        return self

    def __call__(self, method: str, **fields: Any) -> Any:
        call = self.channels[-1].unary_unary(
            f"/{AGENT_SERVICE}/{method}",
            request_serializer=MESSAGES[f"{method}Request"].SerializeToString,
            response_deserializer=MESSAGES[f"{method}Response"].FromString,
        )
        return call(MESSAGES[f"{method}Request"](**fields), timeout=PATIENCE)

    def ended(self, begun: str) -> Any:
        def found() -> Any:
            answer = self("GetOperation", operation_id=begun)
            return answer if answer.status != OperationStatus.OPERATION_STATUS_PENDING else None

        return until(found, PATIENCE, "the operation ends")

    def done(self, method: str, **fields: Any) -> Any:
        answer = self.ended(self(method, **fields).operation_id)
        assert answer.status == OperationStatus.OPERATION_STATUS_COMPLETE, answer
        return answer

    def states(self) -> dict[str, str]:
        return {each.job_id: JobState(each.state).name for each in self("Status").job_statuses}


@pytest.fixture
def agent(machine: Machine) -> Iterator[Agent]:
    made = Agent(machine)
    yield made
    for channel in made.channels:
        channel.close()


def cuda(*pids: int) -> Any:
    config = MESSAGES["BackendConfig"]()
    config.cuda.explicit_target.pids.extend(pids)
    return config


def test_a_job_is_saved_and_comes_back(machine: Machine, agent: Agent) -> None:
    assert agent.start().states() == {}
    job = machine.told("llm", "alloc 6 3000000")
    before = job.ask()
    for config in (None, cuda(machine.target("llm"))):
        saved = agent.done("Snapshot", job_id="llm", backend_config=config)
        assert saved.storage_bytes == saved.snapshot_device_bytes >= 18_000_000
        assert machine.used() <= CONTEXT  # of gcr's worker
        assert machine.job("llm")["state"] == "suspended"
        assert agent.states() == {"llm": "JOB_STATE_SAVED"}
        assert agent.done("Restore", job_id="llm", backend_config=config).snapshot_device_bytes >= 18_000_000
        assert agent.states() == {"llm": "JOB_STATE_RUNNING"}
        assert job.ask() == before


def test_two_jobs_take_turns_on_a_device_that_one_fills(machine: Machine, agent: Agent) -> None:
    machine.memory = 64 << 20
    agent.start()
    one = machine.told("one", "alloc 1 40000000")
    first = one.ask()
    agent.done("Snapshot", job_id="one")
    other = machine.told("other", "alloc 1 40000000")
    second = other.ask()
    for out, back, job, before in (("other", "one", one, first), ("one", "other", other, second)):
        agent.done("Snapshot", job_id=out)
        agent.done("Restore", job_id=back)
        assert job.ask() == before


def test_a_process_that_gcr_does_not_know_is_refused(machine: Machine, agent: Agent) -> None:
    agent.start()
    job, stranger = machine.told("llm", "alloc 1 3000000"), machine.stranger()
    with pytest.raises(grpc.RpcError) as caught:
        agent("Snapshot", job_id="llm", backend_config=cuda(machine.target("llm"), stranger.supervisor.pid))
    assert caught.value.code().name == "FAILED_PRECONDITION"
    assert "gcr run" in caught.value.details()
    assert machine.job("llm")["state"] == "running"
    assert job.ask()


def test_a_failed_snapshot_leaves_the_job_running(machine: Machine, agent: Agent) -> None:
    agent.start()
    job = machine.told("llm", "alloc 6 3000000")
    before = job.ask()
    machine.inject("checkpoint.staged fail")
    failed = agent.ended(agent("Snapshot", job_id="llm").operation_id)
    assert failed.status == OperationStatus.OPERATION_STATUS_FAILED and failed.error
    assert agent.states() == {"llm": "JOB_STATE_RUNNING"}
    assert job.ask() == before
    agent.done("Snapshot", job_id="llm")


def test_a_killed_agent_loses_nothing_and_the_next_one_sees_the_true_state(machine: Machine, agent: Agent) -> None:
    agent.start()
    job = machine.told("llm", "alloc 6 3000000")
    before = job.ask()
    with machine.held_at(HELD):
        agent("Snapshot", job_id="llm")
        machine.wait_held()
        assert agent.states() == {"llm": "JOB_STATE_TRANSITIONING"}
        machine.leaves(lambda: kill(agent.process.pid))
        agent.start()
        assert agent.states() == {"llm": "JOB_STATE_TRANSITIONING"}
        with pytest.raises(grpc.RpcError) as caught:
            agent("Snapshot", job_id="llm")
        assert caught.value.code().name == "ABORTED"
    until(lambda: agent.states()["llm"] != "JOB_STATE_TRANSITIONING" or None, PATIENCE, "gcr has taken it back")
    assert agent.states() == {"llm": "JOB_STATE_RUNNING"}
    assert job.ask() == before
    agent.done("Snapshot", job_id="llm")
    kill(agent.process.pid)
    assert agent.start().states() == {"llm": "JOB_STATE_SAVED"}
    agent.done("Restore", job_id="llm")
    assert job.ask() == before


def test_an_agent_that_is_asked_to_end_waits_for_its_operation(machine: Machine, agent: Agent) -> None:
    agent.start()
    machine.told("llm", "alloc 6 3000000")
    with machine.held_at(HELD):
        agent("Snapshot", job_id="llm")
        machine.wait_held()
        agent.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            agent.process.wait(0.5)
    assert agent.process.wait(PATIENCE) == 0
    assert machine.job("llm")["state"] == "suspended"


@pytest.mark.parametrize(
    ("listen", "code", "says"),
    [
        ("127.0.0.1", 2, "no IP address with a port"),
        ("example.org:9001", 2, "no IP address with a port"),
        ("127.0.0.1:70000", 2, "no IP address with a port"),
        ("192.0.2.1:0", 3, "cannot listen at 192.0.2.1:0"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(listen: str, code: int, says: str) -> None:
    done = subprocess.run([PROGRAM, "--listen", listen], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert says in done.stderr and "Traceback" not in done.stderr


def test_an_address_beyond_this_machine_is_warned_about(machine: Machine) -> None:
    process = machine.begin_other(str(PROGRAM), "--listen", "0.0.0.0:0")
    assert process.stdout and "listening at 0.0.0.0:" in process.stdout.readline()
    assert "has no authentication" in machine.logs()["stderr"]
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


CALLER = """
import dataclasses, json, sys
from timeslice.snapshot_agent import SnapshotAgentClient, snapshot_agent_pb2 as pb
from timeslice.snapshot_agent.client import SnapshotAgentError
with SnapshotAgentClient(sys.argv[1]) as client:
    for line in sys.stdin:
        what, *words = line.split()
        try:
            if what in ("snapshot", "restore"):
                config = None
                if words[1:]:
                    config = pb.BackendConfig(cuda=pb.CudaBackendConfig())
                    config.cuda.explicit_target.pids.extend(int(pid) for pid in words[1:])
                wait = getattr(client, what + "_and_wait")
                said = dataclasses.asdict(wait(words[0], "group", 0.02, backend_config=config))
            elif what == "status":
                said = dataclasses.asdict(client.status())
            else:
                said = dataclasses.asdict(client.check_health(*words))
        except SnapshotAgentError as error:
            said = {"code": error.code.name, "details": error.details}
        print(json.dumps(said), flush=True)
"""


@dataclass
class TheirClient:
    process: Any

    def __call__(self, *words: object) -> dict[str, Any]:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def test_llm_d_s_own_client_saves_and_restores(machine: Machine, agent: Agent) -> None:
    if not SOURCE:
        pytest.skip("GCR_LLMD_SOURCE names no checkout of llm-d-rl-time-slicing")
    agent.start()
    job = machine.told("llm", "alloc 6 3000000")
    before, pid = job.ask(), machine.target("llm")
    machine.extra["PYTHONPATH"] = str(Path(SOURCE) / "pkg/client/python")
    ask = TheirClient(machine.begin_other(sys.executable, "-c", CALLER, agent.address))
    assert ask("health") == ask("health", "cuda") == {"status": "SERVING"}
    for more in ((), (pid,)):
        assert ask("status")["job_statuses"] == [{"job_id": "llm", "state": "JOB_STATE_RUNNING"}]
        saved = ask("snapshot", "llm", *more)
        assert (saved["status"], saved["error"]) == ("OPERATION_STATUS_COMPLETE", None), saved
        assert saved["storage_bytes"] >= 18_000_000
        assert machine.used() <= CONTEXT  # of gcr's worker
        assert ask("status")["job_statuses"] == [{"job_id": "llm", "state": "JOB_STATE_SAVED"}]
        assert ask("snapshot", "llm", *more)["code"] == "FAILED_PRECONDITION"
        assert ask("restore", "llm", *more)["status"] == "OPERATION_STATUS_COMPLETE"
        assert job.ask() == before
        assert ask("restore", "llm", *more)["status"] == "OPERATION_STATUS_COMPLETE"  # it runs already
    assert ask("snapshot", "unknown")["code"] == "NOT_FOUND"
    assert ask("snapshot", "Not-A-Name")["code"] == "INVALID_ARGUMENT"
