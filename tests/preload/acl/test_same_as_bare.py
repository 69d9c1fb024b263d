"""Each program prints the same bare and preloaded on the simulated ACL runtime: return codes, bytes, kinds of pointers.

No daemon listens to the agent here; tests/e2e/test_ascend.py is about checkpoints. A hang is a failure.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gcr.native import shim_path, sim_dir

ROOT = Path(__file__).parents[3]
IMPORTED = (ROOT / "tests" / "victims", ROOT / "core", ROOT / "backends" / "ascend")
SECONDS = 60


class Runs:
    """One simulated machine a run, so that no run sees what another left."""

    def __init__(self, folder: Path, version: str) -> None:
        libraries = sim_dir(f"ascend-{version}" if version else "ascend")
        self._folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in ("GCR_SOCKET", "LD_PRELOAD")},
            "LD_LIBRARY_PATH": str(libraries),
            "GCR_SIM_KERNELS": str(libraries / "kernels.so"),
            "GCR_SIM_MEMORY": str(4 << 30),
            "PYTHONPATH": os.pathsep.join(map(str, IMPORTED)),
        }

    def _run(self, name: str, program: str, **more: str) -> str:
        env = {**self._env, "GCR_SIM_STATE": str(self._folder / name), **more}
        command = [sys.executable, "-c", "from acl_calls import *\n" + textwrap.dedent(program)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{name}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def bare(self, program: str) -> str:
        return self._run("bare", program)

    def preloaded(self, program: str) -> str:
        return self._run("preloaded", program, LD_PRELOAD=str(shim_path()))

    def same(self, program: str) -> str:
        """Returns the output of both runs. Fails if they differ, or print nothing."""
        said = self.preloaded(program)
        assert said
        assert said == self.bare(program)
        return said


@pytest.fixture(params=["", "9.0", "8.5", "8.0"], ids=lambda version: version or "newest")
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> Runs:
    return Runs(tmp_path, request.param)


@pytest.fixture
def newest(tmp_path: Path) -> Runs:
    return Runs(tmp_path, "")


def test_plain_memory_of_every_size_and_policy(runs: Runs) -> None:
    runs.same("""
        use()
        for size in (1, 511, 512, 4096, MiB - 1, MiB, MiB + 1, 5 * MiB + 8):
            for call in ("aclrtMalloc", "aclrtMallocAlign32", "aclrtMallocCached"):
                address = getattr(acl, call)(size, 0)
                data = pattern(((size + 4095) // 4096) * 4096, size % 97)[:size]
                write(address, data)
                say(call, size, address % 512, read(address, size) == data, code("aclrtFree", address + 1))
                say(code("aclrtFree", address), code("aclrtFree", address))
        for policy in range(-1, 9):
            result, address = attempt("aclrtMalloc", MiB, policy)
            say(policy, result, result or code("aclrtFree", address))
        say(code("aclrtMalloc", 0, 0), code("aclrtMalloc", 64 * GiB, 0), code("aclrtFree", None))
        say(code("aclrtMallocWithCfg", MiB, 0, None))
    """)


def test_fills_and_copies_between_kinds_of_memory(runs: Runs) -> None:
    runs.same("""
        use()
        plain, own = acl.aclrtMalloc(2 * MiB, 0), mapped(create(2 * MiB), 2 * MiB)
        acl.aclrtMemset(plain, 2 * MiB, 7, 2 * MiB)
        acl.aclrtMemcpy(own, 2 * MiB, plain, 2 * MiB, D2D)
        say(read(own, 64).hex(), code("aclrtMemset", plain, 10, 1, 20), code("aclrtMemcpy", own, 5, plain, 6, D2D))
        stream = acl.aclrtCreateStream()
        acl.aclrtMemsetAsync(own, MiB, 9, MiB, stream)
        acl.aclrtMemcpyAsync(plain, MiB, own, MiB, ANY_KIND, stream)
        acl.aclrtSynchronizeStream(stream)
        say(read(plain, 8).hex(), read(plain + MiB, 8).hex())
        say(code("aclrtDestroyStream", stream), code("aclrtDestroyStream", stream))
    """)


def test_virtual_memory_handles_and_their_ends(runs: Runs) -> None:
    said = runs.same("""
        use()
        handle, base = create(2 * MiB), reserve(8 * MiB)
        say(code("aclrtMapMem", base, MiB, 0, handle, 0), code("aclrtMapMem", base, 2 * MiB, MiB, handle, 0))
        acl.aclrtMapMem(base, 2 * MiB, 0, handle, 0)
        acl.aclrtMapMem(base + 4 * MiB, 2 * MiB, 0, handle, 0)
        write(base, pattern(MiB))
        say(read(base + 4 * MiB, MiB) == pattern(MiB))
        again = acl.aclrtMemRetainAllocationHandle(base)
        say(again == handle, acl.aclrtMemGetAllocationPropertiesFromHandle(again).memAttr)
        say(acl.aclrtMemGetAccess(base, MemLocation(0, DEVICE)), acl.aclrtMemGetAccess(base, MemLocation(1, DEVICE)))
        acl.aclrtMemSetAccess(base, 2 * MiB, MemAccessDesc(READ, MemLocation(1, DEVICE)), 1)
        say(acl.aclrtMemGetAccess(base, MemLocation(1, DEVICE)), code("aclrtReleaseMemAddress", base))
        say(code("aclrtUnmapMem", base + MiB), code("aclrtUnmapMem", base), code("aclrtUnmapMem", base))
        acl.aclrtFreePhysical(handle), acl.aclrtFreePhysical(again)
        say(code("aclrtFreePhysical", handle), read(base + 4 * MiB, 16) == pattern(MiB)[:16])
        say(code("aclrtUnmapMem", base + 4 * MiB), code("aclrtReleaseMemAddress", base), used() - 16 * MiB)
    """)
    assert said.splitlines()[-1] == "0 0 0"


def test_plain_memory_is_no_mapping_of_the_programs(newest: Runs) -> None:
    newest.same("""
        use()
        address = acl.aclrtMalloc(3 * MiB, 0)
        say(code("aclrtUnmapMem", address), code("aclrtMemRetainAllocationHandle", address))
        say(code("aclrtMemGetAccess", address, MemLocation(0, DEVICE)), code("aclrtReleaseMemAddress", address))
        access = MemAccessDesc(READ, MemLocation(1, DEVICE))
        say(code("aclrtMemSetAccess", address, 4 * MiB, access, 1))
        base, size = acl.aclrtMemGetAddressRange(address + 5)
        say(base == address, size >= 3 * MiB, acl.aclrtPointerGetAttributes(address).location.type)
    """)


def test_kernels_events_and_two_devices(newest: Runs) -> None:
    newest.same("""
        use(0)
        kernels, memory = Kernels(), {}
        for device in (1, 0, 1):
            acl.aclrtSetDevice(device)
            memory[device] = acl.aclrtMalloc(MiB, 0)
            kernels.launch("fill", memory[device], MiB // 8, device + 3)
            acl.aclrtSynchronizeDevice()
            say(device, read(memory[device], 32).hex(), acl.aclrtPointerGetAttributes(memory[device]).location.id)
        event = acl.aclrtCreateEvent()
        acl.aclrtRecordEvent(event, None)
        acl.aclrtSynchronizeEvent(event)
        say(acl.aclrtQueryEventStatus(event), code("aclrtDestroyEvent", event))
        acl.aclrtSetDevice(0)
        acl.aclrtDeviceEnablePeerAccess(1, 0)
        acl.aclrtMemcpy(memory[0], MiB, memory[1], MiB, D2D)
        say(read(memory[0], 16).hex(), code("aclrtDeviceEnablePeerAccess", 0, 0))
    """)


def test_a_reset_takes_the_memory_along_and_the_program_may_begin_again(newest: Runs) -> None:
    said = newest.same("""
        for round in range(3):
            acl.aclrtSetDevice(0), acl.aclrtSetDevice(0)
            kept = [acl.aclrtMalloc(size, 0) for size in (100, 3 * MiB, 9 * MiB)]
            acl.aclrtResetDevice(0)
            say(code("aclrtMemset", kept[1], 10, 1, 10))
            acl.aclrtResetDevice(0)
            acl.dcmi_init()
            say(round, acl.dcmi_get_device_hbm_info(0, 0).memory_usage, code("aclrtMalloc", 10, 0))
    """)
    assert [line.split()[1] for line in said.splitlines()[1::2]] == ["0"] * 3


def test_handles_for_other_processes(newest: Runs) -> None:
    newest.same("""
        use()
        handle = create(2 * MiB)
        name = export(handle)
        say(code("aclrtMemExportToShareableHandle", handle, 0, 1), code("aclrtMemImportFromShareableHandle", name, 0))
        say(code("aclrtMemExportToShareableHandle", 0x6763030000000999, 0, 1))
    """)


def test_snapshots_of_the_programs_own_with_callbacks_that_call_back(newest: Runs) -> None:
    newest.same("""
        use()
        address, seen = acl.aclrtMalloc(MiB, 0), []
        write(address, pattern(MiB))
        back = SnapShotCallBack(lambda device, argument: seen.append(acl.aclrtGetDevice()) or 0)
        for stage in (LOCK_PRE, BACKUP_PRE, UNLOCK_POST):
            acl.aclrtSnapShotCallbackRegister(stage, back, None)
        lock(), say(acl.rtSnapShotProcessGetState()), backup(), say(acl.rtSnapShotProcessGetState()), unlock()
        say(seen, read(address, MiB) == pattern(MiB))
    """)


def test_threads_that_allocate_and_free(newest: Runs) -> None:
    newest.same("""
        use()
        def churn(seed):
            acl.aclrtSetDevice(0)
            for turn in range(200):
                size = 4096 * (1 + (seed * 7 + turn) % 300)
                address = acl.aclrtMalloc(size, 0)
                write(address, pattern(4096, seed + turn))
                assert read(address, 4096) == pattern(4096, seed + turn)
                acl.aclrtFree(address)
        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        say("done")
    """)


def test_a_child_begins_anew(newest: Runs) -> None:
    newest.same("""
        use()
        address = acl.aclrtMalloc(MiB, 0)
        write(address, pattern(MiB))
        child = os.fork()
        if child == 0:
            os._exit(7)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), read(address, MiB) == pattern(MiB))
    """)


def test_pages_of_1_gib_are_served_so(newest: Runs) -> None:
    said = newest.preloaded("""
        use()
        before = used()
        address = acl.aclrtMalloc(MiB, 6)
        say(used() - before == GiB, acl.aclrtMemGetAddressRange(address)[1] == MiB)
        acl.aclrtFree(address)
        say(used() == before)
    """)
    assert said.split() == ["True"] * 3
