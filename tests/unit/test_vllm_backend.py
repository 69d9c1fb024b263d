"""gcr's sleep mode backend for vLLM: all ranks hear of every failure, and one of each machine acts.

vLLM is a stand-in (tests/victims/vllm_standin); test_vllm_interface.py holds that against the real one.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gcr.errors import NoRoom

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "victims" / "vllm_standin"


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets afterwards whatever was loaded of the stand-in, and the backend, which is built upon it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(STANDIN))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("vllm", "gcr_vllm"):
            del sys.modules[name]


class Ranks:
    """Ranks that are threads. `local`: the number of each on its machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, local: Sequence[int]) -> None:
        from gcr_vllm import backend

        self.backend, self.local, self.acted = backend, local, list[tuple[int, str]]()
        self.fails: dict[tuple[int, str], Exception] = {}
        self._rank, self._barrier = threading.local(), threading.Barrier(len(local), timeout=20)
        self._words: list[Any] = [None] * len(local)
        for what in ("suspend", "restore"):
            monkeypatch.setattr(backend, f"{what}_own", lambda what=what: self._act(what))
        from vllm.distributed import parallel_state

        monkeypatch.setattr(parallel_state, "get_world_group", lambda: self._rank.group)
        distributed = SimpleNamespace(all_gather_object=self._gather)
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        sys.modules["torch"].distributed = distributed  # type: ignore[attr-defined]

    def all(self, what: str) -> list[str]:
        """Has every rank do it. Returns the errors."""
        with ThreadPoolExecutor(len(self.local)) as pool:
            return list(pool.map(lambda rank: self._on(rank, what), range(len(self.local))))

    def _on(self, rank: int, what: str) -> str:
        self._rank.number = rank
        self._rank.group = SimpleNamespace(world_size=len(self.local), local_rank=self.local[rank], cpu_group="gloo")
        backend = self.backend.GcrBackend()
        try:
            getattr(backend, what)()
        except RuntimeError as error:
            return f"{backend.state()}: {error}"
        return str(backend.state())

    def _act(self, what: str) -> None:
        rank = self._rank.number
        self.acted.append((rank, what))
        if error := self.fails.get((rank, what)):
            raise error

    def _gather(self, words: list[Any], word: str, group: str) -> None:
        assert group == "gloo"
        self._words[self._rank.number] = word
        self._barrier.wait()
        words[:] = self._words
        self._barrier.wait()


def test_one_rank_of_each_machine_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, local=[0, 1, 0, 1])
    assert ranks.all("suspend") == ["SUSPENDED"] * 4
    assert sorted(ranks.acted) == [(0, "suspend"), (2, "suspend")]
    assert ranks.all("resume") == ["RUNNING"] * 4
    assert sorted(ranks.acted)[1::2] == [(0, "suspend"), (2, "suspend")]


def test_where_one_machine_fails_the_other_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks hear of it."""
    ranks = Ranks(monkeypatch, local=[0, 1, 0])
    ranks.fails[2, "suspend"] = NoRoom("no host memory", missing=1)
    assert set(ranks.all("suspend")) == {"RUNNING: gcr: no_room: no host memory"}
    assert sorted(ranks.acted) == [(0, "restore"), (0, "suspend"), (2, "suspend")]


def test_no_rank_waits_for_one_that_fails_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, local=[0, 1])
    ranks.fails[0, "suspend"] = OSError("no socket")
    assert set(ranks.all("suspend")) == {"RUNNING: gcr: OSError('no socket')"}


def test_a_restore_that_fails_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, local=[0, 1])
    ranks.fails[0, "restore"] = NoRoom("full", missing=1)
    assert set(ranks.all("resume")) == {"RESUMING: gcr: no_room: full"}


def test_engines_in_data_parallel_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, local=[0])
    from vllm.distributed import parallel_state

    monkeypatch.setattr(parallel_state, "get_dp_group", lambda: SimpleNamespace(world_size=2))
    (said,) = ranks.all("suspend")
    assert "data parallel" in said
    assert ranks.acted == []


def test_the_plugin_is_found_by_vllms_name_for_such_and_registers_once() -> None:
    from importlib.metadata import entry_points

    (found,) = [each for each in entry_points(group="vllm.general_plugins") if each.name == "gcr"]
    register = found.load()
    register()
    register()
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    backend = SleepModeBackendFactory.get_backend_class("gcr")
    assert (backend.__module__, backend.__name__) == ("gcr_vllm.backend", "GcrBackend")
    kept = ("communicators", "compiled_artifacts", "graphs_with_communicators")
    assert all(getattr(backend, f"preserves_{each}")() for each in kept)
    assert not backend.supports_durable_storage()


def test_a_vllm_without_such_backends_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.sleep_mode_backend", None)
    import gcr_vllm

    gcr_vllm.register()
