"""CRIU itself is asked to dump each thing: it must refuse what preflight refuses, take the rest, and bring it back."""

import os
import subprocess
from pathlib import Path

import pytest
from held_things import REFUSED, SAVED, Held, Hold, Thing

from gcr.criu import program, saving
from gcr.criu.preflight.check import obstacles, tree
from gcr.criu.preflight.obstacle import Kind, Options
from gcr.criu.preflight.sockets import saves_ip_sockets
from gcr.criu.saving import Wishes

FETCHED = Path(os.environ.get("GCR_CRIU") or Path(__file__).parents[3] / "build/criu/criu")
SECONDS = 30


@pytest.fixture(scope="module")
def version() -> tuple[int, int, int]:
    if not FETCHED.exists():
        pytest.skip("CRIU was not fetched to build/criu")
    if "gVisor" in Path("/proc/version").read_text():
        pytest.skip("CRIU cannot work on gVisor")
    if os.geteuid():
        pytest.skip("CRIU dumps for root alone")
    return program.look(FETCHED).version


def dumped(held: Held, folder: Path, arguments: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Returns whether CRIU dumps the process, which goes on, and the last lines that CRIU wrote."""
    folder.mkdir()
    command = [FETCHED, "dump", "-t", str(held.pid), "-D", folder, "-R", "-o", "log", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    log = folder / "log"
    return done.returncode == 0, "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""


def test_criu_takes_one_terminal_and_not_two(hold: Hold, version: tuple[int, int, int], tmp_path: Path) -> None:
    held = hold(Thing("two_terminals", given="terminals"))
    assert "Only one" in dumped(held, tmp_path / "image", ("--shell-job",))[1]


@pytest.mark.parametrize("thing", [each for each in (*SAVED, *REFUSED) if not each.spared], ids=str)
def test_criu_agrees(hold: Hold, thing: Thing, version: tuple[int, int, int], tmp_path: Path) -> None:
    held, saves_ip = hold(thing), saves_ip_sockets(version)
    refused = bool(obstacles(held.tree, (), Options(ip_sockets=saves_ip)))
    done, log = dumped(held, tmp_path / "image")
    assert done != (refused and not thing.taken), log
    assert refused or not thing.taken
    if thing.arguments and (saves_ip or not thing.ip):
        assert dumped(held, tmp_path / "allowed", thing.arguments)[0]
    if thing.ip and not saves_ip:
        assert Kind.OLD_CRIU in {each.kind for each in obstacles(held.tree, (), Options(ip_sockets=False))}


# Not a terminal: it comes back under its number alone, and another test may have that one now.
@pytest.mark.parametrize("thing", [each for each in SAVED if not each.ip and "terminal" not in each.name], ids=str)
def test_what_is_no_obstacle_comes_back(
    hold: Hold, thing: Thing, version: tuple[int, int, int], tmp_path: Path
) -> None:
    """A job is stopped only into an image that brings it back."""
    held = hold(thing)
    pids = held.tree
    saving.dump(FETCHED, held.pid, tmp_path, Wishes(), SECONDS, lambda _ended: None)
    os.waitpid(held.pid, 0)
    saving.restore(FETCHED, pids, tmp_path, Wishes(), SECONDS, lambda: None)
    assert tree(held.pid) == pids
    assert obstacles(pids, (), Options()) == []
