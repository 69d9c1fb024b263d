"""A suspended job's memory comes in where there is room while another job's leaves: both are whole, whatever fails."""

import pytest
from machine import Answer, Machine, Victim, kill, until
from test_deaths import OURS, Who, gcrd
from test_resident import resident
from worlds import AMD, at

MIB = 1 << 20
LEAVES, COMES = 12, 15  # allocations of each job
SIZE = 10_000_000  # bytes of each
ROOM = 280 * MIB  # for the one that leaves, two contexts and a part of the other one
PIECE = "head_start.piece"


class Two:
    """`bb` is suspended, `llm` runs; `said`: what each says of its memory."""

    def __init__(self, machine: Machine) -> None:
        machine.memory = ROOM
        self.machine, self.jobs, self.said = machine, dict[str, Victim](), dict[str, str]()
        self.start("bb", COMES)
        assert machine.ask("checkpoint", "bb", **machine.where.how).code == 0
        self.start("llm", LEAVES)

    def start(self, name: str, allocations: int) -> None:
        self.jobs[name] = self.machine.told(name, f"alloc {allocations} {SIZE}")
        self.said[name] = self.jobs[name].ask()

    def leave(self, most: int | None = None, **how: object) -> Answer:
        return self.machine.ask("checkpoint", "llm", then={"job": "bb", "most_bytes": most}, **how)

    def swap_after_a_part(self, out: str, back: str) -> tuple[int, int]:
        """Swaps, and has the one that leaves stand until a part of the other one has come. Returns as `swap` does."""
        with self.machine.held_at("checkpoint.frozen"):
            swapped = self.machine.asking.submit(self.swap, out, back)
            self.machine.wait_held()
            until(lambda: resident(self.machine, back) or None, 20, "a part of it comes")
        return swapped.result(60)

    def swap(self, out: str = "llm", back: str = "bb") -> tuple[int, int]:
        """Returns the bytes of the one that came back, and those that came before the other one had left."""
        done = self.machine.gcr("swap", out, back)
        assert (done.code, done.body["in"]["state"]) == (0, "running"), done.body
        assert done.body["out"]["vram_after_bytes"] == 0
        assert self.jobs[back].ask() == self.said[back]
        return done.body["in"]["bytes"], done.body["in"]["resident_bytes"]

    def are_whole(self) -> None:
        """Brings one back after the other, from whatever state each is in."""
        for name, other in (("llm", "bb"), ("bb", "llm")):
            state = self.machine.until_state(name, "running", "suspended", "data_suspended")
            if self.machine.until_state(other, "running", "suspended", "data_suspended") == "running" != state:
                assert self.machine.ask("checkpoint", other).code == 0
            if state != "running":
                back = self.machine.ask("restore", name)
                assert (back.code, back.body.get("state")) == (0, "running"), back.body
            assert self.jobs[name].ask() == self.said[name], name


def test_a_part_comes_in_while_the_other_job_leaves_again_and_again(machine: Machine) -> None:
    two = Two(machine)
    for out, back, allocations in (("llm", "bb", COMES), ("bb", "llm", LEAVES)) * 2:
        size, before = two.swap_after_a_part(out, back)
        assert size >= allocations * SIZE
        assert 0 < before < size  # the room of the other one is not there yet
        assert resident(machine, out) == 0
    logged = [line for line in machine.logs()["gcrd.log"].splitlines() if "a head start of" in line]
    assert len(logged) == 4, logged


def test_it_takes_no_more_than_it_may_and_what_cannot_be_the_next_job_is_refused(machine: Machine) -> None:
    two = Two(machine)
    assert two.leave(60 * MIB).code == 0
    there = resident(machine, "bb")
    assert 0 < there <= 60 * MIB
    back = machine.ask("restore", "bb")
    assert back.body["resident_bytes"] == there
    for then, code in (("bb", "usage"), ("nobody", "no_such_job")):
        refused = machine.ask("checkpoint", "bb", then={"job": then})
        assert refused.body["error"]["code"] == code, refused.body
    assert machine.job("bb")["state"] == "running"
    two.are_whole()


