"""A job on several nodes, each with a daemon of its own: one cut over all of them, or none, whatever fails and dies."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cut_nodes import JOB, RANKS, STEADY, Nodes
from machine import Machine, kill, until
from worlds import SLOW, slowly

from gcr import schemas
from gcr.api.barriers import Barrier
from gcr.cluster.running import new_cut

NUMBER = 4
ODD = 2  # the node that something happens to


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Yields four nodes with a job of two ranks each, for all tests: each of them leaves the job running."""
    made = Nodes.below(tmp_path_factory.mktemp("cut"), NUMBER)
    try:
        made.begin()
        yield made
    finally:
        made.close()


@pytest.fixture
def nodes(standing: Nodes) -> Iterator[Nodes]:
    yield standing
    for machine in standing.machines:
        machine.inject()
    standing.run_again()


@pytest.fixture
def odd(nodes: Nodes) -> Machine:
    return nodes.machines[ODD]


def test_every_node_is_suspended_by_one_cut_and_all_come_back(nodes: Nodes):
    done = nodes.checkpoint()
    assert (done.error, done.report.outcome) == (None, "done"), done
    assert nodes.states() == ["suspended"] * NUMBER
    rows = [machine.job(JOB) for machine in nodes.machines]
    assert [row["cut"] for row in rows if row] == [{"id": done.report.cut, "barrier": None}] * NUMBER
    back = nodes.restore()
    assert (back.error, back.report.outcome, back.report.cut) == (None, "done", done.report.cut), back
    assert nodes.states() == ["running"] * NUMBER
    nodes.are_right()


@pytest.mark.parametrize(
    ("step", "barrier", "state"), [("prepared", "admitted", "prepared"), ("quiesced", "still", "quiesced")]
)
def test_the_others_wait_at_a_barrier_for_the_last_node(
    nodes: Nodes, odd: Machine, step: str, barrier: str, state: str
):
    others = [machine for machine in nodes.machines if machine is not odd]
    with odd.held_at(f"checkpoint.{step}"), ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(nodes.checkpoint)
        odd.wait_held()
        for _ in range(2):
            rows = [until(lambda m=machine: waiting(m), 10, "it waits at a barrier") for machine in others]
            assert {(row["cut"]["barrier"], row["state"], row["changing"]) for row in rows} == {(barrier, state, True)}
            time.sleep(0.1)
        (odd.folder / "held").unlink()
        done = cutting.result(30)
    assert (done.error, {row["cut"]["id"] for row in rows}) == (None, {done.report.cut})


def waiting(machine: Machine) -> dict[str, Any] | None:
    row = machine.job(JOB)
    return row if row and row["cut"] and row["cut"]["barrier"] else None


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_where_one_node_refuses_nothing_is_touched_anywhere(nodes: Nodes, odd: Machine):
    assert odd.ask("checkpoint", JOB).code == 0
    done = nodes.checkpoint()
    assert done.error
    assert (done.error.code, done.error.exit, done.report.outcome) == ("wrong_state", 3, "refused"), done
    assert f"n{ODD}" in done.error.message
    assert nodes.states() == ["suspended" if machine is odd else "running" for machine in nodes.machines]
    none = nodes.restore()
    assert none.error
    assert (none.error.code, none.error.exit) == ("not_one_cut", 3), none
    assert odd.ask("restore", JOB).code == 0


def test_a_cut_has_an_id_of_its_own(nodes: Nodes):
    with nodes.suspended() as done:
        again = nodes.checkpoint(cut=done.report.cut)
        assert again.error
        assert (again.error.code, again.error.exit, again.report.outcome) == ("cut_taken", 3, "refused"), again
        assert {*nodes.states()} == {"suspended"}


def test_two_cuts_of_one_job_at_once_leave_no_mix(nodes: Nodes):
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            both = [each.result(60) for each in [pool.submit(nodes.checkpoint) for _ in range(2)]]
        outcomes = sorted(each.report.outcome for each in both)
        assert outcomes in (["done", "refused"], ["refused", "refused"]), both
        (state,) = {*nodes.states()}
        assert state == ("suspended" if "done" in outcomes else "running")
        nodes.run_again()


