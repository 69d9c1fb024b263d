"""The end of a process of gcr: its code and its output, at any point of its threads."""

import os
import subprocess
import sys

import pytest

BUSY = """
import sys, threading
from gcr.exits import leave
def work():
    while True:
        sum(range(1000))
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
sys.stdout.write("printed")
sys.stderr.write("and said")
leave(7)
"""


def test_what_was_printed_is_there_and_the_code_is_right() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "printed", "and said")


@pytest.mark.parametrize("stdout", ["/dev/full", "closed"])
def test_one_that_cannot_print_ends_with_its_code_as_well(stdout: str) -> None:
    redirected = ">&-" if stdout == "closed" else f"> {stdout}"
    line = f'exec "$0" -c "$1" {redirected}'
    code = BUSY.replace('sys.stdout.write("printed")', 'sys.stdout and sys.stdout.write("printed")')
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # else it fails at once
    words = ["sh", "-c", line, sys.executable, code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "and said")
