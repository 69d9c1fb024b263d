"""Checks of the values that requests are made of. Each raises UsageError."""

import re
from collections.abc import Sequence

from gcr.errors import UsageError
from gcr.names import BACKEND_NAME, JOB_NAME

MOST_SECONDS = 86400.0


def check_seconds(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= MOST_SECONDS):
        raise UsageError(f"{timeout!r} is no time in seconds, of a day at most")


def check_name(name: str | None) -> None:
    if name is not None and not (isinstance(name, str) and JOB_NAME.match(name)):
        raise UsageError(f"{name!r} is no job name: {JOB_NAME.pattern}")


def checked_target(target: str | int) -> str | int:
    """A job's name, or a pid."""
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise UsageError(f"{target!r} is neither a job's name nor a pid")
    if isinstance(target, str):
        check_name(target)
    return target


def check_backend(name: str | None) -> None:
    if name is not None and not (isinstance(name, str) and BACKEND_NAME.match(name)):
        raise UsageError(f"{name!r} is no name of a vendor", hint="gcr backends")


ALLOWED = ("file-locks", "tcp-close", "tcp-established")  # what CRIU does only where it is asked to


def check_allowed(allow: Sequence[str]) -> None:
    """Raises UsageError for what CRIU cannot be allowed."""
    if unknown := sorted({*allow}.difference(ALLOWED)):
        raise UsageError(f"{unknown[0]!r} is none of {', '.join(ALLOWED)}")
    if {"tcp-close", "tcp-established"} <= {*allow}:
        raise UsageError("a connection is kept or closed, not both: tcp-established or tcp-close")


def check_image_name(name: str) -> None:
    if not isinstance(name, str) or not JOB_NAME.match(name):
        raise UsageError(f"{name!r} is no name of an image: {JOB_NAME.pattern}")


def check_waited_for(wait: str) -> None:
    if wait not in ("vram", "durable"):
        raise UsageError(f'{wait!r} is nothing that can be waited for: "vram" or "durable"')


def check_rate(max_bytes_per_s: float | None) -> None:
    if max_bytes_per_s is not None and not (isinstance(max_bytes_per_s, int | float) and max_bytes_per_s >= 1):
        raise UsageError(f"{max_bytes_per_s!r} is no rate in bytes a second")


CUT_ID = re.compile(r"[0-9a-f]{32}\Z")


def check_cut(cut: str | None) -> None:
    if cut is not None and not (isinstance(cut, str) and CUT_ID.match(cut)):
        raise UsageError(f"{cut!r} is no id of a cut, of 32 hexadecimal digits")


def check_migration(migration: str) -> None:
    if not isinstance(migration, str) or not CUT_ID.match(migration):
        raise UsageError(f"{migration!r} is no id of a migration, of 32 hexadecimal digits")


MOST_SPANS = 1 << 20
_ADDRESSES = 1 << 64


def check_spans(spans: Sequence[tuple[int, int]], in_place: Sequence[int] = ()) -> None:
    """Raises UsageError unless these are addresses, each with a number of bytes, and numbers of some of them."""
    if not 0 < len(spans) <= MOST_SPANS:
        raise UsageError(f"{len(spans)} spans of memory: 1 to {MOST_SPANS} can be saved at a time")
    for address, size in spans:
        if not (0 <= address < _ADDRESSES and 0 < size <= _ADDRESSES - address):
            raise UsageError(f"{size} bytes at {address:#x} are no span of memory")
    for number in in_place:
        if not 0 <= number < len(spans):
            raise UsageError(f"{number} is the number of no span, of {len(spans)}")
