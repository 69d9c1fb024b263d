"""The drain of a peer, once a test has opened a device."""

from gcr.backend import Backend
from gcr.drain import DataDrain


class Opened:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._drain: DataDrain | None = None

    def open(self, device: str) -> None:
        self._drain = self._backend.drain(device)

    @property
    def drain(self) -> DataDrain:
        assert self._drain is not None, "open a device first"
        return self._drain