def test_a_request_for_a_cut_that_cannot_wait_is_refused(nodes: Nodes, odd: Machine):
    said = odd.ask("cut", id=new_cut())
    assert said.body["error"]["code"] == "usage"  # a cut has no target
    with odd.connected() as client, pytest.raises(Exception, match="no part in cut"):
        client.request("cut", {"id": new_cut(), "barrier": "still"})
    pid = odd.stranger().supervisor.pid
    alone = odd.ask("checkpoint", pid, cut=new_cut())
    assert (alone.body["error"]["code"], alone.code) == ("cannot_hold", 3), alone
    kill(pid)
    with_image = odd.ask("checkpoint", JOB, cut=new_cut(), image="warm", leave_running=True)
    assert (with_image.body["error"]["code"], with_image.code) == ("usage", 2)


# ---- failures -------------------------------------------------------------------------------------------------------

BEFORE_ALL_STILL = ("prepared", "admitted", "went_admitted", "quiesced", "still")
DEATHS = ("admitted", "went_admitted", "went_still", "drained")  # besides those of the fast tests
AFTER = ("went_still", "handed_over", "drained", "staged")


@pytest.mark.parametrize("step", [*BEFORE_ALL_STILL, *AFTER])
def test_a_failure_on_one_node_has_all_run_on(nodes: Nodes, odd: Machine, step: str):
    odd.inject(f"checkpoint.{step} fail")
    done = nodes.checkpoint()
    assert done.error
    assert (done.error.code, done.error.exit, done.report.outcome) == ("cut_failed", 4, "taken_back"), done
    assert f"injected at checkpoint.{step}" in done.error.message
    assert nodes.states() == ["running"] * NUMBER
    nodes.are_right()


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (0, "still"),
        (1, "decided"),
        *(pytest.param(2, step, marks=SLOW) for step in DEATHS),
    ],
)
def test_a_daemon_that_dies_leaves_no_mix(nodes: Nodes, number: int, step: str):
    """A supervisor starts a daemon every ten seconds at most, so each dies on another node."""
    odd = nodes.machines[number]
    odd.inject(f"checkpoint.{step} die")
    done = nodes.checkpoint()
    state = nodes.none_is_left_out()
    if step == "decided" and done.report.outcome == "done":
        assert state == "suspended"
    else:
        assert state == "running", done


@pytest.mark.parametrize("step", ["admitted", "quiesced", "still", "went_still"])
def test_a_worker_that_dies_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    with odd.held_at(f"checkpoint.{step}"), ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(nodes.checkpoint)
        odd.wait_held()
        kill(*odd.children("gcr.worker"))
        (odd.folder / "held").unlink()
        done = cutting.result(60)
    assert done.report.outcome in ("done", "taken_back"), done
    assert nodes.none_is_left_out() == ("suspended" if done.report.outcome == "done" else "running")


@pytest.mark.parametrize("step", ["prepared", "admitted", "went_admitted", "still", "went_still", "drained", "decided"])
def test_a_coordinator_that_is_killed_is_replaced_and_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    with odd.held_at(f"checkpoint.{step}"):
        command = odd.begin("cluster", "checkpoint", JOB, *nodes.options())
        odd.wait_held()
        if step == "decided":  # the others are suspended by then
            until(lambda: all(is_suspended(m) for m in nodes.machines if m is not odd), 10, "the others are suspended")
        kill(command.pid)
        time.sleep(0.1)
        (odd.folder / "held").unlink()
    state = nodes.none_is_left_out()
    assert state == ("suspended" if step == "decided" else "running")


