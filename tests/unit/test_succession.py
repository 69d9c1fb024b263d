"""The hand-over of a daemon to one of another version."""

import random
import threading
from types import SimpleNamespace

import pytest

from gcr.api.requests import HandOverRequest
from gcr.daemon.clientdesk import ClientDesk
from gcr.daemon.permission import Caller
from gcr.daemon.server import Server
from gcr.errors import DaemonUnavailable, PeerGone, WrongState, WrongVersion
from gcr.rendezvous.succession import order

NEWCOMER = {"version": "9.9", "wire": 3}


def server(oldest=1, newest=3, busy=False, settled=True):
    peer = SimpleNamespace(hello=SimpleNamespace(oldest=oldest, newest=newest), identity=SimpleNamespace(pid=7))
    event = threading.Event()
    if settled:
        event.set()
    turn = SimpleNamespace(settled=event)
    job = SimpleNamespace(name="llm", living=[SimpleNamespace(peer=peer)], busy=busy, turn=turn)
    jobs = SimpleNamespace(all=lambda: [job], awaited=None)
    presence = SimpleNamespace(come=None, gone=None, awaited=None)
    node = SimpleNamespace(jobs=jobs, contexts=SimpleNamespace())
    return Server(SimpleNamespace(), node, frozenset(), presence)


def test_versions_in_their_order():
    versions = ["0.0.9", "0.1.0.dev3", "0.1.0rc1", "0.1.0", "0.1.1", "0.10.0", "1.0"]
    shuffled = random.Random(1).sample(versions, len(versions))
    assert sorted(shuffled, key=order) == versions


def test_nothing_begins_once_it_was_promised():
    here = server()
    with here.command():
        here.hand_over(HandOverRequest(**NEWCOMER))
    with pytest.raises(DaemonUnavailable), here.command():
        pass


@pytest.mark.parametrize("more", [{"busy": True}, {"settled": False}])
def test_not_while_a_job_is_being_changed(more):
    here = server(**more)
    with pytest.raises(WrongState, match="llm"), here.command():
        here.hand_over(HandOverRequest(**NEWCOMER))
    with here.command():
        pass


def test_not_while_another_command_is_under_way():
    here = server()
    with here.command(), here.command(), pytest.raises(WrongState, match="a command"):
        here.hand_over(HandOverRequest(**NEWCOMER))


@pytest.mark.parametrize(("oldest", "newest"), [(1, 2), (4, 5)])
def test_not_to_a_daemon_that_a_process_cannot_speak_to(oldest, newest):
    here = server(oldest, newest)
    with pytest.raises(WrongVersion, match="process 7 does not speak protocol 3"), here.command():
        here.hand_over(HandOverRequest(**NEWCOMER))


def test_a_caller_that_leaves_before_the_answer_keeps_no_daemon_that_refuses_everything():
    here = server()
    here.listener.shutdown = lambda _how: None
    channel = SimpleNamespace(peer=SimpleNamespace(pid=7, uid=0), closed=threading.Event())
    desk = ClientDesk(here, channel, Caller(), None)

    def gone(_answer, _fds):
        raise PeerGone("the caller has left")

    with pytest.raises(PeerGone):
        desk.serve(SimpleNamespace(json=lambda: {"op": "hand_over", **NEWCOMER}, reply_json=gone))
    assert here.stopping.is_set()
