"""A container of runc's, with its root file system built by hand, in which `gcr run` supervises a job.

The system's folders, this repository and the machine's folder are mounted at their own paths. The network is the
host's, as of `--network host`: with one of its own, CRIU wants iptables.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dumps import CRIU, skip_without_criu
from filed import Filed
from machine import Machine, alive, until
from worlds import ROOT

from gcr.processes import parent_pid

RUNC = ROOT / "build/criu/runc"
ONLY, ELSEWHERE = Path("/only/gcrd.sock"), Path("/elsewhere")
STAYS = '"$@" </dev/null & while :; do sleep 1; done'
OWN = ("GCR_", "XDG_")
DEADLINE = 120.0
DESCRIPTORS = 4096
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_IPC_LOCK")


class RuncFailed(Exception):
    """runc did not do it; the text is what it and CRIU said."""


def skip_without_runc() -> None:
    skip_without_criu()
    if not RUNC.exists():
        pytest.skip("runc was not fetched to build/criu")
    if why := _unable():
        pytest.skip(why)


@cache
def _unable() -> str:
    """Returns what this machine lacks for a container; nothing where it has all."""
    if not os.access("/sys/fs/cgroup", os.W_OK) or not any(Path("/sys/fs/cgroup").iterdir()):
        return "there are no cgroups"
    made = subprocess.run(["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"], capture_output=True)
    return "no namespaces can be made here" if made.returncode else ""


class Container(Filed):
    """`only_socket`: the daemon's socket alone is mounted, and not its folder · `first`: as of Filed

    below: `gcr run` is not the first process, and has the socket's folder at another path
    hook: a script for CRIU, which finds gcr's command in $gcr
    """

    def __init__(
        self, machine: Machine, only_socket: bool = False, first: str = "", below: bool = False, hook: str = ""
    ) -> None:
        self.name_of_container = f"gcr-{machine.folder.name}-{os.getpid()}"
        self._bundle, self._only_socket = machine.folder / "bundle", only_socket
        self._below, self._hook = below, hook
        self._done: list[subprocess.Popen[bytes]] = []
        self._checkpoints = machine.folder / "runc"
        super().__init__(machine, first=first)

    # ---- runc ----------------------------------------------------------------------------------------------------

    def runc(self, *arguments: str) -> None:
        """Raises RuncFailed."""
        command = [RUNC, "--root", self.machine.folder / "runc-root", "--criu", CRIU, *arguments]
        env = {name: value for name, value in os.environ.items() if name != "GCR_SOCKET"}
        pipe = subprocess.PIPE
        done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env)
        self._done.append(done)  # a detached container keeps our pipes: they are not read to their end
        if done.wait(DEADLINE):
            assert isinstance(done.stderr, io.BufferedReader)
            raise RuncFailed(done.stderr.read1().decode(errors="replace") + self._criu_said())

    def checkpoint(self, name: str, *flags: str) -> None:
        """Raises RuncFailed. Without flags the container ends."""
        where = ("--image-path", str(self._checkpoints / name), "--work-path", str(self._checkpoints / f"{name}.work"))
        self.runc("checkpoint", *where, *flags, self.name_of_container)
        if not flags:
            until(lambda: not alive(self.pid) or None, 10.0, "the container has ended")
            self.runc("delete", "--force", self.name_of_container)

    def restore(self, name: str) -> None:
        """Raises RuncFailed."""
        where = ("--image-path", str(self._checkpoints / name), "--work-path", str(self._checkpoints / f"{name}.back"))
        self.runc("restore", "-d", *where, "--bundle", str(self._bundle), self.name_of_container)

    def _criu_said(self) -> str:
        logs = sorted(self._checkpoints.glob("*/*.log"), key=lambda each: each.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else []
        return "\n".join(line for line in lines if "Error" in line or "Warn" in line)

    def close(self) -> None:
        subprocess.run(
            [RUNC, "--root", self.machine.folder / "runc-root", "delete", "--force", self.name_of_container],
            capture_output=True,
            timeout=DEADLINE,
        )
        for each in self._done:
            for stream in (each.stdout, each.stderr):
                if stream:
                    stream.close()
        super().close()

    def find(self) -> None:
        """Learns the pid of the program that came back."""
        row = self.machine.job(self.name)
        assert row
        self.pid = row["pid"]

    # ---- its begin -------------------------------------------------------------------------------------------------

    def _begin(self, folder: Path, command: Sequence[str]) -> None:
        self.machine.daemon()
        program = [sys.executable, "-m", "gcr", "run", "--name", self.name, *self.machine.world, "--", *command]
        self._make_root(self._bundle / "rootfs")
        self._checkpoints.mkdir()
        (self._bundle / "config.json").write_text(json.dumps(self._config(program)))
        self.runc("run", "-d", "--bundle", str(self._bundle), self.name_of_container)

    @staticmethod
    def _make_root(root: Path) -> None:
        """Makes the links of a system whose programs and libraries are all below /usr. runc makes the folders."""
        root.mkdir(parents=True)
        for each in map(Path, SYSTEM):
            if each.is_symlink():
                (root / each.name).symlink_to(each.readlink())

    def _config(self, program: Sequence[str]) -> dict[str, Any]:
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES)
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": ["sh", "-c", STAYS if self._below else 'exec "$@" </dev/null', "sh", *program],
                "env": [f"{name}={value}" for name, value in self._environment().items()],
                "cwd": "/",
                "capabilities": capabilities,
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": DESCRIPTORS, "soft": DESCRIPTORS}],
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": False},
            "hostname": "gcr",
            "annotations": self._annotations(),
            "mounts": [*_OF_THE_KERNEL, *map(_bound, self._folders()), *self._socket()],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            },
        }

    def _environment(self) -> dict[str, str]:
        """Its own records lie within: a container does not share the host's state directory."""
        own = self.machine.folder / "inside"
        own.mkdir(exist_ok=True)
        at = ONLY if self._only_socket else ELSEWHERE / self.machine.socket.name if self._below else None
        elsewhere = {"GCR_SOCKET": str(at)} if at else {}
        return {**self.machine.env, "XDG_STATE_HOME": str(own), **elsewhere}

    def _annotations(self) -> dict[str, str]:
        if not self._hook:
            return {}
        script, configuration = self.machine.folder / "hook", self.machine.folder / "criu.conf"
        own = " ".join(f"{name}={value}" for name, value in self.machine.env.items() if name.startswith(OWN))
        gcr = f'gcr="env -u LD_LIBRARY_PATH {own} {sys.executable} -m gcr"'
        script.write_text(f"#!/bin/sh\n{gcr}\n{self._hook}")
        script.chmod(0o755)
        configuration.write_text(f"action-script {script}\n")
        return {"org.criu.config": str(configuration)}

    @property
    def supervisor(self) -> int:
        """Returns the pid of `gcr run`, the parent of the program."""
        return parent_pid(self.pid) or 0

    def _socket(self) -> Iterator[dict[str, Any]]:
        if self._only_socket:
            yield {**_bound(str(self.machine.socket)), "destination": str(ONLY)}
        if self._below:
            yield {**_bound(str(self.machine.socket.parent)), "destination": str(ELSEWHERE)}

    def _folders(self) -> Iterator[str]:
        yield from (each for each in SYSTEM if Path(each).is_dir() and not Path(each).is_symlink())
        own = {str(ROOT), sys.base_prefix, str(self.machine.folder), "/dev/shm"}
        yield from sorted(each for each in own if not each.startswith(SYSTEM))


_OF_THE_KERNEL = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]},
)


def _bound(folder: str) -> dict[str, Any]:
    return {"destination": folder, "type": "bind", "source": folder, "options": ["rbind", "rprivate", "rw"]}
