"""Decision records are whole or absent if the daemon dies at any instant."""

import os
import subprocess
import sys
from pathlib import Path

from records import RECORD

from gcr.job import journal as module
from gcr.job.journal import Journal

# Death at each system call of `decide`: a child process ends itself just before the n-th of them.
CHILD = """
import os, sys
from pathlib import Path
from gcr.job import journal
from tests_record import RECORD
left = int(sys.argv[2])
def dying(real):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return real(*args, **kwargs)
    return call
the_journal = journal.Journal(Path(sys.argv[1]))
for name in ("open", "write", "fsync", "close"):
    setattr(os, name, dying(getattr(os, name)))
Path.replace = dying(Path.replace)
the_journal.decide(RECORD)
print("decided")
"""


def decide_and_die(folder: Path, helper: Path, calls: int) -> bool:
    """Returns True if `decide` returned before the child had made `calls` system calls."""
    (helper / "tests_record.py").write_text(
        f"from gcr.job.decisions import DecisionRecord, ProcessDecision\nRECORD = {RECORD!r}"
    )
    environment = {**os.environ, "PYTHONPATH": f"{helper}:{Path(module.__file__).parents[1]}"}
    command = [sys.executable, "-c", CHILD, str(folder), str(calls)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode in (0, 9), done.stderr
    return "decided" in done.stdout


def test_death_at_any_call_leaves_a_whole_decision_or_none(tmp_path):
    outcomes = []
    for calls in range(20):
        folder = tmp_path / f"journal{calls}"
        returned = decide_and_die(folder, tmp_path, calls)
        found = list(Journal(folder).records())
        assert found in ([], [RECORD])
        assert not Journal(folder).damaged()
        assert found or not returned
        outcomes.append((bool(found), returned))
        if returned:
            break
    assert outcomes[0] == (False, False)
    assert (True, False) in outcomes  # renamed, the directory not yet synced: either answer is right, and it is whole
    assert outcomes[-1] == (True, True)
