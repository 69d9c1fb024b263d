"""The calls of llm-d's SnapshotAgentService and of gRPC's health check, answered with jobs of gcr.

A call is answered as llm-d's own agent answers it: ABORTED while the job has an operation under way, NOT_FOUND for an
unknown operation, FAILED_PRECONDITION for a snapshot of a job that does not run or a restore of one that is not saved.
It differs in three points. The state of a job is gcr's, so a failed operation leaves the job RUNNING or SAVED, and not
FAULTED. An unknown job is NOT_FOUND. A restore of a running job answers with the same fixed id, and GetOperation knows
that id: a client that waits for it sees COMPLETE.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

import gcr
from gcr.errors import GcrError, NoSuchJob, WrongState
from gcr.names import JOB_NAME
from gcr_llmd import node
from gcr_llmd.node import RUNNING, SAVED, TRANSITIONING, Jobs
from gcr_llmd.operations import COMPLETE, FAILED, Busy, Closed, Operation, Operations, Sizes, text_of
from gcr_llmd.wire import AGENT_SERVICE, HEALTH_SERVICE, MESSAGES, JobState, ServingStatus

log = logging.getLogger("gcr.llmd")

ALREADY_RUNNING = "already-running"
HEALTH_NAMES = ("", "cuda", "direct-memory", AGENT_SERVICE)  # llm-d's client asks for the name of a backend
_INSTEAD = "gcr moves a whole job without its help: use cuda, or no backend_config"
UNSUPPORTED = {
    "app_endpoint": f"app_endpoint is not served; {_INSTEAD}",
    "app_channel": f"app_channel is not served; {_INSTEAD}",
    "memory_regions": f"memory_regions is not served; {_INSTEAD}",
}
NO_CHANNEL = "WorkloadChannel is not served: a job needs no registration; start it with gcr run --name JOB_ID"

CALLS = 8  # that are answered at a time
MOST_CALLS = 64  # with those that wait; more are refused

Code = grpc.StatusCode


class Denied(Exception):
    """The call ends with this code of gRPC."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Agent:
    """Answers the calls; each raises Denied. Thread-safe."""

    def __init__(self, jobs: Jobs, operations: Operations) -> None:
        self._jobs, self._operations = jobs, operations

    def snapshot(self, request: Any) -> Any:
        names = self._to_move(request, there=SAVED)
        if not names:
            text = f"cannot snapshot job {request.job_id} in state {SAVED.name}: it must be {RUNNING.name}"
            raise Denied(Code.FAILED_PRECONDITION, text)
        begun = self._begin(names, self._jobs.suspend, self._jobs.restore)
        return MESSAGES["SnapshotResponse"](operation_id=begun)

    def restore(self, request: Any) -> Any:
        names = self._to_move(request, there=RUNNING)
        begun = self._begin(names, self._jobs.restore, self._jobs.suspend) if names else ALREADY_RUNNING
        return MESSAGES["RestoreResponse"](operation_id=begun)

    def get_operation(self, request: Any) -> Any:
        known = self._operations.get(request.operation_id)
        if known is None and request.operation_id == ALREADY_RUNNING:
            known = Operation(frozenset(), began=0.0, ended=0.0, status=COMPLETE)
        if known is None:
            raise Denied(Code.NOT_FOUND, f"no operation {request.operation_id}")
        answer = MESSAGES["GetOperationResponse"](status=known.status, elapsed_ms=known.elapsed_ms)
        if known.status is COMPLETE:
            answer.storage_bytes, answer.snapshot_device_bytes = known.sizes.host, known.sizes.device
        elif known.status is FAILED:
            answer.error = known.error
        return answer

    def status(self, _request: Any) -> Any:
        """Lists the jobs, and no accelerators, as llm-d's own agent."""
        found = node.states(*self._now())
        rows = [MESSAGES["JobStatus"](job_id=name, state=state) for name, state in found.items()]
        return MESSAGES["StatusResponse"](job_statuses=rows)

    def check(self, request: Any) -> Any:
        """Answers SERVING while gcr can say which jobs there are."""
        if request.service not in HEALTH_NAMES:
            raise Denied(Code.NOT_FOUND, f"no backend {request.service}")
        status = ServingStatus.SERVING
        try:
            self._jobs.known()
        except GcrError as error:
            log.warning("not serving: %s", text_of(error))
            status = ServingStatus.NOT_SERVING
        return MESSAGES["HealthCheckResponse"](status=status)

    # ---- the parts of a request -------------------------------------------------------------------------------

    def _to_move(self, request: Any, there: JobState) -> list[str]:
        """Returns the jobs that the request means, without those that are in the state `there` already."""
        pids = _pids_of(request)
        jobs, moving = self._now()
        names = _targets(jobs, request.job_id, pids)
        states = node.states(jobs, moving)
        if busy := [name for name in names if states[name] is TRANSITIONING]:
            raise _busy(busy)
        for name in names:
            if states[name] not in (RUNNING, SAVED):
                raise Denied(Code.FAILED_PRECONDITION, f"job {name} is in state {states[name].name}; see gcr ps")
        return [name for name in names if states[name] is not there]

    def _now(self) -> tuple[Sequence[gcr.JobInfo], frozenset[str]]:
        """Returns the jobs, and those that an operation moves.

        The operations are read first: one that ends meanwhile is then seen too long, and never too short.
        """
        moving = self._operations.moving()
        try:
            return self._jobs.known(), moving
        except GcrError as error:
            raise Denied(Code.UNAVAILABLE, text_of(error)) from error

    def _begin(self, names: Sequence[str], act: Callable[[str], Sizes], undo: Callable[[str], Sizes]) -> str:
        try:
            return self._operations.begin(names, lambda: node.together(names, act, undo))
        except Busy:
            raise _busy(names) from None
        except Closed:
            raise Denied(Code.UNAVAILABLE, "the agent ends") from None


