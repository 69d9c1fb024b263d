"""`gcr.toml`: facts of a vendor that the daemon reads without running its plugin."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcr.cli import vendors
from gcr.daemon import arrivals, foreign
from gcr.daemon.jobs import Program
from gcr.declarations import MAX_BYTES, broken_declarations, declarations, declared_by, settings_of_programs
from gcr.engine.node import World
from gcr.protocol.wire import Vendor
from gcr.rendezvous.launch import daemon_environment
from gcr.supervisor import JobSpec
from gcr.supervisor.process import Supervisor

ROOT = Path(__file__).parents[2]
ACME = """
[acme]
libraries = ["libacme.so"]
device_files = ["/dev/acme"]
"""
NOT_IMPORTED = "raise RuntimeError('the daemon runs no code of a plugin')"
BAD = {
    "no TOML": "[acme",
    "no library": "[acme]\nlibraries = []",
    "no libraries": "[acme]\nvendor = 5",
    "a name of every library": '[acme]\nlibraries = ["lib"]',
    "a path": '[acme]\nlibraries = ["/usr/lib/libacme.so"]',
    "all devices": '[acme]\nlibraries = ["libacme.so"]\ndevice_files = ["/dev/"]',
    "no device": '[acme]\nlibraries = ["libacme.so"]\ndevice_files = ["/tmp/acme"]',
    "a word misspelt": '[acme]\nlibraries = ["libacme.so"]\ndevice_file = ["/dev/acme"]',
    "a way to load code": '[acme]\nlibraries = ["libacme.so"]\nkeeps = ["LD_"]',
    "a way to load code in programs": '[acme]\nlibraries = ["libacme.so"]\nsets = { LD_PRELOAD = "/x.so" }',
    "every variable": '[acme]\nlibraries = ["libacme.so"]\nkeeps = [""]',
    "no table": 'libraries = ["libacme.so"]',
    "too much": ACME + "#" * MAX_BYTES,
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that are found before all others."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("GCR_PLUGINS", raising=False)
    return tmp_path


def package(site: Path, text: str, module: str = "gcr_acme") -> None:
    folder = site.joinpath(*module.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(NOT_IMPORTED)
    (folder / "gcr.toml").write_text(text)


def entry(site: Path, module: str = "gcr_acme") -> None:
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[gcr]\nacme = {module}:Thing [extra]\n")


def test_gcr_s_own_vendors_have_the_numbers_of_the_shim() -> None:
    numbers = {each.vendor: name for name, each in declarations().items() if each.vendor}
    assert numbers == {Vendor.NVIDIA: "nvidia", Vendor.AMD: "amd", Vendor.ASCEND: "ascend"}
    assert list(declarations())[:3] == ["nvidia", "amd", "ascend"]


@pytest.mark.parametrize("by", ["entry point", "environment"])
def test_a_stranger_s_is_read_and_its_plugin_not_run(site: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    package(site, ACME)
    entry(site) if by == "entry point" else monkeypatch.setenv("GCR_PLUGINS", "gcr_acme")
    assert declarations()["acme"].libraries == ("libacme.so",)
    assert declarations()["nvidia"].libraries
    assert "gcr_acme" not in sys.modules


def test_a_plugin_below_a_package_is_read_without_running_that_package(site: Path) -> None:
    package(site, ACME, "zinc.plugin")
    (site / "zinc" / "__init__.py").write_text(NOT_IMPORTED)
    assert declared_by("zinc.plugin")["acme"].device_files == ("/dev/acme",)


def test_a_plugin_that_is_installed_later_is_seen(site: Path) -> None:
    os.utime(site, (1, 1))
    assert "acme" not in declarations()
    package(site, ACME)
    entry(site)
    assert "acme" in declarations()


def test_the_file_may_come_after_the_folder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation makes the distribution's folder first: nothing above changes when its files come."""
    monkeypatch.setattr("gcr.declarations.time.time", lambda: clock[0])
    (site / "gcr_acme-1.0.dist-info").mkdir()
    clock = [site.stat().st_mtime]
    package(site, ACME)
    assert "acme" not in declarations()
    before = site.stat().st_mtime_ns
    (site / "gcr_acme-1.0.dist-info" / "entry_points.txt").write_text("[gcr]\nacme = gcr_acme\n")
    assert site.stat().st_mtime_ns == before
    clock[0] += 1.5
    assert "acme" in declarations()


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_used_is_listed_and_harms_no_other(
    site: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    package(site, BAD[case])
    entry(site)
    assert "acme" not in declarations()
    assert "nvidia" in declarations()
    assert "plugin gcr_acme declares nothing that can be used" in caplog.text
    with pytest.raises(ValueError, match=r"gcr\.toml"):
        declared_by("gcr_acme")
    (why,) = broken_declarations().values()
    assert "gcr.toml" in why
    (listed,) = [each for each in vendors.chosen(None)[0].broken if each.name == "gcr_acme"]
    assert (listed.origin, listed.error) == ("gcr.toml of gcr_acme", why)


def test_a_plugin_without_the_file_and_one_that_is_not_there_declare_nothing(site: Path) -> None:
    (site / "plain.py").write_text(NOT_IMPORTED)
    assert [dict(declared_by(module)) for module in ("plain", "absent", "absent.below")] == [{}, {}, {}]


def test_the_first_plugin_that_declares_a_backend_has_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(site, ACME)
    package(site, ACME.replace("libacme", "libother"), "other")
    monkeypatch.setenv("GCR_PLUGINS", "gcr_acme,other")
    assert declarations()["acme"].libraries == ("libacme.so",)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the page for authors of backends, as a plugin."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "example-backend" / "src")
    monkeypatch.setenv("GCR_PLUGINS", "gcr_acme")


@pytest.fixture
def mapping(tmp_path: Path) -> Iterator[int]:
    """A process that maps a file with the name of acme's driver."""
    driver = tmp_path / "libacme.so.1"
    driver.write_bytes(b"\0" * 4096)
    script = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(driver)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


@pytest.mark.usefixtures("example")
def test_a_process_that_has_the_example_s_driver_is_recognised(mapping: int) -> None:
    job = SimpleNamespace(program=Program(pid=mapping))
    assert foreign.with_driver(job) == {mapping: "libacme.so"}  # type: ignore[arg-type]
    foreign.refuse_without_driver(mapping, World("acme"))


@pytest.mark.usefixtures("example")
def test_a_job_of_the_example_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrivals._world_as_seen(World("acme"), Vendor.THIRD_PARTY) == World("acme")
    assert arrivals._world_as_seen(World("nvidia"), Vendor.AMD) == World("amd")
    assert arrivals._world_as_seen(World("nvidia"), Vendor.VENDOR_NONE) == World("nvidia")
    assert arrivals._world_as_seen(World("nvidia", simulated=True), Vendor.AMD).backend == "nvidia"


def test_a_daemon_keeps_the_variables_that_backends_declare(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVIDIA_VISIBLE_DEVICES", "ACME_HOME", "ZINC_HOME", "LD_PRELOAD"):
        monkeypatch.setenv(name, "x")
    package(site, ACME + 'keeps = ["ACME_"]')
    monkeypatch.setenv("GCR_PLUGINS", "gcr_acme")
    kept = daemon_environment()
    assert kept.keys() >= {"NVIDIA_VISIBLE_DEVICES", "ACME_HOME"}
    assert kept.keys().isdisjoint({"ZINC_HOME", "LD_PRELOAD"})


def test_programs_get_what_the_backends_of_their_shim_declare(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(site, ACME + 'sets = { ACME_LAZY = "0" }')
    monkeypatch.setenv("GCR_PLUGINS", "gcr_acme")
    lazy = {"ACME_LAZY": "0"}
    nccl = {
        "NCCL_CUMEM_HOST_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
    for backend in (None, "nvidia", "amd", "absent"):
        assert settings_of_programs(backend, own_shim=True) == nccl
    assert settings_of_programs("acme", own_shim=True) == nccl | lazy
    assert settings_of_programs("acme", own_shim=False) == lazy


@pytest.mark.parametrize("name", ["NCCL_CUMEM_HOST_ENABLE", "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST"])
@pytest.mark.parametrize("own", [None, "mine", ""])
def test_a_program_s_own_value_is_kept_and_what_is_set_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, own: str | None
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    caplog.set_level("INFO")
    mine = {} if own is None else {name: own}
    environment = Supervisor(JobSpec(("true",), name="llm", environment=mine)).environment()
    assert environment[name] == (settings_of_programs(None, own_shim=True)[name] if own is None else own)
    assert (f"{name}={environment[name]} set" in caplog.text) == (own is None)


def test_whether_ranks_reach_each_other_s_memory_is_left_to_the_user() -> None:
    assert "NCCL_P2P_DISABLE" not in settings_of_programs(None, own_shim=True)
