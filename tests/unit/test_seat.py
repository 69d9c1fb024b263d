"""One daemon a socket, in any state that its starters meet, and with any file removed while it lives."""

import os
import shutil
import socket
import threading

import pytest

from gcr.daemon import seat as module
from gcr.daemon.seat import Lock, Seat, SeatTaken
from gcr.protocol.seqpacket import connect, listen
from gcr.rendezvous.folder import About, DaemonFolder


@pytest.fixture(autouse=True)
def path(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run" / "s"


def take(path, patience=0.2):
    return Seat.take(path, DaemonFolder.of(path), patience)


def end(seat):
    """Ends a seat as the kernel does with the process."""
    seat.listener.close()
    for lock in seat.locks:
        lock.release()


def starters(path, count=4):
    """So many at once: seats taken."""
    together, taken = threading.Barrier(count), []

    def start():
        together.wait()
        try:
            taken.append(take(path))
        except (SeatTaken, OSError):
            pass

    threads = [threading.Thread(target=start) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def test_of_several_starters_that_meet_a_stale_socket_one_serves(path):
    for _ in range(50):
        path.unlink(missing_ok=True)
        listen(path).close()
        (seat,) = starters(path)
        connect(path, 1.0).close()
        end(seat)


def test_starters_with_other_state_directories_meet_beside_the_socket(path, monkeypatch, tmp_path):
    seat = take(path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    path.unlink()
    with pytest.raises(SeatTaken, match="does not serve"):
        take(path)
    end(seat)


def test_a_starter_waits_for_a_daemon_that_ends(path):
    seat = take(path)
    seat.listener.shutdown(socket.SHUT_RDWR)
    threading.Timer(0.3, end, (seat,)).start()
    end(take(path, patience=10.0))


def test_a_daemon_that_serves_is_not_waited_for(path):
    seat = take(path)
    with pytest.raises(SeatTaken, match="serves"):
        take(path, patience=60.0)
    end(seat)


@pytest.mark.parametrize("gone", ["run", "state", "both"])
def test_what_is_removed_is_made_again_and_no_other_takes_it(path, tmp_path, gone):
    seat = take(path)
    for name in ("run", "state") if gone == "both" else (gone,):
        shutil.rmtree(tmp_path / name)
    former = seat.listener
    assert (seat.keep() is not None) == (gone != "state")
    if gone != "state":
        former.close()
    connect(path, 1.0).close()
    assert seat.keep() is None
    assert {each.stat().st_mode & 0o777 for each in (path.parent, seat.folder.path)} == {0o700}
    with pytest.raises(SeatTaken):
        take(path)
    assert seat.folder.about() == About.here(path)
    end(seat)


def test_a_daemon_learns_that_another_has_its_seat(path, monkeypatch, tmp_path):
    seat = take(path)
    for name in ("run", "state"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "run").mkdir(mode=0o700)
    other = take(path)
    monkeypatch.setattr(module, "PASSING", 0.1)
    with pytest.raises(SeatTaken, match="locked"):
        seat.keep()
    seat.leave()
    connect(path, 1.0).close()  # not the one that left
    end(other)
    end(seat)


def test_a_starter_that_passes_by_does_not_take_the_seat(path):
    """It has the first lock, made anew, until it meets the second one."""
    seat = take(path)
    shutil.rmtree(seat.folder.path)
    seat.folder.make(path)
    starter = Lock(seat.folder.lock)
    assert starter.take()
    threading.Timer(0.2, starter.release).start()
    assert seat.keep() is None
    assert all(lock.stands for lock in seat.locks)
    end(seat)


def test_a_runtime_directory_that_cannot_be_made_is_waited_for(path, tmp_path):
    """A logout removes it, and the next login makes it."""
    seat = take(path)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError):
        seat.keep()
    (tmp_path / "run").unlink()
    with seat.listener:
        assert seat.keep()
    end(seat)


def test_a_lock_is_on_the_file_that_the_path_leads_to(path, monkeypatch):
    """A file may be removed between being opened and being locked."""
    real, raced = module._locked, []

    def locked(fd):
        if not raced:
            raced.append(path.unlink())
        return real(fd)

    monkeypatch.setattr(module, "_locked", locked)
    lock = Lock(path)
    assert lock.take() and lock.stands and raced
    lock.release()


def test_a_file_system_without_locks_is_no_obstacle(path, monkeypatch):
    def flock(_fd, _how):
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(module.fcntl, "flock", flock)
    end(take(path))


def test_daemons_of_other_sockets_boots_and_namespaces_have_other_folders(path, tmp_path):
    here = About.here(path)
    (tmp_path / "link").symlink_to(path.parent)
    assert About.here(tmp_path / "link" / "s") == here
    others = [
        About(path, *rest) for path, *rest in ((here.socket, "b", here.pids, "h"), (here.socket, here.boot, "p", "h"))
    ]
    keys = {here.key, About.here(tmp_path / "s").key, *(other.key for other in others)}
    assert len(keys) == 4
