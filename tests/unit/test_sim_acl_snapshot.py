"""The simulated snapshot API: its states, what waits while locked, and its callbacks.

The order is that of the vendor's open source (runtime 9.1). A call that waits for ever does so in a thread that
the test looks at with a deadline.
"""

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

from acl_machine import AclMachine

VERSIONS = ("9.1", "9.0", "8.5")


@pytest.fixture
def machine(tmp_path: Path) -> AclMachine:
    return AclMachine(tmp_path)


# ---- states ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_the_whole_order_passes_every_state(tmp_path: Path, version: str) -> None:
    program = """
        use()
        states = []
        for step in (lock, backup, restore, unlock, lock, backup, unlock):
            step()
            states.append(acl.rtSnapShotProcessGetState())
        say(*states)
    """
    assert AclMachine(tmp_path, version).run(program) == ["1 2 1 0 1 2 0"]


def test_every_wrong_order_is_refused_and_changes_nothing(machine: AclMachine) -> None:
    program = """
        use()
        steps = {"Lock": lock, "Backup": backup, "Restore": restore, "Unlock": unlock}
        for before in ((), (lock,), (lock, backup)):
            for step in before:
                step()
            state = acl.rtSnapShotProcessGetState()
            refused = {}
            for name in steps:
                result = code("aclrtSnapShotProcess" + name, os.getpid(), None)
                if result:
                    refused[name] = result
                    assert acl.rtSnapShotProcessGetState() == state
                    continue
                if acl.rtSnapShotProcessGetState():
                    unlock()
                for step in before:
                    step()
            say(state, refused)
            if state:
                unlock()
    """
    assert machine.run(program) == [
        "0 {'Backup': 507908, 'Restore': 507909, 'Unlock': 507907}",
        "1 {'Lock': 507906, 'Restore': 507909}",
        "2 {'Lock': 507906, 'Backup': 507908}",
    ]


def test_only_the_own_process_and_no_arguments(machine: AclMachine) -> None:
    program = """
        use()
        from gcr_ascend.abi import SnapShotBackupArgs
        say(code("aclrtSnapShotProcessLock", 1, None), code("aclrtSnapShotProcessLock", os.getpid(), 1))
        lock()
        say(code("aclrtSnapShotProcessBackup", os.getpid(), SnapShotBackupArgs()))
    """
    assert machine.run(program) == ["100000 100000", "100000"]


def test_before_9_1_the_arguments_are_not_looked_at(tmp_path: Path) -> None:
    program = "use(); say(code('aclrtSnapShotProcessLock', 1, None), acl.rtSnapShotProcessGetState())"
    assert AclMachine(tmp_path, "9.0").run(program) == ["0 1"]


def test_a_process_without_a_device_has_nothing_to_back_up(machine: AclMachine) -> None:
    program = "acl.aclInit(None); lock(); say(code('aclrtSnapShotProcessBackup', os.getpid(), None))"
    assert machine.run(program) == ["107002"]


# ---- what waits -----------------------------------------------------------------------------------------------------
PREPARED = """
    use()
    kernels = Kernels()
    fill = kernels.function("fill")
    plain, host = acl.aclrtMalloc(MiB, 0), acl.aclrtMallocHost(4096)
    spare = [acl.aclrtMalloc(4096, 0) for _ in range(2)]
    physical = [create(2 * MiB) for _ in range(5)]
    where = mapped(physical[0], 2 * MiB)
    also = mapped(physical[4], 2 * MiB)
    empty = [reserve(2 * MiB) for _ in range(2)]
    stream, doomed = acl.aclrtCreateStream(), [acl.aclrtCreateStream() for _ in range(2)]
    event, old = acl.aclrtCreateEvent(), acl.aclrtCreateEvent()
    acl.aclrtRecordEvent(event, None)
    acl.aclrtSynchronizeStream(None)
    context = acl.aclrtGetCurrentContext()
    private = acl.aclrtCreateContext(0)
    acl.aclrtSetCurrentContext(context)
    name = export(physical[1])
    data = (ctypes.c_uint64 * 512)()
    pids = (ctypes.c_int32 * 1)(1)
    words = (ctypes.c_uint64 * 3)(plain, 8, 1)
    arguments = acl.aclrtMalloc(4096, 0)
    acl.aclrtMemcpy(arguments, 24, words, 24, H2D)
    nothing = HostFunc(lambda _argument: None)
    binary = open(os.environ["GCR_SIM_KERNELS"], "rb").read()
"""

