"""The simulator's memory: the kernel's count, the permissions, and that no death leaves a byte behind."""

import signal
import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import CONTEXT, Machine, MiB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cuda_python_reserves_creates_maps_and_copies(machine: Machine) -> None:
    program = """
        use()
        handle = create(4 * MiB)
        address = mapped(handle, 4 * MiB)
        data = bytes(range(256)) * 64
        write(address + 12345, data)
        say(read(address + 12345, len(data)) == data, used())
        ck(cu.cuMemUnmap(address, 4 * MiB)); ck(cu.cuMemRelease(handle))
        say(used())
    """
    assert machine.run(program) == [f"True {CONTEXT + 4 * MiB}", str(CONTEXT)]


def test_used_bytes_are_seen_by_others_and_gone_after_kill(machine: Machine) -> None:
    with machine.start("use(); handles = [create(8 * MiB) for _ in range(5)]; say('up'); wait_for_line()") as holder:
        assert holder.hear() == "up"
        assert machine.used() == CONTEXT + 40 * MiB
        holder.kill()
        assert machine.used() == 0


def test_a_device_full_for_one_process_is_full_for_all(tmp_path: Path) -> None:
    machine = Machine(tmp_path, MEMORY=256 * MiB)
    fill = "use(); held = create(200 * MiB); say('up'); wait_for_line()"
    attempt = "use(); say(code(cu.cuMemCreate(64 * MiB, properties(), 0)), code(cu.cuMemAlloc(64 * MiB)))"
    with machine.start(fill) as holder:
        assert holder.hear() == "up"
        assert machine.run(attempt) == ["2 2"]
        holder.kill()
        assert machine.run(attempt) == ["0 0"]


def test_an_exported_allocation_outlives_its_maker(machine: Machine) -> None:
    ours, theirs = socket.socketpair()
    maker = """
        use()
        address = mapped(handle := create(2 * MiB), 2 * MiB)
        write(address, b'handed over')
        send_fd(channel(), export(handle))
        say('sent')
        time.sleep(60)
    """
    with machine.start(maker, stdin=theirs.fileno()) as first:
        theirs.close()
        assert first.hear() == "sent"
        first.kill()
    # Only the message in flight holds it now: no process has a descriptor of it, none maps it.
    assert machine.used() == 2 * MiB
    ours.set_inheritable(True)
    taker = """
        use()
        address = mapped(take(receive_fd(channel())), 2 * MiB)
        say(read(address, 11).decode(), used())
    """
    with machine.start(taker, stdin=ours.fileno()) as second:
        ours.close()
        assert second.hear() == f"handed over {CONTEXT + 2 * MiB}"
    assert machine.used() == 0


def test_both_processes_see_the_same_physical_memory(machine: Machine) -> None:
    ours, theirs = socket.socketpair()
    maker = """
        use()
        address = mapped(handle := create(2 * MiB), 2 * MiB)
        talk = channel()
        send_fd(talk, export(handle))
        talk.recv(1)
        say(read(address, 5).decode())
    """
    taker = """
        use()
        talk = channel()
        address = mapped(take(receive_fd(talk)), 2 * MiB)
        write(address, b'hello')
        talk.send(b'x')
    """
    with machine.start(maker, stdin=theirs.fileno()) as first, machine.start(taker, stdin=ours.fileno()):
        assert first.hear() == "hello"
    ours.close()
    theirs.close()


def test_what_is_imported_twice_is_one_handle_with_two_references(machine: Machine) -> None:
    """Seen on an H200; so is that the import of one's own memory is another handle than that."""
    program = """
        use()
        handle = create(2 * MiB)
        fds = export(handle), export(handle)
        first, second = map(take, fds)
        say(int(first) == int(second), int(first) == int(handle))
        for each in handle, first:
            ck(cu.cuMemRelease(each))
        address = mapped(second, 2 * MiB)
        ck(cu.cuMemRelease(second))
        say(used(), code(cu.cuMemRelease(second)))
        ck(cu.cuMemUnmap(address, 2 * MiB))
        say(used())
    """
    assert machine.run(program) == ["True False", f"{CONTEXT + 2 * MiB} 1", str(CONTEXT)]


