"""A job moves while it runs: its output is that of a bare run, and it runs at one node whatever fails."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from moving_nodes import VICTIM, Node, TwoNodes

from gcr import schemas
from gcr.testing.machine import simulated_driver

pytestmark = [pytest.mark.usefixtures("criu"), pytest.mark.timeout(300)]

WORDS = ("--pause", "0.02")
JOB_BYTES = 16 << 20  # of device memory
HOST_BYTES = 128 << 20  # of noise, in which each step changes a page
DEVICE = "import sys; sys.path.insert(0, sys.argv[1]); from cuda_device import CudaDevice; CudaDevice()"


@pytest.fixture
def nodes(criu: None, request: pytest.FixtureRequest) -> Iterator[TwoNodes]:
    made = TwoNodes(Path("/dev/shm") / f"gcr-migrate-{os.getpid()}", getattr(request, "param", {}))
    yield made
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed:
        sys.stderr.write(made.a.logs() + made.b.logs())
    made.close()


def ends_as_bare(nodes: TwoNodes, out: Path, *arguments: str) -> None:
    """The program, wherever it runs, goes on to its end, and has printed what a bare run prints."""
    steps = nodes.end(out)
    folder = nodes.root / "bare"
    folder.mkdir(mode=0o700)
    env = {**os.environ, **simulated_driver("nvidia"), "GCR_SIM_STATE": str(folder)}
    words = [sys.executable, str(VICTIM), "--hold", *arguments]
    alone = subprocess.run(words, env=env, input=f"{steps}\n", capture_output=True, text=True, check=True)
    assert out.read_text() == alone.stdout


def test_a_job_moves_while_it_runs_and_prints_what_a_bare_run_prints(nodes: TwoNodes) -> None:
    host = ("--host", str(HOST_BYTES))
    out, began = nodes.run(*WORDS, *host), time.time()
    moved = nodes.migrate("-vv")
    assert moved.code == 0, (moved.body, moved.stderr)
    assert "'step': 'pull'" in moved.stderr
    assert "token" not in moved.stderr
    jsonschema.Draft202012Validator(schemas.load("migrate")).validate(moved.body)
    assert nodes.states() == (None, "running")
    assert moved.body["outcome"] == "done"
    stop = moved.body["stop"]
    assert stop["stop_s"] > 0
    parts = ("published", "pulled", "looked", "compared", "brought", "made", "processes", "ready", "running")
    assert [stop["phases_s"][part] for part in parts] == sorted(stop["phases_s"][part] for part in parts)
    assert (stop["not_filled"], stop["filled_bytes"] >= JOB_BYTES) == ("", True)
    assert stop["phases_s"]["pulled"] <= stop["phases_s"]["filled"] <= stop["phases_s"]["processes"]
    looked_s = json.loads((nodes.b.folder / "run/gcr/criu.json").read_text())["at"] - began
    assert looked_s < moved.body["wall_s"] - stop["stop_s"], "CRIU is looked at before the stop"
    rounds = moved.body["rounds"]
    assert all(each["host_bytes"] > HOST_BYTES for each in rounds)
    assert rounds[0]["bytes_sent"] > HOST_BYTES + JOB_BYTES / 2
    in_the_stop = moved.body["bytes_sent"] - sum(each["bytes_sent"] for each in rounds)
    assert in_the_stop < HOST_BYTES / 2, "host memory is there before the stop"
    runs_at(nodes, "b", out, *host)
    (log,) = (nodes.b.folder / "state/gcr/jobs").glob("llm.*.log")
    nodes.until(lambda: log.read_text() == "ended\n", "its log has what it printed here")


def runs_at(nodes: TwoNodes, node: str, out: Path, *arguments: str) -> None:
    """The job runs at this node alone, nothing of the migration is left, and its output is that of a bare run."""
    here, there = (nodes.a, nodes.b) if node == "a" else (nodes.b, nodes.a)
    assert here.state("llm") == "running"
    nodes.until(lambda: there.state("llm") is None, "a job that ended at the other node is let go")
    assert (here.images(), there.images()) == ([], [])
    assert (here.records(), there.records()) == ([], [])
    nodes.until(lambda: (here.packs(), there.packs()) == ([], []), "the packs are removed, once the exchange has ended")
    assert there.device_bytes() < JOB_BYTES
    ends_as_bare(nodes, out, *arguments)


@pytest.mark.parametrize(
    ("step", "node"),
    [
        ("copy.done", "a"),
        ("leave.done", "a"),
        ("stop.done", "a"),
        ("bring.done", "a"),
        ("give", "a"),
        ("give.done", "b"),
        ("own.done", "b"),
        ("open.done", "b"),
    ],
)
@pytest.mark.slow
def test_a_coordinator_that_dies_is_followed_by_a_recovery(nodes: TwoNodes, step: str, node: str) -> None:
    """Before `give` the job comes back to the source; after it the target has it."""
    out = nodes.run(*WORDS)
    nodes.inject(f"migrate.{step} die")
    assert nodes.migrate().code == -signal.SIGKILL
    settled = nodes.migrate("--recover")
    assert settled.code == (0 if node == "b" else 4), settled
    assert settled.body["outcome"] == ("done" if node == "b" else "taken_back")
    runs_at(nodes, node, out)


@pytest.mark.parametrize(
    ("step", "daemon"),
    [("copy.done", "lives"), ("stop.done", "lives"), ("stop.done", "dies"), ("hold.done", "lives")],
)
@pytest.mark.slow
def test_the_source_brings_a_job_back_by_itself_whose_coordinator_died_there(
    nodes: TwoNodes, step: str, daemon: str
) -> None:
    """The target has what arrived, with closed gates, until it is told the command that `gcr recover` names."""
    out = nodes.run(*WORDS)
    nodes.inject(f"migrate.{step} die")
    nodes.said(nodes.begin(at=nodes.a))
    if daemon == "dies":
        nodes.a.kill("gcr.daemon")
        assert nodes.a.gcr("daemon", "start").code == 0
    nodes.until(lambda: nodes.a.state("llm") == "running" and not nodes.a.records(), "the job is back")
    assert "migrations" not in nodes.a.gcr("recover").body
    told = nodes.b.gcr("recover")
    jsonschema.Draft202012Validator(schemas.load("recover")).validate({**told.body, "ok": True})
    (moving,) = told.body["migrations"]
    assert (moving["stage"], moving["outcome"], moving["command"].split()[-1]) == ("arriving", "unsettled", "--recover")
    assert nodes.b.state("llm") != "running"
    assert (nodes.migrate("--recover").code, nodes.b.records()) == (0, [])
    runs_at(nodes, "a", out)


@pytest.mark.slow
def test_a_job_that_was_given_away_is_named_and_not_brought_back(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    nodes.inject("migrate.give.done die")
    nodes.said(nodes.begin(at=nodes.a))
    shown = nodes.a.gcr("ps").body
    jsonschema.Draft202012Validator(schemas.load("ps")).validate(shown)
    (moving,) = shown["migrations"]
    assert (moving["stage"], moving["mover"], moving["target"]) == ("given", "gone", nodes.b.socket)
    told = nodes.a.gcr("recover")
    assert (told.code, told.body["error"]["code"]) == (4, "migration_unsettled"), told
    assert told.body["error"]["hint"] == moving["command"]
    assert (nodes.a.state("llm"), nodes.a.records() != []) == (None, True)
    settled = subprocess.run([sys.executable, "-m", *moving["command"].split()], check=False)
    assert settled.returncode == 0
    runs_at(nodes, "b", out)


@pytest.mark.parametrize("fault", ["checkpoint.quiesced die", "checkpoint.decided die", "checkpoint.published die"])
@pytest.mark.slow
def test_a_source_daemon_that_dies_leaves_the_job_at_the_source(nodes: TwoNodes, fault: str) -> None:
    out = nodes.run(*WORDS)
    nodes.a.inject(fault)
    failed = nodes.migrate()
    if failed.body["outcome"] == "unsettled":
        assert nodes.a.gcr("daemon", "start").code == 0
        failed = nodes.migrate("--recover")
    assert (failed.code, failed.body["outcome"]) == (4, "taken_back"), failed
    runs_at(nodes, "a", out)


@pytest.mark.parametrize("daemon", ["lives", "dies"])
@pytest.mark.slow
def test_the_target_makes_the_processes_while_those_of_the_source_are_ended(nodes: TwoNodes, daemon: str) -> None:
    """It does not wait for that, and opens nothing before. If the source's daemon dies then, the source has the job."""
    out, held = nodes.run(*WORDS), nodes.a.folder / "published"
    nodes.a.inject(f"checkpoint.published hold {nodes.a.place}/published")
    moving = nodes.begin()
    nodes.until(lambda: held.exists() and "its processes are there" in nodes.b.logs(), "they are there")
    assert nodes.b.state("llm") == "suspended"
    assert nodes.a.pids("moving_victim")
    if daemon == "dies":
        nodes.a.kill("gcr.daemon")
    held.unlink()
    said = nodes.said(moving)
    if said.body["outcome"] == "unsettled":
        assert nodes.a.gcr("daemon", "start").code == 0
        said = nodes.migrate("--recover")
    assert said.body["outcome"] == ("done" if daemon == "lives" else "taken_back"), said
    runs_at(nodes, "b" if daemon == "lives" else "a", out)


