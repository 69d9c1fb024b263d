"""Which tests run, and the folders that they get.

Skips are shown with their reason; under GCR_STRICT_SKIPS=1 one that is not in allowed_skips.txt fails the run."""

import fcntl
import fnmatch
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What is collected stays until the end: a collector that looks at it again and again takes a sixth of the time.
gc.disable()
# How long an example takes says more of the machine's other work than of the code.
settings.register_profile("gcr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gcr")
# The programs under test find freed memory overwritten (glibc), so that its use shows.
os.environ.setdefault("MALLOC_PERTURB_", "165")
# Tests start thousands of processes, each of which would compile what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Started in the background by a shell, this process ignores Ctrl-C, and so would every program under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STRICT = "GCR_STRICT_SKIPS"
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
THOROUGH = Path(__file__).with_name("thorough.txt")
MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30  # bytes free in it for the folders of all workers

MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """made_once(name, make): a folder that `make` fills, one for all workers of a run. It is moved when it is full."""
    ours = tmp_path_factory.getbasetemp()
    shared = ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, half_made = shared / name, shared / f"{name}.new"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                shutil.rmtree(half_made, ignore_errors=True)
                half_made.mkdir()
                make(half_made)
                half_made.rename(folder)
        return folder

    return made


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a folder in memory, where files cost a third less time. It stays if the test fails.

    It is on the disk for tests that are marked `on_disk`, and for all where /dev/shm is small.
    """
    if request.node.get_closest_marker("on_disk") or not memory_has_room():
        yield tmp_path_factory.mktemp("test")
        return
    folder = Path(tempfile.mkdtemp(prefix="gcr-folder-", dir=MEMORY))
    yield folder
    reports = [getattr(request.node, f"report_{when}", None) for when in ("setup", "call")]
    if not any(report and report.failed for report in reports):
        shutil.rmtree(folder, ignore_errors=True)


def memory_has_room() -> bool:
    return MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    setattr(item, f"report_{report.when}", report)


def allowed_patterns(text: str) -> list[str]:
    """First word of every line that is not a comment."""
    lines = (line.strip() for line in text.splitlines())
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def forbidden(skipped: Iterable[str], patterns: Iterable[str]) -> list[str]:
    known = list(patterns)
    return [node for node in skipped if not any(fnmatch.fnmatchcase(node, pattern) for pattern in known)]


THOROUGH_NAMES = frozenset(line for line in THOROUGH.read_text().splitlines() if not line.startswith("#"))


def _skipped(config: pytest.Config) -> dict[str, str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return {report.nodeid: _reason(report.longrepr) for report in reports}


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def is_named(node: str, names: Collection[str]) -> bool:
    """Tells whether a test is named, by itself or by its function."""
    return node in names or node.split("[")[0] in names


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_named(item.nodeid, THOROUGH_NAMES):
        item.add_marker("thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only when marks are chosen: `-m slow`, or `-m "slow or not slow"` for everything.

    What measures time has a run of its own, `-m alone`, when tests run side by side; `first` is what others would wait
    for at the end.
    """
    later = [] if config.option.markexpr else ["slow"]
    later += ["alone"] if hasattr(config, "workerinput") else []
    out = {item: True for item in items if any(item.get_closest_marker(mark) for mark in later)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]
    items.sort(key=lambda item: not item.get_closest_marker("first"))


def pytest_collection_finish() -> None:
    """Lets the garbage collector run from here on, and look only at what is made from here on."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not os.environ.get(STRICT):
        return
    if forbidden(_skipped(session.config), allowed_patterns(ALLOWED_SKIPS.read_text())):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped(config)
    bad = set(forbidden(skipped, allowed_patterns(ALLOWED_SKIPS.read_text())))
    if skipped:
        terminalreporter.section(f"{len(skipped)} skipped")
    for node, reason in sorted(skipped.items()):
        mark = "NOT ALLOWED" if node in bad else "allowed"
        terminalreporter.write_line(f"{mark}: {node}: {reason}")
