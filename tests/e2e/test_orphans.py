"""An owner ends while its job is suspended: those that hold its memory come back with every byte, and nothing stays."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from growth import leads_to
from little_room import MOST, room, words
from machine import Machine, Victim, kill, until
from refusals import refused
from rings import BOTH, OWN, ring, uuids
from stored import away, back
from two_devices import three_devices


def without(job: Victim, *dead: int) -> None:
    """Checks that the others have every word as it was, also in memory of those that have ended."""
    said = job.ask().split()
    assert said == ["gone" if rank in dead else "2" for rank in range(3)], said


def dies(machine: Machine, job: Victim, *ranks: int) -> None:
    """Kills processes of a suspended job, and waits until gcr knows."""
    pids = [*map(int, job.ask("pids").split())]
    gone = [pids[rank] for rank in ranks]
    kill(*gone)
    until(lambda: not {*gone} & {*pids_of(machine)} or None, 10, "gcr knows")


def pids_of(machine: Machine) -> list[int]:
    found = machine.job("llm")
    assert found
    return [each["pid"] for each in found["processes"]]


def ends_clean(machine: Machine, job: Victim) -> None:
    """Checks that nothing stays on the device or in host memory once the job has ended."""
    machine.end(job)
    until(lambda: machine.job("llm") is None or None, 10, "the job is forgotten")
    (left,) = (machine.folder / "state").glob("gcr/daemons/*")
    assert list((left / "journal").iterdir()) == []
    assert machine.gcr("daemon", "stop").code == 0
    until(lambda: not machine.children("gcr.worker") or None, 10, "the worker ends")
    assert machine.used() == 0


def segments(machine: Machine, job: Victim) -> int:
    """Returns the number of descriptors of host memory that the daemon and the supervisor have."""
    folders = [Path(f"/proc/{pid}/fd") for pid in (job.supervisor.pid, *machine.children("gcr.daemon"))]
    links = [leads_to(each) for folder in folders for each in folder.iterdir()]
    return sum(link.startswith("/memfd:gcr-arena") for link in links)


OWNERS = pytest.mark.parametrize("dead", [(0,), (1,), (0, 1)], ids=["one", "another", "two"])


@BOTH
@OWNERS
def test_memory_of_an_owner_that_ended_meanwhile_comes_back_for_its_holder(
    machine: Machine, calls: Sequence[str], dead: Sequence[int]
) -> None:
    job = ring(machine, 3, *calls)
    machine.leave()
    dies(machine, job, *dead)
    assert machine.settled() == "suspended"
    assert segments(machine, job) > 0
    machine.come_back()
    without(job, *dead)
    assert segments(machine, job) == 0
    answer = machine.ask("checkpoint", "llm")
    assert answer.body["error"]["code"] == "unsupported_state", answer.body
    assert "which has ended" in answer.body["error"]["message"]
    without(job, *dead)
    ends_clean(machine, job)


@pytest.mark.parametrize("before", [0, 1], ids=["first", "after a restore"])
@pytest.mark.parametrize("flags", [(), ("--data-only",)], ids=["whole", "data only"])
def test_what_was_lent_is_all_that_stays_of_it(machine: Machine, before: int, flags: Sequence[str]) -> None:
    """What the device counts in the end: two processes, and the memory of the third that is held."""
    job = ring(machine)
    for _ in range(before):
        machine.leave()
        machine.come_back()
    full = machine.used()
    assert machine.gcr("checkpoint", "llm", *flags).code == 0
    dies(machine, job, 0)
    machine.come_back()
    without(job, 0)
    assert machine.used() <= full - OWN
    ends_clean(machine, job)


@pytest.mark.parametrize("flags", [(), ("--data-only",)], ids=["whole", "data only"])
def test_an_image_gives_it_back_as_well(machine: Machine, flags: Sequence[str]) -> None:
    job = ring(machine)
    away(machine, "cold", *flags)
    dies(machine, job, 1)
    assert back(machine, "cold").get("ok"), machine.job("llm")
    without(job, 1)
    ends_clean(machine, job)


@pytest.mark.parametrize("successor", [False, True], ids=["same daemon", "next daemon"])
def test_bytes_that_are_in_an_image_alone(machine: Machine, successor: bool) -> None:
    room(machine, MOST)
    machine.extra["RING_OWN_MIB"] = "8"
    job = ring(machine)
    assert machine.gcr(*words(machine)).body["streamed"]
    dies(machine, job, 0)
    if successor:
        kill(*machine.children("gcr.daemon"))
        assert machine.settled() == "suspended"
    assert machine.come_back().body["streamed"]
    without(job, 0)
    ends_clean(machine, job)


def test_in_place_beside_an_image(machine: Machine) -> None:
    job = ring(machine)
    away(machine, "cold")
    dies(machine, job, 1)
    machine.come_back()
    without(job, 1)
    ends_clean(machine, job)


@pytest.mark.parametrize("flags", [(), ("--data-only",)], ids=["whole", "data only"])
@pytest.mark.parametrize("first", ["daemon", "owner"])
def test_a_new_daemon_gives_it_back_as_well(machine: Machine, flags: Sequence[str], first: str) -> None:
    job = ring(machine)
    assert machine.gcr("checkpoint", "llm", *flags).code == 0
    owner = int(job.ask("pids").split()[0])
    if first == "owner":
        dies(machine, job, 0)
        kill(*machine.children("gcr.daemon"))
    else:
        kill(*machine.children("gcr.daemon"), owner)
    assert machine.settled() in ("suspended", "data_suspended")
    machine.come_back()
    without(job, 0)
    ends_clean(machine, job)


@pytest.mark.parametrize("who", ["gcr.worker", "supervisor"])
@pytest.mark.parametrize("first", ["helper", "owner"])
def test_the_death_of_a_helper_costs_none_of_it(machine: Machine, who: str, first: str) -> None:
    job = ring(machine)
    machine.leave()
    helper = [job.supervisor.pid] if who == "supervisor" else machine.children(who)
    if first == "owner":
        dies(machine, job, 0)
        kill(*helper)
    else:
        kill(*helper)
        dies(machine, job, 0)
    machine.come_back()
    without(job, 0)


def test_the_daemon_alone_is_enough(machine: Machine) -> None:
    job = ring(machine)
    machine.leave()
    dies(machine, job, 0)
    kill(job.supervisor.pid, *machine.children("gcr.worker"))
    machine.come_back()
    without(job, 0)


@pytest.mark.parametrize("step", ["room", "refilled", "back", "mapped"])
def test_a_restore_without_an_owner_that_fails_is_done_again(machine: Machine, step: str) -> None:
    job = ring(machine)
    machine.leave()
    dies(machine, job, 0)
    machine.inject(f"restore.{step} fail")
    assert machine.ask("restore", "llm").code == 4
    assert machine.settled() == "suspended"
    machine.come_back()
    without(job, 0)
    ends_clean(machine, job)


def test_its_holder_dies_too(machine: Machine) -> None:
    job = ring(machine)
    machine.leave()
    dies(machine, job, 0)
    dies(machine, job, 1)
    machine.come_back()
    without(job, 0, 1)
    ends_clean(machine, job)


def test_a_holder_that_dies_changes_nothing_for_the_others(machine: Machine) -> None:
    job = ring(machine, 3)
    machine.leave()
    dies(machine, job, 2)
    machine.come_back()
    without(job, 2)


def test_an_owner_of_which_nothing_is_kept_is_named_and_the_rest_stays_suspended(machine: Machine) -> None:
    job = ring(machine)
    owner, holder, _ = map(int, job.ask("pids").split())
    machine.leave()
    kill(owner, job.supervisor.pid, *machine.children("gcr.daemon"), *machine.children("gcr.worker"))
    assert machine.settled() == "suspended"
    answer = machine.ask("restore", "llm")
    assert answer.code == 3
    assert answer.body["error"]["code"] == "owner_ended"
    assert f"process {holder} holds" in answer.body["error"]["message"]
    assert f"process {owner}, which has ended" in answer.body["error"]["message"]
    assert "no process keeps its bytes" in answer.body["error"]["message"]
    assert machine.settled() == "suspended"


def test_an_image_has_what_no_process_keeps(machine: Machine) -> None:
    job = ring(machine)
    away(machine, "cold")
    owner = int(job.ask("pids").split()[0])
    kill(owner, job.supervisor.pid, *machine.children("gcr.daemon"), *machine.children("gcr.worker"))
    assert machine.settled() == "suspended"
    assert machine.ask("restore", "llm").body["error"]["code"] == "owner_ended"
    assert back(machine, "cold").get("ok"), machine.job("llm")
    without(job, 0)


def test_no_image_is_made_of_those_that_hold_its_memory(machine: Machine) -> None:
    """It would not be in the image."""
    job = ring(machine)
    machine.leave()
    dies(machine, job, 0)
    store = str(machine.folder / "store")
    answer = machine.gcr("checkpoint", "llm", "--image", "late", "--stop", "--store", store)
    assert "others hold memory of it: no image can have that" in refused(answer, "unsupported_state")
    assert machine.settled() == "suspended"
    machine.come_back()
    without(job, 0)


def test_it_comes_back_on_another_device_without_an_owner(tmp_path: Path) -> None:
    machine = three_devices(tmp_path)
    try:
        job = ring(machine)
        old, new, _ = uuids(machine)
        machine.leave()
        dies(machine, job, 0)
        back = machine.ask("restore", "llm", devices={old: new})
        assert back.code == 0, back.body
        without(job, 0)
    finally:
        machine.close()


@BOTH
@pytest.mark.parametrize(
    "flags",
    [(), ("--data-only",), ("--image", "cold"), ("--image", "cold", "--live"), ("--image", "cold", "--leave-running")],
    ids=["in place", "data only", "image", "live", "run on"],
)
def test_an_owner_that_ends_while_its_job_runs_is_named_and_nothing_is_touched(
    machine: Machine, calls: Sequence[str], flags: Sequence[str]
) -> None:
    """Its memory lives on for the next one. Once that has let go of it the job leaves and comes back."""
    job = ring(machine, 3, *calls)
    owner, *_ = pids = [*map(int, job.ask("pids").split())]
    found = machine.job("llm")
    assert found
    lent_to = next(
        each["pid"] for row in found["processes"] if row["pid"] == owner for each in row["shared"] if not each["owner"]
    )
    dies(machine, job, 0)
    without(job, 0)
    for _ in range(2):
        says = refused(machine.gcr("checkpoint", "llm", *flags), "unsupported_state")
        assert f"process {lent_to} holds 2 MiB of device memory of process {owner}, which has ended" in says
        without(job, 0)
    found = machine.job("llm")
    assert found
    rows = {row["pid"]: row["shared"] for row in found["processes"]}
    assert {"pid": None, "bytes": OWN, "owner": True} in rows[lent_to]
    assert job.ask(f"drop {pids.index(lent_to)}") == "ok"
    machine.leave()
    machine.come_back()
    ends_clean(machine, job)
