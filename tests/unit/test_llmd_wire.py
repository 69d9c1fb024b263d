"""The messages of gcr's agent for llm-d: their bytes, and their tables against llm-d's own modules.

GCR_LLMD_SOURCE names a checkout of llm-d-rl-time-slicing, whose Python client is in no package that CI installs.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

wire = pytest.importorskip("gcr_llmd.wire", reason="protobuf is not installed: make test")
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto  # noqa: E402

SOURCE = os.environ.get("GCR_LLMD_SOURCE", "")
PRINTS = """
import sys
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from timeslice.snapshot_agent import health_pb2, snapshot_agent_pb2
file = FileDescriptorProto()
{"agent": snapshot_agent_pb2, "health": health_pb2}[sys.argv[1]].DESCRIPTOR.CopyToProto(file)
sys.stdout.buffer.write(file.SerializeToString())
"""


def test_the_bytes_are_those_of_the_wire_format() -> None:
    config = wire.MESSAGES["BackendConfig"]()
    config.direct_memory.explicit_target.pids.extend([1, 300])
    asked = wire.MESSAGES["SnapshotRequest"](job_id="llm", backend_config=config)
    assert asked.SerializeToString() == b'\n\x03llm"\x09"\x07\n\x05\n\x03\x01\xac\x02'
    answer = wire.MESSAGES["GetOperationResponse"](status=2, storage_bytes=0, elapsed_ms=7)
    assert answer.SerializeToString() == b"\x08\x02\x10\x00\x20\x07"  # an optional field is sent where it is 0


def test_fields_that_are_not_known_are_skipped() -> None:
    asked = wire.MESSAGES["SnapshotRequest"].FromString(b"\n\x03llm\x12\x05group\x18\x01\xfa\x07\x02ok")
    assert asked.job_id == "llm"
    assert not asked.HasField("backend_config")
    config = wire.MESSAGES["BackendConfig"].FromString(b"\x12\x04\x08\x01\x12\x00")
    assert config.WhichOneof("backend") == "app_endpoint"


def theirs(which: str) -> FileDescriptorProto:
    if not SOURCE:
        pytest.skip("GCR_LLMD_SOURCE names no checkout of llm-d-rl-time-slicing")
    env = {**os.environ, "PYTHONPATH": str(Path(SOURCE) / "pkg/client/python")}
    done = subprocess.run([sys.executable, "-c", PRINTS, which], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return FileDescriptorProto.FromString(done.stdout)


def fields(file: FileDescriptorProto) -> dict[str, dict[str, Any]]:
    return {
        message.name: {each.name: facts(each, message.oneof_decl) for each in message.field}
        for message in file.message_type
    }


def facts(field: FieldDescriptorProto, oneofs: Any) -> tuple[Any, ...]:
    oneof = oneofs[field.oneof_index].name if field.HasField("oneof_index") else ""
    kind = "" if field.type == FieldDescriptorProto.TYPE_ENUM else field.type_name
    return field.number, field.type, field.label, kind, oneof, field.proto3_optional


@pytest.mark.parametrize("which", ["agent", "health"])
def test_the_tables_are_those_of_llm_d(which: str) -> None:
    package, table = {"agent": (wire.AGENT, wire.AGENT_MESSAGES), "health": (wire.HEALTH, wire.HEALTH_MESSAGES)}[which]
    real, ours = theirs(which), wire.described(package, table)
    assert (real.package, real.syntax) == (ours.package, ours.syntax)
    for name, found in fields(ours).items():
        known = fields(real)[name]
        assert {each: known.get(each) for each in found} == found, name
    nested = [each for message in real.message_type for each in message.enum_type]
    values = {each.name: {one.name: one.number for one in each.value} for each in [*real.enum_type, *nested]}
    for each in ours.enum_type:
        have = {one.name: one.number for one in each.value}
        assert {name: values[each.name].get(name) for name in have} == have


def test_the_methods_are_those_of_llm_d() -> None:
    from gcr_llmd.service import Agent, handlers

    (agent, health), served = handlers(Agent(jobs=None, operations=None)), {}  # type: ignore[arg-type]
    for which, handler, name in (("agent", agent, wire.AGENT_SERVICE), ("health", health, wire.HEALTH_SERVICE)):
        (service,) = theirs(which).service
        assert f"{theirs(which).package}.{service.name}" == handler.service_name() == name
        served[which] = {
            each.name
            for each in service.method
            if handler.service(type("Call", (), {"method": f"/{name}/{each.name}", "invocation_metadata": ()}))
        }
    assert served["agent"] == {each.name for each in theirs("agent").service[0].method}
    assert served["health"] == {"Check"}