def test_a_descriptor_of_another_kind_is_refused(machine: Machine) -> None:
    program = """
        import tempfile
        use()
        forged = tempfile.TemporaryFile(dir=os.environ['GCR_SIM_STATE']); forged.truncate(4 * MiB + 4096)
        for fd in (os.open('/dev/null', os.O_RDWR), os.memfd_create('x'), forged.fileno(), 12345):
            say(code(cu.cuMemImportFromShareableHandle(fd, POSIX_FD)))
    """
    assert machine.run(program) == ["999", "999", "999", "999"]


@pytest.mark.parametrize("where", ["mapped(create(2 * MiB), 2 * MiB)", "int(ck(cu.cuMemAlloc(4096)))"])
def test_the_cpu_cannot_touch_device_memory(machine: Machine, where: str) -> None:
    done = machine.attempt(f"use(); address = {where}; say('made'); ctypes.string_at(address, 1); say('read')")
    assert done.stdout == "made\n"
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("what", "address"),
    [
        ("mapped, no access", "ck(cu.cuMemMap(at, 2 * MiB, 0, create(2 * MiB), 0))"),
        ("never mapped", "None"),
        ("unmapped again", "mapped(create(2 * MiB), 2 * MiB, at=at); ck(cu.cuMemUnmap(at, 2 * MiB))"),
        ("read only", "mapped(create(2 * MiB), 2 * MiB, at=at); access(at, 2 * MiB, flags=READ)"),
        ("only the other device", "mapped(create(2 * MiB, 1), 2 * MiB, 1, at=at)"),
    ],
)
def test_an_illegal_access_stays_with_the_context(machine: Machine, what: str, address: str) -> None:
    program = f"""
        use()
        kernels = Kernels()
        at = int(ck(cu.cuMemAddressReserve(2 * MiB, 0, 0, 0)))
        {address}
        say(code(cu.cuMemsetD8(at, 1, 100)), code(cu.cuCtxSynchronize()))  # a call of the driver: it checks first
        kernels.launch('fill', (U64, at), (U64, 8), (U64, 1))
        say(code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(100)))
        ck(cu.cuDevicePrimaryCtxReset(0))
        use()
        say(code(cu.cuCtxSynchronize()))
        kernels = Kernels()
        kernels.launch('fill', (U64, at), (U64, 8), (U64, 1))
        say(code(cu.cuCtxSynchronize()))
    """
    assert machine.run(program) == ["1 0", "700 700", "0", "700"], what


def test_each_device_needs_its_own_access(machine: Machine) -> None:
    program = """
        use(0)
        address = mapped(create(2 * MiB), 2 * MiB)
        write(address, b'shared')
        use(1)
        access(address, 2 * MiB, 1)
        say(read(address, 6).decode())
        plain = int(ck(cu.cuMemAlloc(4096)))
        first = use(0)
        second = ck(cu.cuDevicePrimaryCtxRetain(1))
        say(ck(cu.cuDeviceCanAccessPeer(0, 1)), code(cu.cuCtxEnablePeerAccess(second, 0)),
            code(cu.cuCtxEnablePeerAccess(second, 0)))
        say(code(cu.cuMemsetD8(plain, 1, 100)), code(cu.cuCtxDisablePeerAccess(second)))
        say(code(cu.cuMemsetD8(plain, 1, 100)))
    """
    assert machine.run(program) == ["shared", "1 0 704", "0 0", "700"]


