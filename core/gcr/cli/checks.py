"""The checks of `gcr doctor`. Each is a function that says what it found; none of them raises or changes anything."""

import ctypes
import fcntl
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from gcr import config, native, runtime, units
from gcr.backend import Backend, Capability, Device
from gcr.cli import text, vendors
from gcr.criu import program
from gcr.errors import DaemonUnavailable, GcrError
from gcr.facilities import FACILITIES
from gcr.memory import hostmemory, memfiles
from gcr.names import DEFAULT_BACKEND
from gcr.rendezvous.client import Client

HUGE_PAGE = 2 << 20
PROBE_TIMEOUT = 10.0
DESCRIPTORS_WANTED = 8192  # escrow of a job with several thousand allocations
_MEMBARRIER_X86_64 = 324
_MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3


class Check(Struct, frozen=True):
    """`needed`: gcr cannot work without it; otherwise it is slower, or one feature is missing."""

    name: str
    ok: bool
    needed: bool
    detail: str
    remedy: str = ""


class Vendor(Struct, frozen=True):
    """`counts`: what it lacks is missed, since it was asked for, is the only one, or has a device.

    `facilities`: what the backend can do here, by the names of `gcr.facilities`.
    """

    name: str
    counts: bool
    facilities: Mapping[str, Capability]
    devices: Sequence[Device]
    checks: Sequence[Check]


class Findings(Struct, frozen=True):
    """`plugins`: those that are broken, or that there is none."""

    host: Sequence[Check]
    vendors: Sequence[Vendor]
    plugins: Sequence[Check]

    def checks(self) -> list[Check]:
        """Returns the checks in the order made; a vendor's are named `amd: runtime`."""
        of_vendors = [
            replace(check, name=f"{each.name}: {check.name}") for each in self.vendors for check in each.checks
        ]
        return [*self.host, *of_vendors, *self.plugins]

    def missing(self) -> list[str]:
        return [check.name for check in self.checks() if check.needed and not check.ok]


@dataclass(frozen=True, slots=True)
class Missing(Exception):
    """Raised by a check; the text says what was found instead."""

    detail: str


Look = Callable[[], str]


def look(backend: str | None) -> Findings:
    """Runs every check, with those of one backend or of all. Raises BackendMissing for an unknown backend."""
    plugins, backends = vendors.chosen(backend)
    wanted = backend is not None or len(backends) == 1
    broken = [
        Check(f"plugin {each.name}", False, False, f"{each.origin}: {each.error}", "reinstall or remove it")
        for each in plugins.broken
    ]
    none = [] if backends else [Check("backend", False, True, "no backend found", "reinstall gcr")]
    return Findings([_look(*each) for each in _HOST], [_vendor(each, wanted) for each in backends], [*none, *broken])


def _look(name: str, needed: bool, look: Look, remedy: str) -> Check:
    try:
        return Check(name, True, needed, look())
    except Missing as missing:
        return Check(name, False, needed, missing.detail, remedy)
    except GcrError as error:
        return Check(name, False, needed, error.message, error.hint or remedy)
    except OSError as error:
        return Check(name, False, needed, str(error), remedy)


def _platform() -> str:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Missing(found)
    return found


def _python() -> str:
    return f"{platform.python_version()}, {sys.executable}"


def _shim() -> str:
    """Preload it into a program that does nothing: the loader complains on stderr and goes on when it cannot."""
    path = native.shim_path()
    env = {**os.environ, "LD_PRELOAD": str(path)}
    done = subprocess.run(["/bin/true"], env=env, capture_output=True, text=True, timeout=PROBE_TIMEOUT)
    if done.returncode or done.stderr:
        raise Missing(done.stderr.strip() or f"a program under it ended with {done.returncode}")
    return str(path)


def _simulator() -> str:
    return str(native.sim_dir(DEFAULT_BACKEND))


def _runtime_dir() -> str:
    return str(runtime.runtime_dir())


def _state_dir() -> str:
    return str(runtime.log_dir())


def _config() -> str:
    config.load()
    path = config.config_path()
    return str(path) if path and path.exists() else "defaults"


