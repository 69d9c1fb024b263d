"""An image of a job on several nodes: each node has a part, all are of one cut, and the whole counts or none does."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import jsonschema
import pytest
from cut_nodes import JOB, RANKS, STEADY, TAKEN_S, Nodes, is_taken
from dumps import CRIU, skip_without_criu
from machine import Machine, alive, kill, until
from stored import store_of
from worlds import SLOW, slowly

from gcr import schemas
from gcr.cluster.calls import Result
from gcr.image.store.store import Store

FEW, MANY = 2, 4
TRIES = 5
ODD = 1  # the node that something happens to


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Yields two nodes with a job of two ranks each, for all tests: each of them leaves the job running."""
    skip_without_criu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCR_CRIU", str(CRIU))
        made = Nodes.below(tmp_path_factory.mktemp("cut"), FEW)
        try:
            made.begin_filed()
            yield made
        finally:
            made.close()


@pytest.fixture
def nodes(standing: Nodes) -> Iterator[Nodes]:
    yield standing
    for machine in standing.machines:
        machine.inject()
    runs_again(standing)
    for machine in standing.machines:
        names = names_of(machine)
        if names:
            assert machine.gcr("rm", *names).code == 0


@pytest.fixture
def odd(nodes: Nodes) -> Machine:
    return nodes.machines[ODD]


def names_of(machine: Machine) -> list[str]:
    return [*Store(store_of(machine)).images.names()] if store_of(machine).exists() else []


def rooted(machine: Machine) -> list[str]:
    """Returns the names of the images that have the root of a whole beside them."""
    return sorted(path.stem for path in (store_of(machine) / "images").glob("*.cut"))


def runs_again(nodes: Nodes) -> None:
    states = {*nodes.states()}
    if "stopped" in states:
        nodes.come_back()
    elif "suspended" in states:
        nodes.run_again()
    assert {*nodes.states()} == {"running"}
    nodes.are_right()


def settled(nodes: Nodes) -> str:
    """Has a new coordinator recover the job. Returns the one state that all parts have then."""
    nodes.states()  # each daemon is there again
    done = nodes.recover()
    assert done.error is None, done
    states = {*nodes.states()}
    assert states in ({"running"}, {"stopped"}, {"suspended"}, {"stopped", "suspended"}), states
    if "stopped" in states:  # all can come back: from the image, or where they are suspended
        nodes.come_back()
    runs_again(nodes)
    return "running" if states == {"running"} else "away"


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


def cluster(machine: Machine, command: str, *words: str) -> Mapping[str, Any]:
    done = machine.gcr("cluster", command, *words)
    assert done.code == 0, (done.body, done.stderr)
    jsonschema.Draft202012Validator(schemas.load(f"cluster {command}")).validate(done.body)
    assert done.body["image"] == ("night" if "--image" in words else None)
    return done.body


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


def test_parts_that_were_pushed_come_back_on_other_nodes_of_the_same_paths(nodes: Nodes, tmp_path: Path):
    """The other nodes have other names, and empty stores. A part on a node with another socket is refused by name."""
    done = nodes.image()
    assert done.error is None, done
    parts = [names_of(machine)[0] for machine in nodes.machines]
    for machine, name in zip(nodes.machines, parts, strict=True):
        sent = machine.gcr("push", name, tmp_path.joinpath("away").as_uri())
        jsonschema.Draft202012Validator(schemas.load("push")).validate(sent.body)
        assert (sent.code, sent.body["rooted"]) == (0, True), sent
    wiped(nodes)
    others = {f"other{number}": link for number, link in enumerate(nodes.links().values())}
    pull(nodes, tmp_path, [parts[1], parts[0]])
    crossed = nodes.restore_image(links=others)
    assert {each.error["code"] for each in crossed.report.nodes if each.error} == {"wrong_state"}, crossed
    assert str(nodes.machines[0].socket) in str([each.error for each in crossed.report.nodes])
    wiped(nodes)
    pull(nodes, tmp_path, parts[:1])
    assert refusal(nodes, others)["code"] == "cut_incomplete"
    pull(nodes, tmp_path, parts)
    end = time.monotonic() + TAKEN_S
    while is_taken(back := nodes.restore_image(links=others)) and time.monotonic() < end:
        pass
    assert (back.error, back.report.cut) == (None, done.report.cut), back
    nodes.are_right()


def wiped(nodes: Nodes) -> None:
    for machine in nodes.machines:
        rmtree(store_of(machine))