# GLOBAL_STATE_WAIT_IF_LOCKED in the vendor's runtime 9.1: each of these waits while the process is locked. So does
# aclrtResetDeviceForce, which would take the device from the others here; and aclFinalize, in a test of its own.
WAITING = """
    waiting = {
        "aclrtSetDevice": (0,), "aclrtResetDevice": (1,), "aclrtCreateContext": (0,), "aclrtDestroyContext": (private,),
        "aclrtDeviceCanAccessPeer": (0, 1),
        "aclrtMalloc": (4096, 0), "aclrtMallocAlign32": (4096, 0), "aclrtMallocCached": (4096, 0),
        "aclrtMallocWithCfg": (4096, 0, None), "aclrtFree": (spare[0],), "aclrtMallocHost": (4096,),
        "aclrtFreeHost": (host,), "aclrtHostRegisterV2": (ctypes.addressof(data), 4096, 0),
        "aclrtHostUnregister": (12345,),
        "aclrtMemcpy": (plain, 4096, data, 4096, H2D), "aclrtMemcpyAsync": (plain, 4096, data, 4096, H2D, stream),
        "aclrtMemset": (plain, 4096, 0, 4096), "aclrtMemsetAsync": (plain, 4096, 0, 4096, stream),
        "aclrtReserveMemAddress": (2 * MiB, 0, None, 0), "aclrtReserveMemAddressNoUCMemory": (GiB, 0, 41 * TiB, 0),
        "aclrtReleaseMemAddress": (empty[0],), "aclrtMallocPhysical": (2 * MiB, properties(), 0),
        "aclrtFreePhysical": (physical[2],), "aclrtMapMem": (empty[1], 2 * MiB, 0, physical[3], 0),
        "aclrtUnmapMem": (also,),
        "aclrtMemExportToShareableHandle": (physical[3], 0, 1, ),
        "aclrtMemExportToShareableHandleV2": (physical[0], 1, 1, data),
        "aclrtMemSetPidToShareableHandle": (name, pids, 1), "aclrtMemSetPidToShareableHandleV2": (data, 1, pids, 1),
        "aclrtMemImportFromShareableHandle": (name, 0), "aclrtMemImportFromShareableHandleV2": (data, 1, 0),
        "aclrtCreateStream": (), "aclrtCreateStreamWithConfig": (0, 0), "aclrtDestroyStream": (doomed[0],),
        "aclrtDestroyStreamForce": (doomed[1],), "aclrtStreamWaitEvent": (stream, event),
        "aclrtLaunchHostFunc": (stream, nothing, None),
        "aclrtCreateEvent": (), "aclrtCreateEventWithFlag": (0,), "aclrtCreateEventExWithFlag": (0,),
        "aclrtDestroyEvent": (old,), "aclrtRecordEvent": (event, stream), "aclrtEventElapsedTime": (event, event),
        "aclrtBinaryLoadFromFile": (os.environ["GCR_SIM_KERNELS"].encode(), None),
        "aclrtBinaryLoadFromData": (binary, len(binary), None), "aclrtBinaryUnLoad": (12345,),
        "aclrtBinaryGetFunction": (kernels.binary, b"add"),
        "aclrtLaunchKernel": (fill, 1, arguments, 24, stream),
        "aclrtLaunchKernelV2": (fill, 1, arguments, 24, None, stream),
        "aclrtLaunchKernelWithHostArgs": (fill, 1, stream, None, words, 24, None, 0),
    }
"""

# Queries, synchronisation, and what only notes something.
PASSING = """
    passing = {
        "aclInit": (None,), "aclrtGetVersion": (), "aclsysGetCANNVersion": (0,), "aclrtGetSocName": (),
        "aclGetRecentErrMsg": (), "aclrtGetDeviceCount": (), "aclrtGetDevice": (), "aclrtSynchronizeDevice": (),
        "aclrtDeviceGetBareTgid": (), "aclrtDeviceGetUuid": (0,), "aclrtDeviceEnablePeerAccess": (1, 0),
        "aclrtDeviceDisablePeerAccess": (1,),
        "aclrtGetMemInfo": (HBM,), "aclrtSetCurrentContext": (context,), "aclrtGetCurrentContext": (),
        "aclrtPointerGetAttributes": (plain,), "aclrtMemGetAddressRange": (plain,),
        "aclrtMemSetAccess": (where, 2 * MiB, MemAccessDesc(flags=3, location=MemLocation(1, DEVICE)), 1),
        "aclrtMemGetAccess": (where, MemLocation(0, DEVICE)), "aclrtMemRetainAllocationHandle": (where,),
        "aclrtMemGetAllocationPropertiesFromHandle": (physical[0],),
        "aclrtMemGetAllocationGranularity": (properties(), 0),
        "aclrtSynchronizeStream": (stream,), "aclrtSynchronizeStreamWithTimeout": (stream, 100),
        "aclrtStreamQuery": (stream,), "aclrtQueryEventStatus": (event,), "aclrtSynchronizeEvent": (event,),
    }
"""


