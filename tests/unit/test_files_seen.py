"""Files of a real process are noted with their content, and each later change of one is found."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gcr.criu.contents import PIECE, Content, names
from gcr.criu.files import Change, FileSeen, What, changed, seen

HOLDS = """
import mmap, os, sys
folder = sys.argv[1] + "/"
kept = [open(folder + "mapped", "r+b"), open(folder + "read"), open(folder + "log", "a"), open(folder + "gone")]
kept += [mmap.mmap(kept[0].fileno(), 0), os.memfd_create("held"), open("/proc/self/status")]
os.unlink(folder + "gone")
print(flush=True)
input()
"""
TEXT = "0123456789" * 500
Finding = Callable[[], list[FileSeen]]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Finding]:
    """Starts a process that holds files of `tmp_path`, and returns a function that notes these."""
    for name in ("mapped", "read", "log", "gone"):
        (tmp_path / name).write_text(TEXT)
    command = [sys.executable, "-I", "-S", "-c", HOLDS, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (tmp_path / "gone (deleted)").write_text(TEXT)  # as the kernel names a file that is deleted
        yield lambda: [each for each in seen([process.pid]) if each.path.startswith((str(tmp_path), "/proc/"))]
        process.kill()


def test_named_files_are_noted_and_others_are_not(held: Finding, tmp_path: Path) -> None:
    found = held()
    assert [(each.path, each.size, each.grows) for each in found] == [
        (f"{tmp_path}/log", len(TEXT), True),
        (f"{tmp_path}/mapped", len(TEXT), False),
        (f"{tmp_path}/read", len(TEXT), False),
    ]
    assert len({each.content for each in found}) == 1 and found[0].content.startswith("blake3:")
    assert changed(found) == []


def test_libraries_have_build_ids() -> None:
    with subprocess.Popen(["sleep", "100"], stdin=subprocess.PIPE) as process:
        while not (found := [each for each in seen([process.pid]) if "/libc" in each.path]):
            assert process.poll() is None
        process.kill()
    assert found[0].content.startswith("build-id:")
    assert seen([process.pid]) == []


@pytest.mark.parametrize(
    "name, text, what",
    [
        ("mapped", TEXT[::-1], What.OTHER),
        ("mapped", TEXT + "x", What.LARGER),
        ("read", TEXT[1:], What.SMALLER),
        ("read", None, What.GONE),
        ("log", TEXT[1:] + "xx", What.OTHER),
        ("log", TEXT + "more", None),
    ],
)
def test_a_change_is_found(held: Finding, tmp_path: Path, name: str, text: str | None, what: What | None) -> None:
    found = held()
    path = tmp_path / name
    path.unlink() if text is None else path.write_text(text)
    told = changed(found)
    assert told == ([Change(str(path), what, len(TEXT))] if what else [])
    if what in (What.LARGER, What.SMALLER):
        assert str(told[0]).endswith(f"r than at the dump, when it had {len(TEXT):,} bytes")


@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, 2 * PIECE])
def test_a_change_of_one_byte_of_a_large_file_is_found(tmp_path: Path, at: int) -> None:
    path, text = tmp_path / "large", bytearray(2 * PIECE + 1)
    path.write_bytes(text)
    before = names([Content(path, len(text)), Content(tmp_path / "gone", 1)])
    text[at] = 1
    path.write_bytes(text)
    after = names([Content(tmp_path / "gone", 1), Content(path, len(text))])
    assert isinstance(before[0], str) and isinstance(after[1], str) and before[0] != after[1]
    assert isinstance(before[1], FileNotFoundError) and isinstance(after[0], FileNotFoundError)


def test_a_name_of_before_is_compared_still(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text(TEXT)
    content = "blake2b:087c9eb974ffa04a"  # the beginning of the name that an earlier version gave
    note = FileSeen(str(path), len(TEXT), content, grows=False)
    assert changed([note]) == []
    path.write_text(TEXT[::-1])
    assert changed([note]) == [Change(str(path), What.OTHER, note.size)]


def test_notes_are_kept_as_json(held: Finding) -> None:
    found = held()
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[FileSeen]) == found
