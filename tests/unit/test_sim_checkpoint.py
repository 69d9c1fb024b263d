"""The simulated driver's control checkpoint: what it takes, what it blocks, and what it can never give back."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import CONTEXT, Machine, MiB, Program, listener_of

from gcr.testing.machine import until

RUNNING, LOCKED, CHECKPOINTED, FAILED = "0", "1", "2", "3"

# Allocates and answers: `digest` of its memory, `alloc` for a driver call that blocks while it is locked.
TARGET = """
    use()
    k = Kernels()
    data, out = int(ck(cu.cuMemAlloc(8 * MiB))), int(ck(cu.cuMemAlloc(8)))
    k.launch('fill', (U64, data), (U64, MiB), (U64, 3)); ck(cu.cuCtxSynchronize())
    say('up')
    while True:
        order = wait_for_line()
        if order == 'alloc': say(code(cu.cuMemAlloc(4096)))
        if order == 'uuid': say(bytes(ck(cu.cuDeviceGetUuid(0)).bytes)[15])
        if order == 'digest':
            k.launch('digest', (U64, data), (U64, MiB), (U64, out)); ck(cu.cuCtxSynchronize())
            say(words(read(out, 8))[0])
"""
CALLER = """
    ck(cu.cuInit(0))
    pid = {pid}
    lock = lambda: code(cu.cuCheckpointProcessLock(pid, None))
    unlock = lambda: code(cu.cuCheckpointProcessUnlock(pid, None))
    checkpoint = lambda: code(cu.cuCheckpointProcessCheckpoint(pid, None))
    restore = lambda: code(cu.cuCheckpointProcessRestore(pid, None))
    state = lambda: int(cu.cuCheckpointProcessGetState(pid)[1])
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def act(machine: Machine, pid: int, what: str) -> str:
    """Returns the output of a caller of the checkpoint functions, in one line."""
    return " ".join(machine.run(CALLER.format(pid=pid) + "    " + what))


def state(machine: Machine, pid: int) -> str:
    return act(machine, pid, "say(state())")


def started(target: Program) -> str:
    assert target.hear() == "up"
    return target.ask("digest")


def test_a_cycle_gives_everything_back_at_the_same_addresses(machine: Machine) -> None:
    with machine.start(TARGET) as target:
        before = started(target)
        held = machine.used()
        assert act(machine, target.pid, "say(lock(), checkpoint(), state())") == f"0 0 {CHECKPOINTED}"
        assert machine.used() == 0
        assert "/physical/" not in Path(f"/proc/{target.pid}/maps").read_text()
        assert act(machine, target.pid, "say(restore(), state(), unlock(), state())") == f"0 {LOCKED} 0 {RUNNING}"
        assert machine.used() == held
        assert target.ask("digest") == before


def test_calls_block_while_locked_and_go_on_after(machine: Machine) -> None:
    with machine.start(TARGET) as target:
        started(target)
        assert act(machine, target.pid, "say(lock())") == "0"
        target.tell("alloc")
        assert target.quiet(0.3)
        assert act(machine, target.pid, "say(checkpoint())") == "0"
        assert target.quiet(0.2)
        assert act(machine, target.pid, "say(restore(), unlock())") == "0 0"
        assert target.hear() == "0"


def test_wrong_moves_are_refused(machine: Machine) -> None:
    with machine.start(TARGET) as target:
        started(target)
        assert act(machine, target.pid, "say(checkpoint(), restore(), unlock(), state())") == "401 401 401 0"
        assert act(machine, target.pid, "say(lock(), lock(), restore(), unlock())") == "0 401 401 0"
    assert act(machine, target.pid, "say(lock(), code(cu.cuCheckpointProcessGetState(pid)))") == "304 304"


def test_another_program_in_the_process_is_reached_though_a_child_of_the_first_lives(machine: Machine) -> None:
    program = """
        if len(sys.argv) == 1:
            use()
            child = os.fork()
            if not child: time.sleep(60); os._exit(0)
            text = open('/proc/self/cmdline').read().split('\\0')[2]
            os.execv(sys.executable, [sys.executable, '-c', text, str(child)])
        use()
        say('up')
        wait_for_line()
        os.kill(int(sys.argv[1]), 9)
        say('over')
    """
    with machine.start(program) as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, "say(lock(), state(), unlock())") == f"0 {LOCKED} 0"
        assert target.ask() == "over"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can")
