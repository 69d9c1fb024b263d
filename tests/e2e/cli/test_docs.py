"""The documents say what the program does: generated ones are current, and codes, variables and links are complete."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gcr.cli import environment, reference
from gcr.cli.main import SUBCOMMANDS
from gcr.config import Config, environment_name
from gcr.native import sim_dir
from gcr.protocol.wire import Reason

sys.path.insert(0, str(Path(__file__).parents[2] / "victims"))

import hip_python

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
_QUOTED = re.compile(r"""["'](GCR_[A-Z0-9_]*[A-Z0-9])["'=]""")


@pytest.mark.parametrize("name", ["cli", "configuration", "errors"])
def test_generated_documents_are_current(name: str) -> None:
    """Made as `make docs` does: click keeps what other tests' calls of a command found, -h or none."""
    made = subprocess.run([sys.executable, "-m", "gcr.cli.reference", name], capture_output=True, text=True, timeout=60)
    assert (DOCS / f"{name}.md").read_text() == made.stdout, f"{name}.md is out of date, make docs: {made.stderr}"


def test_the_manual_page_is_current_and_clean() -> None:
    """Every command and option of the parser is in it; a line that starts with a dot is a request of the man macros."""
    made = subprocess.run(
        [sys.executable, "-m", "gcr.cli.reference", "man"], capture_output=True, text=True, timeout=60
    )
    text = (DOCS / "gcr.1").read_text()
    assert text == made.stdout, f"gcr.1 is out of date, make docs: {made.stderr}"
    for name in SUBCOMMANDS:
        assert f"\n.SS gcr {name}".replace("-", "\\-") in text, name
    assert "\n\\fB\\-\\-leave\\-running\\fR\n" in text
    requests = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", ".RS", ".RE"}
    for lint in (["mandoc", "-Tlint", "-Wwarning"], ["groff", "-man", "-ww", "-z", "-Kutf8"]):
        if shutil.which(lint[0]):
            said = subprocess.run([*lint, DOCS / "gcr.1"], capture_output=True, text=True, timeout=60)
            assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_every_error_says_what_to_do() -> None:
    """The page on error codes has the first paragraph of each class's own docstring."""
    kinds = reference.error_codes()
    told = {code: reference.told(kind) for code, kind in kinds.items()}
    assert [code for code, words in told.items() if len(words) < 20 or "|" in words] == []
    page = reference.errors()
    assert f"| `cannot_start` | 125 | {told['cannot_start']} |" in page
    assert f"| `stands_still` | 5 | {told['stands_still']} |" in page
    assert page.count("\n| `") == len(kinds)


def test_every_environment_variable_is_documented() -> None:
    read = {
        name
        for folder in ("core", "backends", "shim")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".c", ".cpp", ".h"}
        for name in _QUOTED.findall(path.read_text())
    }
    documented = {name for name, _ in environment.VARIABLES}
    settings = {environment_name(name) for name in Config.__dataclass_fields__}
    assert "GCR_SOCKET" in read
    assert read - documented - settings == {"GCR_SIM"}, "GCR_SIM is a prefix"


def test_every_reason_has_a_section_of_its_own() -> None:
    """Messages point to docs/limitations.md#<reason>."""
    reasons = {reason.name.lower() for reason in Reason if reason is not Reason.COUNT}
    words = [path for part in ("backends", "core") for path in (ROOT / part).rglob("*.py")]
    reasons |= {reason for path in words for reason in re.findall(r'Refusal\("([a-z_]+)"', path.read_text())}
    assert {"managed", "nccl"} <= reasons
    assert reasons <= _anchors(DOCS / "limitations.md")


def test_every_subcommand_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    for name in SUBCOMMANDS:
        assert f"\n## gcr {name}\n" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_have_targets(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        place = document.parent / name if name else document
        assert place.exists(), target
        assert not anchor or anchor in _anchors(place), target


def _anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_hints_in_the_code_name_documents_and_anchors_that_exist() -> None:
    hints = {
        hint
        for folder in ("core", "backends")
        for path in (ROOT / folder).rglob("*.py")
        for hint in re.findall(r"docs/([a-z]+\.md(?:#[a-z0-9-]+)?)", path.read_text())
    }
    for hint in hints:
        name, _, anchor = hint.partition("#")
        assert (DOCS / name).exists(), hint
        assert not anchor or anchor in _anchors(DOCS / name), hint


def test_the_page_on_amd_has_every_check_of_its_doctor() -> None:
    from gcr_amd.probe import CHECKS

    text = (DOCS / "amd.md").read_text()
    table = text.partition("\n## What `gcr --backend amd doctor` checks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == [check.name for check in CHECKS]


@pytest.mark.parametrize("vendor", ["amd", "ascend"])
def test_the_program_to_try_on_a_vendor_s_page_runs_on_the_simulated_runtime(vendor: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{vendor}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert "range(60)" in text
    program = tmp_path / "program.py"
    program.write_text(text.replace("range(60)", "range(2)").replace("time.sleep(1)", "time.sleep(0)"))
    runtime = sim_dir(vendor)
    env = {**os.environ, **hip_python.environment("10", runtime), "GCR_SIM_STATE": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("step 0 intact\nstep 1 intact\n", "")
