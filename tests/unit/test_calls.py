"""A driver's calls as a table, over bindings and over a table of a vendor's own."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.calls import Bindings, Calls
from gcr.errors import BackendMissing, DeadlinePassed, DriverError, NoContext


class Result:
    def __init__(self, number: int) -> None:
        if number not in (0, 2, 6):
            raise ValueError(number)
        self.name = {0: "FINE", 2: "FULL", 6: "LATER"}[number]


def lacking(*_arguments: Any) -> None:
    raise RuntimeError('Function "vOld" not found')


MODULE = SimpleNamespace(
    Result=Result,
    Kind=SimpleNamespace(DEVICE=7),
    vNothing=lambda: (0,),
    vOne=lambda x: (0, x + 1),
    vTwo=lambda: (0, "a", "b"),
    vFull=lambda: (2, None),
    vLater=lambda: (6,),
    vNew=lambda: (987654,),
    vOld=lacking,
)


@pytest.fixture
def calls() -> Bindings:
    return Bindings("vendor-bindings", lambda: MODULE, results="Result", hint="install it")


def test_a_call_returns_no_value_one_or_several(calls: Bindings) -> None:
    assert calls.vNothing() is None
    assert calls.vOne(4) == 5
    assert calls.vTwo() == ("a", "b")


def test_a_failure_names_the_call_and_its_result(calls: Bindings) -> None:
    with pytest.raises(DriverError, match=r"^vFull: FULL \(2\)$"):
        calls.vFull()
    assert calls.describe("vNew", 987654) == "vNew: Result (987654)"


def test_a_result_may_have_an_error_of_its_own(calls: Bindings) -> None:
    with pytest.raises(NoContext, match=r"vFull: FULL \(2\)"):
        calls.checked("vFull", errors={2: NoContext})
    with pytest.raises(DriverError):
        calls.checked("vLater", errors={2: NoContext})


def test_a_question_is_answered_or_fails(calls: Bindings) -> None:
    assert calls.ready("vNothing", not_yet=6)
    assert not calls.ready("vLater", not_yet=6)
    with pytest.raises(DriverError):
        calls.ready("vFull", not_yet=6)


@pytest.mark.parametrize("call", ["vOld", "vNeverBound"])
def test_a_call_that_the_driver_or_the_bindings_lack_is_a_missing_backend(calls: Bindings, call: str) -> None:
    with pytest.raises(BackendMissing, match=call) as missing:
        calls.attempt(call)
    assert missing.value.hint == "install it"


@pytest.mark.parametrize("error", [ImportError("no module"), AttributeError("no hip")])
def test_bindings_that_are_not_installed_are_a_missing_backend(error: Exception) -> None:
    def load() -> Any:
        raise error

    with pytest.raises(BackendMissing, match="vendor-bindings cannot be imported"):
        Bindings("vendor-bindings", load, results="Result", hint="").vOne(1)


def test_nothing_is_loaded_before_the_first_call() -> None:
    loads: list[int] = []
    calls = Bindings("vendor-bindings", lambda: loads.append(1) or MODULE, results="Result", hint="")  # type: ignore[func-returns-value]
    assert loads == []
    calls.vNothing()
    calls.vNothing()
    assert loads == [1]
    assert calls.enum("Kind", "DEVICE") == 7


class Slow(Calls):
    """One call that is back when it is let go, with the result it was given."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def attempt(self, call: str, *arguments: Any) -> tuple[int, Any]:
        if call == "broken":
            raise BackendMissing("no driver")
        self.let_go.wait(20)
        return int(arguments[0]), None

    def describe(self, call: str, result: int) -> str:
        return f"{call}: {result}"


def test_a_call_that_is_not_back_in_time_is_left_to_itself() -> None:
    slow = Slow()
    began = time.monotonic()
    with pytest.raises(DeadlinePassed, match="waits is not back"):
        slow.bounded("waits", 3, deadline=0.05)
    assert time.monotonic() - began < 5
    slow.let_go.set()
    slow.bounded("waits", 0, deadline=20)
    with pytest.raises(DriverError, match="waits: 3"):
        slow.bounded("waits", 3, deadline=20)
    with pytest.raises(NoContext, match="waits: 3"):
        slow.bounded("waits", 3, deadline=20, errors={3: NoContext})


def test_what_such_a_call_raises_is_raised_here() -> None:
    with pytest.raises(BackendMissing, match="no driver"):
        Slow().bounded("broken", deadline=20)
