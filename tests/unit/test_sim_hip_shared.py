"""Memory that processes share through the simulated HIP runtime, and its traces: descriptors, handles, the
management library and the kernel's files."""

import socket
import time
from pathlib import Path

import pytest
from sim_hip import HipMachine
from simulated import CONTEXT, MiB


@pytest.fixture
def newest(tmp_path: Path) -> HipMachine:
    return HipMachine(tmp_path)


# ---- between processes --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("generation", ["7.2", "10"])
def test_used_bytes_are_seen_by_others_and_gone_after_kill(tmp_path, generation):
    machine = HipMachine(tmp_path, generation)
    program = "held = [create(8 * MIB) for _ in range(5)]; check(hip.hipMalloc(MIB)); say('up'); wait_for_line()"
    with machine.start(program) as holder:
        assert holder.hear() == "up"
        assert machine.used() == CONTEXT + 40 * MiB + 2 * MiB
        holder.kill()
        assert machine.used() == 0


TAKE = """
    _, (descriptor,), _, _ = socket.recv_fds(channel(), 1, 1)
    handle = check(hip.hipMemImportFromShareableHandle({shared}, POSIX_FD))
    address = mapped(handle, 2 * MIB)
    say(read(address, 11), used())
    again = ctypes.c_int()
    say(code(hip.hipMemExportToShareableHandle(again, handle, POSIX_FD, 0)))
"""


@pytest.mark.parametrize(("version", "shared"), [("7.2", "descriptor"), ("7.0", "ctypes.c_int(descriptor)")])
def test_an_exported_allocation_outlives_its_maker(tmp_path, version, shared):
    """Before 7.1 the runtime took the address of the descriptor, not its value."""
    machine = HipMachine(tmp_path, HIP_VERSION=version)
    ours, theirs = socket.socketpair()
    maker = """
        address = mapped(handle := create(2 * MIB), 2 * MIB)
        write(address, b"handed over")
        socket.send_fds(channel(), [b"f"], [export(handle)])
        say("sent")
        time.sleep(60)
    """
    with machine.start(maker, stdin=theirs.fileno()) as first:
        theirs.close()
        assert first.hear() == "sent"
        first.kill()
    assert machine.used() == 2 * MiB  # only the message in flight holds it
    ours.set_inheritable(True)
    with machine.start(TAKE.format(shared=shared), stdin=ours.fileno()) as second:
        ours.close()
        assert second.hear() == f"b'handed over' {CONTEXT + 2 * MiB}"
        assert second.hear() == "1"  # what was imported cannot be exported again
    assert machine.used() == 0


def test_interprocess_memory_handles(newest, tmp_path):
    blob = tmp_path / "blob"
    maker = f"""
        pointer = int(check(hip.hipMalloc(MIB)))
        write(pointer, b"by handle")
        handle = check(hip.hipIpcGetMemHandle(pointer))
        open({str(blob)!r}, "wb").write(ctypes.string_at(handle.as_c_void_p().value, 64))
        say("up"); wait_for_line()
    """
    taker = f"""
        handle = hip.hipIpcMemHandle_st()
        ctypes.memmove(handle.as_c_void_p().value, open({str(blob)!r}, "rb").read(), 64)
        pointer = int(check(hip.hipIpcOpenMemHandle(handle, 1)))
        say(read(pointer, 9)); check(hip.hipIpcCloseMemHandle(pointer)); say(code(hip.hipIpcCloseMemHandle(pointer)))
    """
    with newest.start(maker) as holder:
        assert holder.hear() == "up"
        assert newest.run(taker) == ["b'by handle'", "1"]


def test_a_forked_child_gets_errors_and_holds_nothing(newest):
    program = """
        pointer = check(hip.hipMalloc(8 * MIB))
        child = os.fork()
        if not child:
            say(code(hip.hipMalloc(64))); os._exit(0)
        os.waitpid(child, 0)
        check(hip.hipFree(pointer)); say(used())
    """
    assert newest.run(program) == ["3", str(CONTEXT)]


