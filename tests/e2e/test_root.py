"""A user's library in a process of root's: by the environment of a process that root checkpoints."""

import os
import subprocess
from pathlib import Path

import pytest
from machine import Machine

NOBODY = 65534
MARKING = '#include <fcntl.h>\n__attribute__((constructor)) void run(void) {{ open("{mark}", O_CREAT, 0600); }}\n'


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A folder with a driver that leaves a mark when it is loaded."""
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.c").write_text(MARKING.format(mark=folder / "mark"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "evil.c"], check=True)
    return folder


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_process_leads_no_helper_to_its_library(machine: Machine, evil: Path, user: int | None) -> None:
    """Another user's process in a simulated world is refused; one of our own is looked at by our own simulator."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can become another user")
    machine.daemon()
    env = {**machine.env, "GCR_SIMULATE": "nvidia", "LD_LIBRARY_PATH": str(evil)}
    theirs = subprocess.Popen(["/bin/sleep", "60"], cwd="/", user=user, env=env, text=True)
    machine.started.append(theirs)
    answer = machine.gcr("checkpoint", str(theirs.pid))
    code = "not_a_gpu_process" if user is None else "not_ours"
    assert (answer.code, answer.body["error"]["code"]) == (3, code), answer.body
    assert theirs.poll() is None and not (evil / "mark").exists()
