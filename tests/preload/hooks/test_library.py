"""The finished libgcr_shim.so, as it is shipped: what it exports, what it needs."""

import re
import subprocess
from pathlib import Path

import pytest

VERSION_LIMIT = (2, 17)
# The calls of libc in which a cancelled thread ends, as far as a shim could want them; fcntl is one for F_SETLKW alone.
CANCELLED_IN = {
    "accept",
    "accept4",
    "clock_nanosleep",
    "close",
    "connect",
    "creat",
    "fdatasync",
    "fsync",
    "lockf",
    "msync",
    "nanosleep",
    "open",
    "open64",
    "openat",
    "openat64",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "pselect",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_testcancel",
    "pwrite",
    "pwrite64",
    "pwritev",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "sem_timedwait",
    "sem_wait",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "sigpause",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "system",
    "tcdrain",
    "usleep",
    "wait",
    "waitid",
    "waitpid",
    "write",
    "writev",
    "epoll_pwait",
    "epoll_wait",
    "fopen",
    "fclose",
    "fread",
    "fwrite",
    "fgets",
    "printf",
    "fprintf",
    "opendir",
    "readdir",
    "closedir",
    "getaddrinfo",
    "getpwuid_r",
    "syslog",
    "dlopen",
}
LISTS = Path(__file__).parents[3] / "shim/src/hooks"


def hooked(name: str) -> set[str]:
    return set(re.findall(r"^GCR_HOOK\((\w+)", (LISTS / name).read_text(), re.M))


# HIP's symbols have versions of the runtime's own, some twenty: only a definition without one binds to them all.
UNVERSIONED = {"dlsym", "dlvsym"} | hooked("hip.def")


def dump(tool: str, *arguments: str | Path) -> str:
    command = [tool, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="session")
def product() -> Path:
    """The shim the package installs, with the real other half."""
    from gcr.native import shim_path

    return shim_path()


def exported(library: Path) -> dict[str, str]:
    """Name to version of everything `nm -D` shows as defined; the version node itself is no symbol of ours."""
    found = {}
    for line in dump("nm", "-D", "--defined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if name != "GCR_HOOKS":
            found[name] = version
    return found


def test_exports_equal_the_lists(product):
    listed = set().union(*(hooked(path.name) for path in LISTS.glob("*.def")))
    assert {"cuInit", "aclrtMalloc", "hipMalloc"} <= listed
    assert set(exported(product)) == listed | {"dlsym", "dlvsym"}


def test_driver_symbols_are_invisible_to_dlsym(product):
    """One @: not the default version. Index 2 is what lets the loader bind plain references to it all the same."""
    versions = exported(product)
    assert {versions.pop(name) for name in UNVERSIONED} == {""}
    assert set(versions.values()) == {"GCR_HOOKS"}
    assert re.search(r"Index: 2 .*Name: GCR_HOOKS", dump("readelf", "-V", product))


def test_nothing_of_it_runs_before_it_is_called(product):
    """A constructor of the program may call the driver before ours would have run. One entry is the compiler's own."""
    assert re.findall(r"\(INIT_ARRAYSZ\)\s+(\d+)", dump("readelf", "-d", product)) == ["8"]


def test_needs_libc_only(product):
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dump("readelf", "-d", product)) == ["libc.so.6"]


def test_no_symbol_is_newer_than_glibc_2_17(product):
    versions = re.findall(r"@GLIBC_(\d+)\.(\d+)", dump("nm", "-D", "--undefined-only", product))
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= VERSION_LIMIT


def test_no_thread_is_cancelled_within_it(product):
    """Every lock held there would stay held. A system call by number is no cancellation point."""
    needed = {line.split()[-1].partition("@")[0] for line in dump("nm", "-D", "--undefined-only", product).splitlines()}
    assert "syscall" in needed
    assert needed & CANCELLED_IN == set()


def test_thread_locals_are_in_the_initial_block(product):
    """initial-exec: a thread-local on a launch path that needs no call and no allocation."""
    assert "STATIC_TLS" in dump("readelf", "-d", product)


def test_the_stack_is_not_executable(product):
    assert re.search(r"GNU_STACK.*\n?.*RW ", dump("readelf", "-lW", product))


def test_the_stubs_end_in_a_jump(product):
    for name in ("dlsym", "dlvsym"):
        code = dump("objdump", "-d", f"--disassemble={name}", product)
        assert re.search(r"jmp\s+\*%rax", code), name
