"""Peers come from a nursery, and are processes of their own all the same."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from gcr.testing.nursery import import_first
from gcr.testing.peer import Peer, PeerDied

NOTHING = "builtins:object"


def test_a_peer_has_the_environment_and_folder_of_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said.py").write_text("import os\nclass Backend:\n    name = f'{os.environ[\"SAID\"]} {os.getcwd()}'\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    for said in "one", "other":
        (tmp_path / said).mkdir()
        monkeypatch.chdir(tmp_path / said)
        with Peer("said:Backend", {"SAID": said, "PYTHONPATH": path}) as peer:
            assert peer.call("name") == f"{said} {tmp_path / said}"


def test_siblings_have_memory_at_other_addresses() -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(NOTHING, {})) for _ in range(4)]
        assert len({peer.call("mapped_bytes") for peer in peers}) > 1


def test_a_sibling_has_no_descriptor_of_another() -> None:
    with Peer(NOTHING, {}) as first, Peer(NOTHING, {}) as second:
        assert first.call("descriptors") == second.call("descriptors")


def test_the_death_of_a_peer_is_told() -> None:
    with Peer(NOTHING, {}) as other, Peer(NOTHING, {}) as peer:
        with pytest.raises(PeerDied, match="AttributeError"):
            peer.call("name")
        os.kill(peer.pid, signal.SIGTERM)
        assert peer._process.wait(20.0) == -signal.SIGTERM
        peer.kill()
        assert other.call("mapped_bytes") > 0
        other.kill()
        with pytest.raises((PeerDied, OSError)):
            other.call("mapped_bytes")


def test_a_nursery_imports_what_it_is_told_for_all_its_peers(tmp_path: Path) -> None:
    (tmp_path / "slow_binding.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    text = "import os, slow_binding\nclass Backend:\n    name = f'{slow_binding.IMPORTED_BY == os.getpid()}'\n"
    (tmp_path / "told.py").write_text(text)
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with Peer("told:Backend", path) as peer:
        assert peer.call("name") == "True"
    import_first("told:Backend", "slow_binding", "not_there")
    with Peer("told:Backend", path) as peer:
        assert peer.call("name") == "False"
