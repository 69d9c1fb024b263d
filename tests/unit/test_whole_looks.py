"""The end of a helper that may still have CRIU look at what it can do here."""

from threading import Event, Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon.commands import whole
from gcr.daemon.commands.whole import Whole


class Helper:
    """Looks until it may end, and notes what happens to it."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.may_end = Event()
        self.channel = SimpleNamespace(close=lambda: self.happened.append("closed"))

    def look(self, _asked: object) -> None:
        self.may_end.wait(30)
        self.happened.append("looked")


@pytest.fixture
def helper() -> Helper:
    return Helper()


def saving(helper: Helper) -> Whole:
    world = SimpleNamespace(backend="amd", simulated=False, environment={})
    job = SimpleNamespace(processes={}, world=world)
    return Whole(cast("Any", None), cast("Any", job), cast("Any", None), 1007, cast("Any", helper))


def test_a_helper_is_ended_once_criu_has_looked(helper: Helper) -> None:
    """Ended before, CRIU may leave a child behind that it had stopped."""
    begun = saving(helper)
    begun.look()
    Timer(0.1, helper.may_end.set).start()
    begun.close()
    assert helper.happened == ["looked", "closed"]


def test_a_helper_that_looks_for_too_long_is_ended(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LOOKED_S", 0.05)
    begun = saving(helper)
    begun.look()
    begun.close()
    assert helper.happened == ["closed"]
    helper.may_end.set()


def test_a_helper_that_does_not_look_is_ended_at_once(helper: Helper) -> None:
    saving(helper).close()
    assert helper.happened == ["closed"]
