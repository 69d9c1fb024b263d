"""Amounts of memory as people read them; reports and errors carry bytes beside the text."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes with a binary unit: `34.2 GiB`."""
    value, unit = float(count), 0
    while round(value, 1) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
