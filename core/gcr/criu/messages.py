"""Messages of CRIU's RPC that gcr uses, with CRIU's own names and numbers of fields.

Source: images/rpc.proto of CRIU 4.1. A field that is not listed here is left alone by either side.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from msgspec import Struct

from gcr.errors import LibraryMissing

_FILE, _SCOPE = "gcr-criu.proto", "gcr_criu"
_OPTIONAL, _REQUIRED = 1, 2  # labels of descriptor.proto
_INT32, _BOOL, _STRING, _MESSAGE = 5, 8, 9, 11  # its types


class RequestType(IntEnum):
    CHECK = 3
    FEATURE_CHECK = 9
    VERSION = 10


class Field(Struct, frozen=True):
    name: str
    number: int
    type: int
    label: int = _OPTIONAL
    message: str = ""  # its name, of type _MESSAGE


_MESSAGES: Mapping[str, Sequence[Field]] = {
    "criu_opts": [Field("images_dir_fd", 1, _INT32, _REQUIRED), Field("log_level", 9, _INT32)],
    "criu_features": [
        Field("mem_track", 1, _BOOL),
        Field("lazy_pages", 2, _BOOL),
        Field("pidfd_store", 3, _BOOL),
    ],
    "criu_version": [
        Field("major_number", 1, _INT32, _REQUIRED),
        Field("minor_number", 2, _INT32, _REQUIRED),
        Field("sublevel", 4, _INT32),
    ],
    "criu_req": [
        Field("type", 1, _INT32, _REQUIRED),
        Field("opts", 2, _MESSAGE, message="criu_opts"),
        Field("features", 5, _MESSAGE, message="criu_features"),
    ],
    "criu_resp": [
        Field("type", 1, _INT32, _REQUIRED),
        Field("success", 2, _BOOL, _REQUIRED),
        Field("cr_errno", 7, _INT32),
        Field("features", 8, _MESSAGE, message="criu_features"),
        Field("cr_errmsg", 9, _STRING),
        Field("version", 10, _MESSAGE, message="criu_version"),
    ],
}


def request(type: RequestType, **fields: Any) -> bytes:
    """Returns the bytes of a request. Raises LibraryMissing."""
    return bytes(_classes()["criu_req"](type=type, **fields).SerializeToString())


def response(payload: bytes) -> Any:
    """Returns the response that these bytes are. Raises LibraryMissing, ValueError for others."""
    from google.protobuf.message import DecodeError

    found = _classes()["criu_resp"]()
    try:
        found.ParseFromString(payload)
    except DecodeError as error:
        raise ValueError(f"no response of CRIU: {error}") from error
    return found


@cache
def _classes() -> Mapping[str, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise LibraryMissing("protobuf is not installed", hint="pip install 'gpu-cr[process]'") from error
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=_SCOPE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each in fields:
            entry = message.field.add(name=each.name, number=each.number, type=each.type, label=each.label)
            if each.message:
                entry.type_name = f".{_SCOPE}.{each.message}"
    found = message_factory.GetMessages([file], pool=descriptor_pool.DescriptorPool())
    return {name: found[f"{_SCOPE}.{name}"] for name in _MESSAGES}