def pull(nodes: Nodes, folder: Path, parts: Sequence[str]) -> None:
    for machine, name in zip(nodes.machines, parts, strict=False):
        came = machine.gcr("pull", name, folder.joinpath("away").as_uri())
        jsonschema.Draft202012Validator(schemas.load("pull")).validate(came.body)
        assert (came.code, came.body["rooted"]) == (0, True), came


@SLOW
def test_nodes_with_a_key_in_their_settings_use_a_store_without_one(tmp_path: Path, criu: None):
    """A daemon has no key. So an encrypted store is refused before a program is stopped, and the hint says more."""
    nodes = Nodes.below(tmp_path, FEW, "keyed")
    try:
        for machine in nodes.machines:
            (machine.folder / "key").write_text("00112233445566778899aabbccddeeff" * 2)
            (machine.folder / "key").chmod(0o600)
            machine.extra["GCR_KEY_FILE"] = str(machine.folder / "key")
        nodes.begin_filed()
        for machine in nodes.machines:
            assert machine.gcr("checkpoint", JOB, "--image", "own", "--leave-running", timeout=60).code == 0
        refused = nodes.machines[0].gcr("cluster", "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
        errors = [each["error"] for each in refused.body["nodes"]]
        assert (refused.code, {each["code"] for each in errors}) == (3, {"wrong_key"}), refused.body
        assert all("--store" in each["hint"] for each in errors)
        nodes.are_right()
        plain = ("--store", str(tmp_path / "plain"))
        cluster(nodes.machines[0], "checkpoint", JOB, "--image", "night", "--stop", *plain, *nodes.options())
        cluster(nodes.machines[0], "restore", "--image", "night", *plain, *nodes.options())
        nodes.are_right()
    finally:
        nodes.close()


@SLOW
def test_nodes_may_share_a_store(tmp_path: Path, criu: None):
    nodes = Nodes.below(tmp_path, FEW, "shared")
    try:
        for machine in nodes.machines:
            machine.extra["GCR_STORE"] = str(tmp_path / "store")
        nodes.begin_filed()
        for _ in range(2):
            done = nodes.image()
            assert (done.error, nodes.states()) == (None, ["stopped"] * FEW), done
            names = [f"night.{str(done.report.cut)[:16]}.{rank}" for rank in range(FEW)]
            assert [*Store(tmp_path / "store").images.names()] == names
            assert nodes.recover().report.outcome == "done"
            assert nodes.come_back().report.cut == done.report.cut
            nodes.are_right()
    finally:
        nodes.close()


def test_an_image_that_lacks_a_part_is_refused_by_name_and_an_earlier_whole_one_is_taken(nodes: Nodes, odd: Machine):
    done = nodes.image()
    assert done.error is None, done
    alone = {name: link for name, link in nodes.links().items() if name != f"n{ODD}"}
    refused = refusal(nodes, alone)
    assert (refused["code"], refused["exit"]) == ("cut_incomplete", 3), refused
    assert f"part {ODD + 1} of {FEW}, of node n{ODD}" in refused["message"]
    assert nodes.states() == ["stopped"] * FEW
    nodes.come_back()
    gone = odd.gcr("rm", *names_of(odd))
    assert [each["image"] for each in gone.body["parts"]] == ["night"]
    jsonschema.Draft202012Validator(schemas.load("rm")).validate(gone.body)
    assert refusal(nodes)["code"] == "cut_incomplete"
    none = odd.gcr("cluster", "restore", "--image", "day", *nodes.options())
    assert (none.code, none.body["error"]["code"]) == (3, "no_such_image"), none.body


def refusal(nodes: Nodes, links: Any = None) -> Mapping[str, Any]:
    with pytest.raises(Exception, match="image night") as caught:
        nodes.restore_image(links=links)
    error: Any = caught.value
    return {"code": error.code, "exit": error.exit, "message": error.message}


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


# ---- the way back ---------------------------------------------------------------------------------------------------


def test_new_processes_wait_at_ready_and_end_where_the_cut_is_given_up(nodes: Nodes, odd: Machine):
    assert nodes.image().error is None
    first = nodes.machines[0]
    with waiting_at_ready(nodes, odd) as (row, bringing):
        assert (row["state"], row["cut"]["barrier"]) == ("restoring", "ready")
        pids = [each["pid"] for each in row["processes"]]
        assert all(alive(pid) for pid in pids)
        with first.connected() as client:
            client.request("cut", {"id": row["cut"]["id"]})
        until(lambda: first.job(JOB) is None, 30, "its processes have ended")
        (odd.folder / "held").unlink()
        back = bringing.result(60)
    assert back.report.outcome in ("refused", "taken_back"), back  # the odd node may be ready before that
    assert nodes.states() == ["stopped"] * FEW
    assert not any(alive(pid) for pid in pids)


@contextmanager
def waiting_at_ready(nodes: Nodes, odd: Machine) -> Iterator[tuple[dict[str, Any], Future[Result]]]:
    """Yields what the first node says of its part, while the odd one is held. Another program may have taken a pid."""
    for _ in range(TRIES):
        with odd.held_at("restore.ready"), ThreadPoolExecutor(1) as pool:
            bringing = pool.submit(nodes.restore_image)
            odd.wait_held()
            try:
                row = until(lambda: waiting(nodes.machines[0]), 10, "it waits")
            except AssertionError:
                (odd.folder / "held").unlink()
                back = bringing.result(60)
                assert is_taken(back), back
                continue
            yield row, bringing
            return
    pytest.fail("a pid was taken each time")


def waiting(machine: Machine) -> dict[str, Any] | None:
    row = machine.job(JOB)
    return row if row and row["cut"] and row["cut"]["barrier"] else None


@pytest.mark.parametrize("step", ["ready", slowly("back"), slowly("room")])
def test_a_restore_that_fails_on_one_node_leaves_all_stopped(nodes: Nodes, odd: Machine, step: str):
    done = nodes.image()
    assert done.error is None, done
    odd.inject(f"restore.{step} fail")
    back = nodes.restore_image()
    assert back.error
    assert (back.error.code, back.report.outcome) == ("cut_failed", "taken_back"), back
    assert nodes.states() == ["stopped"] * FEW


@pytest.mark.parametrize("step", [slowly("ready"), slowly("went_ready")])
def test_a_coordinator_that_is_killed_in_a_restore_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    assert nodes.image().error is None
    with odd.held_at(f"restore.{step}"):
        command = odd.begin("cluster", "restore", "--image", "night", *nodes.options())
        odd.wait_held()
        kill(command.pid)
        time.sleep(0.1)
        (odd.folder / "held").unlink()
    settled(nodes)


@pytest.mark.parametrize("step", [slowly("ready"), slowly("went_ready")])
def test_a_daemon_that_dies_in_a_restore_leaves_no_mix(nodes: Nodes, odd: Machine, step: str):
    assert nodes.image().error is None
    odd.inject(f"restore.{step} die")
    nodes.restore_image()
    settled(nodes)


@SLOW
def test_a_recovery_brings_stopped_parts_back_beside_one_that_runs(nodes: Nodes, odd: Machine):
    assert nodes.image().error is None
    alone = odd.ask("restore", JOB, image=names_of(odd)[0], revive=True)
    assert alone.code == 0, alone.body
    done = nodes.recover()
    assert (done.error, done.report.outcome) == (None, "done"), done
    assert nodes.states() == ["running"] * FEW
    nodes.are_right()


# ---- random instants ------------------------------------------------------------------------------------------------


def steps_of(nodes: Nodes) -> list[int]:
    """Returns the step of every rank; each has read in all of them what it wrote."""
    return [int(word) for part in nodes.parts for word in part.ask().split()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [slowly(3), slowly(10)])
def test_images_at_random_instants_and_deaths_leave_no_mix(tmp_path: Path, rounds: int, criu: None):
    """In turns an image and the way back, over four nodes; a coordinator, a helper or a daemon is killed meanwhile."""
    nodes, chance = Nodes.below(tmp_path, MANY, "many"), random.Random(rounds)
    try:
        nodes.begin_filed(STEADY, str(RANKS))
        for number in range(rounds):
            before = steps_of(nodes)
            machine = chance.choice(nodes.machines)
            command = machine.begin("cluster", "checkpoint", JOB, "--image", "night", "--stop", *nodes.options())
            time.sleep(chance.uniform(0.2, 4.0))
            victim = chance.choice(["coordinator", "gcr.image_helper", "gcr.criu_helper", "nothing", "gcr.daemon"])
            victims = [command.pid] if victim == "coordinator" else machine.children(victim)[:1]
            if victim != "nothing":
                kill(*victims)
            command.wait(90)
            nodes.states()
            done = nodes.recover()
            assert done.error is None, (number, victim, done)
            states = {*nodes.states()}
            assert states in ({"running"}, {"stopped"}, {"suspended"}, {"stopped", "suspended"}), (number, victim)
            if "stopped" in states:
                nodes.come_back()
            elif "suspended" in states:
                assert nodes.restore().error is None
            until(lambda b=before: all(x > y for x, y in zip(steps_of(nodes), b, strict=True)), 30, "all run on")
    finally:
        nodes.close()
