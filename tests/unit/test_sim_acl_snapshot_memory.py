"""The simulated snapshot API: which memory comes back from a restore, which does not, and faults."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

from acl_machine import CONTEXT, DEADLINE, AclMachine, MiB, build


@pytest.fixture
def machine(tmp_path: Path) -> AclMachine:
    return AclMachine(tmp_path)


# ---- memory ---------------------------------------------------------------------------------------------------------
def test_a_backup_frees_nothing_and_unlocking_from_it_loses_nothing(machine: AclMachine) -> None:
    program = """
        use()
        plain, where = acl.aclrtMalloc(4 * MiB, 0), mapped(create(4 * MiB), 4 * MiB)
        write(plain, pattern(4 * MiB)); write(where, pattern(4 * MiB, 2))
        lock(); backup()
        say(used())
        unlock()
        say(read(plain, 4 * MiB) == pattern(4 * MiB), read(where, 4 * MiB) == pattern(4 * MiB, 2))
    """
    assert machine.run(program) == [str(CONTEXT + 8 * MiB), "True True"]


def test_a_restore_brings_back_addresses_and_control_state_but_not_contents(machine: AclMachine) -> None:
    program = """
        use()
        kernels, stream, event = Kernels(), acl.aclrtCreateStream(), acl.aclrtCreateEvent()
        plain, where = acl.aclrtMalloc(4 * MiB, 0), mapped(create(4 * MiB), 4 * MiB)
        write(plain, pattern(4 * MiB)); write(where, pattern(4 * MiB, 2))
        lock(); backup(); restore(); unlock()
        say(used(), read(plain, 4 * MiB) == pattern(4 * MiB), read(where, 4 * MiB) == pattern(4 * MiB, 2))
        write(where, pattern(4 * MiB, 3))
        kernels.launch("fill", plain, 512, 9, stream=stream)
        acl.aclrtRecordEvent(event, stream)
        acl.aclrtSynchronizeStream(stream)
        say(read(where, 4 * MiB) == pattern(4 * MiB, 3), read(plain, 4096) != bytes(4096))
    """
    assert machine.run(program) == [f"{CONTEXT + 8 * MiB} False False", "True True"]


def test_what_was_drained_unmapped_and_freed_is_not_made_again(machine: AclMachine) -> None:
    program = """
        use()
        handle, where = create(8 * MiB), reserve(8 * MiB)
        mapped(handle, 8 * MiB, where)
        write(where, pattern(8 * MiB))
        saved = read(where, 8 * MiB)
        acl.aclrtUnmapMem(where); acl.aclrtFreePhysical(handle)
        lock(); backup()
        say(used())
        restore(); unlock()
        say(used())
        mapped(create(8 * MiB), 8 * MiB, where)
        write(where, saved)
        say(read(where, 8 * MiB) == pattern(8 * MiB))
    """
    assert machine.run(program) == [str(CONTEXT), str(CONTEXT), "True"]


def test_a_restore_wants_the_device_free_of_other_processes(machine: AclMachine) -> None:
    program = """
        use()
        address = acl.aclrtMalloc(4096, 0)
        lock(); backup()
        say("backed up")
        for _ in range(2):
            wait_for_line()
            say(code("aclrtSnapShotProcessRestore", os.getpid(), None), acl.rtSnapShotProcessGetState())
        unlock()
    """
    with machine.start(program) as target, machine.start("use(); say('up'); wait_for_line()") as other:
        assert (target.hear(), other.hear()) == ("backed up", "up")
        assert target.ask() == "507899 2", "another process uses the device"
        other.kill()
        assert target.ask() == "0 1"


def test_a_process_on_another_device_is_no_obstacle(machine: AclMachine) -> None:
    program = "use(); lock(); backup(); restore(); unlock(); say('done')"
    with machine.start("use(1); say('up'); wait_for_line()") as other:
        other.hear()
        assert machine.run(program) == ["done"]


def test_imported_memory_is_not_mapped_again(machine: AclMachine) -> None:
    exporter = """
        use()
        handle = create(2 * MiB)
        say(export(handle))
        wait_for_line()
    """
    importer = """
        use()
        handle = acl.aclrtMemImportFromShareableHandle(int(wait_for_line()), 0)
        where = mapped(handle, 2 * MiB)
        say("has it")
        wait_for_line()
        lock(); backup(); restore(); unlock()
        say(code("aclrtMemcpy", where, 8, b"12345678", 8, H2D))
    """
    with machine.start(exporter) as first, machine.start(importer) as second:
        assert second.ask(first.hear()) == "has it"
        first.kill()
        assert second.ask() == "107000"


def test_threads_go_on_beside_one_snapshot_after_the_other(tmp_path: Path) -> None:
    machine = AclMachine(tmp_path, CONTROL_MS=1)
    words = [str(build(tmp_path / "acl_churn")), "40"]
    done = subprocess.run(words, env=machine.env, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (0, f"churned 40, {CONTEXT} bytes in use\n"), done.stderr


# ---- faults ---------------------------------------------------------------------------------------------------------
def test_injected_faults_strike_the_snapshot_calls(machine: AclMachine) -> None:
    machine.faults("aclrtSnapShotProcessRestore:1:fail=507909 aclrtMalloc:1:fail=207001")
    program = """
        use()
        say(code("aclrtMalloc", 8, 0), code("aclrtMalloc", 8, 0))
        lock(); backup()
        say(code("aclrtSnapShotProcessRestore", os.getpid(), None), acl.rtSnapShotProcessGetState())
        restore(); unlock()
        say("done")
    """
    assert machine.run(program) == ["207001 0", "507909 2", "done"]