def test_the_calls_that_change_device_resources_wait_while_locked_and_no_others(machine: AclMachine) -> None:
    program = """
        snapshot = {each for each in table().calls if "SnapShot" in each}
        listed = {each for each, call in table().calls.items() if call.library == "acl"} - snapshot
        say(sorted(listed - waiting.keys() - passing.keys()), sorted(waiting.keys() & passing.keys()))
        lock()
        asides = {}
        for each, arguments in waiting.items():
            def call(each=each, arguments=arguments):
                acl.aclrtSetCurrentContext(context)
                attempt(each, *arguments)
            asides[each] = Aside(call)
        for each, arguments in passing.items():
            attempt(each, *arguments)
        time.sleep(0.4)
        say("went through:", [each for each, aside in asides.items() if aside.returned(0)])
        backup()
        say("went through:", [each for each, aside in asides.items() if aside.returned(0.005)])
        unlock()
        say("still wait:", [each for each, aside in asides.items() if not aside.returned(10)])
    """
    whole = "".join(map(textwrap.dedent, (PREPARED, WAITING, PASSING, program)))
    assert machine.run(whole) == [
        "['aclFinalize', 'aclrtResetDeviceForce'] []",
        "went through: []",
        "went through: []",
        "still wait: []",
    ]


def test_the_end_of_the_library_waits_while_locked(machine: AclMachine) -> None:
    program = """
        use()
        lock()
        ending = Aside(acl.aclFinalize)
        time.sleep(0.2)
        say(ending.returned(0))
        backup()
        say(ending.returned(0.05))
        unlock()
        say(ending.returned(10))
    """
    assert machine.run(textwrap.dedent(program)) == ["False", "False", "True"]


def test_a_waiting_call_hangs_until_the_process_is_unlocked(machine: AclMachine) -> None:
    program = """
        use()
        lock(); backup()
        say("calling")
        acl.aclrtMalloc(4096, 0)
        say("returned")
    """
    with machine.start(program) as hung:
        assert hung.hear() == "calling"
        assert hung.quiet(1.0), "a call that must wait returned"


def test_lock_does_not_wait_for_streams_and_backup_does(machine: AclMachine) -> None:
    program = """
        use()
        held = threading.Event()
        acl.aclrtLaunchHostFunc(None, (callback := HostFunc(lambda _argument: (held.wait(20), None)[1])), None)
        lock()
        say(acl.rtSnapShotProcessGetState(), acl.aclrtStreamQuery(None))
        backing_up = Aside(backup)
        say(backing_up.returned(0.3))
        held.set()
        say(backing_up.returned(10), acl.rtSnapShotProcessGetState())
    """
    assert machine.run(program) == ["1 1", "False", "True 2"]


# ---- callbacks ------------------------------------------------------------------------------------------------------
def test_callbacks_run_at_their_stages_once_per_open_device(machine: AclMachine) -> None:
    program = """
        use()
        acl.aclrtSetDevice(1)
        seen = []
        def noting(stage):
            return SnapShotCallBack(lambda device, _argument: (seen.append((stage, device)), 0)[1])
        callbacks = [noting(stage) for stage in range(6)]
        for stage, callback in enumerate(callbacks):
            acl.aclrtSnapShotCallbackRegister(stage, callback, None)
        say(code("aclrtSnapShotCallbackRegister", 0, callbacks[0], None),
            code("aclrtSnapShotCallbackRegister", 6, callbacks[0], None))
        lock(); backup(); restore(); unlock()
        say(seen == [(stage, device) for stage in range(6) for device in (0, 1)])
        acl.aclrtSnapShotCallbackUnregister(LOCK_PRE, callbacks[0])
        say(code("aclrtSnapShotCallbackUnregister", LOCK_PRE, callbacks[0]))
        seen.clear()
        lock(); unlock()
        say(seen)
    """
    assert machine.run(program) == ["507913 107000", "True", "107000", "[(5, 0), (5, 1)]"]


def test_a_callback_that_fails_ends_the_step(machine: AclMachine) -> None:
    program = """
        use()
        failing = SnapShotCallBack(lambda device, argument: 1)
        for stage, before in ((LOCK_PRE, ()), (BACKUP_PRE, (lock,)), (RESTORE_POST, (lock, backup))):
            for step in before:
                step()
            state = acl.rtSnapShotProcessGetState()
            acl.aclrtSnapShotCallbackRegister(stage, failing, None)
            step = {LOCK_PRE: "Lock", BACKUP_PRE: "Backup", RESTORE_POST: "Restore"}[stage]
            say(code("aclrtSnapShotProcess" + step, os.getpid(), None), acl.rtSnapShotProcessGetState() == state)
            acl.aclrtSnapShotCallbackUnregister(stage, failing)
            if state:
                unlock()
    """
    assert machine.run(program) == ["507912 True"] * 3


@pytest.mark.parametrize(("stage", "free"), [("LOCK_PRE", True), ("BACKUP_PRE", False), ("UNLOCK_POST", True)])
def test_a_callback_may_use_memory_only_while_the_process_runs(machine: AclMachine, stage: str, free: bool) -> None:
    program = f"""
        use()
        context = acl.aclrtGetCurrentContext()
        def allocate(_device, _argument):
            acl.aclrtSetCurrentContext(context)
            return 0 if acl.aclrtMalloc(4096, 0) else 1
        callback = SnapShotCallBack(allocate)
        acl.aclrtSnapShotCallbackRegister({stage}, callback, None)
        whole = Aside(lambda: (lock(), backup(), unlock()))
        say(whole.returned({10 if free else 1}))
        os._exit(0)
    """
    assert machine.run(program) == [str(free)]
