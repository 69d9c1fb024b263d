"""pynvml and cuda.core, unmodified, on the simulated machine."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import CONTEXT, Machine, MiB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, DEVICES=3, MEMORY=512 * MiB)


def test_nvml_lists_devices_as_the_driver_does(machine: Machine) -> None:
    program = """
        import pynvml as n, uuid
        n.nvmlInit()
        ck(cu.cuInit(0))
        for i in range(n.nvmlDeviceGetCount()):
            h = n.nvmlDeviceGetHandleByIndex(i)
            name = n.nvmlDeviceGetUUID(h)
            same = n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(name)) == i
            driver = 'GPU-' + str(uuid.UUID(bytes=bytes(ck(cu.cuDeviceGetUuid(i)).bytes)))
            bus = ck(cu.cuDeviceGetPCIBusId(32, i)).split(b'\\0')[0].decode()
            say(name == driver, same, n.nvmlDeviceGetPciInfo(h).busId[4:] == bus, n.nvmlDeviceGetName(h),
                n.nvmlDeviceGetCurrPcieLinkGeneration(h), n.nvmlDeviceGetCurrPcieLinkWidth(h),
                n.nvmlDeviceGetMigMode(h))
        say(n.nvmlSystemGetCudaDriverVersion() == ck(cu.cuDriverGetVersion()), n.nvmlSystemGetDriverVersion())
        try: n.nvmlDeviceGetHandleByUUID('GPU-no')
        except n.NVMLError as error: say(error.value, str(error))
        n.nvmlShutdown()
        try: n.nvmlDeviceGetCount()
        except n.NVMLError as error: say(error.value)
    """
    *devices, system, unknown, after = machine.run(program)
    assert devices == ["True True True NVIDIA SIMULATED GPU 5 16 [0, 0]"] * 3
    assert system == "True 580.0.0-simulated"
    assert (unknown, after) == ("6 Not Found", "1")


def test_nvml_counts_by_process(machine: Machine) -> None:
    query = """
        import pynvml as n
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        one, two = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        assert (one.used, one.free, one.total) == (two.used, two.free, two.total)
        say(one.used, one.total, sorted((p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)))
    """
    holder = "use(); x = create(%d << 20); say('up'); wait_for_line()"
    with machine.start(holder % 10) as one, machine.start(holder % 20) as two:
        assert (one.hear(), two.hear()) == ("up", "up")
        expected = sorted([(one.pid, CONTEXT + 10 * MiB), (two.pid, CONTEXT + 20 * MiB)])
        assert machine.run(query) == [f"{2 * CONTEXT + 30 * MiB} {512 * MiB} {expected}"]
        one.kill()
        assert machine.run(query) == [f"{CONTEXT + 20 * MiB} {512 * MiB} {[(two.pid, CONTEXT + 20 * MiB)]}"]


def test_visible_devices(machine: Machine) -> None:
    program = (
        "ck(cu.cuInit(0)); say(*[bytes(ck(cu.cuDeviceGetUuid(i)).bytes)[15] for i in range(ck(cu.cuDeviceGetCount()))])"
    )
    assert machine.run(program) == ["0 1 2"]
    assert machine.run(program, CUDA_VISIBLE_DEVICES="2,0") == ["2 0"]
    assert machine.run(program, CUDA_VISIBLE_DEVICES="GPU-53494d55-4c41-5445-442d-4750552d0001") == ["1"]
    assert machine.run(program, CUDA_VISIBLE_DEVICES="1,9,0") == ["1"]
    assert machine.run("say(code(cu.cuInit(0)))", CUDA_VISIBLE_DEVICES="") == ["100"]


def test_cuda_core_allocates_and_launches(machine: Machine) -> None:
    program = """
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
        device = Device(1); device.set_current()
        stream = device.create_stream()
        kernel = ObjectCode.from_cubin(open(os.environ['GCR_SIM_KERNELS'], 'rb').read()).get_kernel('fill')
        buffer = device.allocate(4096, stream=stream)
        arguments = int(buffer.handle), ctypes.c_uint64(512), ctypes.c_uint64(5)
        launch(stream, LaunchConfig(grid=1, block=1), kernel, *arguments)
        stream.sync()
        say(device.name, len(set(words(read(int(buffer.handle), 4096)))), stream.record().is_done in (True, False))
        buffer.close(stream); stream.sync()
    """
    assert machine.run(program) == ["NVIDIA SIMULATED GPU 512 True"]


def test_names_resolve_to_the_newest_abi_that_is_old_enough(machine: Machine) -> None:
    program = """
        import ctypes
        cuda = ctypes.CDLL('libcuda.so.1')
        def resolve(name, version, flags=0):
            found, status = ctypes.c_void_p(), ctypes.c_int(-1)
            result = cuda.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status))
            return result, status.value, found.value
        def exported(name): return ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
        say(resolve('cuMemAlloc', 3020)[2] == exported('cuMemAlloc_v2'), resolve('cuMemAlloc', 2000)[:2])
        for version, abi in ((3020, 2), (11040, 3), (12050, 4), (13000, 4)):
            name = f'cuCtxCreate_v{abi}'
            say(name, resolve('cuCtxCreate', version)[2] == exported(name))
        for flags, name in ((0, 'cuMemcpyAsync'), (1, 'cuMemcpyAsync'), (2, 'cuMemcpyAsync_ptsz')):
            say(name, resolve('cuMemcpyAsync', 12000, flags)[2] == exported(name))
        say(resolve('cuGetProcAddress', 12000)[2] == exported('cuGetProcAddress_v2'), resolve('cuNothing', 13000))
    """
    lines = machine.run(program)
    assert lines[0] == "True (0, 2)"
    assert [line.split()[-1] for line in lines[1:8]] == ["True"] * 7
    assert lines[8] == "True (0, 1, None)"


def test_devices_that_do_not_reach_each_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DEVICES=3, MEMORY=512 * MiB, NO_P2P="0-2,1-2")
    program = """
        first, _, third = (use(device) for device in range(3))
        for device, peer in ((0, 1), (1, 0), (0, 2), (2, 0), (2, 1)):
            say(device, peer, ck(cu.cuDeviceCanAccessPeer(device, peer)))
        say(code(cu.cuCtxEnablePeerAccess(first, 0)))
        address = mapped(create(2 * MiB), 2 * MiB)
        access(address, 2 * MiB, 1)
        try: access(address, 2 * MiB, 2)
        except Exception as refused: say(refused.code)
    """
    assert machine.run(program) == ["0 1 1", "1 0 1", "0 2 0", "2 0 0", "2 1 0", "217", "101"]