def test_another_user_is_not_answered(machine: Machine) -> None:
    """Any user can connect to an abstract name."""
    lock = """
        talk = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.setresuid(*[int(sys.argv[1])] * 3)
        talk.connect(bytes.fromhex(sys.argv[2]))
        try:
            talk.send((3).to_bytes(4, 'little') + bytes(524))
            say(len(talk.recv(100)))
        except ConnectionError:
            say('0')
    """
    with machine.start(TARGET) as target:
        started(target)
        for user, answer in ("65534", "0"), ("0", "8"):
            command = [*machine.command(lock), user, listener_of(target.pid).hex()]
            assert subprocess.check_output(command, env=machine.env, text=True, timeout=60).strip() == answer
        assert state(machine, target.pid) == LOCKED


def test_a_lock_that_times_out_leaves_the_process_running(machine: Machine) -> None:
    busy = """
        use()
        k = Kernels()
        stream = ck(cu.cuStreamCreate(1))
        k.launch('spin', (U32, 60000), stream=stream)
        say('up')
        while wait_for_line(): say(code(cu.cuMemAlloc(4096)))
    """
    timed = "args = cu.CUcheckpointLockArgs(); args.timeoutMs = 100; "
    timed += "say(code(cu.cuCheckpointProcessLock(pid, args)), state())"
    with machine.start(busy) as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, timed) == f"600 {RUNNING}"
        assert target.ask() == "0"


@pytest.mark.parametrize("step", ["checkpoint", "restore"])
def test_the_target_finishes_what_a_dead_caller_began(tmp_path: Path, step: str) -> None:
    machine = Machine(tmp_path, CONTROL_MS=5000)
    onlooker = CALLER + "    say('up')\n    while wait_for_line(): say(state())"
    with machine.start(TARGET) as target:
        before = started(target)
        assert act(machine, target.pid, "say(lock())") == "0"
        if step == "restore":
            assert act(machine, target.pid, "say(checkpoint())") == "0"
        with machine.start(onlooker.format(pid=target.pid)) as looking:
            assert looking.hear() == "up"
            with machine.start(CALLER.format(pid=target.pid) + f"    {step}()") as caller:
                until(lambda: works(target), 30, "one of the target's threads has begun the step")
                caller.kill()
            old = LOCKED if step == "checkpoint" else CHECKPOINTED
            assert looking.ask() == old
            now = until(lambda: (now := looking.ask()) != old and now, 30, "it is done")
        assert now == (CHECKPOINTED if step == "checkpoint" else LOCKED)
        if step == "checkpoint":
            assert act(machine, target.pid, "say(restore())") == "0"
        assert act(machine, target.pid, "say(unlock())") == "0"
        assert target.ask("digest") == before


def works(target: Program) -> bool:
    """Tells whether a thread of it sleeps for CONTROL_MS."""
    waits = []
    for thread in Path(f"/proc/{target.pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            waits.append((thread / "wchan").read_text())
    return any("nanosleep" in wait for wait in waits)


def test_a_restore_without_room_is_for_good(tmp_path: Path) -> None:
    machine = Machine(tmp_path, MEMORY=64 * MiB)
    with machine.start(TARGET) as target:
        started(target)
        assert act(machine, target.pid, "say(lock(), checkpoint())") == "0 0"
        with machine.start("use(); held = create(40 * MiB); say('up'); wait_for_line()") as squatter:
            assert squatter.hear() == "up"
            assert act(machine, target.pid, "say(restore(), state())") == f"2 {FAILED}"
        # The room is back, the process is not (304 for ever, unlock 401).
        assert act(machine, target.pid, "say(restore(), unlock(), state())") == f"304 401 {FAILED}"


SHARERS = {
    "exported and mapped": "handle = create(2 * MiB); mapped(handle, 2 * MiB); os.close(export(handle))",
    "exportable and mapped": "mapped(create(2 * MiB), 2 * MiB)",
    "imported": "handle = create(2 * MiB); take(export(handle))",
    "a legacy handle": "cu.cuIpcGetMemHandle(ck(cu.cuMemAlloc(4096)))",
}


@pytest.mark.parametrize("what", SHARERS)
def test_shared_memory_is_taken_and_never_given_back(machine: Machine, what: str) -> None:
    with machine.start(f"use(); {SHARERS[what]}; say('up'); wait_for_line()") as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, "say(lock(), checkpoint(), state())") == f"0 0 {CHECKPOINTED}"
        assert act(machine, target.pid, "say(restore(), state(), unlock())") == f"304 {FAILED} 401"


def test_unified_memory_is_refused(machine: Machine) -> None:
    program = """
        use()
        ck(cu.cuMemAllocManaged(4096, cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
        say('up')
        wait_for_line()
        say(code(cu.cuCtxSynchronize()))
    """
    with machine.start(program) as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, "say(lock(), checkpoint(), state(), unlock())") == f"0 801 {LOCKED} 0"
        assert target.ask() == "0"


