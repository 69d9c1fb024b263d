"""gcr on a Ray cluster of two nodes: real Ray, simulated devices. Actors carry requests, and decide nothing."""

import http.client
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from cut_nodes import JOB, Nodes
from machine import PATIENCE, kill, until
from ray_nodes import RayNodes, two_nodes

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from imaging import bytes_of, read, write

from gcr.image.store.store import Store

pytestmark = pytest.mark.first

DATA = "mixed 6 1000 2000000"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with two_nodes() as made:
        yield made


def rows(nodes: RayNodes, command: str = "status") -> dict[str, dict[str, object]]:
    said = nodes.gcr("cluster", command)
    assert said.code == 0, said.body
    return {row["node"]: row for row in said.body["nodes"]}


def test_nothing_is_there_before_it_is_asked_for(nodes: RayNodes) -> None:
    nodes.gcr("cluster", "down")
    found = rows(nodes)
    assert sorted(found) == ["one", "two"]
    assert {row["error"]["code"] for row in found.values()} == {"node_unreachable"}  # type: ignore[index]


def test_each_node_has_a_daemon_of_its_own_which_outlives_the_actor(nodes: RayNodes) -> None:
    up = rows(nodes, "up")
    assert [row["reachable"] for row in up.values()] == [True, True]
    pids = {name: row["daemon_pid"] for name, row in up.items()}
    assert len({*pids.values()}) == 2
    assert pids == {name: machine.daemon() for name, machine in nodes.machines.items()}
    assert nodes.gcr("cluster", "down").body["nodes"] == 2
    until(lambda: not nodes.actors() or None, PATIENCE, "the actors are gone")
    assert {name: row["daemon_pid"] for name, row in rows(nodes, "up").items()} == pids


def test_a_job_of_another_node_goes_and_comes_back(nodes: RayNodes) -> None:
    machine = nodes.machines["two"]
    rows(nodes, "up")
    job = machine.told("llm", DATA)
    before = job.ask()
    *events, gone = nodes.carried("two", "checkpoint", {"target": "llm"})
    assert (gone["kind"], gone["state"], gone["vram_after_bytes"]) == ("answer", "suspended", 0)
    assert {event["kind"] for event in events} == {"event"}
    assert rows(nodes)["two"]["jobs"] == [{"job": "llm", "state": "suspended"}]
    (refused,) = nodes.carried("one", "checkpoint", {"target": "llm"})
    assert (refused["kind"], refused["code"]) == ("error", "no_such_job")
    for pid in nodes.actors():
        kill(pid)
    back = until(lambda: _restored(nodes), PATIENCE, "Ray has made the actor again")
    assert back["state"] == "running"
    assert job.ask() == before
    machine.end(job)


def _restored(nodes: RayNodes) -> dict[str, object] | None:
    with suppress(AssertionError):  # there is no actor yet
        *_, last = nodes.carried("two", "restore", {"target": "llm"}) or [{}]
        return last if last.get("kind") == "answer" else None
    return None


def test_a_request_that_is_withdrawn_is_taken_back(nodes: RayNodes) -> None:
    machine = nodes.machines["two"]
    rows(nodes, "up")
    job = machine.told("llm", DATA)
    before = job.ask()
    with machine.held_at("checkpoint.quiesced"):
        *_, last = nodes.carried("two", "checkpoint", {"target": "llm"}, "stopping")
    assert last["kind"] == "error", last
    assert machine.until_state("llm", "running") == "running"
    assert job.ask() == before
    machine.end(job)


