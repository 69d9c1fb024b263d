"""Messages of CRIU's RPC that gcr uses, and of files of its, with CRIU's own names and numbers of fields.

Source: images/rpc.proto, stats.proto, pagemap.proto, mm.proto, vma.proto, core.proto and rseq.proto of CRIU 4.2.
Either side leaves alone a field that is not listed here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache
from typing import Any

from msgspec import Struct

from gcr.errors import LibraryMissing

_FILE, _SCOPE = "gcr-criu.proto", "gcr_criu"
_OPTIONAL, _REQUIRED, _REPEATED = 1, 2, 3  # labels of descriptor.proto
_UINT64, _INT32, _BOOL, _STRING, _MESSAGE, _UINT32 = 4, 5, 8, 9, 11, 13  # its types


class RequestType(IntEnum):
    DUMP = 1
    RESTORE = 2
    CHECK = 3
    NOTIFY = 6
    FEATURE_CHECK = 9
    VERSION = 10


class CgroupMode(IntEnum):
    """`manage_cgroups_mode`. IGNORE: the restored processes are in the cgroups of the process that restores them."""

    IGNORE = 0


class NetworkLock(IntEnum):
    """`network_lock`: CRIU's way to keep packets from a connection that it saves."""

    IPTABLES = 1  # by the program of this name
    NFTABLES = 2  # by a library that CRIU is linked with


class Field(Struct, frozen=True):
    name: str
    number: int
    type: int
    label: int = _OPTIONAL
    message: str = ""  # its name, of type _MESSAGE


_MESSAGES: Mapping[str, Sequence[Field]] = {
    "inherit_fd": [Field("key", 1, _STRING, _REQUIRED), Field("fd", 2, _INT32, _REQUIRED)],
    "criu_opts": [
        Field("images_dir_fd", 1, _INT32, _REQUIRED),
        Field("pid", 2, _INT32),
        Field("tcp_established", 5, _BOOL),
        Field("shell_job", 7, _BOOL),
        Field("file_locks", 8, _BOOL),
        Field("log_level", 9, _INT32),
        Field("log_file", 10, _STRING),
        Field("notify_scripts", 12, _BOOL),
        Field("link_remap", 18, _BOOL),
        Field("rst_sibling", 26, _BOOL),
        Field("inherit_fd", 27, _MESSAGE, _REPEATED, "inherit_fd"),
        Field("manage_cgroups_mode", 34, _INT32),
        Field("ghost_limit", 35, _UINT32),
        Field("external", 37, _STRING, _REPEATED),
        Field("timeout", 45, _UINT32),
        Field("config_file", 51, _STRING),
        Field("tcp_close", 52, _BOOL),
        Field("network_lock", 64, _INT32),
    ],
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
        Field("notify_success", 3, _BOOL),
        Field("features", 5, _MESSAGE, message="criu_features"),
    ],
    "criu_restore_resp": [Field("pid", 1, _INT32, _REQUIRED)],
    "criu_notify": [Field("script", 1, _STRING), Field("pid", 2, _INT32)],
    "criu_resp": [
        Field("type", 1, _INT32, _REQUIRED),
        Field("success", 2, _BOOL, _REQUIRED),
        Field("restore", 4, _MESSAGE, message="criu_restore_resp"),
        Field("notify", 5, _MESSAGE, message="criu_notify"),
        Field("cr_errno", 7, _INT32),
        Field("features", 8, _MESSAGE, message="criu_features"),
        Field("cr_errmsg", 9, _STRING),
        Field("version", 10, _MESSAGE, message="criu_version"),
    ],
    "dump_stats_entry": [
        Field("freezing_time", 1, _UINT32, _REQUIRED),
        Field("frozen_time", 2, _UINT32, _REQUIRED),
        Field("memdump_time", 3, _UINT32, _REQUIRED),
        Field("memwrite_time", 4, _UINT32, _REQUIRED),
        Field("pages_scanned", 5, _UINT64, _REQUIRED),
        Field("pages_written", 7, _UINT64, _REQUIRED),
    ],
    "restore_stats_entry": [
        Field("forking_time", 3, _UINT32, _REQUIRED),
        Field("restore_time", 4, _UINT32, _REQUIRED),
        Field("pages_restored", 5, _UINT64),
    ],
    "pagemap_head": [Field("pages_id", 1, _UINT32, _REQUIRED)],
    "pagemap_entry": [
        Field("vaddr", 1, _UINT64, _REQUIRED),
        Field("compat_nr_pages", 2, _UINT32),
        Field("flags", 4, _UINT32),
        Field("nr_pages", 5, _UINT64),
    ],
    "vma_entry": [
        Field("start", 1, _UINT64, _REQUIRED),
        Field("end", 2, _UINT64, _REQUIRED),
        Field("flags", 6, _UINT32),
        Field("status", 7, _UINT32, _REQUIRED),
    ],
    "mm_entry": [Field("vmas", 14, _MESSAGE, _REPEATED, "vma_entry")],
    "rseq_entry": [
        Field("rseq_abi_pointer", 1, _UINT64, _REQUIRED),
        Field("rseq_abi_size", 2, _UINT32, _REQUIRED),
    ],
    "thread_core_entry": [Field("rseq_entry", 15, _MESSAGE, message="rseq_entry")],
    "core_entry": [Field("thread_core", 5, _MESSAGE, message="thread_core_entry")],
    "stats_entry": [
        Field("dump", 1, _MESSAGE, message="dump_stats_entry"),
        Field("restore", 2, _MESSAGE, message="restore_stats_entry"),
    ],
}