@pytest.mark.parametrize("machine", [at(AMD)], indirect=True)
def test_a_device_that_has_to_be_free_of_others_gets_none(machine: Machine) -> None:
    two = Two(machine)
    assert two.leave(**machine.where.how).code == 0
    assert resident(machine, "bb") == 0


def test_a_checkpoint_that_fails_leaves_nothing_of_it(machine: Machine) -> None:
    two = Two(machine)
    for step in machine.where.up_to_the_decision():
        machine.inject(f"checkpoint.{step} fail")
        failed = two.leave()
        assert failed.code == 4, (step, failed.body)
        assert (machine.job("llm")["state"], machine.job("bb")["state"]) == ("running", "suspended"), step
        assert resident(machine, "bb") == 0, step
        assert two.jobs["llm"].ask() == two.said["llm"], step
    machine.inject(f"{PIECE} fail")  # nothing waits for it
    two.swap()
    two.are_whole()


def test_a_restore_that_fails_leaves_nothing_of_it_and_the_other_job_is_back(machine: Machine) -> None:
    two = Two(machine)
    for step in machine.where.before_it_runs():
        machine.inject(f"restore.{step} fail")
        failed = machine.gcr("swap", "llm", "bb")
        assert (failed.code, failed.body["error"]["code"]) == (4, "swap_failed"), (step, failed.body)
        assert (machine.job("llm")["state"], machine.job("bb")["state"]) == ("running", "suspended"), step
        assert resident(machine, "bb") == 0, step
        assert two.jobs["llm"].ask() == two.said["llm"], step
    two.swap()
    two.are_whole()


def test_a_program_that_needs_the_room_gets_it(machine: Machine) -> None:
    """Of whichever job: `other` finds no room, and gcr evicts what the head start has made."""
    machine.memory = ROOM
    other = machine.told("other")
    two = Two(machine)
    with machine.held_at("checkpoint.staged"):
        running = machine.asking.submit(two.leave)
        machine.wait_held()
        until(lambda: resident(machine, "bb") or None, 20, "there is some")
        assert other.ask(f"alloc 6 {SIZE}") == "ok"
        assert resident(machine, "bb") == 0
    assert running.result(timeout=60).code == 0
    assert machine.ask("checkpoint", "other").code == 0
    two.are_whole()


@pytest.mark.parametrize("who", OURS)
def test_a_death_after_a_piece(machine: Machine, who: Who) -> None:
    two = Two(machine)
    with machine.held_at(PIECE):
        running = machine.asking.submit(two.leave)
        machine.wait_held()
        kill(*who(machine, two.jobs["llm"]))
    running.result(timeout=60)
    machine.settled()
    assert machine.until_state("bb", "suspended") == "suspended"
    two.are_whole()


@pytest.mark.parametrize("which", ["worker", "daemon", "supervisor of the next", "program of the next"])
def test_a_death_while_a_piece_is_on_its_way(machine: Machine, which: str) -> None:
    machine.extra["GCR_SIM_BPS"] = str(200 * MIB)
    two = Two(machine)
    next_job, targets = two.jobs["bb"], machine.targets("bb")
    running = machine.asking.submit(two.leave)
    until(lambda: resident(machine, "bb") or None, 20, "a piece is on its way")
    condemned = {
        "worker": machine.children("gcr.worker"),
        "daemon": gcrd(machine, next_job),
        "supervisor of the next": [next_job.supervisor.pid],
        "program of the next": targets,
    }[which]
    assert condemned
    kill(*condemned)
    answer = running.result(timeout=60)
    machine.settled()
    if which == "program of the next":
        assert answer.code == 0, answer.body
        until(lambda: machine.job("bb") is None or None, 20, "it is forgotten")
        machine.come_back()
        assert two.jobs["llm"].ask() == two.said["llm"]
    else:
        two.are_whole()