def _said(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def test_a_program_starts_on_all_nodes_or_on_none(nodes: RayNodes) -> None:
    rows(nodes, "up")
    say = 'echo "rank $GCR_NODE_RANK of $PET_NNODES, $OMP_NUM_THREADS"; exec sleep 60'
    begun = nodes.gcr("cluster", "run", "--name", "train", "--", "sh", "-c", say)
    assert begun.code == 0, begun.body
    logs = {row["node"]: Path(row["log"]) for row in begun.body["nodes"]}
    for rank, node in enumerate(("one", "two")):
        assert until(partial(_said, logs[node]), PATIENCE, "it has spoken") == f"rank {rank} of 2, \n"
    again = nodes.gcr("cluster", "run", "--name", "train", "--", "true")
    assert (again.code, again.body["error"]["code"]) == (3, "name_taken")
    none = nodes.gcr("cluster", "run", "--name", "other", "--nodes", "2", "--", "/no/such/program")
    assert (none.code, none.body["error"]["code"]) == (3, "cannot_start"), none.body
    jobs = [row["jobs"] for row in nodes.gcr("cluster", "status").body["nodes"]]
    assert {tuple(job["job"] for job in each) for each in jobs} == {("train",)}
    for machine in nodes.machines.values():
        job = machine.job("train")
        assert job
        kill(job["pid"])


def test_a_job_on_both_nodes_is_suspended_at_one_cut_and_comes_back(nodes: RayNodes) -> None:
    rows(nodes, "up")
    parts = {name: machine.told("llm", DATA) for name, machine in nodes.machines.items()}
    before = {name: part.ask() for name, part in parts.items()}
    cut = nodes.gcr("cluster", "checkpoint", "llm")
    assert (cut.code, cut.body.get("outcome")) == (0, "done"), (cut.body.get("error"), cut.body.get("phases_s"))
    assert {each["node"]: each["place"] for each in cut.body["nodes"]} == {"one": "suspended", "two": "suspended"}
    (stands,) = {machine.job("llm")["cut"]["id"] for machine in nodes.machines.values()}  # type: ignore[index]
    assert stands == cut.body["cut"]
    back = nodes.gcr("cluster", "restore", "llm")
    assert (back.code, back.body.get("cut")) == (0, cut.body["cut"]), back
    store = ("--store", str(nodes.machines["one"].folder / "store"))  # both nodes share it
    saved = nodes.gcr("cluster", "checkpoint", "llm", "--image", "night", *store)
    assert (saved.code, saved.body.get("outcome")) == (0, "done"), saved
    back = nodes.gcr("cluster", "restore", "--image", "night", *store)
    assert (back.code, back.body.get("cut"), back.body.get("image")) == (0, saved.body["cut"], "night"), back
    nodes.machines["two"].inject("checkpoint.still fail")
    failed = nodes.gcr("cluster", "checkpoint", "llm")
    said = failed.code, failed.body["error"]["code"], failed.body.get("outcome")
    assert said == (4, "cut_failed", "taken_back"), failed
    assert {name: part.ask() for name, part in parts.items()} == before
    for name, machine in nodes.machines.items():
        machine.end(parts[name])
    none = nodes.gcr("cluster", "checkpoint", "llm")
    assert (none.code, none.body["error"]["code"]) == (3, "no_such_job"), none


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_of_both_nodes_that_meet_in_kernels_are_suspended_at_one_cut(nodes: RayNodes) -> None:
    """Orders to their ranks go by Ray's actors."""
    rows(nodes, "up")
    with NamedTemporaryFile(prefix="gcr-test-", dir="/dev/shm") as shared:
        parts = Nodes([*nodes.machines.values()])
        parts.begin_meeting(Path(shared.name))
        for _ in range(5):
            cut = nodes.gcr("cluster", "checkpoint", JOB)
            assert (cut.code, cut.body.get("outcome")) == (0, "done"), cut
            assert nodes.gcr("cluster", "restore", JOB).code == 0
        assert [part.ask("end") for part in parts.parts] == ["all right"] * 2


def test_an_image_comes_from_the_nodes_of_the_cluster_and_a_stranger_gets_nothing(nodes: RayNodes) -> None:
    data = [bytes_of(number, 4 << 20) for number in range(3)]
    stores = {name: Path(machine.env["GCR_STORE"]) for name, machine in nodes.machines.items()}
    write(Store(stores["one"]), "night", data)
    nodes.gcr("cluster", "down")
    none = nodes.gcr("pull", "night", "--from", "cluster", node="two")
    assert (none.code, none.body["error"]["code"]) == (3, "peer_unusable"), none
    up = rows(nodes, "up")
    urls = {name: str(row["exchange"]) for name, row in up.items()}
    assert {name: row["exchange"] for name, row in rows(nodes, "up").items()} == urls, "they go on as they are"
    hosts = {name: url.rpartition(":")[0] for name, url in urls.items()}
    assert hosts == {name: f"tls://{row['address']}" for name, row in up.items()} and len({*urls.values()}) == 2
    for pid in nodes.actors():
        kill(pid)
    again = until(lambda: _all_answer(nodes), PATIENCE, "Ray has made the actors again")
    assert {name: row["exchange"] for name, row in again.items()} == urls, "they outlive the actors"
    came = nodes.gcr("pull", "night", "--from", "cluster", node="two")
    assert came.code == 0, came
    assert [each["peer"] for each in came.body["peers"]] == [urls["one"]]
    assert read(Store(stores["two"]), "night") == data
    keys = [*(nodes.machines[name].folder / "state/gcr/cluster" for name in stores)]
    assert len({(folder / "token").read_text() for folder in keys}) == 1
    assert {path.stat().st_mode & 0o777 for folder in keys for path in folder.iterdir()} == {0o600}
    assert stranger(urls["one"], ssl._create_unverified_context()) == (401, b"")
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger(urls["one"], ssl.create_default_context())
    nodes.gcr("cluster", "down")
    with pytest.raises(ConnectionRefusedError):
        stranger(urls["one"], ssl._create_unverified_context())


HANGING = """
from gcr.cluster.plugins import cluster
from gcr.clustererrors import NodeUnreachable
from gcr_ray import actors

actors.LATE_S = 1.0
node = next(node for node in cluster().nodes() if node.name == "two")
try:
    print([*node.carry("token", "ps", {}, 0.5)])
except NodeUnreachable as error:
    print(error.message)
"""


def test_a_node_whose_actor_hangs_is_given_up_in_time(nodes: RayNodes) -> None:
    rows(nodes, "up")
    stopped = nodes.actors()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        command = [sys.executable, "-c", HANGING]
        done = subprocess.run(command, env=nodes.env, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert done.stdout == "node two does not answer: its last word has not come in time\n", done.stderr


def _all_answer(nodes: RayNodes) -> dict[str, dict[str, object]] | None:
    found = rows(nodes)
    return found if all(row["reachable"] for row in found.values()) else None


def stranger(url: str, tls: ssl.SSLContext) -> tuple[int, bytes]:
    """Asks an exchange without its token."""
    connection = http.client.HTTPSConnection(url.rpartition("/")[2], context=tls, timeout=PATIENCE)
    try:
        connection.request("GET", "/1/images/night.json")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
