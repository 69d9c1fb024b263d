"""The shim and the simulated driver that `gcr run` chooses: a backend's own, if it brings one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gcr.backend import Simulator
from gcr.cli import parts
from gcr.errors import BackendMissing, UsageError
from gcr.native import NativeMissing
from gcr.plugins import BrokenPlugin, FoundBackend, Plugins


class Plain:
    """A backend of the first days: it has neither method."""

    name = "plain"


class Own(Plain):
    name = "own"
    file: Path | None = None

    def shim(self) -> Path | None:
        return self.file

    def simulator(self) -> Simulator | None:
        return Simulator(Path("/somewhere"), {"ROOT": "/"}) if self.file else None


class Raising(Plain):
    name = "raising"

    def shim(self) -> Path:
        raise ZeroDivisionError("by zero")

    simulator = shim


@pytest.fixture
def own() -> Own:
    return Own()


@pytest.fixture(autouse=True)
def plugins(own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    backends: list[Any] = [Plain(), own, Raising()]
    found = Plugins({each.name: FoundBackend(each, "here") for each in backends}, [BrokenPlugin("bad", "there", "no")])
    monkeypatch.setattr(parts, "_plugins", lambda: found)
    monkeypatch.setattr(parts, "load_backend", found.backend)
    yield


def test_a_backend_without_a_shim_and_a_job_without_a_backend_have_gcr_s(own: Own) -> None:
    assert parts.shim_of(None) is parts.shim_of("plain") is parts.shim_of("own") is None


def test_a_backend_s_own_shim_and_simulator(own: Own) -> None:
    own.file = Path(__file__)
    assert parts.shim_of("own") == own.file
    assert parts.simulator_of("own") == Simulator(Path("/somewhere"), {"ROOT": "/"})


def test_a_shim_that_is_not_there_is_refused_before_anything_starts(own: Own) -> None:
    own.file = Path("/no/such/shim.so")
    with pytest.raises(NativeMissing, match=r"/no/such/shim\.so"):
        parts.shim_of("own")


@pytest.mark.parametrize("name", ["nobody", "plain", "own"])
def test_a_vendor_without_a_simulated_driver_is_told_which_have_one(name: str) -> None:
    with pytest.raises(UsageError, match="there is: own, raising"):
        parts.simulator_of(name)


@pytest.mark.parametrize("ask", [parts.shim_of, parts.simulator_of])
def test_a_broken_one_is_a_typed_error(ask: Any) -> None:
    with pytest.raises(BackendMissing, match="ZeroDivisionError: by zero"):
        ask("raising")
    with pytest.raises(BackendMissing, match="backend bad is broken: no"):
        ask("bad")