@pytest.mark.parametrize("step", ["prepared", "quiesced", "went_still"])
def test_ctrl_c_has_all_run_on(nodes: Nodes, odd: Machine, step: str):
    with odd.held_at(f"checkpoint.{step}"):
        command = odd.begin("cluster", "checkpoint", JOB, *nodes.options())
        odd.wait_held()
        command.send_signal(signal.SIGINT)
        time.sleep(0.2)
        (odd.folder / "held").unlink()
        said, _ = command.communicate(timeout=30)
    body = json.loads(said)
    assert (command.returncode, body["error"]["code"]) == (130, "interrupted"), body
    assert nodes.states() == ["running"] * NUMBER
    nodes.are_right()


def is_suspended(machine: Machine) -> bool:
    row = machine.job(JOB)
    return bool(row and row["state"] == "suspended" and not row["changing"])


def test_a_node_that_does_not_come_to_the_standstill_is_not_waited_for_longer_than_said(nodes: Nodes, odd: Machine):
    with odd.held_at("checkpoint.quiesced"), ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        cutting = pool.submit(nodes.checkpoint, still_s=0.5)
        odd.wait_held()
        for machine in nodes.machines:
            if machine is not odd:
                machine.until_state(JOB, "running", patience=5)
        assert time.monotonic() < began + 5
        (odd.folder / "held").unlink()
        done = cutting.result(30)
    assert done.report.outcome == "taken_back", done
    assert nodes.states() == ["running"] * NUMBER


def test_a_part_that_hears_nothing_gives_up_by_itself(nodes: Nodes, odd: Machine):
    links = nodes.links()
    links[f"n{ODD}"].drops = {Barrier.STILL, None}
    done = nodes.checkpoint(links, still_s=1.0)
    assert done.report.outcome == "taken_back", done
    assert nodes.states() == ["running"] * NUMBER


def test_a_node_that_never_answers_is_named_and_the_others_run_on(nodes: Nodes, odd: Machine):
    links = nodes.links()
    daemon = odd.daemon()
    links[f"n{ODD}"].before = lambda _barrier: os.kill(daemon, signal.SIGSTOP)
    try:
        done = nodes.checkpoint(links, still_s=1.0, grace_s=1.0, timeout=3)
        assert done.error
        assert (done.error.code, done.report.outcome) == ("cut_unsettled", "unsettled"), done
        assert [each.place for each in done.report.nodes].count("running") == NUMBER - 1
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert nodes.none_is_left_out() == "running"


# ---- the way back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["room", "back", "ready"])
def test_a_restore_that_fails_on_one_node_leaves_all_suspended(nodes: Nodes, odd: Machine, step: str):
    with nodes.suspended() as done:
        odd.inject(f"restore.{step} fail")
        back = nodes.restore()
        assert back.error
        assert (back.error.code, back.report.outcome) == ("cut_failed", "taken_back"), back
        assert {*nodes.states()} == {"suspended"}
        assert [machine.job(JOB)["cut"]["id"] for machine in nodes.machines] == [done.report.cut] * NUMBER


def test_a_restore_that_fails_once_others_run_is_done_again(nodes: Nodes, odd: Machine):
    with nodes.suspended():
        odd.inject("restore.went_ready fail")
        back = nodes.restore()
        assert (back.error, back.report.outcome) == (None, "done"), back
        assert {*nodes.states()} == {"running"}


@pytest.mark.parametrize(
    ("number", "step"),
    [(2, "went_ready"), (3, "decided"), pytest.param(0, "back", marks=SLOW), pytest.param(1, "ready", marks=SLOW)],
)
def test_a_daemon_that_dies_in_a_restore_leaves_no_mix(nodes: Nodes, number: int, step: str):
    with nodes.suspended():
        nodes.machines[number].inject(f"restore.{step} die")
        nodes.restore()


@pytest.mark.parametrize("step", ["back", "ready", "went_ready", "decided"])
def test_a_coordinator_that_is_killed_in_a_restore_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    with nodes.suspended(), odd.held_at(f"restore.{step}"):
        command = odd.begin("cluster", "restore", JOB, *nodes.options())
        odd.wait_held()
        kill(command.pid)
        time.sleep(0.1)