def test_system_management_counts_per_process(newest):
    with newest.start("check(hip.hipMalloc(8 * MIB)); say('up'); wait_for_line()") as holder:
        assert holder.hear() == "up"
        assert newest.smi("rsmi_dev_memory_total_get", 0, 0) == 2048 * MiB
        assert newest.smi("rsmi_dev_unique_id_get", 1) == 0x53494D0000000001
        program = f"""
            class Info(ctypes.Structure):
                _fields_ = [("pid", U32), ("pasid", U32), ("vram", U64), ("sdma", U64), ("occupancy", U32)]
            smi, infos, count = ctypes.CDLL("librocm_smi64.so"), (Info * 8)(), U32(8)
            say(smi.rsmi_num_monitor_devices(ctypes.byref(count)), smi.rsmi_init(U64(0)))
            count.value = 8
            say(smi.rsmi_compute_process_info_get(infos, ctypes.byref(count)), count.value,
                infos[0].pid == {holder.pid}, infos[0].vram)
            pid, one = U32({holder.pid}), ctypes.byref(infos[1])
            say(smi.rsmi_compute_process_info_by_device_get(pid, U32(0), one), infos[1].vram,
                smi.rsmi_compute_process_info_by_device_get(pid, U32(1), one),
                smi.rsmi_compute_process_info_by_device_get(pid, U32(7), one))
        """
        held = CONTEXT + 8 * MiB
        assert newest.run(program) == ["8 0", f"0 1 True {held}", f"0 {held} 10 1"]


# ---- what the kernel shows ----------------------------------------------------------------------------------------
def kernel_number(machine: HipMachine, path: str) -> int:
    return int((machine.state / "sys" / path).read_text())


def soon(condition, deadline: float = 10.0) -> bool:
    end = time.monotonic() + deadline
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


USED = "bus/pci/devices/0000:01:00.0/mem_info_vram_used"
PROCESSES = "class/kfd/kfd/proc"


def test_the_kernels_files_name_devices_and_processes(newest):
    with newest.start("check(hip.hipMalloc(64)); say('up'); wait_for_line()") as holder:
        assert holder.hear() == "up"
        nodes = newest.state / "sys/class/kfd/kfd/topology/nodes"
        assert [int((nodes / str(n) / "gpu_id").read_text()) for n in range(3)] == [0, 51000, 51001]
        assert "location_id 512\n" in (nodes / "2/properties").read_text()
        assert kernel_number(newest, "bus/pci/devices/0000:02:00.0/mem_info_vram_total") == 2048 * MiB
        assert [path.name for path in (newest.state / "sys" / PROCESSES).iterdir()] == [str(holder.pid)]
        holder.kill()
        assert not (newest.state / "sys" / PROCESSES / str(holder.pid)).is_dir()


def test_the_kernels_files_are_right_when_a_call_returns(newest):
    program = """
        state = os.environ["GCR_SIM_STATE"] + "/sys/"
        paths = ["bus/pci/devices/0000:01:00.0/mem_info_vram_used", f"class/kfd/kfd/proc/{os.getpid()}/vram_51000"]
        show = lambda: say(*(int(open(state + path).read()) >> 20 for path in paths))
        check(hip.hipGetDevice()); show()
        pointer = check(hip.hipMalloc(8 * MIB)); show()
        handle = create(4 * MIB); show()
        check(hip.hipFree(pointer)); show()
        check(hip.hipMemRelease(handle)); show()
    """
    assert newest.run(program) == ["0 0", "24 24", "28 28", "20 20", "16 16"]


def test_a_death_shows_in_the_kernels_files_while_another_process_runs(newest):
    with newest.start("check(hip.hipSetDevice(1)); check(hip.hipMalloc(64)); say('up'); wait_for_line()") as other:
        assert other.hear() == "up"
        with newest.start("check(hip.hipMalloc(64 * MIB)); say('up'); wait_for_line()") as victim:
            assert victim.hear() == "up"
            assert kernel_number(newest, USED) == CONTEXT + 64 * MiB
            victim.kill()
        assert soon(lambda: kernel_number(newest, USED) == 0)
        names = newest.state / "sys" / PROCESSES
        assert soon(lambda: [path.name for path in names.iterdir()] == [str(other.pid)])