def _pids_of(request: Any) -> Sequence[int]:
    """Returns the pids that the request names; none where the job's name says all."""
    if not JOB_NAME.match(request.job_id):
        raise Denied(Code.INVALID_ARGUMENT, f"{request.job_id!r} is no job name of gcr: {JOB_NAME.pattern}")
    backend = request.backend_config.WhichOneof("backend")
    if backend in UNSUPPORTED:
        raise Denied(Code.UNIMPLEMENTED, UNSUPPORTED[backend])
    return list(getattr(request.backend_config, backend).explicit_target.pids) if backend else []


def _targets(jobs: Sequence[gcr.JobInfo], job_id: str, pids: Sequence[int]) -> list[str]:
    try:
        return node.targets(jobs, job_id, pids)
    except NoSuchJob as error:
        raise Denied(Code.NOT_FOUND, text_of(error)) from error
    except WrongState as error:
        raise Denied(Code.FAILED_PRECONDITION, text_of(error)) from error


def _busy(names: Sequence[str]) -> Denied:
    return Denied(Code.ABORTED, f"job {', '.join(names)} is already transitioning")


def listening(agent: Agent, host: str, port: int) -> tuple[grpc.Server, str]:
    """Returns a server that listens, and its address; port 0 is any free one. Raises PortInUse."""
    options = [("grpc.so_reuseport", 0)]  # else a second agent would listen at the same port
    server = grpc.server(ThreadPoolExecutor(CALLS), options=options, maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers(handlers(agent))
    shown = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{shown}:{port}")
    except RuntimeError as error:
        raise gcr.PortInUse(f"cannot listen at {shown}:{port}", hint="--listen with another address") from error
    server.start()
    return server, f"{shown}:{bound}"


def handlers(agent: Agent) -> tuple[grpc.GenericRpcHandler, ...]:
    """Returns both services, as a server of gRPC takes them."""
    calls = {
        "Snapshot": _call(agent.snapshot, "SnapshotRequest"),
        "Restore": _call(agent.restore, "RestoreRequest"),
        "GetOperation": _call(agent.get_operation, "GetOperationRequest"),
        "Status": _call(agent.status, "StatusRequest"),
        "WorkloadChannel": grpc.stream_stream_rpc_method_handler(_no_channel),
    }
    health = {"Check": _call(agent.check, "HealthCheckRequest")}
    return (
        grpc.method_handlers_generic_handler(AGENT_SERVICE, calls),
        grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
    )


def _call(answer: Callable[[Any], Any], request: str) -> grpc.RpcMethodHandler:
    def answered(asked: Any, context: grpc.ServicerContext) -> bytes:
        try:
            said: bytes = answer(asked).SerializeToString()
        except Denied as denied:
            log.info("%s: %s: %s", request, denied.code.name, denied.text)
            context.abort(denied.code, denied.text)
        return said

    return grpc.unary_unary_rpc_method_handler(answered, request_deserializer=MESSAGES[request].FromString)


def _no_channel(_requests: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
    context.abort(Code.UNIMPLEMENTED, NO_CHANNEL)
    raise AssertionError("abort raises")
