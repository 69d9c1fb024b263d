"""The simulated HIP runtime under unmodified hip-python of both generations."""

from pathlib import Path

import pytest
from sim_hip import HipMachine, runtime
from simulated import CONTEXT, MiB


@pytest.fixture(params=["7.2", "10"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> HipMachine:
    return HipMachine(tmp_path, request.param)


@pytest.fixture
def newest(tmp_path: Path) -> HipMachine:
    return HipMachine(tmp_path)


# ---- devices ------------------------------------------------------------------------------------------------------
def test_devices_say_that_they_are_simulated(machine):
    program = """
        p = filled(hip.hipDeviceProp_t, hip.hipGetDeviceProperties, 1)
        text = lambda value: value.decode() if isinstance(value, bytes) else value
        say(check(hip.hipGetDeviceCount()), text(p.name), "|", text(p.gcnArchName), p.warpSize, p.totalGlobalMem >> 20)
        vmm = hip.hipDeviceAttribute_t.hipDeviceAttributeVirtualMemoryManagementSupported
        say(check(hip.hipDeviceGetAttribute(vmm, 1)), p.pciBusID)
        uuid = check(hip.hipDeviceGetUuid(1))
        say(ctypes.string_at(uuid.as_c_void_p().value, 16).decode())
    """
    assert machine.run(program) == [
        "2 AMD SIMULATED GPU | gfx942:sramecc+:xnack- 64 2048",
        "1 2",
        "53494d0000000001",
    ]


def test_the_newer_generation_finds_the_runtime_by_rocm_path_alone(newest):
    del newest.env["LD_LIBRARY_PATH"]
    assert newest.run("say(check(hip.hipGetDeviceCount()))") == ["2"]


@pytest.mark.parametrize(("setting", "number"), [("5.4", 50400000), ("7.0.51831", 70051831), ("", 70200000)])
def test_the_version_is_a_setting(tmp_path, setting, number):
    machine = HipMachine(tmp_path, HIP_VERSION=setting)
    assert machine.run("say(check(hip.hipRuntimeGetVersion()), check(hip.hipDriverGetVersion()))") == [
        f"{number} {number}"
    ]


@pytest.mark.parametrize(
    ("env", "buses"),
    [
        ({}, "1 2 3"),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, "3 1"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-53494d0000000002,0", "HIP_VISIBLE_DEVICES": "0"}, "3"),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, "2"),
    ],
)
def test_visible_devices(tmp_path, env, buses):
    program = """
        bus = hip.hipDeviceAttribute_t.hipDeviceAttributePciBusId
        say(*(check(hip.hipDeviceGetAttribute(bus, d)) for d in range(check(hip.hipGetDeviceCount()))))
    """
    assert HipMachine(tmp_path, DEVICES=3).run(program, **env) == [buses]


def test_without_a_device_only_versions_are_answered(newest):
    program = """
        say(code(hip.hipInit(0)), code(hip.hipGetDeviceCount()), code(hip.hipMalloc(64)))
        say(check(hip.hipRuntimeGetVersion()))
    """
    assert newest.run(program, HIP_VISIBLE_DEVICES="") == ["101 100 101", "70200000"]


def test_each_thread_has_its_own_current_device(machine):
    program = """
        check(hip.hipSetDevice(1))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(check(hip.hipGetDevice())))
        thread.start(); thread.join()
        say(check(hip.hipGetDevice()), *seen)
        check(hip.hipMalloc(4 * MIB))
        say(used(0), used(1))
    """
    assert machine.run(program) == ["1 0", f"0 {CONTEXT + 4 * MiB}"]


# ---- memory -------------------------------------------------------------------------------------------------------
def test_reserve_create_map_copy_and_launch(machine):
    program = """
        at = reserve(4 * MIB, 0x7e0000000000)
        mapped(handle := create(4 * MIB), 4 * MIB, at=at)
        stream = check(hip.hipStreamCreate())
        kernels().launch("fill", U64(at), U64(1024), U64(7), stream=stream)
        host = (ctypes.c_uint64 * 1024)()
        check(hip.hipMemcpyAsync(host, at, 8192, DEFAULT, stream))
        check(hip.hipStreamSynchronize(stream))
        say(hex(at), hex(host[0]), used())
        check(hip.hipMemUnmap(at, 4 * MIB)); check(hip.hipMemRelease(handle))
        say(used(), code(hip.hipMemcpy(host, at, 8192, DEFAULT)))
    """
    assert machine.run(program) == [f"0x7e0000000000 0x63cbe1e459320dd7 {CONTEXT + 4 * MiB}", f"{CONTEXT} 1"]


def test_plain_pitched_managed_and_host_memory(machine):
    program = """
        plain, (pitched, pitch) = check(hip.hipMalloc(3 * MIB)), check(hip.hipMallocPitch(1000, 8))
        managed, host = check(hip.hipMallocManaged(MIB, 1)), check(hip.hipHostMalloc(MIB, 0))
        ctypes.memset(int(host), 7, MIB)
        ctypes.memset(int(managed), 9, MIB)
        check(hip.hipMemcpy(plain, host, MIB, DEFAULT)); check(hip.hipMemcpy(int(plain) + MIB, managed, MIB, DEFAULT))
        data = read(int(plain), 2 * MIB)
        say(pitch, data == bytes([7]) * MIB + bytes([9]) * MIB)
        kinds = [filled(hip.hipPointerAttribute_t, hip.hipPointerGetAttributes, p) for p in (plain, managed, host)]
        say(*(int(k.type) for k in kinds), *(k.isManaged for k in kinds))
        for pointer in (plain, pitched, managed):
            check(hip.hipFree(pointer))
        check(hip.hipHostFree(host))
        say(used(), code(hip.hipFree(plain)), code(hip.hipFree(None)))
    """
    assert machine.run(program) == ["1024 True", "2 3 1 0 1 0", f"{CONTEXT} 1 0"]


@pytest.mark.parametrize(("version", "answer"), [("7.0", "0 -2"), ("6.4", "failed 1")])
def test_an_unknown_pointer_is_an_error_before_7(tmp_path, version, answer):
    program = """
        try:
            found = filled(hip.hipPointerAttribute_t, hip.hipPointerGetAttributes, 4096)
            say(int(found.type), found.device)
        except Failed as failed:
            say("failed", failed.code)
    """
    assert HipMachine(tmp_path, HIP_VERSION=version).run(program) == [answer]


def test_stream_ordered_memory_and_pools(machine):
    program = """
        stream = check(hip.hipStreamCreate())
        pointer = check(hip.hipMallocAsync(2 * MIB, stream))
        check(hip.hipMemsetAsync(pointer, 5, 2 * MIB, stream))
        say(used(), read(int(pointer), 3))
        check(hip.hipFreeAsync(pointer, stream)); check(hip.hipStreamSynchronize(stream))
        say(used())
        pool = check(hip.hipDeviceGetDefaultMemPool(0))
        taken = check(hip.hipMallocFromPoolAsync(2 * MIB, pool, stream))
        check(hip.hipFree(taken))
        say(used())
    """
    assert machine.run(program) == [f"{CONTEXT + 2 * MiB} b'\\x05\\x05\\x05'", str(CONTEXT), str(CONTEXT)]


def test_copies_between_devices_need_no_peer_access_but_kernels_do(machine):
    program = """
        near = check(hip.hipMalloc(MIB))
        write(int(near), b"over there")
        check(hip.hipSetDevice(1))
        far = check(hip.hipMalloc(MIB))
        check(hip.hipMemcpyPeer(far, 1, near, 0, 10))
        say(read(int(far), 10))
        say(code(hip.hipDeviceDisablePeerAccess(0)), code(hip.hipDeviceEnablePeerAccess(0, 0)),
            code(hip.hipDeviceEnablePeerAccess(0, 0)))
        kernels().launch("add", U64(int(near)), U64(1), U64(0))
        say(code(hip.hipDeviceSynchronize()))
        check(hip.hipDeviceDisablePeerAccess(0))
        kernels().launch("add", U64(int(near)), U64(1), U64(0))
        say(code(hip.hipDeviceSynchronize()), code(hip.hipMalloc(64)))
    """
    assert machine.run(program) == ["b'over there'", "705 0 704", "0", "700 700"]


def test_two_dimensions(newest):
    program = """
        device = int(check(hip.hipMalloc(MIB)))
        source = bytes(range(200))
        check(hip.hipMemcpy2D(device, 256, source, 20, 20, 10, DEFAULT))
        back = bytearray(200)
        check(hip.hipMemcpy2D(back, 20, device, 256, 20, 10, DEFAULT))
        say(bytes(back) == source, read(device + 256, 3) == source[20:23])
        check(hip.hipMemset2D(device, 256, 1, 20, 2))
        say(read(device, 21), read(device + 256, 1), code(hip.hipMemcpy2D(back, 10, device, 256, 20, 10, DEFAULT)))
    """
    ones = b"\x01" * 20 + b"\0"
    assert newest.run(program) == ["True True", f"{ones!r} b'\\x01' 12"]


def test_a_device_that_is_full_is_full_for_all_and_reset_empties_it(tmp_path):
    machine = HipMachine(tmp_path, MEMORY=256 * MiB)
    with machine.start("held = check(hip.hipMalloc(200 * MIB)); say('up'); wait_for_line()") as holder:
        assert holder.hear() == "up"
        assert machine.run("say(code(hip.hipMalloc(100 * MIB)))") == ["2"]
        holder.kill()
    program = (
        "check(hip.hipMalloc(200 * MIB)); check(hip.hipDeviceReset()); say(used(), code(hip.hipMalloc(200 * MIB)))"
    )
    assert machine.run(program) == ["0 0"]


# ---- errors -------------------------------------------------------------------------------------------------------
ERRORS = {
    "hipSetDevice(2)": 101,
    "hipSetDevice(-1)": 101,
    "hipFree(64)": 1,
    "hipHostUnregister(64)": 713,
    "hipMemAddressReserve(4097, 0, 0, 0)": 1,
    "hipMemAddressReserve(2 * MIB, 0, 0, 1)": 1,
    "hipMemAddressFree(64, 2 * MIB)": 1,
    "hipMemCreate(4097, properties(), 0)": 1,
    "hipMemCreate(2 * MIB, properties(5), 0)": 101,
    "hipMemRelease(12345)": 1,
    "hipMemMap(reserve(4 * MIB), 2 * MIB, 2 * MIB, create(4 * MIB), 0)": 1,
    "hipMemMap(reserve(4 * MIB), 2 * MIB, 0, create(4 * MIB), 0)": 1,
    "hipMemMap(64, 2 * MIB, 0, create(2 * MIB), 0)": 1,
    "hipMemUnmap(reserve(2 * MIB), 2 * MIB)": 1,
    "hipMemUnmap(mapped(create(4 * MIB), 4 * MIB), 2 * MIB)": 1,
    "hipMemUnmap(mapped(create(2 * MIB), 2 * MIB, at=reserve(4 * MIB)), 4 * MIB)": 1,
    "hipMemExportToShareableHandle(ctypes.c_int(), create(2 * MIB, exportable=False), POSIX_FD, 0)": 1,
    "hipMemImportFromShareableHandle(os.open('/dev/null', os.O_RDWR), POSIX_FD)": 1,
    "hipMemcpy(0, 0, 8, DEFAULT)": 1,
    "hipStreamDestroy(12345)": 400,
    "hipStreamSynchronize(12345)": 709,
    "hipEventQuery(12345)": 400,
    "hipModuleLoad(b'/nowhere')": 301,
    "hipModuleLoadData(b'not an image' * 100)": 200,
    "hipModuleGetFunction(kernels().module, b'nothing')": 500,
    "hipDeviceEnablePeerAccess(0, 0)": 101,
    "hipMemGetAddressRange(64)": 500,
    "hipIpcGetMemHandle(mapped(create(2 * MIB), 2 * MIB))": 1,
}


def test_error_codes(newest):
    answers = newest.run("\n".join(f"say(code(hip.{call}))" for call in ERRORS))
    assert dict(zip(ERRORS, map(int, answers), strict=True)) == ERRORS


def test_errors_have_names_and_texts(machine):
    program = """
        def text(value):
            value = value[-1] if isinstance(value, tuple) else value
            return value.decode() if isinstance(value, bytes) else value
        for error in (hip.hipError_t.hipSuccess, hip.hipError_t.hipErrorOutOfMemory, hip.hipError_t.hipErrorTbd):
            say(text(hip.hipGetErrorName(error)), "|", text(hip.hipGetErrorString(error)))
    """
    assert machine.run(program) == [
        "hipSuccess | no error",
        "hipErrorOutOfMemory | out of memory",
        "hipErrorUnknown | unknown error",
    ]


def test_the_last_error_of_a_thread_is_kept_until_it_is_asked_for(machine):
    program = """
        hip.hipSetDevice(9); check(hip.hipSetDevice(0))
        stream = check(hip.hipStreamCreate())
        kernels().launch("spin", U32(200), stream=stream)
        say(code(hip.hipStreamQuery(stream)), code(hip.hipPeekAtLastError()))
        other = []
        thread = threading.Thread(target=lambda: other.append(code(hip.hipGetLastError())))
        thread.start(); thread.join()
        say(*other, code(hip.hipGetLastError()), code(hip.hipGetLastError()))
    """
    assert machine.run(program) == ["600 101", "0 101 0"]


def test_calls_fail_on_purpose(newest):
    newest.faults("hipMalloc:2:fail=2\nhipMemcpyAsync:1:fail=719")
    program = """
        say(*(code(hip.hipMalloc(64)) for _ in range(3)))
        say(code(hip.hipMemcpyAsync(64, 64, 8, DEFAULT, None)), code(hip.hipGetLastError()))
    """
    assert newest.run(program) == ["0 2 0", "719 719"]


def test_an_illegal_access_stays_with_the_device(machine):
    program = """
        kernels().launch("add", U64(reserve(2 * MIB)), U64(1), U64(1))
        say(code(hip.hipDeviceSynchronize()), code(hip.hipMalloc(64)))
        check(hip.hipSetDevice(1))
        say(code(hip.hipMalloc(64)))
    """
    assert machine.run(program) == ["700 700", "0"]


# ---- work ---------------------------------------------------------------------------------------------------------
def test_streams_events_and_host_functions(machine):
    program = """
        stream, other = check(hip.hipStreamCreateWithFlags(1)), check(hip.hipStreamCreateWithFlags(1))
        start, end = check(hip.hipEventCreate()), check(hip.hipEventCreate())
        check(hip.hipEventRecord(start, stream))
        kernels().launch("spin", U32(200), stream=stream)
        check(hip.hipEventRecord(end, stream))
        say(code(hip.hipEventQuery(end)), code(hip.hipStreamQuery(stream)), code(hip.hipStreamQuery(other)))
        check(hip.hipStreamWaitEvent(other, end, 0)); check(hip.hipStreamSynchronize(other))
        say(code(hip.hipEventQuery(end)), check(hip.hipEventElapsedTime(start, end)) > 190)
        say(code(hip.hipStreamDestroy(stream)), code(hip.hipStreamSynchronize(stream)))
    """
    assert machine.run(program) == ["600 600 0", "0 True", "0 709"]


def test_capture_and_replay(machine):
    program = """
        words = int(check(hip.hipMalloc(4096)))
        check(hip.hipMemset(words, 0, 4096))
        stream, code_object = check(hip.hipStreamCreate()), kernels()
        mode = hip.hipStreamCaptureMode
        check(hip.hipStreamBeginCapture(stream, mode.hipStreamCaptureModeThreadLocal))
        code_object.launch("add", U64(words), U64(4), U64(3), stream=stream)
        say(code(hip.hipMalloc(64)))
        graph = hip.hipStreamEndCapture(stream)
        say(code(graph))
        check(hip.hipStreamBeginCapture(stream, mode.hipStreamCaptureModeThreadLocal))
        code_object.launch("add", U64(words), U64(4), U64(3), stream=stream)
        graph = check(hip.hipStreamEndCapture(stream))
        executable = check(hip.hipGraphInstantiateWithFlags(graph, 0))
        for _ in range(5):
            check(hip.hipGraphLaunch(executable, stream))
        check(hip.hipStreamSynchronize(stream))
        say(read(words, 8))
    """
    assert machine.run(program) == ["900", "901", "b'\\x0f\\x00\\x00\\x00\\x00\\x00\\x00\\x00'"]


def test_every_file_of_the_runtime_is_where_programs_look():
    names = {path.relative_to(runtime()).as_posix() for path in runtime().rglob("*.so*")}
    hip = {f"libamdhip64.so{suffix}" for suffix in ("", ".5", ".6", ".7")}
    assert names == hip | {
        "lib/libamdhip64.so",
        "librocm_smi64.so",
        "kernels.so",
        "hash.so",
        "criu/amdgpu_plugin.so",  # CRIU alone looks there
    }