def test_memory_never_written_costs_nothing(machine: Machine) -> None:
    program = "use(); big = int(ck(cu.cuMemAlloc(1 << 30))); write(big + (1 << 29), b'here'); say('up')\n"
    program += "while wait_for_line(): say(read(big + (1 << 29), 4).decode())"
    with machine.start(program) as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, "say(lock(), checkpoint(), restore(), unlock())") == "0 0 0 0"
        assert target.ask() == "here"
        on_disk = sum(file.stat().st_blocks * 512 for file in (machine.state / "physical").iterdir())
        assert on_disk < 1 * MiB
        peak = Path(f"/proc/{target.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        assert int(peak) < 512 << 10  # KiB


def test_memory_that_was_handed_over_does_not_stand_in_the_way(machine: Machine) -> None:
    ours, theirs = socket.socketpair()
    program = """
        use()
        size = 4 * MiB
        address = mapped(handle := create(size), size)
        write(address, b'keep me')
        talk = channel()
        send_fd(talk, export(handle))
        ck(cu.cuMemUnmap(address, size)); ck(cu.cuMemRelease(handle))
        say('handed over')
        taken = take(receive_fd(talk))   # blocks here, outside the driver, until the test gives it back
        mapped(taken, size, at=address)
        say(read(address, 7).decode())
    """
    with machine.start(program, stdin=theirs.fileno()) as target:
        theirs.close()
        assert target.hear() == "handed over"
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        assert act(machine, target.pid, "say(lock(), checkpoint())") == "0 0"
        assert machine.used() == 4 * MiB
        assert act(machine, target.pid, "say(restore(), unlock())") == "0 0"
        socket.send_fds(ours, [b"f"], [fd])
        os.close(fd)
        assert target.hear() == "keep me"
    ours.close()


def test_a_process_moves_to_another_device(machine: Machine) -> None:
    swap = """
    args = cu.CUcheckpointRestoreArgs()
    uuids = [ck(cu.cuDeviceGetUuid(d)) for d in (0, 1)]
    pairs = []
    for old, new in ((0, 1), (1, 0)):
        pair = cu.CUcheckpointGpuPair(); pair.oldUuid, pair.newUuid = uuids[old], uuids[new]; pairs.append(pair)
    args.gpuPairs, args.gpuPairsCount = pairs[:{count}], {count}
    say(code(cu.cuCheckpointProcessRestore(pid, args)), state())
    """
    with machine.start(TARGET) as target:
        before = started(target)
        held = machine.used(0)
        assert (held > 0, machine.used(1)) == (True, 0)
        assert act(machine, target.pid, "say(lock(), checkpoint())") == "0 0"
        # Every device must be named: refused, and nothing is lost by it.
        assert act(machine, target.pid, swap.format(count=1).lstrip()) == f"1 {CHECKPOINTED}"
        assert act(machine, target.pid, swap.format(count=2).lstrip()) == f"0 {LOCKED}"
        assert (machine.used(0), machine.used(1)) == (0, held)
        assert act(machine, target.pid, "say(unlock())") == "0"
        assert (target.ask("digest"), target.ask("uuid")) == (before, "1")


def test_cuda_core_drives_it_unmodified(machine: Machine) -> None:
    program = """
        from cuda.core import checkpoint
        ck(cu.cuInit(0))
        target = checkpoint.Process(%d)
        seen = [target.state]
        for step in (lambda: target.lock(timeout_ms=1000), target.checkpoint, target.restore, target.unlock):
            step(); seen.append(target.state)
        say(*seen, target.restore_thread_id != target.pid)
    """
    with machine.start(TARGET) as target:
        before = started(target)
        assert machine.run(program % target.pid) == ["running locked checkpointed locked running True"]
        assert target.ask("digest") == before


@pytest.mark.alone
def test_a_cycle_takes_milliseconds(tmp_path: Path) -> None:
    machine = Machine(tmp_path, CONTROL_MS=1)
    measure = """
    taken = []
    for _ in range(20):
        began = time.monotonic()
        assert (lock(), checkpoint(), restore(), unlock()) == (0, 0, 0, 0)
        taken.append(time.monotonic() - began)
    say(sorted(taken)[10] < 0.1)
    """
    with machine.start(
        "use(); held = [ck(cu.cuMemAlloc(64 << 10)) for _ in range(8)]; say('up'); wait_for_line()"
    ) as target:
        assert target.hear() == "up"
        assert act(machine, target.pid, measure.lstrip()) == "True"
        assert machine.used() > CONTEXT
