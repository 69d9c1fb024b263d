"""Rules of preflight that need more than one thing held: members, what the parent gives, processes that change."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from held_things import Hold, Thing
from msgspec.structs import replace

from gcr.criu.preflight import sockets
from gcr.criu.preflight.check import External, externals, obstacles, tree
from gcr.criu.preflight.devices import of_devices
from gcr.criu.preflight.facts import Facts, Opened, facts
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options, device_files
from gcr.criu.preflight.sockets import kind_of, parsed, saves_ip_sockets
from gcr.processes import descendants, in_groups_of

NONE = Options()
NOBODY = 65534
SWAPPED = 9  # a descriptor
GONE = 4_194_305  # beyond the kernel's largest pid
IN_ITS_OWN_NAMESPACE = """
from gcr.criu.preflight.check import obstacles
from gcr.criu.preflight.obstacle import Options
print(*(each.kind.value for each in obstacles([1], (), Options(terminal=True)) if "session" in each.object))
"""
HALF_OPEN = "3: 00000000000000000000000001000000:1F90 0000000000000000FFFF00000100007F:0050 03 0:0 00:0 0 0 0 77"


def test_a_device_of_a_gpu_is_an_obstacle_unless_its_process_is_a_member(hold: Hold, tmp_path: Path) -> None:
    held = hold("simulated_device")
    options = Options(device_files=(f"{tmp_path}/dev",))
    found = obstacles(held.tree, (), options)
    assert found == [Obstacle(held.pid, Kind.NOT_A_MEMBER, f"descriptor {held.fd}, {tmp_path}/device")]
    assert obstacles(held.tree, {held.pid}, options) == []
    assert obstacles(held.tree, {held.pid + 1}, options) == found


def test_a_member_gives_up_a_device_that_criu_does_not_know(hold: Hold) -> None:
    held = hold("device")
    options = Options(device_files=("/dev/fuse",))
    assert [each.kind for each in obstacles(held.tree, (), options)] == [Kind.NOT_A_MEMBER]
    assert obstacles(held.tree, {held.pid}, options) == []


def test_device_files_are_those_of_the_backends_and_exported_memory() -> None:
    assert {"/dev/nvidia", "/dev/kfd", "/dev/davinci", "/dmabuf:"} <= set(device_files())


def test_an_rdma_device_is_told_from_other_devices() -> None:
    file = Opened(7, 3, "/dev/infiniband/uverbs0", stat.S_IFCHR, os.makedev(231, 192), (5, 6), "")
    found = list(of_devices(Facts([7], [file], [], []), (), NONE))
    assert found == [Obstacle(7, Kind.RDMA, "descriptor 3, /dev/infiniband/uverbs0 (character device 231:192)")]


def test_a_half_open_connection_is_refused_whatever_the_options() -> None:
    inode, connection = parsed(HALF_OPEN)
    assert (inode, str(connection)) == (77, "[::1]:8080 to 127.0.0.1:80, SYN_RECV")
    for options in (NONE, Options(tcp_established=True, tcp_close=True)):
        assert kind_of(connection, options) is Kind.HALF_OPEN
    assert kind_of(replace(connection, state="CLOSE"), NONE) is None


def test_an_established_connection_is_kept_or_dropped_as_asked(hold: Hold) -> None:
    held = hold("tcp_established")
    assert obstacles(held.tree, (), Options(tcp_established=True)) == []
    assert len(obstacles(held.tree, (), NONE)) == len(("each", "end"))


def test_an_old_criu_saves_no_ip_socket(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold("datagrams")
    found = obstacles(held.tree, (), Options(ip_sockets=False))
    assert [(each.kind, each.object.endswith("of UDP")) for each in found] == [(Kind.OLD_CRIU, True)]
    monkeypatch.setattr(sockets.socket, "SO_PASSCRED", 9999)  # as on kernels from 6.16 on: no such option
    assert (saves_ip_sockets((4, 1, 1)), saves_ip_sockets((4, 2, 0))) == (False, True)
    monkeypatch.setattr(sockets.socket, "SO_PASSCRED", sockets.socket.SO_KEEPALIVE)  # and before
    assert saves_ip_sockets((4, 1, 1))


def test_a_socket_that_the_caller_passes_on_is_an_external(hold: Hold) -> None:
    held = hold(Thing("unix_stream", given="listener"))
    inode = next(each.inode for each in facts([held.pid]).opened if each.fd == held.fd)
    options = Options(unix_sockets=frozenset((inode,)))
    assert obstacles(held.tree, (), options) == []
    given = [each for each in externals(held.tree, options) if each.inode == inode]
    assert given == [External(held.pid, held.fd, f"socket:[{inode}]", inode, reads=True, writes=True)]


def test_streams_from_outside_are_externals_and_inner_pipes_are_not(hold: Hold, tmp_path: Path) -> None:
    ours, its = os.pipe()
    with (tmp_path / "log").open("w") as log:
        held = hold("plain_descriptors", stdin=ours, stderr=log.fileno())
        found = externals(held.tree, NONE)
        pipe, file = os.fstat(its), os.fstat(log.fileno())
    assert found == [
        External(held.pid, 0, f"pipe:[{pipe.st_ino}]", pipe.st_ino, reads=True, writes=False),
        External(held.pid, 2, f"{tmp_path}/log", file.st_ino, reads=False, writes=True),
    ]
    assert obstacles(held.tree, (), NONE) == []
    os.close(ours), os.close(its)


def test_a_tree_begins_with_its_root(hold: Hold) -> None:
    held = hold("child")
    assert len(held.tree) == len(("root", "child")) and held.tree[0] == held.pid
    assert tree(GONE) == [GONE]


def test_obstacles_of_a_child_are_found_after_those_of_the_root(hold: Hold) -> None:
    root, other = hold("ring"), hold("secret")
    found = obstacles([root.pid, other.pid], (), NONE)
    assert [(each.pid, each.kind) for each in found] == [
        (root.pid, Kind.IO_URING),
        (other.pid, Kind.SECRET_MEMORY),
    ]


def test_a_process_that_is_gone_is_passed_over(hold: Hold) -> None:
    held = hold("nothing")
    assert obstacles([held.pid, GONE], (), NONE) == []
    assert obstacles([GONE], (), NONE) == externals([GONE], NONE) == []


def test_an_end_that_was_opened_during_the_look_is_of_the_tree(hold: Hold) -> None:
    held = hold("unix_pair")
    found = facts([held.pid])
    one_end = Facts([held.pid], [file for file in found.opened if file.fd == held.fd], [], [])
    assert list(sockets.of_sockets(one_end, NONE)) == []


def test_processes_that_change_all_the_time_are_looked_at(hold: Hold) -> None:
    held = hold("restless")
    for _ in range(30):
        assert obstacles(held.tree, (), NONE) == []


def test_what_is_told_of_a_descriptor_is_of_one_file() -> None:
    """Another process puts a file and a pipe in turn under one number, as fast as it can."""
    program = f"import os\na, (b, _) = os.open({__file__!r}, 0), os.pipe()\nprint(flush=True)\n"
    swapping = program + f"while True: os.dup2(a, {SWAPPED}), os.dup2(b, {SWAPPED})"
    with subprocess.Popen([sys.executable, "-c", swapping], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        end, seen = time.monotonic() + 0.5, set()
        while time.monotonic() < end:
            found = [each for each in facts([process.pid]).opened if each.fd == SWAPPED]
            seen |= {(each.path == __file__, stat.S_ISREG(each.mode), each.note("mnt_id")) for each in found}
        process.kill()
    assert len({mount for _, _, mount in seen}) == len(seen) == len(("file", "pipe"))
    assert all(named is regular for named, regular, _ in seen)


def test_a_process_of_another_user_is_an_obstacle(hold: Hold) -> None:
    if os.geteuid():
        pytest.skip("root alone can become another user")
    held = hold("nothing")
    os.seteuid(NOBODY)
    try:
        found = obstacles(held.tree, (), NONE)
    finally:
        os.seteuid(0)
    assert found == [Obstacle(held.pid, Kind.UNREADABLE, "of another user")]


def test_a_zombie_is_none_for_its_own_user() -> None:
    if os.geteuid():
        pytest.skip("root alone can become another user")
    process = subprocess.Popen(["true"], user=NOBODY, start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.seteuid(NOBODY)
    try:
        found = obstacles([process.pid], (), NONE)
    finally:
        os.seteuid(0)
        process.wait()
    assert found == []


def test_a_session_of_another_pid_namespace_is_one_that_no_option_allows() -> None:
    if os.geteuid():
        pytest.skip("root alone makes a pid namespace")
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", IN_ITS_OWN_NAMESPACE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["foreign_session"], done.stderr


@pytest.mark.parametrize("become", ["os.setsid()", "os.setpgid(0, 0)"])
def test_a_daemon_that_has_left_the_tree_keeps_a_pid_in_use(become: str) -> None:
    """CRIU saves the zombie of its leader, and cannot make that pid again."""
    leave = (
        f"import os, time\nif not os.fork():\n {become}\n os.fork() and os._exit(0)\nprint(flush=True)\ntime.sleep(60)"
    )
    words = [sys.executable, "-c", leave]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        [process.stdout.readline() for _ in range(2)]
        end = time.monotonic() + 10
        while len(found := descendants(process.pid)) > 1:  # the leader is about to end
            assert time.monotonic() < end
        (zombie,) = found
        (outside,) = [pid for pid, led in in_groups_of([zombie]).items() if pid != zombie]
        try:
            in_use = [each for each in obstacles(tree(process.pid), (), NONE) if each.kind is Kind.LEFT_BEHIND]
            assert [each.pid for each in in_use] == [zombie]
            assert f"process {outside}, outside of the tree," in in_use[0].object
        finally:
            os.kill(outside, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize("own", ["mnt", "net", "pid", "user", "uts"])
def test_a_namespace_of_its_own_is_one(own: str) -> None:
    """CRIU saves a child with its own mounts or network, and cannot restore it."""
    if os.geteuid():
        pytest.skip("root alone makes namespaces")
    flag = {"mnt": "--mount", "net": "--net", "pid": "--pid", "user": "--user", "uts": "--uts"}[own]
    program = f"unshare {flag} --fork sleep 60 & wait"
    with subprocess.Popen(["sh", "-c", program], stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            end = time.monotonic() + 10
            while not (found := [each for each in obstacles(tree(process.pid), (), NONE) if own in each.object]):
                if process.poll() is not None:
                    pytest.skip(f"no {own} namespace can be made here")
                assert time.monotonic() < end
            assert found[0].kind is Kind.NAMESPACE
            of_a_root = {each.kind for each in obstacles([found[0].pid], (), NONE)}
            assert (Kind.NAMESPACE in of_a_root) is (own != "uts")
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_one_terminal_is_allowed_and_not_two(hold: Hold) -> None:
    found = obstacles(hold(Thing("two_terminals", given="terminals")).tree, (), Options(terminal=True))
    assert [each.kind for each in found] == [Kind.TERMINAL] * 2
