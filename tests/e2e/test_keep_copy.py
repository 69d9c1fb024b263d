"""A job that came back leaves its copy in the arena (`keep_copy`): its next checkpoint copies only what has changed."""

import pytest
from machine import Machine, kill, until
from worlds import NVIDIA, at

MIB = 1 << 20
EACH, COUNT = 4 * MIB, 4


def there_and_back(machine: Machine, *how: str) -> tuple[int, int]:
    """Returns the bytes that the checkpoint copied, and all there are. All left, by the device's own count."""
    gone = machine.gcr("checkpoint", "llm", *machine.where.options, *how)
    assert (gone.code, gone.body["vram_after_bytes"]) == (0, 0), gone.body
    machine.come_back()
    copied, total = gone.body["bytes_copied"], gone.body["bytes"]
    assert isinstance(copied, int)
    assert isinstance(total, int)
    assert total >= COUNT * EACH
    return copied, total


@pytest.mark.parametrize("machine", [at(NVIDIA)], indirect=True)
def test_what_has_not_changed_is_not_copied_again(machine: Machine) -> None:
    """Not after the worker has died either: then everything is copied once more."""
    job = machine.told("llm", f"alloc {COUNT} {EACH}")
    before = job.ask("digest")
    until(lambda: there_and_back(machine)[0] == 0 or None, 30, "the device was ready to hash at an earlier one")
    assert job.ask("again 1") == "ok"
    after = job.ask("digest")
    assert after != before
    assert 0 < there_and_back(machine)[0] <= EACH
    assert [there_and_back(machine, *how)[0] for how in ((), ("--paranoid",), ())] == [0, 0, 0]
    kill(*machine.children("gcr.worker"))
    copied, total = there_and_back(machine)
    assert copied == total
    assert job.ask("digest") == after
