"""A command asks the daemon that stays: one that ends may take a connection more, and answers nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcr.errors import DaemonUnavailable, PeerGone
from gcr.protocol.seqpacket import listen
from gcr.rendezvous import client


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the socket's path. Waits for the threads of connections at the end: other tests count descriptors."""
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    before, end = threading.active_count(), time.monotonic() + 10
    yield tmp_path / "s"
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)


def test_a_connection_that_an_ending_daemon_took_is_made_again(path: Path) -> None:
    listener = listen(path)

    def end() -> None:
        for _ in range(2):
            listener.accept()[0].close()
        path.unlink()
        listener.close()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    with pytest.raises(DaemonUnavailable):  # no daemon listens any more; with `autostart` the next one is started
        client.Client.connect(autostart=False)
    ending.join(10)


def test_a_daemon_that_closes_every_connection_is_not_asked_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ENDING_S", 0.1)
    with listen(path) as listener:

        def refuse() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(PeerGone):
            client.Client.connect(autostart=False)
        listener.shutdown(2)