def load() -> None:
    """Loads what each of the others needs, once; it takes 15 ms. Raises LibraryMissing."""
    _classes()


def prepare() -> None:
    """Loads what each of the others needs; where that is missing, they say so."""
    with suppress(LibraryMissing):
        load()


def request(type: RequestType, **fields: Any) -> bytes:
    """Returns the bytes of a request. Raises LibraryMissing."""
    return bytes(_classes()["criu_req"](type=type, **fields).SerializeToString())


def response(payload: bytes) -> Any:
    """Returns the response that these bytes are. Raises LibraryMissing, ValueError for others."""
    return _parsed("criu_resp", payload, "a response")


def statistics(payload: bytes) -> Any:
    """Returns the entry of a file of statistics. Raises LibraryMissing, ValueError for other bytes."""
    return _parsed("stats_entry", payload, "statistics")


def pagemap_head(payload: bytes) -> Any:
    """Returns the first entry of a pagemap. Raises LibraryMissing, ValueError for other bytes."""
    return _parsed("pagemap_head", payload, "a pagemap's head")


def pagemap_entries(payloads: Iterable[bytes]) -> Sequence[Any]:
    """Returns the other entries of a pagemap, of which there may be thousands. Raises LibraryMissing, ValueError."""
    made = _classes()["pagemap_entry"]
    with _understood("an entry of a pagemap"):
        return [*map(made.FromString, payloads)]


def mm_entry(payload: bytes) -> Any:
    """Returns the entry of a file about a process's memory. Raises LibraryMissing, ValueError for other bytes."""
    return _parsed("mm_entry", payload, "an entry of a process's memory")


def core_entry(payload: bytes) -> Any:
    """Returns the entry of a file about a thread. Raises LibraryMissing, ValueError for other bytes."""
    return _parsed("core_entry", payload, "an entry of a thread")


def _parsed(name: str, payload: bytes, text: str) -> Any:
    found = _classes()[name]()
    with _understood(text):
        found.ParseFromString(payload)
    return found


@contextmanager
def _understood(text: str) -> Iterator[None]:
    """Raises ValueError for bytes that are none of `text`."""
    from google.protobuf.message import DecodeError

    try:
        yield
    except DecodeError as error:
        raise ValueError(f"this is not {text} of CRIU: {error}") from error


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
