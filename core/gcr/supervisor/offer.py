"""The supervisor's services to its daemon: the escrow of its job's processes, its copy of the decision, and parking."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct, field

from gcr.errors import UnsupportedState
from gcr.memory.escrow import Escrow
from gcr.processes import ProcessIdentity, alive, identify
from gcr.protocol.channel import Request
from gcr.protocol.operations.operation import Answer, Dispatcher, Handler, Operation
from gcr.protocol.operations.supervisor import (
    Drop,
    Forget,
    Ids,
    KeptIds,
    Leave,
    Note,
    Noted,
    NotedText,
    Park,
    Put,
    Stage,
    Take,
    Unpark,
    Unstage,
    UnstageAll,
)
from gcr.supervisor.parking import Parking


def _stays() -> Answer:
    raise UnsupportedState("this supervisor keeps its connection")


class Offer(Struct):
    """`_kept`: the processes that the escrow may keep descriptors of.

    leave: answers the request, and then ends its connection for as long as a mark is there
    """

    escrow: Escrow
    parking: Parking = field(default_factory=Parking)
    leave: Callable[[Request], Answer] = lambda _request: _stays()
    _kept: dict[int, ProcessIdentity | None] = field(default_factory=dict)

    def operations(self) -> Dispatcher:
        """Returns the server of the operations."""
        escrow = self.escrow
        of_process: dict[type[Operation[Any]], Handler] = {
            Put: self._put,
            Drop: lambda asked, _fds, _request: escrow.drop(asked.pid, asked.ids),
            Ids: lambda asked, _fds, _request: Answer(KeptIds(tuple(escrow.ids(asked.pid)))),
            Take: lambda asked, _fds, _request: Answer(fds=escrow.take(asked.pid, asked.ids)),
            Stage: lambda asked, fds, _request: escrow.stage(asked.pid, fds, asked.offset),
            Unstage: lambda asked, _fds, _request: Answer(fds=escrow.unstage(asked.pid, asked.offset, asked.limit)),
            UnstageAll: lambda asked, _fds, _request: escrow.unstage_all(asked.pid),
            Forget: lambda asked, _fds, _request: escrow.forget(asked.pid),
        }
        of_job: dict[type[Operation[Any]], Handler] = {
            Note: lambda asked, _fds, _request: escrow.note(asked.text),
            Noted: lambda _asked, _fds, _request: Answer(NotedText(escrow.noted())),
            Park: lambda asked, _fds, _request: self.parking.park(asked),
            Leave: lambda _asked, _fds, request: self.leave(request),
            Unpark: lambda asked, _fds, request: self.parking.unpark(asked, request),
        }
        guarded = {kind: partial(self._for_the_living, handler) for kind, handler in of_process.items()}
        return Dispatcher("a supervisor", guarded | of_job)

    def forget_ended(self) -> None:
        """Closes the handles of processes that have ended. A daemon that knew may have died before it said so."""
        for pid in [*self._kept]:
            self._forget_former(pid)

    def _for_the_living(self, handler: Handler, asked: Any, fds: list[int], request: Request) -> Answer | None:
        self._forget_former(asked.pid)
        return handler(asked, fds, request)

    def _put(self, asked: Put, fds: list[int], _request: Request) -> None:
        self._kept.setdefault(asked.pid, identify(asked.pid))
        self.escrow.put(asked.pid, asked.ids, fds)

    def _forget_former(self, pid: int) -> None:
        """Closes the handles of an ended process; another process may have its pid by now.

        Its staged descriptors stay until the daemon has them closed, since other processes may hold some of its memory.
        """
        former = self._kept.get(pid)
        if former and not alive(former):
            self.escrow.drop(pid)
            del self._kept[pid]
