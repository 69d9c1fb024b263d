import os
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from gcr import processes
from gcr.processes import ProcessIdentity

GONE = 4_194_305  # beyond the kernel's largest pid


@pytest.fixture
def child():
    """A child that runs until its input ends, and its own child."""
    code = "import subprocess, sys; subprocess.Popen(['cat'], stdin=sys.stdin); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()
        for pid in processes.descendants(process.pid):
            os.kill(pid, 9)


def test_this_process_is_alive_and_known():
    me = processes.identify(os.getpid())
    assert me is not None
    assert me.pid == os.getpid()
    assert processes.alive(me)
    assert processes.owner_uid(me.pid) == os.getuid()
    assert processes.parent_pid(me.pid) == os.getppid()


def test_start_times_grow(child):
    assert processes.start_time(child.pid) >= processes.start_time(os.getpid())


def test_a_pid_with_another_start_time_is_another_process(child):
    real = processes.identify(child.pid)
    reused = ProcessIdentity(real.pid, real.start_time - 1)
    assert processes.alive(real)
    assert not processes.alive(reused)
    assert processes.pidfd_open(reused) is None


def test_a_zombie_is_not_alive():
    child = subprocess.Popen(["true"])
    identity = processes.identify(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child.pid) == identity.start_time
    assert not processes.alive(identity)
    child.wait(5)
    assert not processes.alive(identity)


