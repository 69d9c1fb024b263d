"""gcr's agent for llm-d over a real channel of gRPC, with made-up jobs; tests/e2e/test_llmd.py has real ones."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: make test")

from gcr.api.listings import JobInfo  # noqa: E402
from gcr.errors import DaemonUnavailable, NoRoom, RolledBack  # noqa: E402
from gcr.serveerrors import PortInUse  # noqa: E402
from gcr.testing.machine import until  # noqa: E402
from gcr_llmd import operations as ops  # noqa: E402
from gcr_llmd.operations import Busy, Closed, Operations, Sizes  # noqa: E402
from gcr_llmd.service import Agent, listening  # noqa: E402
from gcr_llmd.wire import AGENT_SERVICE, HEALTH_SERVICE, MESSAGES, JobState, OperationStatus  # noqa: E402


def info(name: str, pid: int, state: str, changing: bool = False) -> JobInfo:
    return JobInfo(
        job=name,
        pid=pid,
        state=state,
        started="2026-01-01T00:00:00Z",
        simulated=True,
        backend="nvidia",
        command=(),
        image=None,
        images=(),
        only_in=None,
        processes=(),
        arena=None,
        changing=changing,
    )


class FakeJobs:
    """Jobs that move at a word, unless `gate` is cleared. `fails`: what a move of a job raises."""

    def __init__(self) -> None:
        self.states = {"llm": "running", "other": "running", "saved": "suspended", "gone": "exited", "ill": "lost"}
        self.pids = {name: 100 + number for number, name in enumerate(self.states)}
        self.changing: set[str] = set()
        self.moves: list[tuple[str, str]] = []
        self.fails: dict[tuple[str, str], Exception] = {}
        self.unreachable = False
        self.gate = threading.Event()
        self.gate.set()

    def known(self) -> list[JobInfo]:
        if self.unreachable:
            raise DaemonUnavailable("no daemon", hint="gcr daemon logs")
        return [info(name, self.pids[name], state, name in self.changing) for name, state in self.states.items()]

    def suspend(self, name: str) -> Sizes:
        return self._move("suspend", name, "suspended", Sizes(70, 100))

    def restore(self, name: str) -> Sizes:
        return self._move("restore", name, "running", Sizes(device=100))

    def _move(self, what: str, name: str, state: str, sizes: Sizes) -> Sizes:
        self.moves.append((what, name))
        assert self.gate.wait(20)
        if failure := self.fails.get((what, name)):
            raise failure
        self.states[name] = state
        return sizes


class Client:
    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)

    def __call__(self, method: str, **fields: Any) -> Any:
        call = self.channel.unary_unary(
            f"/{AGENT_SERVICE}/{method}",
            request_serializer=MESSAGES[f"{method}Request"].SerializeToString,
            response_deserializer=MESSAGES[f"{method}Response"].FromString,
        )
        return call(MESSAGES[f"{method}Request"](**fields), timeout=20)

    def refused(self, method: str, **fields: Any) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self(method, **fields)
        return caught.value.code().name, caught.value.details()

    def done(self, method: str, **fields: Any) -> Any:
        begun = self(method, **fields).operation_id

        def ended() -> Any:
            found = self("GetOperation", operation_id=begun)
            return found if found.status != OperationStatus.OPERATION_STATUS_PENDING else None

        return until(ended, 20, "the operation ends")

    def states(self) -> dict[str, str]:
        return {each.job_id: JobState(each.state).name for each in self("Status").job_statuses}


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def client(jobs: FakeJobs) -> Iterator[Client]:
    operations = Operations()
    server, address = listening(Agent(jobs, operations), "127.0.0.1", 0)
    made = Client(address)
    yield made
    made.channel.close()
    jobs.gate.set()
    assert operations.close(20)
    server.stop(1).wait()


def backend(kind: str, *pids: int) -> Any:
    config = MESSAGES["BackendConfig"]()
    getattr(config, kind).SetInParent()
    if pids:
        getattr(config, kind).explicit_target.pids.extend(pids)
    return config


@pytest.mark.parametrize("config", [None, backend("cuda"), backend("direct_memory"), MESSAGES["BackendConfig"]()])
def test_a_job_is_saved_and_comes_back(client: Client, jobs: FakeJobs, config: Any) -> None:
    saved = client.done("Snapshot", job_id="llm", backend_config=config)
    assert saved.status == OperationStatus.OPERATION_STATUS_COMPLETE
    assert (saved.storage_bytes, saved.snapshot_device_bytes, saved.HasField("error")) == (70, 100, False)
    assert client.states()["llm"] == "JOB_STATE_SAVED"
    back = client.done("Restore", job_id="llm", backend_config=config)
    assert (back.status, back.storage_bytes, back.snapshot_device_bytes) == (2, 0, 100)
    assert client.states()["llm"] == "JOB_STATE_RUNNING"
    assert jobs.moves == [("suspend", "llm"), ("restore", "llm")]


def test_the_answer_comes_before_the_end_and_one_operation_at_a_time_moves_a_job(
    client: Client, jobs: FakeJobs
) -> None:
    jobs.gate.clear()
    begun = client("Snapshot", job_id="llm").operation_id
    pending = client("GetOperation", operation_id=begun)
    assert pending.status == OperationStatus.OPERATION_STATUS_PENDING
    assert not (pending.HasField("storage_bytes") or pending.HasField("snapshot_device_bytes"))
    assert client.states()["llm"] == "JOB_STATE_TRANSITIONING"
    for method in ("Snapshot", "Restore"):
        assert client.refused(method, job_id="llm") == ("ABORTED", "job llm is already transitioning")
    assert client("Snapshot", job_id="other").operation_id != begun
    jobs.gate.set()
    until(lambda: client.states()["llm"] == "JOB_STATE_SAVED" or None, 20, "it is saved")
    assert client("GetOperation", operation_id=begun).elapsed_ms >= pending.elapsed_ms


def test_an_operation_outlives_the_client_that_asked_for_it(client: Client, jobs: FakeJobs) -> None:
    jobs.gate.clear()
    other = Client(client.address)
    begun = other("Snapshot", job_id="llm").operation_id
    other.channel.close()
    jobs.gate.set()
    until(lambda: client("GetOperation", operation_id=begun).status == 2 or None, 20, "it ends")
    assert client.states()["llm"] == "JOB_STATE_SAVED"


def test_a_job_that_another_command_moves_is_transitioning(client: Client, jobs: FakeJobs) -> None:
    jobs.changing = {"llm"}
    jobs.states["other"] = "frozen"
    assert client.states() == {
        "llm": "JOB_STATE_TRANSITIONING",
        "other": "JOB_STATE_TRANSITIONING",
        "saved": "JOB_STATE_SAVED",
        "ill": "JOB_STATE_FAULTED",
    }
    assert client.refused("Snapshot", job_id="llm")[0] == client.refused("Restore", job_id="other")[0] == "ABORTED"
    assert jobs.moves == []


def test_a_job_that_is_there_already_is_not_moved(client: Client, jobs: FakeJobs) -> None:
    code, text = client.refused("Snapshot", job_id="saved")
    assert code == "FAILED_PRECONDITION" and "JOB_STATE_SAVED" in text
    assert client("Restore", job_id="llm").operation_id == "already-running"
    told = client("GetOperation", operation_id="already-running")
    assert (told.status, told.elapsed_ms) == (OperationStatus.OPERATION_STATUS_COMPLETE, 0)
    assert jobs.moves == []


def test_a_failure_is_told_and_leaves_the_job_as_it_is(client: Client, jobs: FakeJobs) -> None:
    jobs.fails["suspend", "llm"] = NoRoom("host memory is 3 B short", missing=3, hint="end a job")
    failed = client.done("Snapshot", job_id="llm")
    assert failed.status == OperationStatus.OPERATION_STATUS_FAILED
    assert failed.error == "no_room: host memory is 3 B short; end a job"
    assert not failed.HasField("storage_bytes")
    assert client.states()["llm"] == "JOB_STATE_RUNNING"
    jobs.fails["suspend", "llm"] = ValueError("a bug")
    assert client.done("Snapshot", job_id="llm").error == "internal: ValueError('a bug')"
    jobs.fails.clear()
    assert client.done("Snapshot", job_id="llm").status == OperationStatus.OPERATION_STATUS_COMPLETE


def test_pids_choose_the_jobs_and_these_move_together(client: Client, jobs: FakeJobs) -> None:
    both = backend("cuda", jobs.pids["llm"], jobs.pids["other"])
    saved = client.done("Snapshot", job_id="trainer", backend_config=both)
    assert (saved.storage_bytes, saved.snapshot_device_bytes) == (140, 200)
    assert (jobs.states["llm"], jobs.states["other"]) == ("suspended", "suspended")
    jobs.fails["restore", "other"] = RolledBack("no")
    jobs.fails["suspend", "llm"] = RolledBack("not either")
    failed = client.done("Restore", job_id="trainer", backend_config=both)
    assert failed.error == "rolled_back: no; job llm was not taken back: rolled_back: not either"
    assert jobs.moves[-3:] == [("restore", "llm"), ("restore", "other"), ("suspend", "llm")]
    jobs.fails.clear()
    assert client.done("Restore", job_id="trainer", backend_config=both).snapshot_device_bytes == 100  # llm is there


@pytest.mark.parametrize(
    ("job_id", "pids", "says"),
    [("llm", [4711], "4711; start it with gcr run"), ("llm", [100, 4711], "4711"), ("llm", [101], "belong to other")],
)
def test_pids_that_are_of_no_job_or_of_another_are_refused(
    client: Client, jobs: FakeJobs, job_id: str, pids: list[int], says: str
) -> None:
    code, text = client.refused("Snapshot", job_id=job_id, backend_config=backend("cuda", *pids))
    assert code == "FAILED_PRECONDITION" and says in text
    assert jobs.moves == []


@pytest.mark.parametrize("method", ["Snapshot", "Restore"])
@pytest.mark.parametrize("job_id", ["", "Llm", "../llm", "1234", "-x", "llm\n", "a" * 64])
def test_what_is_no_name_of_a_job_is_refused(client: Client, jobs: FakeJobs, method: str, job_id: str) -> None:
    jobs.unreachable = True  # gcr is not even asked
    assert client.refused(method, job_id=job_id, backend_config=backend("cuda", 100))[0] == "INVALID_ARGUMENT"


def test_unknown_lost_and_ended_jobs_and_operations_are_refused(client: Client, jobs: FakeJobs) -> None:
    for name in ("unknown", "gone"):
        assert client.refused("Snapshot", job_id=name)[0] == client.refused("Restore", job_id=name)[0] == "NOT_FOUND"
    assert client.refused("GetOperation", operation_id="unknown")[0] == "NOT_FOUND"
    assert client.refused("Restore", job_id="ill")[0] == "FAILED_PRECONDITION"
    assert jobs.moves == []


@pytest.mark.parametrize("kind", ["app_endpoint", "app_channel", "memory_regions"])
def test_other_backends_are_refused_with_a_way_out(client: Client, jobs: FakeJobs, kind: str) -> None:
    code, text = client.refused("Snapshot", job_id="llm", backend_config=backend(kind))
    assert code == "UNIMPLEMENTED" and "use cuda" in text
    assert jobs.moves == []


def test_the_channel_of_workloads_is_refused_with_a_way_out(client: Client) -> None:
    call = client.channel.stream_stream(f"/{AGENT_SERVICE}/WorkloadChannel")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([b"\n\x05\n\x03llm"]), timeout=20))
    assert caught.value.code().name == "UNIMPLEMENTED"
    assert "gcr run --name" in caught.value.details()


def test_health_is_whether_gcr_answers(client: Client, jobs: FakeJobs) -> None:
    ask = client.channel.unary_unary(f"/{HEALTH_SERVICE}/Check")
    assert [ask(name, timeout=20) for name in (b"", b"\n\x04cuda", b"\n\rdirect-memory")] == [b"\x08\x01"] * 3
    with pytest.raises(grpc.RpcError) as caught:
        ask(b"\n\x04noop", timeout=20)
    assert caught.value.code().name == "NOT_FOUND"
    jobs.unreachable = True
    assert ask(b"", timeout=20) == b"\x08\x02"
    for method, fields in (("Status", {}), ("Snapshot", {"job_id": "llm"})):
        code, text = client.refused(method, **fields)
        assert code == "UNAVAILABLE" and "gcr daemon logs" in text


def test_no_second_agent_listens_at_the_same_port(client: Client, jobs: FakeJobs) -> None:
    server, address = listening(Agent(jobs, Operations()), "127.0.0.1", 0)
    with pytest.raises(PortInUse, match=address):
        listening(Agent(jobs, Operations()), "127.0.0.1", int(address.rpartition(":")[2]))
    server.stop(0).wait()


def test_only_the_last_ended_operations_are_remembered() -> None:
    operations, gate = Operations(remembered=2), threading.Event()
    waiting = operations.begin(["other"], lambda: Sizes(int(gate.wait(20))))
    first, second, third = (ended_of(operations) for _ in range(3))
    assert operations.get(first) is None
    assert operations.get(second) and operations.get(third)
    assert operations.get(waiting)  # the oldest, and not ended
    gate.set()
    assert operations.close(20)


def ended_of(operations: Operations) -> str:
    begun = operations.begin(["llm"], Sizes)
    until(lambda: "llm" not in operations.moving() or None, 20, "it ends")
    return begun


def test_the_end_waits_for_operations_and_begins_none() -> None:
    operations, gate = Operations(), threading.Event()
    begun = operations.begin(["llm"], lambda: Sizes(1, 2) if gate.wait(20) else Sizes())
    with pytest.raises(Busy):
        operations.begin(["other", "llm"], Sizes)
    assert not operations.close(0.05)
    with pytest.raises(Closed):
        operations.begin(["other"], Sizes)
    gate.set()
    assert operations.close(20)
    found = operations.get(begun)
    assert found and found.status is ops.COMPLETE and found.sizes == Sizes(1, 2)


@pytest.mark.parametrize("module", ["grpc", "google.protobuf.descriptor_pb2"])
def test_without_the_extra_the_program_names_it(module: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; from gcr_llmd.command import command; command([])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "pip install 'gpu-cr[llm-d]'" in done.stderr and "Traceback" not in done.stderr
