"""`gcr inspect-kernels` as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from gcr import schemas

DATA = Path(__file__).parents[1] / "data/kernels"
DEADLINE = 30.0


def gcr(*arguments: str, home: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    folders = {name: str(home) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    start = ["-c", code] if code else ["-m", "gcr"]
    command = [sys.executable, *start, "inspect-kernels", *arguments]
    return subprocess.run(command, env={**os.environ, **folders}, capture_output=True, text=True, timeout=DEADLINE)


FILES = [path for path in sorted(DATA.iterdir()) if path.suffix in (".cubin", ".ptx", ".fatbin", ".co", ".hipfb", ".1")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_json_is_as_the_schema_says(path: Path, tmp_path: Path) -> None:
    ran = gcr("--json", str(path), home=tmp_path)
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(schemas.load("inspect-kernels")).validate(document)
    assert (ran.returncode, ran.stderr, document["file"]) == (0, "", str(path))
    assert "axpy" in ran.stdout or path.stem in ("large", "relocatable")


def test_there_are_files() -> None:
    assert len(FILES) >= 12


def test_a_person_reads_a_table(tmp_path: Path) -> None:
    ran = gcr(str(DATA / "zstd.fatbin"), home=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    heads = [line.split("  ") for line in ran.stdout.splitlines() if not line.startswith(" ") and line]
    assert heads == [[form, target, f"0/{n}", "7 kernels"] for n, (form, target) in enumerate(EXPECTED)]
    lines = ran.stdout[ran.stdout.index("\nptx") :].splitlines()
    at = lines.index("  axpy  24 B of arguments")
    assert [line.split() for line in lines[at + 1 : at + 6]] == [
        ["ARG", "OFFSET", "SIZE", "KIND", "ACCESS", "PROOF"],
        ["0", "0", "8", "opaque", "read_only", "ptx"],
        ["1", "8", "8", "opaque", "written", "ptx"],
        ["2", "16", "4", "value", "-", "-"],
        ["3", "20", "4", "value", "-", "-"],
    ]


EXPECTED = [("cubin", "sm_75"), ("cubin", "sm_90"), ("ptx", "sm_90")]


def test_a_program_without_kernels_says_so(tmp_path: Path) -> None:
    ran = gcr(str(Path(sys.executable).resolve()), home=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "no device code\n")


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "cannot_read"), (b"text", "unknown_format"), (b"\x7fELF", "malformed_file")],
)
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    ran = gcr("--json", str(path), home=tmp_path)
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(schemas.load("error")).validate(document)
    assert (ran.returncode, document["command"], document["error"]["code"]) == (3, "inspect-kernels", code)
    assert document["error"]["message"].startswith(f"{path}: ")
    assert document["error"]["hint"]


def test_names_that_a_terminal_would_obey_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes((DATA / "gfx942.co").read_bytes().replace(b"axpy", b"\x1b[2J"))
    ran = gcr(str(path), home=tmp_path)
    assert (ran.returncode, "?[2J" in ran.stdout, "\x1b" in ran.stdout) == (0, True, False)


WITHOUT = """
import sys
sys.modules["elftools"] = None
from gcr.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    ran = gcr(str(DATA / "sm_100.cubin"), home=tmp_path, code=WITHOUT)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "elftools" in ran.stderr
    assert "pip install 'gpu-cr[inspect]'" in ran.stderr
