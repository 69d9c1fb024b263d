"""A look at CRIU is remembered for the same program, and for a while; a failure is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gcr.criu import known, program
from gcr.criu.program import Criu
from gcr.errors import CriuUnusable


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The programs that were looked at in truth."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    seen = list[Path]()

    def look(found: Path) -> Criu:
        seen.append(found)
        return Criu(found, (4, 2, 1), tracks=False, lazy=True)

    monkeypatch.setattr(program, "look", look)
    return seen


@pytest.fixture
def criu(tmp_path: Path) -> Path:
    made = tmp_path / "criu"
    made.write_text("one")
    return made


def test_the_same_program_is_looked_at_once(looks: list[Path], criu: Path) -> None:
    first, second = known.look(criu), known.look(criu)
    assert first == second == Criu(criu, (4, 2, 1), tracks=False, lazy=True)
    assert looks == [criu]


def rewritten(criu: Path, _patch: pytest.MonkeyPatch) -> None:
    criu.write_text("another")


def damaged(criu: Path, _patch: pytest.MonkeyPatch) -> None:
    (criu.parent / "gcr" / "criu.json").write_text("{")


def aged(_criu: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "KNOWN_S", 0.0)


def of_other_rights(criu: Path, patch: pytest.MonkeyPatch) -> None:
    text = Path("/proc/self/status").read_text().replace("CapEff:\t", "CapEff:\tf")
    (status := criu.parent / "status").write_text(text)
    patch.setattr(known, "_STATUS", status)


@pytest.mark.parametrize("change", [rewritten, damaged, aged, of_other_rights])
def test_after_a_change_it_is_looked_at_again(
    looks: list[Path], criu: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    known.look(criu)
    change(criu, monkeypatch)
    known.look(criu)
    assert looks == [criu, criu]


def test_a_failure_is_not_remembered(looks: list[Path], criu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_found: Path) -> Criu:
        raise CriuUnusable("it cannot work here")

    with monkeypatch.context() as patch:
        patch.setattr(program, "look", refuse)
        with pytest.raises(CriuUnusable):
            known.look(criu)
    known.look(criu)
    assert looks == [criu]


def test_where_nothing_can_be_noted_it_is_looked_at_each_time(looks: list[Path], criu: Path) -> None:
    (criu.parent / "gcr").mkdir(mode=0o777)
    (criu.parent / "gcr").chmod(0o777)  # others could write to it
    assert known.look(criu) == known.look(criu)
    assert len(looks) == 2
