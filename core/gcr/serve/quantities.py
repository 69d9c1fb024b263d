"""Durations and sizes as a configuration writes them: "5m", "1.5h", "32GiB"; plain numbers are seconds and bytes."""

import math
import re

_QUANTITY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s?([a-zA-Z]*)\Z")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MOST_SECONDS = 365 * 86400.0
MOST_BYTES = 1 << 50


def seconds(value: object) -> float:
    """Raises ValueError for anything else than a time of at most a year."""
    found = _number(value, _SECONDS, "a duration such as 30s, 5m or 1h")
    if found > MOST_SECONDS:
        raise ValueError(f"{value!r} is longer than a year")
    return found


def size(value: object) -> int:
    """Raises ValueError for anything else than a number of bytes, at most a PiB."""
    found = _number(value, _BYTES, "a size such as 512MiB or 32GiB")
    if found > MOST_BYTES:
        raise ValueError(f"{value!r} is more than a PiB")
    return int(found)


def _number(value: object, units: dict[str, int] | dict[str, float], wanted: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value >= 0 and math.isfinite(value):
            return float(value)
    elif isinstance(value, str) and (match := _QUANTITY.match(value)) and match[2] in units:
        return float(match[1]) * units[match[2]]
    raise ValueError(f"{value!r} is not {wanted}")
