"""A daemon that looks after its own place."""

from types import SimpleNamespace

import pytest

from gcr.daemon.jobs import Jobs
from gcr.daemon.keeping import Keeping
from gcr.daemon.seat import SeatTaken


class Records:
    def __init__(self):
        self.mended = 0

    def mend(self):
        self.mended += 1


def keeping(failure):
    def keep():
        raise failure

    journal, presence, stopped = Records(), Records(), []
    server = SimpleNamespace(
        coordinator=SimpleNamespace(journal=journal, jobs=Jobs()),
        presence=presence,
        stop_when_idle=lambda: stopped.append(True),
    )
    return Keeping(SimpleNamespace(keep=keep, path="s"), server), journal, presence, stopped


def test_decisions_are_written_again_while_the_runtime_directory_cannot_be_made(caplog):
    here, journal, presence, stopped = keeping(PermissionError(13, "Permission denied", "/run/user/1000"))
    here.look()
    here.look()
    assert (journal.mended, presence.mended, stopped) == (2, 2, [])
    assert [record.message for record in caplog.records] == [
        "nothing leads here just now: [Errno 13] Permission denied: '/run/user/1000'"
    ]


@pytest.mark.parametrize("times", [1, 3])
def test_another_daemon_s_records_are_left_alone(times):
    here, journal, presence, stopped = keeping(SeatTaken("another daemon has locked it"))
    for _ in range(times):
        here.look()
    assert (journal.mended, presence.mended, len(stopped)) == (0, 0, times)
