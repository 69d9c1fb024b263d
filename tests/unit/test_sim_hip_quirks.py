"""Faults of some real HIP runtimes, as modes of the simulated machine, and the ways around them."""

from pathlib import Path

import pytest
from sim_hip import HipMachine
from simulated import CONTEXT, MiB

LEAVE = """
    at = mapped(handle := create(4 * MIB), 4 * MIB)
    write(at, b"left behind")
    check(hip.hipMemUnmap(at, 4 * MIB)); check(hip.hipMemRelease(handle))
    say(used())
"""
MAP_OVER = """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    PRIVATE, FIXED, ANONYMOUS, NORESERVE = 0x02, 0x10, 0x20, 0x4000

    def map_over(at, size):
        assert libc.mmap(at, size, 0, PRIVATE | FIXED | ANONYMOUS | NORESERVE, -1, 0) == at
"""


@pytest.fixture(params=["7.2", "10"])
def stubborn(request: pytest.FixtureRequest, tmp_path: Path) -> HipMachine:
    return HipMachine(tmp_path, request.param, QUIRKS="leak-hard")


@pytest.fixture(params=["7.2", "10"])
def leaky(request: pytest.FixtureRequest, tmp_path: Path) -> HipMachine:
    return HipMachine(tmp_path, request.param, QUIRKS="leak")


def test_without_the_quirk_nothing_is_left(tmp_path):
    assert HipMachine(tmp_path).run(LEAVE) == [str(CONTEXT)]


def test_a_leak_lasts_as_long_as_the_address_is_reserved(leaky):
    program = LEAVE + "    check(hip.hipMemAddressFree(at, 4 * MIB)); say(used())"
    assert leaky.run(program) == [str(CONTEXT + 4 * MiB), str(CONTEXT)]


def test_a_leak_ends_where_the_program_maps_over_it(leaky):
    program = (
        MAP_OVER
        + LEAVE
        + """
    map_over(at, 2 * MIB)
    say(used())
    map_over(at + 2 * MIB, 2 * MIB)
    say(used())
    mapped(handle := create(4 * MIB), 4 * MIB, at=at)
    write(at, b"mapped again")
    say(read(at, 12), used())
"""
    )
    held, free = str(CONTEXT + 4 * MiB), str(CONTEXT)
    assert leaky.run(program) == [held, held, free, f"b'mapped again' {held}"]


def test_a_hard_leak_ends_with_its_address_alone(stubborn):
    program = (
        MAP_OVER
        + LEAVE
        + """
    map_over(at, 4 * MIB)
    say(used())
    check(hip.hipMemAddressFree(at, 4 * MIB))
    say(used())
    again = int(check(hip.hipMemAddressReserve(4 * MIB, 0, at, 0)))
    mapped(handle := create(4 * MIB), 4 * MIB, at=again)
    write(again, b"mapped again")
    say(again == at, read(again, 12), used())
"""
    )
    held, free = str(CONTEXT + 4 * MiB), str(CONTEXT)
    assert stubborn.run(program) == [held, held, free, f"True b'mapped again' {held}"]


def test_leaked_memory_counts_for_the_device_but_not_for_the_process(leaky):
    program = LEAVE + "    wait_for_line()"
    with leaky.start(program) as holder:
        assert holder.hear() == str(CONTEXT + 4 * MiB)
        assert leaky.used() == CONTEXT + 4 * MiB
        assert leaky.smi("rsmi_dev_memory_usage_get", 0, 0) == CONTEXT + 4 * MiB
        holder.kill()
    assert leaky.used() == 0


def test_a_leak_does_not_reach_memory_that_the_runtime_mapped_itself(leaky):
    assert leaky.run("check(hip.hipFree(check(hip.hipMalloc(8 * MIB)))); say(used())") == [str(CONTEXT)]


def test_memory_moves_to_another_process_although_its_maker_leaks(leaky):
    """Exported memory lives on elsewhere; the maker's leak is its own mapping of the same memory."""
    program = """
        at = mapped(handle := create(4 * MIB), 4 * MIB)
        write(at, b"kept")
        kept = export(handle)
        check(hip.hipMemUnmap(at, 4 * MIB)); check(hip.hipMemRelease(handle)); check(hip.hipMemAddressFree(at, 4 * MIB))
        say(used())
        again = mapped(check(hip.hipMemImportFromShareableHandle(kept, POSIX_FD)), 4 * MIB)
        say(read(again, 4))
    """
    assert leaky.run(program) == [str(CONTEXT + 4 * MiB), "b'kept'"]


def test_a_runtime_that_cannot_export(tmp_path):
    program = """
        handle = create(2 * MIB)
        say(code(hip.hipMemExportToShareableHandle(ctypes.c_int(), handle, POSIX_FD, 0)))
        write(mapped(handle, 2 * MIB), b"x")
        say(read(int(check(hip.hipMalloc(64))), 1))
    """
    assert HipMachine(tmp_path, QUIRKS="noexport").run(program) == ["801", "b'\\x00'"]


@pytest.mark.parametrize(("quirk", "moved"), [("", False), ("elsewhere", True)])
def test_a_reservation_may_be_made_elsewhere(tmp_path, quirk, moved):
    program = """
        first = reserve(4 * MIB, 0x7d0000000000)  # where no thread of this process maps anything meanwhile
        check(hip.hipMemAddressFree(first, 4 * MIB))
        say(reserve(4 * MIB, first) != first, reserve(4 * MIB, 0x7e0000000000) != 0x7e0000000000)
    """
    assert HipMachine(tmp_path, QUIRKS=quirk).run(program) == [f"{moved} {moved}"]


def test_quirks_belong_to_the_machine_not_to_the_process(tmp_path):
    machine = HipMachine(tmp_path, QUIRKS="leak,elsewhere")
    program = "say(reserve(2 * MIB, 0x7e0000000000) == 0x7e0000000000)"
    assert machine.run(program, GCR_SIM_QUIRKS="") == ["True"]  # it made the machine
    assert machine.run(program) == ["True"]


@pytest.mark.parametrize(
    "setting",
    [{"QUIRKS": "leek"}, {"QUIRKS": "leak;noexport"}, {"HIP_VERSION": "seven"}, {"NO_P2P": "0,1"}, {"NO_P2P": "1-1"}],
)
def test_a_setting_that_means_nothing_makes_no_machine(tmp_path, setting):
    assert HipMachine(tmp_path, **setting).run("say(code(hip.hipGetDeviceCount()))") == ["100"]
