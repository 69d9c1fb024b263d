"""Started by gcrd: `python -m gcr.control_helper BACKEND FD`. Ends when the daemon's socket closes."""

import gcr.starting

# isort: split
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from functools import cached_property

from gcr.backend import Backend
from gcr.control import ControlState, MovesProcesses, NamesHolders, ProcessView, TellsReach
from gcr.errors import GcrError, UnsupportedState
from gcr.plugins import asked, load_backend
from gcr.protocol.channel import Channel, Request
from gcr.protocol.operations import control as ops
from gcr.protocol.operations.operation import Answer, Dispatcher
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()

log = logging.getLogger("gcr.control")


class ControlService:
    """Answers the daemon's control calls; each runs on a thread of its own, so one stuck call stops no other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = threading.Lock()
        self._started: ControlState | None = None
        with contextlib.suppress(GcrError):  # the caller is told
            self._control  # noqa: B018  # the driver's start must not be on the critical path

    @cached_property
    def _backend(self) -> Backend:
        return load_backend(self._name)

    @property
    def _control(self) -> ControlState:
        """Tried again at each request until it works. Raises BackendMissing."""
        with self._starting:
            if self._started is None:
                self._started = asked(self._name, self._backend.control)
            return self._started

    def serve(self, request: Request) -> None:
        asked(self._name, lambda: self._operations.serve(request))

    @cached_property
    def _operations(self) -> Dispatcher:
        return Dispatcher(
            "a control helper",
            {
                ops.Ready: lambda _asked, _fds, _request: None,
                ops.Devices: lambda _asked, _fds, _request: Answer(ops.DevicesSeen(tuple(self._backend.devices()))),
                ops.Means: lambda _asked, _fds, _request: Answer(ops.MeansUsed(self._control.means)),
                ops.Holders: lambda asked, _fds, _request: Answer(self._holders(asked.device)),
                ops.CheckMove: lambda asked, _fds, _request: self._check_move(asked.devices),
                ops.Reaches: lambda asked, _fds, _request: Answer(self._reaches(asked.device, asked.peer)),
                ops.Phase: lambda asked, _fds, _request: Answer(ops.PhaseSeen(self._control.phase(asked.pid))),
                ops.Inspect: lambda asked, _fds, _request: Answer(inspected(self._control.inspect(asked.pid))),
                ops.Lock: lambda asked, _fds, _request: self._control.lock(asked.pid, asked.deadline),
                ops.Checkpoint: lambda asked, _fds, _request: self._control.checkpoint(asked.pid, asked.deadline),
                ops.Restore: lambda asked, _fds, _request: self._control.restore(
                    asked.pid, asked.devices, asked.deadline
                ),
                ops.Unlock: lambda asked, _fds, _request: self._control.unlock(asked.pid, asked.deadline),
            },
        )

    def _holders(self, device: str) -> ops.HoldersFound:
        """Returns none where the driver does not tell."""
        control = self._control
        return ops.HoldersFound(dict(control.holders(device)) if isinstance(control, NamesHolders) else {})

    def _check_move(self, devices: Mapping[str, str]) -> None:
        control = self._control
        if not isinstance(control, MovesProcesses):
            text = f"backend {self._name} brings processes back on the devices that they left, and on no others"
            raise UnsupportedState(text, hint="gcr restore without --device")
        control.check_move(devices)

    def _reaches(self, device: str, peer: str) -> ops.ReachFound:
        """Returns True where the vendor does not tell: its driver refuses what it cannot do."""
        control = self._control
        return ops.ReachFound(control.reaches(device, peer) if isinstance(control, TellsReach) else True)


def inspected(view: ProcessView) -> ops.Inspected:
    return ops.Inspected(view.phase, dict(view.bytes_by_device), tuple(view.refusals))


def main(argv: list[str]) -> int:
    backend_name, fd = argv[0], int(argv[1])
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s control %(message)s")
    service = ControlService(backend_name)
    over = threading.Event()
    Channel(
        socket.socket(fileno=fd), service.serve, on_close=lambda _channel: over.set(), name="gcrd", bounds=COORDINATOR
    ).start()
    over.wait()
    os._exit(0)  # a driver call that never returns must not keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
