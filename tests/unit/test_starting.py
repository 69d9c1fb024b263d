"""The processes of gcr import without the collector, and run with it."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, importlib
count = lambda: sum(each["collections"] for each in gc.get_stats())
before = count()
importlib.import_module("gcr.{name}.__main__")
print(gc.get_freeze_count(), gc.isenabled(), count() - before, sep=",")
"""
MOST = 12  # collections while `importlib` and the package itself are imported; 35 with all the rest


@pytest.mark.parametrize("name", ["control_helper", "daemon", "image_helper", "worker"])
def test_it_is_off_while_modules_are_imported_and_on_from_then_on(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True, timeout=30, check=True
    )
    frozen, enabled, collections = done.stdout.strip().split(",")
    assert int(frozen) > 10_000
    assert enabled == "True"
    assert int(collections) < MOST