# ---- the command line -----------------------------------------------------------------------------------------------


def test_the_command_line_says_the_same(nodes: Nodes, odd: Machine):
    for words, places in (
        (("checkpoint", JOB), {"suspended"}),
        (("recover", JOB), {"suspended"}),
        (("restore", JOB), {"running"}),
        (("recover", JOB), {"running"}),
    ):
        done = odd.gcr("cluster", *words, *nodes.options())
        assert done.code == 0, done
        jsonschema.Draft202012Validator(schemas.load(f"cluster {words[0]}")).validate(done.body)
        assert {each["place"] for each in done.body["nodes"]} == places
    refused = odd.gcr("cluster", "restore", JOB, *nodes.options())
    assert (refused.code, refused.body["error"]["code"]) == (3, "not_one_cut"), refused.body
    jsonschema.Draft202012Validator(schemas.load(schemas.ERROR)).validate(refused.body)
    unknown = odd.gcr("cluster", "checkpoint", "nothing", *nodes.options())
    assert (unknown.code, unknown.body["error"]["code"]) == (3, "no_such_job"), unknown.body
    nowhere = odd.gcr("cluster", "checkpoint", JOB, *nodes.options(), "--node", str(odd.folder / "no.sock"))
    assert (nowhere.code, nowhere.body["error"]["code"]) == (3, "daemon_unavailable"), nowhere.body
    assert nodes.states() == ["running"] * NUMBER


# ---- random instants ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [30, slowly(200)])
def test_ranks_that_run_are_cut_at_random_instants_and_every_word_is_right(tmp_path: Path, cuts: int):
    nodes, chance = Nodes.below(tmp_path, NUMBER), random.Random(cuts)
    try:
        nodes.begin(STEADY, str(RANKS))
        before = steps_of(nodes)
        for _ in range(cuts):
            time.sleep(chance.uniform(0, 0.05))
            done = nodes.checkpoint()
            assert done.error is None, done
            assert {*nodes.states()} == {"suspended"}
            still = steps_of(nodes)
            back = nodes.restore()
            assert back.error is None, back
        assert all(later > earlier for later, earlier in zip(still, before, strict=True))
        until(lambda: all(now > then for now, then in zip(steps_of(nodes), still, strict=True)), 10, "all run again")
    finally:
        nodes.close()


def steps_of(nodes: Nodes) -> list[int]:
    """Returns the step of every rank; each has read in all of them what it wrote."""
    return [int(word) for part in nodes.parts for word in part.ask().split()]


@pytest.mark.parametrize("rounds", [slowly(60)])
def test_whatever_is_killed_at_any_instant_leaves_no_mix(tmp_path: Path, rounds: int):
    """In turns a cut and the way back; a coordinator, a worker, a helper or a daemon is killed meanwhile."""
    nodes, chance = Nodes.below(tmp_path, NUMBER), random.Random(rounds)
    try:
        nodes.begin(STEADY, str(RANKS))
        for number in range(rounds):
            suspended = nodes.states()[0] == "suspended"
            machine = chance.choice(nodes.machines)
            command = machine.begin("cluster", "restore" if suspended else "checkpoint", JOB, *nodes.options())
            time.sleep(chance.uniform(0.05, 0.5))
            victims = ["gcr.worker", "gcr.control_helper", "coordinator", *(["gcr.daemon"] if number % 5 == 0 else [])]
            victim = chance.choice(victims)
            kill(*([command.pid] if victim == "coordinator" else machine.children(victim)[:1]))
            command.wait(60)
            nodes.states()
            settled = nodes.recover()
            assert settled.error is None, (number, victim, settled)
            assert len({*nodes.states()}) == 1, (number, victim)
            now = steps_of(nodes)
            if nodes.states()[0] == "running":
                until(lambda then=now: all(a > b for a, b in zip(steps_of(nodes), then, strict=True)), 30, "all run")
    finally:
        nodes.close()
