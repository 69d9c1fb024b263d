"""The wall clock jumps, by a day or years, at every look at it: nothing that is waited for or told depends on it."""

from datetime import date
from pathlib import Path

from machine import Machine, kill

YEAR = 365 * 86400
JUMPING = f"""
import itertools, time
_jumps, _time, _ns = itertools.cycle((0, -86400, {3 * YEAR}, -{2 * YEAR}, 3600)), time.time, time.time_ns
time.time = lambda: _time() + next(_jumps)
time.time_ns = lambda: _ns() + next(_jumps) * 10**9
"""


def numbers(found: object) -> list[float]:
    """Every duration in a document, in seconds."""
    if isinstance(found, list):
        return [number for each in found for number in numbers(each)]
    if not isinstance(found, dict):
        return []
    names = [name for name in found if name.endswith("_s") and not name.endswith("_per_s")]
    own = [found[name] for name in names if isinstance(found[name], int | float)]
    return own + [number for value in found.values() for number in numbers(value)]


def test_jumps_of_the_clock_change_nothing(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "jumping").mkdir()
    (tmp_path / "jumping" / "sitecustomize.py").write_text(JUMPING)
    machine.extra |= {"PYTHONPATH": str(tmp_path / "jumping"), "GCR_WORKER_IDLE_S": "60", "GCR_DAEMON_IDLE_S": "60"}
    job = machine.told("llm", "alloc 3 1000000")
    said, store = job.ask(), ("--store", str(tmp_path / "store"))
    for name in ("one", "two"):
        gone = machine.gcr("checkpoint", "llm", "--image", name, "--wait", "durable", *store)
        assert gone.code == 0, gone.body
        if name == "one":
            kill(*machine.children("gcr.daemon"))
        listed = machine.gcr("ps")
        assert [row["state"] for row in listed.body["jobs"]] == ["suspended"], listed.body
        back = machine.gcr("restore", "llm")
        assert back.code == 0, back.body
        found = numbers([gone.body, listed.body, back.body])
        assert found and min(found) >= 0 and max(found) < 60, found
        assert job.ask() == said
    images = machine.gcr("images", *store)
    assert images.code == machine.gcr("ps", "--all").code == 0
    days = {date.fromtimestamp(image["created"]) for image in images.body["images"]}
    gone = machine.gcr("prune", "--keep-daily", "2", *store)
    assert (gone.code, len(gone.body["images"])) == (0, 2 - len(days)), (gone.body, images.body)  # jumps may meet
    assert machine.gcr("verify", *store).code == 0
    assert machine.children("gcr.worker")