def test_many_handles_need_no_descriptors(tmp_path: Path) -> None:
    machine = Machine(tmp_path, MEMORY=8192 * MiB)
    program = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        use()
        at = int(ck(cu.cuMemAddressReserve(2500 * 2 * MiB, 0, 0, 0)))
        handles = [create(2 * MiB) for _ in range(2500)]
        for i, handle in enumerate(handles): ck(cu.cuMemMap(at + i * 2 * MiB, 2 * MiB, 0, handle, 0))
        access(at, 2500 * 2 * MiB)
        ck(cu.cuMemsetD8(at + 7 * MiB, 5, 2 * MiB))
        say(read(at + 8 * MiB, 2), used() // MiB, len(os.listdir('/proc/self/fd')) < 32)
        ck(cu.cuMemUnmap(at, 2500 * 2 * MiB))
        for handle in handles: ck(cu.cuMemRelease(handle))
        say(used() // MiB)
    """
    assert machine.run(program) == [r"b'\x05\x05' 5016 True", "16"]


def test_more_than_ten_thousand_allocations(machine: Machine) -> None:
    program = """
        use()
        pointers = [int(ck(cu.cuMemAlloc(1000 + i % 7))) for i in range(12000)]
        say(len(set(pointers)), all(p % 512 == 0 for p in pointers), used() // MiB < 40)
        for p in pointers[::2]: ck(cu.cuMemFree(p))
        base, size = ck(cu.cuMemGetAddressRange(pointers[1] + 10))
        say(int(base) == pointers[1], size, code(cu.cuMemGetAddressRange(pointers[0])))
        for p in pointers[1::2]: ck(cu.cuMemFree(p))
        say(used() // MiB)
    """
    assert machine.run(program) == ["12000 True True", "True 1001 500", "16"]


def test_a_hint_that_is_free_is_honoured_and_one_that_is_taken_is_not_an_error(machine: Machine) -> None:
    program = """
        use()
        first = int(ck(cu.cuMemAddressReserve(4 * MiB, 0, 0, 0)))
        second = int(ck(cu.cuMemAddressReserve(4 * MiB, 0, first, 0)))
        ck(cu.cuMemAddressFree(first, 4 * MiB))
        say(second != first, int(ck(cu.cuMemAddressReserve(4 * MiB, 0, first, 0))) == first)
    """
    assert machine.run(program) == ["True True"]


def test_a_context_takes_its_allocations_with_it(machine: Machine) -> None:
    program = """
        primary = use()
        before = used()
        made = ck(cu.cuCtxCreate(None, 0, 0)) if cu.CUDA_VERSION >= 13000 else ck(cu.cuCtxCreate(0, 0))
        pointers = [ck(cu.cuMemAlloc(5 * MiB)) for _ in range(4)]
        say((used() - before) // MiB)
        ck(cu.cuCtxDestroy(made)); ck(cu.cuCtxSetCurrent(primary))
        say(used() == before, code(cu.cuMemFree(pointers[0])))
    """
    assert machine.run(program) == ["40", "True 1"]


def test_killing_many_at_any_instant_leaves_nothing(machine: Machine) -> None:
    churn = """
        import random
        use()
        say('up')
        held = []
        while True:
            held.append(create(2 * MiB))
            if len(held) > 20: ck(cu.cuMemRelease(held.pop(random.randrange(len(held)))))
    """
    for _ in range(4):
        with machine.start(churn) as one, machine.start(churn) as two:
            assert (one.hear(), two.hear()) == ("up", "up")
            time.sleep(0.05)
    assert machine.used() == 0
    assert list((machine.state / "physical").iterdir()) == []
    assert machine.run("use(); create(2 * MiB); say('works')") == ["works"]


def test_a_forked_child_neither_holds_memory_nor_drives(machine: Machine) -> None:
    program = """
        use()
        handle = create(8 * MiB)
        mapped(handle, 8 * MiB)
        if os.fork() == 0:
            say('child', code(cu.cuInit(0)), code(cu.cuMemAlloc(4096)))
            wait_for_line()  # until the test closes our standard input
            os._exit(0)
        time.sleep(60)
    """
    with machine.start(program) as parent:
        assert parent.hear() == "child 3 3"
        assert machine.used() == CONTEXT + 8 * MiB
        parent.kill()
        assert machine.used() == 0


@pytest.mark.parametrize("device", [0, 1])
def test_legacy_interprocess_memory(machine: Machine, device: int) -> None:
    """It can be opened on another device: peer access comes with it."""
    maker = """
        use()
        ck(cu.cuMemAlloc(4096))
        pointer = int(ck(cu.cuMemAlloc(5000)))
        write(pointer, b'by name')
        say(ctypes.string_at(ck(cu.cuIpcGetMemHandle(pointer)).getPtr(), 64).hex())
        wait_for_line()
    """
    taker = """
        use(%s)
        handle = cu.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes.fromhex('%s'), 64)
        pointer = int(ck(cu.cuIpcOpenMemHandle(handle, 1)))
        say(read(pointer, 7).decode(), code(cu.cuIpcCloseMemHandle(pointer)))
        say(code(cu.cuMemcpyDtoH(bytearray(4), pointer, 4)))
    """
    with machine.start(maker) as first:
        assert machine.run(taker % (device, first.hear())) == ["by name 0", "1"]
