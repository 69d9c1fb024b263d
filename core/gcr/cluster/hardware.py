"""The devices and the driver of a node, as `gcr devices` and `gcr backends` tell them there.

They are asked as commands: the caller loads no vendor's library.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from gcr.errors import GcrError
from gcr.library.answers import asked

log = logging.getLogger(__name__)

LIMIT_S = 30.0
_DRIVERS = ("driver_branch", "runtime")  # checks of backends: their evidence has the driver's version


class Hardware(Struct, frozen=True):
    """`devices`: such as `8 x NVIDIA H200` · `drivers`: such as `driver 580.159.04`."""

    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


def found(environment: Mapping[str, str]) -> Hardware:
    """Returns what there is; nothing of what cannot be asked. `environment`: that of a user of this node."""

    def rows(command: str) -> Sequence[Mapping[str, Any]]:
        try:
            answer: Sequence[Mapping[str, Any]] = asked([command], LIMIT_S, environment, "/")[command]
            return answer
        except GcrError as error:
            log.warning("gcr %s: %s", command, error.message)
            return []

    with ThreadPoolExecutor(2, "gcr-hardware") as pool:
        devices, backends = pool.map(rows, ("devices", "backends"))
    return Hardware(_counted([row["name"] for row in devices]), _drivers(backends))


def _counted(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{count} x {name}" for name, count in sorted(Counter(names).items()))


def _drivers(backends: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    checks = [check for backend in backends for check in backend["capabilities"]]
    return tuple(sorted(check["evidence"] for check in checks if check["ok"] and check["name"] in _DRIVERS))
