"""Memory that processes of a job share: looked at, joined, and given back to those that hold it of another.

It is in no worker's and no keeper's care under the name of its holder: its descriptors are those of its owner.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from gcr.engine.batches import consume
from gcr.engine.joint import Borrowed, Joint, Party, join
from gcr.engine.node import Node
from gcr.engine.target import Target
from gcr.errors import GcrError, PeerGone, UnsupportedState
from gcr.job.decisions import ProcessDecision
from gcr.protocol.batches import batches
from gcr.protocol.wire import AgentPhase

log = logging.getLogger("gcr.engine")

Holder = tuple[Callable[[], Iterable[int]], Callable[[Sequence[int]], list[int]]]
"""The ids that one process holds of an owner's memory, and descriptors of some of them, which are the caller's."""


def join_ahead(targets: Sequence[Target], node: Node) -> None:
    """Joins what processes share while they run. What one holds its owner may have freed once that is asked.

    Raises UnsupportedState where memory is shared with a process that takes no part.
    """
    _join_to_leave(targets, node, lambda _: None)


def join_to_leave(targets: Sequence[Target], node: Node) -> None:
    """Joins the books of processes that stand still.

    Raises UnsupportedState where memory is shared with a process that takes no part, or cannot be given back.
    """
    _join_to_leave(targets, node, _sizes)


def _join_to_leave(targets: Sequence[Target], node: Node, sizes: Callable[[Target], Mapping[int, int] | None]) -> None:
    _note(targets, Joint())
    if not any(target.shares.any for target in targets):
        return
    _note(targets, join([Party(each.pid, each.shares, sizes(each)) for each in targets], node.locate))
    for target in targets:
        if target.process.copied_out:
            refuse_its_own_copy(target, joint_of(targets))


def _note(targets: Sequence[Target], joint: Joint) -> None:
    for target in targets:
        target.borrowed = joint.of(target.pid)


def joint_of(targets: Sequence[Target]) -> Joint:
    """Returns what the targets hold of each other, as it was joined last."""
    return Joint({target.pid: target.borrowed for target in targets if target.borrowed})


def _sizes(target: Target) -> dict[int, int]:
    """Returns the bytes of a process's own handles by id, from its closed books."""
    return {id: each.spec.size for id, each in target.books.table.allocations.items()}


def join_to_return(targets: Sequence[Target], orphaned: Sequence[Target], node: Node, ended: Sequence[int]) -> Joint:
    """Joins suspended processes, once their shares were read. Returns what they hold of each other.

    orphaned: processes that have ended meanwhile, of which memory is kept · ended: pids of the others that have.
    Raises OwnerEnded, UnsupportedState where memory has no owner among these.
    """
    if any(target.shares.foreign for target in targets):
        parties = [party_of(each) for each in (*targets, *orphaned)]
        _note(targets, join(parties, node.locate, ended))
    return joint_of(targets)


def party_of(target: Target) -> Party:
    """Returns a process with the memory of others that it holds. Its own was compared before it left."""
    return Party(target.pid, target.shares.borrowed)


def lent(known: ProcessDecision, target: Target, joint: Joint) -> ProcessDecision:
    """Returns what is decided of a process, with those that hold memory of it: it may end before they come back."""
    holders = joint.holders(target.pid)
    return replace(known, shared_as=target.shares.process, lent_to=holders) if holders else known


def refuse_its_own_copy(target: Target, joint: Joint) -> None:
    """Raises UnsupportedState where a process that makes its memory by itself shares memory: no other could import it.

    Also the reverse: such a process takes no memory in.
    """
    if joint.shares(target.pid):
        text = f"no worker of gcr can hold the memory of process {target.pid}, which it shares with another process"
        raise UnsupportedState(text, hint="is there room for one more context on its device?")


def spare_lent(targets: Sequence[Target]) -> None:
    """Makes the daemon keep spare descriptors of all memory that others hold, also of what came back earlier.

    The owner may die before the decision. Its keeper and its workers let go of its memory at once then.
    Raises PeerGone.
    """
    by_pid = {target.pid: target for target in targets}
    for pid, lent in joint_of(targets).lent.items():
        spare = by_pid[pid].spare
        spared = set(spare.ids(pid))
        for ids, fds in found(by_pid[pid], [id for id in lent if id not in spared]):
            consume(fds, partial(spare.put, pid, ids))


def give_foreign(target: Target, owners: Mapping[int, Target]) -> None:
    """Gives a process the memory of others that it handed over, once their owners have theirs back.

    owners: by pid; one that has died is asked for its descriptors as well. Raises PeerGone where none has them.
    """
    missing = [each for each in target.borrowed if each.id not in target.imports.given_back]
    if not missing or target.phase() != AgentPhase.HANDED_OVER:
        return
    for pid in sorted({each.owner for each in missing}):
        _give_of(target, owners[pid], [each for each in missing if each.owner == pid])


def _give_of(target: Target, owner: Target, borrowed: Sequence[Borrowed]) -> None:
    own = {each.there: each.id for each in borrowed}
    for ids, fds in found(owner, sorted(own)):
        consume(fds, partial(target.imports.take_foreign, [own[id] for id in ids]))


def found(owner: Target, ids: Sequence[int]) -> Iterator[tuple[Sequence[int], list[int]]]:
    """Yields all of `ids`, in batches, with descriptors, which are the caller's. Raises PeerGone where one has none."""
    left = set(ids)
    for held, take in _holders(owner):
        if not left:
            return
        for batch, fds in _taken(owner, left, held, take):
            left.difference_update(batch)
            yield batch, fds
    if left:
        raise PeerGone(f"no process holds {len(left)} handles of process {owner.pid} any more that others hold as well")


def _holders(owner: Target) -> Iterator[Holder]:
    for keeper in (owner.spare, owner.keeper()):
        yield partial(keeper.ids, owner.pid), partial(keeper.take, owner.pid)
    for worker in owner.workers():
        yield partial(worker.handles.held, owner.hold), partial(worker.handles.export, owner.hold)


def _taken(
    owner: Target,
    wanted: set[int],
    held: Callable[[], Iterable[int]],
    take: Callable[[Sequence[int]], list[int]],
) -> Iterator[tuple[Sequence[int], list[int]]]:
    """Yields what one holder has; nothing more of a holder that fails, since another may have the same."""
    try:
        parts = [part for _, part in batches(sorted(wanted.intersection(held())), owner.node.config.batch)]
        for part in parts:
            yield part, take(part)
    except GcrError as error:
        log.warning("job %s: memory of process %d: %s", owner.process.job, owner.pid, error)
