"""A user's library in a process of root's: by the environment of a process that root checkpoints."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from machine import Machine

from gcr.errors import NotOurs

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


@pytest.fixture
def shared(machine: Machine) -> Iterator[Machine]:
    """Yields a machine whose daemon serves one more user, at a socket that each user reaches."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with TemporaryDirectory(prefix="gcr-shared-") as folder:
        Path(folder).chmod(0o711)
        machine.extra |= {"GCR_SOCKET": f"{folder}/s", "GCR_ALLOW_UID": str(NOBODY)}
        machine.daemon()
        yield machine
        machine.close()


def jobs_seen_by(machine: Machine, uid: int) -> list[str]:
    """Returns the jobs that the daemon shows this user, whom the kernel lets no further than a true one."""
    os.seteuid(uid)
    try:
        with machine.connected() as client:
            return [job["job"] for job in client.request("ps")["jobs"]]
    finally:
        os.seteuid(0)


def test_a_user_whom_the_daemon_serves_reaches_it_and_another_is_refused(shared: Machine) -> None:
    shared.told("ours")
    assert jobs_seen_by(shared, 0) == ["ours"]
    assert jobs_seen_by(shared, NOBODY) == []
    with pytest.raises(NotOurs, match=f"user {NOBODY - 1} may not use this daemon"):
        jobs_seen_by(shared, NOBODY - 1)
