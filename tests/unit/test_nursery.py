"""Peers come from a nursery, and are processes of their own all the same."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

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
