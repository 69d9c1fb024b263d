"""An agent obeys a daemon of its own user, of root, or of the user that GCR_DAEMON_UID names; no other hears a word."""

import os
import queue
import socket

import pytest

OTHER = 65501


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("listener", "setting", "obeyed"),
    [
        (OTHER, None, False),
        (OTHER, str(OTHER), True),
        (OTHER, str(OTHER + 1), False),
        (OTHER, f"{OTHER} ", False),
        (OTHER, str((1 << 64) + OTHER), False),
        (0, None, True),
    ],
)
def test_the_daemon_is_the_one_that_the_kernel_names(machine, monkeypatch, listener, setting, obeyed):
    if setting is not None:
        machine.settings["GCR_DAEMON_UID"] = setting
    machine.folder.chmod(0o777)
    listen = socket.socket.listen

    def listen_as_another(self, backlog):
        os.seteuid(listener)
        try:
            listen(self, backlog)
        finally:
            os.seteuid(0)

    monkeypatch.setattr(socket.socket, "listen", listen_as_another)
    machine.listen()
    puppet = machine.ready()
    puppet.must("alloc a 0x200000")
    if obeyed:
        assert machine.daemon.accept().status()
    else:
        with pytest.raises(queue.Empty):
            machine.daemon.accept(0.5)
    puppet.must("free a")
    assert puppet.end() == 0
