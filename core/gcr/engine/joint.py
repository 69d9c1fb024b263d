"""Device memory that processes of one job share: each piece that a process holds of another, and its owner.

A pure function of reports. The bytes belong to the owner alone. Memory that another process holds comes back to that
process from the descriptors of its owner (engine/lending.py), so the owner must take part in whatever it does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from gcr.errors import OwnerEnded, UnsupportedState
from gcr.peers.shares import Foreign, Lent, Shares

HINT = "docs/limitations.md#memory-that-processes-share"
ORPHANED = "docs/limitations.md#orphaned"


class Party(Struct, frozen=True):
    """One process of the job. `sizes`: bytes of its own handles by id; None while its own list is not known."""

    pid: int
    shares: Shares
    sizes: Mapping[int, int] | None = None


class Located(Struct, frozen=True):
    """A process under gcr that takes no part: of another job, about to end, or ended."""

    job: str
    pid: int
    ended: bool = False


Locate = Callable[[int, int], Located | None]
"""Returns a process by its name or, where no process has the name, by its pid. Called for a refusal alone."""


class Borrowed(Struct, frozen=True):
    """One foreign handle of a process: its id, its owner's pid, and its owner's id of it."""

    id: int
    owner: int
    there: int


class Joint(Struct, frozen=True):
    """The foreign handles of all processes of a job, by the pid of their holder."""

    borrowed: Mapping[int, Sequence[Borrowed]] = field(default_factory=dict)

    def of(self, pid: int) -> Sequence[Borrowed]:
        """Returns the foreign handles of a process."""
        return self.borrowed.get(pid, ())

    @property
    def lent(self) -> Mapping[int, Sequence[int]]:
        """Returns, by the pid of their owner, the ids of handles that other processes of the job hold, ascending."""
        found: dict[int, set[int]] = {}
        for held in self.borrowed.values():
            for each in held:
                found.setdefault(each.owner, set()).add(each.there)
        return {pid: sorted(ids) for pid, ids in found.items()}

    def holders(self, pid: int) -> tuple[int, ...]:
        """Returns the pids of the processes that hold memory of this one, ascending."""
        return tuple(sorted(one for one, held in self.borrowed.items() if any(each.owner == pid for each in held)))

    def shares(self, pid: int) -> bool:
        return pid in self.borrowed or pid in self.lent

    def groups(self, pids: Sequence[int]) -> list[list[int]]:
        """Returns the pids in groups that share nothing with each other, in their order."""
        group = {pid: [pid] for pid in pids}
        for holder, held in self.borrowed.items():
            for owner in {each.owner for each in held}:
                if holder in group and owner in group and group[holder] is not group[owner]:
                    _merge(group, group[holder], group[owner])
        unique = {id(each): each for each in group.values()}
        return [sorted(each, key=pids.index) for each in unique.values()]


def _merge(group: dict[int, list[int]], one: list[int], other: list[int]) -> None:
    one.extend(other)
    group.update(dict.fromkeys(other, one))


def join(parties: Sequence[Party], locate: Locate, ended: Sequence[int] = ()) -> Joint:
    """Returns the owner of each foreign handle, once nothing speaks against the job's leaving or coming back.

    ended: pids of processes of the job that have ended while it was suspended, and of which nothing is kept.
    Raises UnsupportedState, or OwnerEnded where it can only be one of these that owned the memory.
    """
    names = _by_name(parties)
    for party in parties:
        for foreign in party.shares.foreign:
            _check_foreign(party, foreign, names.get(foreign.owner), locate, ended)
        for lent in party.shares.lent:
            if lent.borrower not in names:
                raise _lent_elsewhere(party, lent, locate)
    return owners(parties)


def owners(parties: Sequence[Party]) -> Joint:
    """Returns the owner of each foreign handle that has its owner among the parties; checks nothing."""
    names = _by_name(parties)
    found = {party.pid: tuple(_found(party, names)) for party in parties}
    return Joint({pid: held for pid, held in found.items() if held})


def _found(party: Party, names: Mapping[int, Party]) -> Iterator[Borrowed]:
    for each in party.shares.foreign:
        if owner := names.get(each.owner):
            yield Borrowed(each.id, owner.pid, each.there)


def _by_name(parties: Sequence[Party]) -> dict[int, Party]:
    return {party.shares.process: party for party in parties if party.shares.process}


def _check_foreign(party: Party, foreign: Foreign, owner: Party | None, locate: Locate, ended: Sequence[int]) -> None:
    held = f"process {party.pid} holds {_mib(foreign.size)} of device memory of"
    if owner is None:
        raise _without_owner(held, locate(foreign.owner, 0), ended)
    if owner.sizes is None:
        return
    size = owner.sizes.get(foreign.there)
    if size is None:
        raise UnsupportedState(f"{held} process {owner.pid}, which has freed it", hint=HINT)
    if size != foreign.size:
        raise UnsupportedState(f"{held} process {owner.pid}, which reports {_mib(size)}", hint=HINT)


def _without_owner(held: str, there: Located | None, ended: Sequence[int]) -> UnsupportedState | OwnerEnded:
    if there and not there.ended:
        return UnsupportedState(f"{held} {_elsewhere(there)}", hint=HINT)
    if ended:
        which = " or ".join(map(str, ended))
        text = f"{held} process {which}, which has ended while the job was suspended, and no process keeps its bytes"
        return OwnerEnded(text, hint=HINT)
    which = f"process {there.pid}, which has ended" if there else "a process that has ended, or is outside of gcr"
    return UnsupportedState(f"{held} {which}", hint=ORPHANED)


def _lent_elsewhere(party: Party, lent: Lent, locate: Locate) -> UnsupportedState:
    there = locate(lent.borrower, lent.pid)
    outside = f"process {lent.pid}, outside of gcr" if lent.pid else "a process outside of gcr that it does not see"
    which = _elsewhere(there) if there else outside
    return UnsupportedState(f"process {party.pid} lends device memory to {which}", hint=HINT)


def _elsewhere(there: Located) -> str:
    return f"process {there.pid} of job {there.job}, which {'has ended' if there.ended else 'takes no part'}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
