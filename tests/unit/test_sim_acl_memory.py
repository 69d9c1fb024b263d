"""The simulated ACL runtime's memory: what CUDA does not have or has otherwise, and what crosses processes."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

from acl_machine import CONTEXT, DEADLINE, AclMachine, MiB, build


@pytest.fixture
def machine(tmp_path: Path) -> AclMachine:
    return AclMachine(tmp_path)


# ---- devices and contexts -------------------------------------------------------------------------------------------
def test_a_device_is_reset_when_as_many_times_as_set_or_by_force(machine: AclMachine) -> None:
    program = """
        say(code("aclFinalize"), code("aclInit", None), code("aclInit", None), code("aclrtGetDevice"))
        acl.aclrtSetDevice(1); acl.aclrtSetDevice(1)
        acl.aclrtMalloc(4 * MiB, 0)
        acl.aclrtResetDevice(1)
        say(used(), acl.aclrtGetDevice())
        acl.aclrtResetDevice(1)
        say(code("aclrtGetDevice"), code("aclrtMalloc", 8, 0), code("aclrtResetDevice", 1))
        acl.aclrtSetDevice(1); acl.aclrtSetDevice(1)
        say(used())
        acl.aclrtResetDeviceForce(1)
        say(code("aclrtGetDevice"), code("aclrtResetDevice", 1), code("aclrtSetDevice", 2))
        acl.aclrtSetDevice(0)
        acl.aclFinalize()
        say(code("aclrtGetDevice"), code("aclFinalize"), code("aclrtResetDevice", 0))
    """
    assert machine.run(program) == [
        "100037 0 100002 107002",
        f"{CONTEXT + 4 * MiB} 1",
        "107002 107002 107002",
        str(CONTEXT),
        "107002 107002 107001",
        "107002 100037 107002",
    ]
    assert (machine.used(0), machine.used(1)) == (0, 0)


def test_contexts_are_made_current_per_thread(machine: AclMachine) -> None:
    program = """
        use()
        first = acl.aclrtGetCurrentContext()
        second = acl.aclrtCreateContext(1)
        say(acl.aclrtGetDevice(), acl.aclrtGetCurrentContext() == second != first)
        stream = acl.aclrtCreateStream()
        acl.aclrtSetCurrentContext(first)
        say(acl.aclrtGetDevice(), code("aclrtDestroyContext", first), code("aclrtSetCurrentContext", 12345))
        elsewhere = []
        Aside(lambda: elsewhere.append(code("aclrtGetDevice"))).returned(10)
        acl.aclrtDestroyContext(second)
        say(elsewhere, code("aclrtSynchronizeStream", stream), used())
    """
    assert machine.run(program) == ["1 True", "0 107002 107000", f"[107002] 107000 {CONTEXT}"]


def test_visible_devices_are_those_of_the_environment(machine: AclMachine) -> None:
    program = (
        "use(); held = create(4 * MiB); say(acl.aclrtGetDeviceCount(), code('aclrtSetDevice', 1)); wait_for_line()"
    )
    with machine.start(program, ASCEND_RT_VISIBLE_DEVICES="1") as holder:
        assert holder.hear() == "1 107001"
        assert (machine.used(0), machine.used(1)) == (0, CONTEXT + 4 * MiB)
    assert machine.run("say(code('aclInit', None))", ASCEND_RT_VISIBLE_DEVICES="") == ["207004"]


# ---- plain memory ---------------------------------------------------------------------------------------------------
def test_memory_is_copied_filled_and_given_back(machine: AclMachine) -> None:
    program = """
        use()
        address = acl.aclrtMalloc(4 * MiB, 0)
        write(address + 4096, pattern(MiB))
        say(read(address + 4096, MiB) == pattern(MiB), used())
        acl.aclrtMemset(address, 4 * MiB, 0x1AB, 4 * MiB)
        say(read(address, 4 * MiB) == b"\\xab" * (4 * MiB))
        acl.aclrtFree(address)
        say(used())
    """
    assert machine.run(program) == [f"True {CONTEXT + 4 * MiB}", "True", str(CONTEXT)]


def test_a_copy_that_its_kind_or_its_room_forbids_is_refused(machine: AclMachine) -> None:
    program = """
        use()
        address = acl.aclrtMalloc(MiB, 0)
        host = ctypes.create_string_buffer(MiB)
        say(code("aclrtMemcpy", host, MiB, host, MiB, H2D), code("aclrtMemcpy", address, MiB, host, MiB, D2H),
            code("aclrtMemcpy", address, 4, host, 5, H2D), code("aclrtMemcpy", address, 2 * MiB, host, 2 * MiB, H2D),
            code("aclrtMemcpy", address, MiB, host, MiB, ANY_KIND))
    """
    assert machine.run(program) == ["107000 107000 107000 107000 0"]


def test_memory_of_another_device_is_reached_through_peer_access(machine: AclMachine) -> None:
    program = """
        use(1)
        far = acl.aclrtMalloc(MiB, 0)
        write(far, pattern(4096))
        acl.aclrtSetDevice(0)
        near = acl.aclrtMalloc(MiB, 0)
        between = (near, MiB, far, 4096, D2D, None)
        say(acl.aclrtDeviceCanAccessPeer(0, 1), code("aclrtMemcpyAsync", *between))
        acl.aclrtDeviceEnablePeerAccess(1, 0)
        acl.aclrtMemcpyAsync(*between)
        acl.aclrtSynchronizeStream(None)
        say(read(near, 4096) == pattern(4096))
        acl.aclrtDeviceDisablePeerAccess(1)
        say(code("aclrtMemcpyAsync", *between), code("aclrtDeviceEnablePeerAccess", 0, 0))
    """
    assert machine.run(program) == ["1 107000", "True", "107000 107000"]


def test_synchronous_copies_do_not_wait_for_streams(machine: AclMachine) -> None:
    program = """
        use()
        address, stream = acl.aclrtMalloc(MiB, 0), acl.aclrtCreateStream()
        held = threading.Event()
        callback = HostFunc(lambda _argument: (held.wait(20), None)[1])
        acl.aclrtLaunchHostFunc(stream, callback, None)
        acl.aclrtLaunchHostFunc(None, callback, None)
        write(address, b"copied beside")
        say(read(address, 13), acl.aclrtStreamQuery(stream), code("aclrtSynchronizeStreamWithTimeout", stream, 50))
        held.set()
        acl.aclrtSynchronizeStream(stream)
        say(acl.aclrtStreamQuery(stream))
    """
    assert machine.run(program) == ["b'copied beside' 1 507046", "0"]


def test_kernels_take_arguments_from_host_or_from_device_memory(machine: AclMachine) -> None:
    program = """
        use()
        kernels, words = Kernels(), 1024
        a, b, arguments = (acl.aclrtMalloc(8 * words, 0) for _ in range(3))
        kernels.launch("fill", a, words, 5)
        write(arguments, bytes((ctypes.c_uint64 * 3)(b, words, 5)))
        acl.aclrtLaunchKernel(kernels.function("fill"), 1, arguments, 24, None)
        acl.aclrtSynchronizeStream(None)
        say(read(a, 8 * words) == read(b, 8 * words) != bytes(8 * words))
        host = (ctypes.c_uint64 * 3)(b, words, 5)
        say(code("aclrtLaunchKernel", kernels.function("fill"), 1, arguments, 16, None),
            code("aclrtLaunchKernel", kernels.function("fill"), 1, host, 24, None))
        acl.aclrtLaunchKernel(kernels.function("fill"), 1, reserve(2 * MiB), 24, None)
        say(code("aclrtSynchronizeStream", None), code("aclrtMalloc", 8, 0))
    """
    assert machine.run(program) == ["True", "107000 107000", "507035 507035"]


def test_events_order_streams_and_measure_time(machine: AclMachine) -> None:
    program = """
        use()
        kernels, address = Kernels(), acl.aclrtMalloc(8192, 0)
        first, second = acl.aclrtCreateStream(), acl.aclrtCreateStream()
        begin, end = acl.aclrtCreateEventWithFlag(8), acl.aclrtCreateEventWithFlag(8)
        acl.aclrtRecordEvent(begin, first)
        acl.aclrtSynchronizeEvent(begin)  # on a busy machine its stream may come to it late
        held = threading.Event()
        acl.aclrtLaunchHostFunc(first, (callback := HostFunc(lambda _argument: (held.wait(20), None)[1])), None)
        kernels.launch("fill", address, 1024, 1, stream=first)
        acl.aclrtRecordEvent(end, first)
        acl.aclrtStreamWaitEvent(second, end)
        kernels.launch("add", address, 1024, 1, stream=second)
        time.sleep(0.06)
        say(acl.aclrtQueryEventStatus(end))
        held.set()
        acl.aclrtSynchronizeStream(second)
        once = read(address, 8192)
        kernels.launch("fill", address, 1024, 1)
        kernels.launch("add", address, 1024, 1)
        acl.aclrtSynchronizeDevice()
        say(acl.aclrtQueryEventStatus(end), once == read(address, 8192), acl.aclrtEventElapsedTime(begin, end) >= 50)
    """
    assert machine.run(program) == ["0", "1 True True"]


# ---- virtual memory -------------------------------------------------------------------------------------------------
def test_a_wished_address_is_given_or_refused_never_another(machine: AclMachine) -> None:
    program = """
        use()
        at = 17 * TiB + 64 * MiB
        say(reserve(64 * MiB, at) == at)
        for wish, size in ((at, 64 * MiB), (at + 2 * MiB, 64 * MiB), (15 * TiB, 2 * MiB), (24 * TiB - 2 * MiB, 4 * MiB),
                           (20 * TiB + 512 * MiB, 2 * GiB), (17 * TiB + 2 * MiB, 6 * MiB)):
            say(code("aclrtReserveMemAddress", size, 0, wish, 0))
        acl.aclrtReleaseMemAddress(at)
        say(reserve(64 * MiB, at) == at, code("aclrtReserveMemAddress", 2 * MiB, 4096, None, 0))
        say(acl.aclrtReserveMemAddressNoUCMemory(GiB, 0, 41 * TiB, 0) == 41 * TiB,
            code("aclrtReserveMemAddressNoUCMemory", GiB, 0, None, 0))
    """
    assert machine.run(program) == ["True", *["107000"] * 6, "True 107000", "True 107000"]


def test_a_mapping_is_accessible_at_once_and_only_whole(machine: AclMachine) -> None:
    program = """
        use()
        a, b, where = create(2 * MiB), create(4 * MiB), reserve(8 * MiB)
        acl.aclrtMapMem(where, 2 * MiB, 0, a, 0)
        acl.aclrtMapMem(where + 2 * MiB, 4 * MiB, 0, b, 0)
        write(where, pattern(6 * MiB))
        say(read(where, 6 * MiB) == pattern(6 * MiB))
        say(code("aclrtUnmapMem", where + 4 * MiB), code("aclrtReleaseMemAddress", where),
            code("aclrtMapMem", where + 6 * MiB, MiB, 0, a, 0),
            code("aclrtMapMem", where + 6 * MiB, 2 * MiB, MiB, a, 0))
        say(*(acl.aclrtMemGetAccess(where, MemLocation(device, DEVICE)) for device in range(2)))
        acl.aclrtUnmapMem(where)
        host = ctypes.create_string_buffer(8)
        say(code("aclrtMemcpy", host, 8, where, 8, D2H))
        acl.aclrtMapMem(where, 2 * MiB, 0, a, 0)
        say(read(where, 6 * MiB) == pattern(6 * MiB), acl.aclrtMemRetainAllocationHandle(where) == a,
            acl.aclrtMemGetAddressRange(where + 3 * MiB) == (where + 2 * MiB, 4 * MiB))
    """
    assert machine.run(program) == ["True", "107000 107000 107000 107000", "3 0", "107000", "True True True"]


def test_freed_physical_memory_stays_until_it_is_unmapped(machine: AclMachine) -> None:
    program = """
        use()
        handle = create(8 * MiB)
        where = mapped(handle, 8 * MiB)
        acl.aclrtFreePhysical(handle)
        say(used(), code("aclrtFreePhysical", handle))
        acl.aclrtUnmapMem(where)
        say(used())
        acl.aclrtMapMem(where, 8 * MiB, 0, create(8 * MiB), 0)
        say(used())
    """
    assert machine.run(program) == [f"{CONTEXT + 8 * MiB} 107000", str(CONTEXT), str(CONTEXT + 8 * MiB)]


def test_one_reservation_holds_memory_of_one_device(machine: AclMachine) -> None:
    program = """
        use()
        where = reserve(8 * MiB)
        mapped(create(2 * MiB, 0), 2 * MiB, where)
        other = create(2 * MiB, 1)
        say(code("aclrtMapMem", where + 2 * MiB, 2 * MiB, 0, other, 0))
        elsewhere = mapped(other, 2 * MiB)
        say(code("aclrtMemcpy", elsewhere, 8, b"12345678", 8, H2D))
        access = MemAccessDesc(flags=READ_WRITE, location=MemLocation(0, DEVICE))
        say(code("aclrtMemSetAccess", elsewhere, MiB, access, 1))
        acl.aclrtMemSetAccess(elsewhere, 2 * MiB, access, 1)
        write(elsewhere, b"12345678")
        say(read(elsewhere, 8))
    """
    assert machine.run(program) == ["107000", "107000", "107000", "b'12345678'"]


def test_memory_in_pages_of_1_gib_has_that_granularity(tmp_path: Path) -> None:
    machine = AclMachine(tmp_path, MEMORY=6 << 30)
    program = """
        use()
        for attribute in (HBM_HUGE, HBM_HUGE1G, 14):
            say(acl.aclrtMemGetAllocationGranularity(properties(attribute=attribute), 0) // MiB)
        say(code("aclrtMallocPhysical", 512 * MiB, properties(attribute=HBM_HUGE1G), 0))
        handle = create(GiB, attribute=HBM_HUGE1G)
        where = mapped(handle, GiB, reserve(2 * GiB, 18 * TiB))
        write(where + GiB - 4096, pattern(4096))
        say(where == 18 * TiB, read(where + GiB - 4096, 4096) == pattern(4096), used() // MiB)
        huge = acl.aclrtMalloc(5, 6)
        say(used() // MiB, code("aclrtMalloc", GiB + 1, 6), code("aclrtMalloc", 1, 8))
    """
    assert machine.run(program) == ["2", "1024", "1024", "107000", "True True 1040", "2064 0 107000"]


def test_a_machine_whose_every_granule_is_1_gib(tmp_path: Path) -> None:
    machine = AclMachine(tmp_path, MEMORY=4 << 30, GRANULARITY=1 << 30)
    program = """
        use()
        say(acl.aclrtMemGetAllocationGranularity(properties(), 0) == GiB,
            code("aclrtMallocPhysical", 2 * MiB, properties(), 0))
        where = mapped(create(GiB), GiB)
        write(where, pattern(MiB))
        say(read(where, MiB) == pattern(MiB), code("aclrtMapMem", where + 2 * MiB, GiB, 0, create(GiB), 0))
    """
    assert machine.run(program) == ["True 107000", "True 107000"]


# ---- between processes ----------------------------------------------------------------------------------------------
IMPORTER = """
    use()
    say(os.getpid())
    name = int(wait_for_line())
    result, handle = attempt("aclrtMemImportFromShareableHandle", name, 0)
    if result:
        say(result)
        raise SystemExit
    where = mapped(handle, 4 * MiB)
    say("has", read(where, 4 * MiB) == pattern(4 * MiB), code("aclrtMemImportFromShareableHandle", name, 0),
        code("aclrtMemExportToShareableHandle", handle, 0, EVERYBODY))
    write(where, b"written by the importer")
    say("wrote")
    wait_for_line()
"""
EXPORTER = """
    use()
    handle = create(4 * MiB)
    where = mapped(handle, 4 * MiB)
    write(where, pattern(4 * MiB))
    say(export(handle, *map(int, wait_for_line().split())))
    if wait_for_line() == "look":
        say(read(where, 23))
    acl.aclrtUnmapMem(where)
    acl.aclrtFreePhysical(handle)
    say("freed")
    wait_for_line()
"""


def test_memory_is_shared_by_name_with_the_processes_named(machine: AclMachine) -> None:
    with machine.start(EXPORTER) as exporter, machine.start(IMPORTER) as importer:
        name = exporter.ask(importer.hear())
        assert importer.ask(name) == "has True 107000 107000"
        assert importer.hear() == "wrote"
        assert exporter.ask("look") == "b'written by the importer'"
        assert exporter.hear() == "freed"
        assert machine.used() == 2 * CONTEXT + 4 * MiB, "the importer still holds it"
        importer.kill()
        assert machine.used() == CONTEXT


def test_a_process_that_was_not_named_cannot_import(machine: AclMachine) -> None:
    with machine.start(EXPORTER) as exporter, machine.start(IMPORTER) as importer:
        importer.hear()
        assert importer.ask(exporter.ask("1")) == "207006"


def test_anybody_may_import_what_was_exported_without_a_list(machine: AclMachine) -> None:
    with machine.start(EXPORTER) as exporter, machine.start(IMPORTER) as importer:
        importer.hear()
        assert importer.ask(exporter.ask("")).startswith("has True")


def test_a_name_holds_nothing(machine: AclMachine) -> None:
    with machine.start(EXPORTER) as exporter, machine.start(IMPORTER) as importer:
        name = exporter.ask(importer.hear())
        assert exporter.ask("free") == "freed"
        assert importer.ask(name) == "107000"


def test_memory_is_exported_once_and_not_imported_at_home(machine: AclMachine) -> None:
    program = """
        use()
        handle = create(2 * MiB)
        name = export(handle)
        say(code("aclrtMemExportToShareableHandle", handle, 0, EVERYBODY),
            code("aclrtMemImportFromShareableHandle", name, 0),
            code("aclrtMemImportFromShareableHandle", 12345 << 16, 0))
        fabric = (ctypes.c_uint8 * 128)()
        say(code("aclrtMemExportToShareableHandleV2", create(2 * MiB), EVERYBODY, 2, fabric))
        word = ctypes.c_uint64()
        acl.aclrtMemExportToShareableHandleV2(create(2 * MiB), 0, 1, ctypes.byref(word))
        acl.aclrtMemSetPidToShareableHandleV2(ctypes.byref(word), 1, (ctypes.c_int32 * 1)(1), 1)
        say(word.value != 0, code("aclrtMemSetPidToShareableHandle", 5, (ctypes.c_int32 * 1)(1), 1))
    """
    assert machine.run(program) == ["107000 107000 107000", "207000", "True 107000"]


def test_the_management_library_counts_memory_by_process(machine: AclMachine) -> None:
    program = """
        acl.dcmi_init()
        cards = (ctypes.c_int * 16)()
        say(acl.dcmi_get_card_list(cards, 16), b"SIMULATED" in acl.dcmi_get_device_chip_info(0, 0).chip_name,
            bytes(acl.dcmi_get_device_die_v2(1, 0, 1).soc_die)[:9])
        seen = (ProcMemInfo * 32)()
        count = acl.dcmi_get_device_resource_info(0, 0, seen)
        say({seen[i].proc_id: seen[i].proc_mem_usage // MiB for i in range(count)})
        say(code("dcmi_get_device_hbm_info", 9, 0))
    """
    with machine.start("use(); held = create(8 * MiB); say('up'); wait_for_line()") as holder:
        holder.hear()
        assert machine.run(program) == ["2 True b'SIMULATED'", str({holder.pid: CONTEXT // MiB + 8}), "-8007"]


# ---- a program that links the runtime -------------------------------------------------------------------------------
def test_a_linked_c_program_prints_the_same_every_time(machine: AclMachine, tmp_path: Path) -> None:
    words = [str(build(tmp_path / "acl_victim")), "40"]
    runs = [
        subprocess.run(words, env=machine.env, capture_output=True, text=True, timeout=DEADLINE, check=False)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.startswith("verified digest ")