def _daemon() -> str:
    try:
        with Client.connect(autostart=False) as client:
            return f"runs, pid {client.daemon_pid}, version {client.daemon_version}"
    except DaemonUnavailable:
        return "not running; it starts by itself"


def _memfd() -> str:
    fd = os.memfd_create("gcr-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    finally:
        os.close(fd)
    return "memfd_create with seals"


def _pidfd() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "pidfd_open"


def _membarrier() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    known = libc.syscall(_MEMBARRIER_X86_64, 0, 0, 0)
    if known < 0 or not known & _MEMBARRIER_PRIVATE_EXPEDITED:
        raise Missing("no private expedited membarrier")
    return "membarrier, private expedited"


def _descriptors() -> str:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_WANTED:
        raise Missing(f"hard limit {hard}")
    return "hard limit " + ("unlimited" if hard == resource.RLIM_INFINITY else str(hard))


def _memlock() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY:
        raise Missing(f"limit {units.size(soft)}")
    return "unlimited"


def _host_memory() -> str:
    """Checks that the arena can hold the largest device; without devices there is nothing to compare with."""
    share = config.load().arena_share
    arena = int(hostmemory.available_host_bytes() * share)
    largest = max((device.total_bytes for backend in _backends() for device in vendors.devices(backend)), default=0)
    found = f"{units.size(arena)} for device data ({text.percent(share)} of what is available)"
    if arena < largest:
        raise Missing(f"{found}; the largest device has {units.size(largest)}")
    return found


def _huge_pages() -> str:
    free = hostmemory.free_huge_bytes(HUGE_PAGE)
    made = memfiles.makes_huge_pages()
    if not (free or made):
        raise Missing("none free, and the kernel makes none of shared memory")
    return f"{units.size(free)} free in pages of 2 MiB; the kernel makes {'more' if made else 'none'} when gcr asks"


def _backends() -> Sequence[Backend]:
    return vendors.chosen(None)[1]


def _criu() -> str:
    return str(program.look())


def _vendor(backend: Backend, wanted: bool) -> Vendor:
    devices = vendors.devices(backend)
    counts = wanted or bool(devices)
    answers = vendors.capabilities(backend)
    facilities = {each.name: each for each in answers if each.name in FACILITIES}
    checks = [_capability_check(each, counts) for each in answers if each.name not in FACILITIES]
    return Vendor(backend.name, counts, facilities, devices, checks)


def _capability_check(capability: Capability, counts: bool) -> Check:
    needed = counts and bool(getattr(capability, "needed", True))
    return Check(capability.name, capability.ok, needed, capability.evidence, capability.remedy)


_HOST: Sequence[tuple[str, bool, Look, str]] = (
    ("platform", True, _platform, "gcr runs on Linux on x86-64"),
    ("python", True, _python, ""),
    ("shim", True, _shim, "reinstall gcr"),
    ("simulated drivers", False, _simulator, "reinstall gcr; only `gcr demo` and --simulate need them"),
    ("runtime directory", True, _runtime_dir, "set XDG_RUNTIME_DIR to a directory of yours"),
    ("log directory", True, _state_dir, "set XDG_STATE_HOME to a directory of yours"),
    ("configuration", True, _config, "docs/configuration.md lists the settings"),
    ("daemon", True, _daemon, "gcr daemon stop"),
    ("memfd", True, _memfd, "Linux 3.17 or newer"),
    ("pidfd", False, _pidfd, "Linux 5.3 or newer; without it processes are told apart by their start time"),
    ("membarrier", False, _membarrier, "Linux 4.14 or newer, and a container that permits it"),
    (
        "criu",
        False,
        _criu,
        "CRIU 4.1 or newer, for root; only `gcr checkpoint --stop` and the restore after it need it",
    ),
    ("descriptors", False, _descriptors, f"for jobs of many allocations: ulimit -Hn {DESCRIPTORS_WANTED}"),
    ("locked memory", False, _memlock, "ulimit -l unlimited, if a checkpoint says that host memory cannot be pinned"),
    ("host memory", False, _host_memory, "more memory, or a larger arena_share, for jobs that fill the device"),
    (
        "huge pages",
        False,
        _huge_pages,
        "for faster first checkpoints: Linux 6.1, and no `deny` in /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    ),
)
