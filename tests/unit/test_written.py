"""An image that a daemon meant to write before it died: there, not there, or still being written."""

from types import SimpleNamespace
from typing import Any

import pytest

from gcr.daemon.images import written as module
from gcr.daemon.images.written import is_written
from gcr.imageerrors import ImageExists, NoSuchImage, StoreUnusable, WrongKey

RECORD: Any = SimpleNamespace(
    job="llm", transaction=7, image=SimpleNamespace(store="/store", name="warm", encrypted=False, user=None)
)


def image(transaction: int, only_copy: bool = True) -> Any:
    process = SimpleNamespace(table=SimpleNamespace(transaction=transaction))
    return SimpleNamespace(only_copy=only_copy, processes=[process])


class Helper:
    """`answers`: of one look after the other, the last of them for good. `claimed`: a writer has the name."""

    def __init__(self, *answers: Any, claimed: bool = False) -> None:
        self.answers, self.claimed, self.channel, self.closed = [*answers], claimed, self, 0

    def close(self) -> None:
        self.closed += 1

    def manifest(self, *_: Any) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sync(self, *_: Any) -> None: ...

    def begin(self, *_: Any) -> None:
        if self.claimed:
            raise ImageExists("it is being written")


def asked(helper: Helper, patience: float = 10.0) -> bool:
    return is_written(RECORD, lambda _acting: helper, patience)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (image(7), True),
        (image(8), False),
        (image(7, only_copy=False), False),
        (NoSuchImage("none"), False),
        (WrongKey("encrypted"), True),
    ],
)
def test_it_is_there_if_it_is_of_that_transaction(answer: Any, there: bool) -> None:
    helper = Helper(answer)
    assert asked(helper) == there
    assert helper.closed == 1 + isinstance(answer, NoSuchImage)


def test_one_that_is_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)
    missing = NoSuchImage("none")
    assert asked(Helper(missing, missing, image(7), claimed=True))
    with pytest.raises(StoreUnusable, match="being written"):
        asked(Helper(missing, claimed=True), patience=0.05)
