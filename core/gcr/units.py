"""Amounts of memory and spans of time as people read them; reports and errors carry numbers beside the text."""

from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes with a binary unit: `34.2 GiB`."""
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """The largest unit alone: `45s`, `3m`, `2h`, `5d`."""
    value = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= length:
            return f"{value // length}{unit}"
    return f"{value}s"


def moment(seconds: float) -> str:
    """Seconds since the epoch as reports have them: ISO 8601, to the second, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def since(moment: str) -> float:
    """Seconds from such a moment until now."""
    return datetime.now(UTC).timestamp() - datetime.fromisoformat(moment).timestamp()


def dashed(raw: bytes) -> str:
    """Sixteen bytes as a UUID is written. Raises ValueError for another number of bytes."""
    if len(raw) != 16:
        raise ValueError(f"a UUID has 16 bytes, not {len(raw)}")
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