def test_a_program_after_an_exec_is_another_one():
    script = "echo once; read line; exec sh -c 'echo again; read line'"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout.readline() == "once\n"  # in an exec that is not over it has no stack yet
        before = processes.identify(shell.pid)
        assert before.is_same(processes.identify(shell.pid))
        shell.stdin.write("\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "again\n"
        after = processes.identify(shell.pid)
        assert before == after  # the kernel's process is the same
        if before.stack:  # else this kernel does not say
            assert not before.is_same(after)
            assert (processes.alive(before), processes.alive(after)) == (False, True)
        unknown = ProcessIdentity(after.pid, after.start_time)
        assert processes.alive(unknown)
        shell.stdin.write("\n")


def test_one_that_is_seen_in_the_middle_of_an_exec_is_no_other_afterwards(child, monkeypatch):
    after = processes.identify(child.pid)
    fields = processes._stat(child.pid)
    fields[25] = fields[45]  # as the kernel has them for some microseconds: the stack is moved below the arguments
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_stat", lambda _pid: fields)
        before = processes.identify(child.pid)
        assert processes.alive(after)
    assert before.is_same(after)
    assert processes.alive(before)


def test_a_process_whose_first_thread_has_ended_is_alive():
    script = (
        "import ctypes, os, threading, sys;"
        "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start();"
        "print(flush=True); ctypes.CDLL(None).syscall(60, 0)"  # exit, of this thread alone
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        identity = processes.identify(process.pid)
        while processes._stat(process.pid)[0] != "Z":
            time.sleep(0.005)
        assert processes.alive(identity)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not processes.alive(identity)


def test_a_process_that_has_left_its_place():
    here = processes.file_access(os.getpid())
    assert not here.differs_from(processes.file_access(os.getpid()))
    assert here.differs_from(replace(here, user_ids=(1, 1, 1, 1)))
    assert here.differs_from(replace(here, root=(0, 0)))
    assert not here.differs_from(replace(here, root=None))  # not to be seen any more
    assert not here.differs_from(processes.file_access(GONE))


def test_a_stopped_process_is_seen(child):
    assert not processes.is_stopped(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert processes.is_stopped(child.pid)
    assert processes.alive(ProcessIdentity(child.pid, processes.start_time(child.pid)))
    os.kill(child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED)
    assert not processes.is_stopped(child.pid)


def test_a_name_with_parentheses_and_spaces_is_read_right(tmp_path):
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/cat")
    with subprocess.Popen(["cat"], executable=odd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()  # before, the exec may not be over: the name is there first, the stack last
        assert ") Z 1 (" in processes._read(process.pid, "comm")
        assert processes.parent_pid(process.pid) == os.getpid()
        assert processes.alive(processes.identify(process.pid))
        process.stdin.close()


def test_a_pidfd_sees_the_end(child):
    import select

    fd = processes.pidfd_open(processes.identify(child.pid))
    assert fd is not None
    assert not os.get_inheritable(fd)
    assert select.select([fd], [], [], 0) == ([], [], [])
    child.kill()
    assert select.select([fd], [], [], 30) == ([fd], [], [])
    os.close(fd)


@pytest.mark.parametrize("listed", [False, True])
def test_the_tree_upwards_and_downwards(child, listed, monkeypatch):
    if not listed:
        monkeypatch.setattr(processes, "_lists_children", lambda: False)
    elif not processes._lists_children():
        pytest.skip("this kernel lists no children")
    (grandchild,) = processes.descendants(child.pid)
    assert processes.ancestors(grandchild)[:2] == [child.pid, os.getpid()]
    assert set(processes.descendants(os.getpid())) >= {child.pid, grandchild}


def test_an_ended_process_has_nothing():
    assert processes.identify(GONE) is None
    assert processes.start_time(GONE) is None
    assert processes.owner_uid(GONE) is None
    assert processes.parent_pid(GONE) is None
    assert processes.pidfd_open(ProcessIdentity(GONE, 1)) is None
    assert not processes.alive(ProcessIdentity(GONE, 1))
    for empty in (processes.ancestors, processes.descendants, processes.open_verbs):
        assert list(empty(GONE)) == []
    assert list(processes.maps_contain(GONE, ["libc"])) == []


def test_mapped_files_are_found_by_a_part_of_their_name():
    assert processes.maps_contain(os.getpid(), ["libnccl", "libc.so", "/no/such"]) == ["libc.so"]


def test_nothing_of_rdma_is_open_here():
    assert processes.open_verbs(os.getpid()) == []


def test_open_rdma_devices_are_found(monkeypatch, tmp_path):
    folder = tmp_path / "77/fd"
    folder.mkdir(parents=True)
    targets = [
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/uverbs0",
        "/dev/null",
        "socket:[1]",
    ]
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.open_verbs(77) == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]


def test_a_process_that_comes_and_goes_never_raises():
    for _ in range(30):
        child = subprocess.Popen(["true"])
        while child.poll() is None:
            processes.open_verbs(child.pid)
            processes.maps_contain(child.pid, ["x"])
            processes.descendants(child.pid)
            processes.owner_uid(child.pid)


def test_a_process_in_a_namespace_of_pids_is_found_by_the_pid_that_it_has_there(child):
    """A supervisor in a container tells its program's pid as it sees it: another process of ours has that number."""
    inside = [sys.executable, "-c", "import os, time; (pid := os.fork()) and print(pid, flush=True); time.sleep(60)"]
    with subprocess.Popen(["unshare", "--pid", "--fork", *inside], stdout=subprocess.PIPE, text=True) as process:
        try:
            told = int(process.stdout.readline() or 0)
            if not told:
                pytest.skip("no namespace of pids can be made here")
            teller, *inside = processes.descendants(process.pid)
            assert told < 10  # the first processes of a namespace
            assert processes.pid_here(told, teller) in inside
            assert processes.pid_here(GONE, teller) is None
            assert processes.label_of(processes.pid_here(told, teller)) == told
            assert not processes.shares_namespaces(teller, ("mnt", "pid"))
            assert processes.shares_namespaces(teller, ("mnt",))
            assert processes.shares_namespaces(teller, ("pid",), inside[0])
        finally:
            for pid in reversed(processes.descendants(process.pid)):  # with the first, the others would end as well
                os.kill(pid, signal.SIGKILL)
    assert processes.pid_here(child.pid, os.getpid()) == child.pid
    assert processes.pid_here(child.pid, GONE) is None
    assert processes.label_of(child.pid) == child.pid
    assert processes.label_of(GONE) == GONE
    assert processes.shares_namespaces(GONE, ("pid",))
