"""Memory lent to an image helper goes back as soon as the image is written; no caller waits for the unmapping."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from channels import open_descriptors
from imaging import table

from gcr.image_helper.lent import Lent
from gcr.image_helper.reading import Reading
from gcr.image_helper.service import ImageService
from gcr.imageerrors import StoreUnusable
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.memfiles import NotASegment, filled_memfd, is_held_still
from gcr.protocol.operations.image import LendSlots, Withdraw
from gcr.protocol.operations.operation import Dispatcher


@pytest.fixture
def segment() -> Iterator[int]:
    fd = filled_memfd(HUGE_PAGE)
    yield fd
    os.close(fd)


def lend(lent: Lent, segment: int) -> None:
    lent.take(7, [table([HUGE_PAGE]).to_memfd(), os.dup(segment)], False)


def is_mapped(fd: int) -> bool:
    return f" {os.fstat(fd).st_ino} " in Path("/proc/self/maps").read_text()


def test_what_was_lent_may_be_written_again_once_it_is_closed_and_is_unmapped_when_there_is_time(segment: int) -> None:
    lent, files = Lent(), open_descriptors()
    lend(lent, segment)
    assert is_held_still(segment) and is_mapped(segment)
    lent.close()
    assert not is_held_still(segment)
    assert (is_mapped(segment), lent.total_bytes()) == (True, 0)
    lent.close()
    lent.unmap()
    assert not is_mapped(segment)
    assert open_descriptors() == files
    lent.unmap()


def test_slots_that_come_in_several_messages_are_mapped_with_the_last_and_leave_no_descriptor(segment: int) -> None:
    reading, files = Reading(), open_descriptors()
    lend_slots = reading.operations()[LendSlots]
    for offset in (0, 2):
        assert not is_mapped(segment)
        fds = [os.dup(segment), os.dup(segment)]
        lend_slots(LendSlots("GPU-1", HUGE_PAGE, offset, 4), fds, cast("Any", None))
        assert fds == [], "they are the helper's"
    assert is_mapped(segment)
    assert open_descriptors() == files
    bad = [os.memfd_create("empty")]
    with pytest.raises(NotASegment):
        lend_slots(LendSlots("GPU-1", HUGE_PAGE, 0, 1), bad, cast("Any", None))
    assert (bad, open_descriptors(), is_mapped(segment)) == ([], files, True), "the former slots stay"


def test_a_wait_for_an_image_does_not_include_the_unmapping(segment: int) -> None:
    class Request:
        mapped: bool | None = None

        def json(self) -> dict[str, str]:
            return {"op": "withdraw"}

        def take_fds(self) -> list[int]:
            return []

        def reply_json(self, *_answer: object) -> None:
            self.mapped = is_mapped(segment)

    def failed(*_: object) -> None:
        service.writing.lent.close()
        raise StoreUnusable("the disk is full")

    service, request = ImageService(), Request()
    lend(service.writing.lent, segment)
    service.operations = Dispatcher("a helper", {Withdraw: lambda *_: service.writing.lent.close()})
    service.serve(cast("Any", request))
    assert request.mapped is True
    assert not is_mapped(segment)
    lend(service.writing.lent, segment)
    service.operations = Dispatcher("a helper", {Withdraw: failed})
    with pytest.raises(StoreUnusable):
        service.serve(cast("Any", request))
    assert not is_mapped(segment), "nothing stays of an image that failed"
