"""A job moves between two nodes of a real Ray cluster, asked for through gcr's actors."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from moving_nodes import HOST, Node, Said, TwoNodes
from test_migrate import WORDS, runs_at

pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("criu"), pytest.mark.timeout(600)]

PORT = 6390
HOSTS = {"a": HOST, "b": "10.99.0.2"}
RAY = str(Path(sys.executable).parent / "ray")
WORDS_OF_RAY = [
    "--num-cpus",
    "1",
    "--num-gpus",
    "0",
    "--object-store-memory",
    "80000000",
    "--disable-usage-stats",
    "--include-log-monitor=false",
]


class RayBetween:
    """Two nodes with a daemon, and a Ray cluster over the cable between them; `a` has its head."""

    def __init__(self, root: Path) -> None:
        self.nodes = TwoNodes(root)
        self._folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        self._rays: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        for node in (self.nodes.a, self.nodes.b):
            self._start_ray(node)

    def _start_ray(self, node: Node) -> None:
        """The folder of its session has a short path: Ray puts sockets there."""
        head = [
            "--head",
            "--port",
            str(PORT),
            "--include-dashboard=false",
            "--no-monitor",
            "--temp-dir",
            self._folder,
        ]
        where = head if node is self.nodes.a else ["--address", f"{HOST}:{PORT}"]
        named = ["--node-name", node.name, "--node-ip-address", HOSTS[node.name]]
        words = node.within([RAY, "start", "--block", *where, *named, *WORDS_OF_RAY])
        log = node.folder / "ray.log"
        with log.open("wb") as out:
            made = subprocess.Popen(words, env=self._env(node), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._rays.append(made)
        self.nodes.until(lambda: b"Ray runtime started" in log.read_bytes(), f"Ray runs at {node.name}")

    def _env(self, node: Node) -> Mapping[str, str]:
        return {**node.env, "RAY_ADDRESS": f"{HOST}:{PORT}"}

    def gcr(self, *words: str) -> Said:
        """A command at the node with the head."""
        command = self.nodes.a.within([sys.executable, "-m", "gcr", "--json", *words])
        began = subprocess.Popen(
            command, env=self._env(self.nodes.a), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.nodes.said(began)

    def logs(self) -> str:
        nodes = (self.nodes.a, self.nodes.b)
        return "".join(f"{node.logs()}==== Ray\n{(node.folder / 'ray.log').read_text()}" for node in nodes)

    def close(self) -> None:
        for ray in self._rays:
            ray.kill()
            ray.wait(10)
        self.nodes.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture
def between(criu: None, request: pytest.FixtureRequest) -> Iterator[RayBetween]:
    made = RayBetween(Path("/dev/shm") / f"gcr-migrate-{os.getpid()}")
    try:
        made.begin()
        yield made
    finally:
        report = getattr(request.node, "report_call", None)
        if report is None or report.failed:
            sys.stderr.write(made.logs())
        made.close()


def test_a_job_moves_through_the_actors_and_back_and_is_recovered_by_them(between: RayBetween) -> None:
    nodes = between.nodes
    up = between.gcr("cluster", "up")
    assert [row["reachable"] for row in up.body["nodes"]] == [True, True], up
    out = nodes.run(*WORDS)
    there = between.gcr("migrate", "llm", "--to", "b", "--from", "a")
    assert (there.code, there.body.get("outcome"), nodes.states()) == (0, "done", (None, "running")), there
    back = between.gcr("migrate", "llm", "--to", "a")
    assert (back.code, back.body.get("outcome"), nodes.states()) == (0, "done", ("running", None)), back
    nodes.a.inject("migrate.stop.done die")
    assert between.gcr("migrate", "llm", "--from", "a", "--to", "b").code == -signal.SIGKILL
    settled = between.gcr("migrate", "llm", "--from", "a", "--to", "b", "--recover")
    assert (settled.code, settled.body.get("outcome")) == (4, "taken_back"), settled
    runs_at(nodes, "a", out)
