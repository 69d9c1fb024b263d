"""Devices that read and write memory of another device, and whether they still reach it after a move.

A pure function of the tables with which processes left, and of what their agents say of shared memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.engine.joint import Borrowed
from gcr.job.moves import Moves
from gcr.memory.layout import SealedTable
from gcr.peers.shares import Foreign


class Use(Struct, frozen=True):
    """Memory of process `owner` on `home`, which `device` uses in process `pid`. Devices by UUID, as the job left."""

    pid: int
    owner: int
    home: str
    device: str

    def after(self, moves: Moves) -> "Use":
        return Use(self.pid, self.owner, moves.get(self.home, self.home), moves.get(self.device, self.device))


Reaches = Callable[[str, str], bool]
"""Tells whether work on the first device reaches memory of the second."""


def parted(uses: Iterable[Use], moves: Moves, reaches: Reaches) -> Use | None:
    """Returns a use that the moves make impossible, with its new devices. Asks about each new pair once."""
    known: dict[tuple[str, str], bool] = {}
    for use in uses:
        then = use.after(moves)
        pair = then.device, then.home
        if then == use or then.device == then.home:
            continue
        if pair not in known:
            known[pair] = reaches(*pair)
        if not known[pair]:
            return then
    return None


def own_uses(pid: int, tables: Iterable[SealedTable]) -> Iterator[Use]:
    """Yields the uses of a process's own memory."""
    for table in tables:
        homes = {each.spec.id: each.device for each in table.handles}
        for mapping in table.mappings:
            if home := homes.get(mapping.id):
                for device in _devices(mapping.read_devices | mapping.write_devices, table.ordinals):
                    yield Use(pid, pid, home, device)


def foreign_uses(
    pid: int, foreign: Iterable[Foreign], borrowed: Sequence[Borrowed], ordinals: Mapping[int, str]
) -> Iterator[Use]:
    """Yields the uses of memory of others. ordinals: UUIDs by the ordinals of the process."""
    owners = {each.id: each.owner for each in borrowed}
    for each in foreign:
        if home := ordinals.get(each.device):
            for device in _devices(each.devices, ordinals):
                yield Use(pid, owners[each.id], home, device)


def _devices(mask: int, ordinals: Mapping[int, str]) -> Iterator[str]:
    return (device for ordinal, device in ordinals.items() if mask >> ordinal & 1)
