"""Messages of llm-d's SnapshotAgentService and of gRPC's health check, as far as this agent reads and writes them.

They are made from the tables below, in a pool of their own: a program may load llm-d's modules beside them. A field
that the tables leave out is skipped like any that protobuf does not know. tests/unit/test_llmd_wire.py holds the
tables against llm-d's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

AGENT, HEALTH = "snapshot_agent.v1alpha1", "grpc.health.v1"
AGENT_SERVICE, HEALTH_SERVICE = f"{AGENT}.SnapshotAgentService", f"{HEALTH}.Health"

INT32, INT64 = FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_INT64
STRING = FieldDescriptorProto.TYPE_STRING


class OperationStatus(IntEnum):
    OPERATION_STATUS_UNSPECIFIED = 0
    OPERATION_STATUS_PENDING = 1
    OPERATION_STATUS_COMPLETE = 2
    OPERATION_STATUS_FAILED = 3


class JobState(IntEnum):
    JOB_STATE_UNSPECIFIED = 0
    JOB_STATE_IDLE = 1
    JOB_STATE_RUNNING = 2
    JOB_STATE_TRANSITIONING = 3
    JOB_STATE_SAVED = 4
    JOB_STATE_FAULTED = 5


class ServingStatus(IntEnum):
    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. `kind`: a scalar of protobuf, an enumeration, or the name of a message of its table."""

    name: str
    number: int
    kind: int | str | type[IntEnum]
    repeated: bool = False
    optional: bool = False
    oneof: str = ""


Table = Mapping[str, Sequence[Field]]

_ASKED = (Field("job_id", 1, STRING), Field("backend_config", 4, "BackendConfig"))
_BEGUN = (Field("operation_id", 1, STRING),)
_PIDS = (Field("explicit_target", 1, "ProcessTarget"),)

AGENT_MESSAGES: Table = {
    "ProcessTarget": [Field("pids", 1, INT32, repeated=True)],
    "CudaBackendConfig": _PIDS,
    "AppEndpointConfig": [],
    "AppChannelConfig": [],
    "DirectMemoryBackendConfig": _PIDS,
    "MemoryRegionsBackendConfig": [],
    "BackendConfig": [
        Field("cuda", 1, "CudaBackendConfig", oneof="backend"),
        Field("app_endpoint", 2, "AppEndpointConfig", oneof="backend"),
        Field("app_channel", 3, "AppChannelConfig", oneof="backend"),
        Field("direct_memory", 4, "DirectMemoryBackendConfig", oneof="backend"),
        Field("memory_regions", 5, "MemoryRegionsBackendConfig", oneof="backend"),
    ],
    "SnapshotRequest": _ASKED,
    "SnapshotResponse": _BEGUN,
    "RestoreRequest": _ASKED,
    "RestoreResponse": _BEGUN,
    "GetOperationRequest": _BEGUN,
    "GetOperationResponse": [
        Field("status", 1, OperationStatus),
        Field("storage_bytes", 2, INT64, optional=True),
        Field("snapshot_device_bytes", 3, INT64, optional=True),
        Field("elapsed_ms", 4, INT64),
        Field("error", 5, STRING, optional=True),
    ],
    "StatusRequest": [],
    "JobStatus": [Field("job_id", 1, STRING), Field("state", 2, JobState)],
    "AcceleratorStatus": [
        Field("id", 1, STRING),
        Field("memory_used_bytes", 2, INT64),
        Field("memory_total_bytes", 3, INT64),
    ],
    "StatusResponse": [
        Field("job_statuses", 1, "JobStatus", repeated=True),
        Field("accelerator_statuses", 2, "AcceleratorStatus", repeated=True),
    ],
}
HEALTH_MESSAGES: Table = {
    "HealthCheckRequest": [Field("service", 1, STRING)],
    "HealthCheckResponse": [Field("status", 1, ServingStatus)],
}


def described(package: str, table: Table) -> FileDescriptorProto:
    """Returns the description of a package's messages, in protobuf's own terms."""
    file = FileDescriptorProto(name=f"gcr/{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, field, package)
    kinds = {field.kind for fields in table.values() for field in fields}
    for kind in sorted((kind for kind in kinds if isinstance(kind, type)), key=str):
        values = file.enum_type.add(name=kind.__name__).value
        for each in kind:
            values.add(name=each.name, number=each.value)
    return file


def _add(message: DescriptorProto, field: Field, package: str) -> None:
    label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
    made = message.field.add(name=field.name, number=field.number, label=label)
    if isinstance(field.kind, type):
        made.type, made.type_name = FieldDescriptorProto.TYPE_ENUM, f".{package}.{field.kind.__name__}"
    elif isinstance(field.kind, str):
        made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{field.kind}"
    else:
        made.type = field.kind  # type: ignore[assignment]
    if choice := field.oneof or (f"_{field.name}" if field.optional else ""):
        if choice not in (names := [each.name for each in message.oneof_decl]):
            message.oneof_decl.add(name=choice)
            names.append(choice)
        made.oneof_index = names.index(choice)
        made.proto3_optional = field.optional


def _classes(package: str, table: Table) -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(described(package, table).SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


MESSAGES = {**_classes(AGENT, AGENT_MESSAGES), **_classes(HEALTH, HEALTH_MESSAGES)}
"""The class of each message, by its name."""