@pytest.mark.parametrize("what", ["gcr.daemon", "moving_victim"])
@pytest.mark.slow
def test_a_death_at_the_target_before_it_has_the_job_leaves_it_at_the_source(nodes: TwoNodes, what: str) -> None:
    """The job waits there, ready, with closed gates."""
    out = nodes.run(*WORDS)
    with nodes.held("migrate.give") as moving:
        nodes.b.kill(what)
    said = nodes.said(moving)
    assert (said.code, said.body["outcome"]) == (4, "taken_back"), said
    if nodes.b.records():  # it did not answer, and can run nothing
        assert nodes.b.gcr("daemon", "start").code == 0
        assert nodes.migrate("--recover").code == 0
    runs_at(nodes, "a", out)


@pytest.mark.parametrize("what", ["gcr.daemon", "gcr.worker"])
@pytest.mark.slow
def test_a_death_at_the_target_once_it_has_the_job_brings_it_back_there(nodes: TwoNodes, what: str) -> None:
    out = nodes.run(*WORDS)
    with nodes.held("migrate.own") as moving:
        nodes.b.kill(what)
    said = nodes.said(moving)
    if said.code:
        assert said.body["outcome"] == "unsettled"
        assert nodes.b.gcr("daemon", "start").code == 0
        said = nodes.migrate("--recover")
    assert (said.code, said.body["outcome"]) == (0, "done"), said
    runs_at(nodes, "b", out)


