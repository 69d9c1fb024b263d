"""An event of a removal keeps within bounds whatever its command says of itself."""

import os
import threading

import pytest

from gcr.api.jobevents import IMAGES, TEXT, ImagesRemoved, RemovalFailed
from gcr.api.requests import EventsRequest, NoteRemovalRequest
from gcr.daemon.commands.removal import noted
from gcr.daemon.history import History
from gcr.daemon.permission import OURSELVES
from gcr.errors import UsageError

REMOVED = {"command": "prune", "store": "/images", "took_s": 0.5}


def events(**more: object) -> list[object]:
    history = History()
    noted(history, NoteRemovalRequest.from_json({**REMOVED, **more}), os.getuid(), "uid 1")
    return [*history.asked(EventsRequest(), OURSELVES, threading.Event()).events[1:]]


def test_of_many_images_the_first_are_named() -> None:
    (event,) = events(images=[f"i{number}" for number in range(1000)], bytes_freed=7)
    assert isinstance(event, ImagesRemoved)
    assert (event.count, event.images[-1], event.bytes_freed, event.by) == (1000, f"i{IMAGES - 1}", 7, "uid 1")


def test_texts_are_cut() -> None:
    (event,) = events(store="s" * 9999, code="c" * 9999, message="m" * 9999, exit=3)
    assert isinstance(event, RemovalFailed)
    assert [len(text) for text in (event.store, event.code, event.message)] == [TEXT] * 3


@pytest.mark.parametrize("wrong", [{"command": "checkpoint"}, {"images": ["../x"]}, {"images": [5]}, {"more": 1}])
def test_what_is_no_removal_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        events(**wrong)
