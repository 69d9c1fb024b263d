"""An image of a job on several nodes: each node has a part, all are of one cut, and the whole counts or none does."""

import time

import pytest
from cut_images import FEW, ODD, cluster, names_of, rooted, settled
from cut_nodes import JOB, RANKS, Nodes
from machine import Machine, alive, kill
from worlds import SLOW, slowly

# ---- there and back -------------------------------------------------------------------------------------------------


def test_a_job_is_stopped_into_an_image_on_every_node_and_comes_back_with_its_processes(nodes: Nodes, odd: Machine):
    pids = [machine.targets(JOB, RANKS) for machine in nodes.machines]
    done = cluster(odd, "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
    assert {each["place"] for each in done["nodes"]} == {"stopped"}
    assert {each["report"]["cut"] for each in done["nodes"]} == {"process"}
    assert nodes.states() == ["stopped"] * FEW
    assert not any(alive(pid) for each in pids for pid in each)
    parts = [f"night.{done['cut'][:16]}.{rank}" for rank in range(FEW)]
    assert [(names_of(machine), rooted(machine)) for machine in nodes.machines] == [([each], [each]) for each in parts]
    shown = [machine.gcr("images").body["images"][0]["part"] for machine in nodes.machines]
    assert [(each["image"], each["cut"], each["rank"], each["nodes"]) for each in shown] == [
        ("night", done["cut"], rank, FEW) for rank in range(FEW)
    ]
    inspected = odd.gcr("inspect", parts[ODD]).body
    assert inspected["part"] == shown[ODD]
    assert cluster(odd, "recover", JOB, *nodes.options())["cut"] == done["cut"]
    assert nodes.states() == ["stopped"] * FEW
    back = cluster(odd, "restore", "--image", "night", *nodes.options())
    assert ({each["place"] for each in back["nodes"]}, back["cut"], back["image"]) == (
        {"running"},
        done["cut"],
        "night",
    )
    assert [machine.targets(JOB, RANKS) for machine in nodes.machines] == pids
    nodes.are_right()


def test_a_job_that_runs_on_comes_back_from_its_last_image_after_its_end(nodes: Nodes, odd: Machine):
    for _ in range(2):
        done = cluster(odd, "checkpoint", JOB, "--image", "night", "--leave-running", *nodes.options())
        assert {each["place"] for each in done["nodes"]} == {"running"}
        nodes.are_right()
    parts = [f"night.{done['cut'][:16]}.{rank}" for rank in range(FEW)]  # the earlier ones are gone
    assert [(names_of(machine), rooted(machine)) for machine in nodes.machines] == [([each], [each]) for each in parts]
    for machine in nodes.machines:
        row = machine.job(JOB)
        assert row
        machine.end_by_pid(row["pid"])
    assert nodes.come_back().report.cut == done["cut"]
    nodes.are_right()


def test_a_job_that_stays_suspended_comes_back_from_its_image_in_place(nodes: Nodes):
    done = nodes.image(wait="vram")
    assert (done.error, nodes.states()) == (None, ["suspended"] * FEW), done
    back = nodes.restore_image()
    assert (back.error, back.report.cut) == (None, done.report.cut), back
    assert nodes.states() == ["running"] * FEW
    nodes.are_right()


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    ["checkpoint.durable", *map(slowly, ("checkpoint.dumped", "checkpoint.published")), "image.root"],
)
def test_a_failure_on_one_node_has_all_run_on_and_leaves_no_part(nodes: Nodes, odd: Machine, fault: str):
    odd.inject(f"{fault} fail")
    done = nodes.image()
    assert done.error
    assert (done.error.exit, done.report.outcome) == (4, "taken_back"), done
    assert f"injected at {fault}" in done.error.message
    assert nodes.states() == ["running"] * FEW
    nodes.are_right()
    assert [names_of(machine) for machine in nodes.machines] == [[]] * FEW


def test_a_part_that_was_suspended_alone_runs_on_where_the_image_of_another_fails(nodes: Nodes, odd: Machine):
    odd.inject("checkpoint.durable fail")
    done = nodes.image(wait="vram")
    assert (done.report.outcome, nodes.states()) == ("taken_back", ["running"] * FEW), done
    nodes.are_right()
    assert [names_of(machine) for machine in nodes.machines] == [[]] * FEW


@pytest.mark.parametrize(
    ("step", "where"),
    [
        ("checkpoint.durable", "running"),
        ("image.rooted", None),  # the root is in one store, and perhaps in the other
        pytest.param("checkpoint.went_durable", "away", marks=SLOW),
        pytest.param("image.root", "running", marks=SLOW),
        pytest.param("checkpoint.dumped", "running", marks=SLOW),
    ],
)
def test_a_coordinator_that_is_killed_leaves_all_running_or_all_able_to_come_back(
    nodes: Nodes, odd: Machine, step: str, where: str | None
):
    with odd.held_at(step):
        command = odd.begin("cluster", "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
        odd.wait_held()
        kill(command.pid)
        time.sleep(0.1)
        (odd.folder / "held").unlink()
    found = settled(nodes)
    assert where in (None, found)


@pytest.mark.parametrize(
    ("number", "step"), [(0, "durable"), *(pytest.param(1, s, marks=SLOW) for s in ("went_durable", "dumped"))]
)
def test_a_daemon_that_dies_leaves_all_running_or_all_able_to_come_back(nodes: Nodes, number: int, step: str):
    nodes.machines[number].inject(f"checkpoint.{step} die")
    nodes.image()
    settled(nodes)