@pytest.mark.parametrize("step", ["copy", "stop"])
@pytest.mark.slow
def test_a_worker_that_dies_while_devices_are_filled_costs_time_alone(nodes: TwoNodes, step: str) -> None:
    """The restore reads the image whole."""
    out = nodes.run(*WORDS)
    with nodes.held(f"migrate.{step}") as moving:
        nodes.b.inject(f"fill.flowed hold {nodes.b.place}/filling")
    filling = nodes.b.folder / "filling"
    nodes.until(filling.exists, "the devices are being filled")
    nodes.b.kill("gcr.worker")
    filling.unlink()
    said = nodes.said(moving)
    assert (said.code, said.body["outcome"]) == (0, "done"), said
    assert said.body["stop"]["not_filled"]
    runs_at(nodes, "b", out)


@pytest.mark.slow
def test_a_target_daemon_that_dies_while_devices_are_filled_leaves_the_job_at_the_source(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    nodes.b.inject("fill.fitted die")
    said = nodes.migrate()
    assert said.body["outcome"] == "taken_back", said
    assert nodes.b.gcr("daemon", "start").code == 0
    assert nodes.migrate("--recover").code == 0
    runs_at(nodes, "a", out)


@pytest.mark.parametrize(
    ("node", "what"),
    [
        ("a", "gcr.daemon"),
        ("a", "gcr.image_helper"),
        ("b", "gcr.daemon"),
        ("b", "gcr.migration_helper"),
        ("", "the coordinator"),
        ("", "the cable"),
    ],
)
@pytest.mark.slow
def test_packs_that_were_sent_ahead_of_an_image_that_fails_are_not_left(nodes: TwoNodes, node: str, what: str) -> None:
    """The source has written its device memory, and the target has that; the processes are in no image yet."""
    out, held = nodes.run(*WORDS), nodes.a.folder / "dumped"
    nodes.a.inject(f"checkpoint.dumped hold {nodes.a.place}/dumped")
    moving = nodes.begin()
    nodes.until(lambda: held.exists() and "came ahead" in nodes.b.logs(), "a pack comes ahead")
    assert len(nodes.b.images()) < len(nodes.a.images()) + 1
    if what == "the cable":
        nodes.cut()
    elif what == "the coordinator":
        moving.kill()
    else:
        (nodes.a if node == "a" else nodes.b).kill(what)
    held.unlink(missing_ok=True)
    said = [nodes.said(moving)]
    if left := [each for each in (nodes.a, nodes.b) if each.records()]:
        assert all(each.gcr("daemon", "start").code == 0 for each in left)
        said.append(nodes.migrate("--recover"))
    assert "taken_back" in [each.body.get("outcome") for each in said], said
    runs_at(nodes, "a", out)


@pytest.mark.slow
def test_a_network_that_breaks_before_the_last_image_is_there_leaves_the_job_at_the_source(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    with nodes.held("migrate.bring") as moving:
        nodes.cut()
    said = nodes.said(moving)
    assert (said.code, said.body["outcome"], said.body["error"]["code"]) == (4, "taken_back", "migration_failed"), said
    runs_at(nodes, "a", out)


@pytest.mark.slow
def test_a_job_with_an_encrypted_store_is_refused_and_moves_by_commands_that_have_the_key(nodes: TwoNodes) -> None:
    """No node has a key in its settings: the store itself says that it is encrypted."""
    out, key, away = nodes.run(*WORDS), nodes.shared / "key", (nodes.shared / "store").as_uri()
    key.write_text("00112233445566778899aabbccddeeff" * 2)
    key.chmod(0o600)

    def does(node: Node, *words: str) -> None:
        done = node.gcr(*words, "--key-file", str(key))
        assert done.code == 0, (words, done.body, done.stderr)

    does(nodes.a, "checkpoint", "llm", "--image", "first", "--leave-running")
    refused = nodes.migrate()
    error = refused.body["error"]
    assert (refused.code, refused.body["outcome"], error["code"]) == (3, "refused", "cannot_migrate"), refused
    assert ("encrypted" in error["message"], "docs/migrate.md#encrypted-stores" in error["hint"]) == (True, True)
    does(nodes.a, "checkpoint", "llm", "--image", "away", "--stop")
    does(nodes.a, "push", "away", away)
    does(nodes.b, "pull", "away", away)
    does(nodes.b, "restore", "--image", "away")
    assert nodes.states() == (None, "running")
    ends_as_bare(nodes, out)


@pytest.mark.parametrize(("step", "code", "exit"), [("copy", "no_room", 3), ("stop", "migration_failed", 4)])
@pytest.mark.slow
def test_a_disk_that_becomes_full_at_the_target_leaves_the_job_at_the_source(
    nodes: TwoNodes, step: str, code: str, exit: int
) -> None:
    """The next migration succeeds once there is room."""
    out, store = nodes.run(*WORDS), nodes.b.place / "store"
    made = f"from pathlib import Path; from gcr.image.store.store import Store; Store(Path('{store}'))"
    mount = f"mkdir -m 700 {store} && mount -t tmpfs -o size=1g,mode=700 small {store}"
    subprocess.run(nodes.b.within(["sh", "-c", f'{mount} && {sys.executable} -c "{made}"']), check=True)
    with nodes.held(f"migrate.{step}") as moving:
        fill = f"dd if=/dev/zero of={store}/other bs=1M status=none; test $? = 1"
        subprocess.run(nodes.b.within(["sh", "-c", fill]), check=True, stderr=subprocess.DEVNULL)
    said = nodes.said(moving)
    error = said.body["error"]
    assert (said.code, said.body["outcome"], error["code"]) == (exit, "taken_back", code), said
    assert "is full" in error["message"]
    assert step == "stop" or error["missing"] > 0
    assert nodes.states() == ("running", None)
    assert (nodes.a.records(), nodes.b.records()) == ([], [])
    assert nodes.b.gcr("images").body["images"] == []
    left = subprocess.run(nodes.b.within(["find", str(store), "-path", "*/packs/*"]), capture_output=True, check=True)
    assert left.stdout == b""
    subprocess.run(nodes.b.within(["rm", f"{store}/other"]), check=True)
    moved = nodes.migrate()
    assert moved.code == 0, moved
    assert nodes.b.gcr("images").body["images"] == []
    runs_at(nodes, "b", out)


@pytest.mark.slow
def test_a_target_that_has_such_a_job_is_refused_before_anything_is_touched(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    taken = nodes.b.gcr("run", "-d", "--name", "llm", "--simulate", "nvidia", "--", "sleep", "600")
    assert taken.code == 0
    said = nodes.migrate()
    assert (said.code, said.body["error"]["code"], said.body["outcome"]) == (3, "name_taken", "refused")
    assert (nodes.a.records(), nodes.b.records()) == ([], [])
    assert nodes.a.state("llm") == "running"
    ends_as_bare(nodes, out)


@pytest.mark.slow
def test_a_job_that_moves_is_brought_back_by_no_other_command(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    with nodes.held("migrate.own") as moving:
        image = nodes.a.images()[-1]
        refused = nodes.a.gcr("restore", "--image", image)
        assert (refused.code, refused.body["error"]["code"]) == (3, "given_away"), refused
        assert nodes.b.socket in refused.body["error"]["message"]
        again = nodes.migrate()
        assert again.code == 3, again
    assert nodes.said(moving).code == 0
    runs_at(nodes, "b", out)


@pytest.mark.parametrize("nodes", [{"GCR_SIM_DEVICES": "2"}], indirect=True)
@pytest.mark.slow
def test_a_job_moves_onto_another_device_of_a_machine_with_other_uuids(nodes: TwoNodes) -> None:
    env = {**nodes.b.env, **simulated_driver("nvidia"), "GCR_SIM_MACHINE": "7"}
    subprocess.run(nodes.b.within([sys.executable, "-c", DEVICE, str(VICTIM.parent)]), env=env, check=True)
    out = nodes.run(*WORDS)
    assert nodes.migrate("--device", "0=2").body["error"]["code"] == "wrong_device"
    moved = nodes.migrate("--device", "0=1")
    assert moved.code == 0, (moved.body, moved.stderr)
    ((old, new),) = moved.body["moved"].items()
    assert (old[-4:], new[-4:]) == ("0000", "0701")
    (device,) = {row["device"] for row in nodes.b.gcr("ps").body["jobs"][0]["processes"]}
    assert device == new
    runs_at(nodes, "b", out)


@pytest.mark.slow
def test_a_user_who_interrupts_it_has_the_job_at_the_source(nodes: TwoNodes) -> None:
    out = nodes.run(*WORDS)
    with nodes.held("migrate.hold.done") as moving:
        moving.send_signal(signal.SIGINT)
    said = nodes.said(moving)
    assert (said.code, said.body["outcome"], said.body["error"]["code"]) == (130, "taken_back", "interrupted"), said
    runs_at(nodes, "a", out)
