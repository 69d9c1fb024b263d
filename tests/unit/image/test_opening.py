"""An image is opened once: what is told of it, and what is brought, are of the same image, and no child stays."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from imaging import folder_of, imaged

from gcr.cli.asking import Asking, Line
from gcr.cli.opening import Opening, opening
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage
from gcr.testing.machine import until

FILES = {"core-7.img": b"one", "tree.json": b"note"}
Look = Callable[[Store | None, Line], None]


def opens(store: Path, timeout: float | None = None) -> Callable[[Look], Asking[None]]:
    return lambda look: Asking(str(store), lambda line: look(Store(store), line), timeout)


def children() -> list[str]:
    """Returns the children that live."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def alive() -> bool:
    return any(Path(f"/proc/{each}/stat").read_text().rsplit(") ", 1)[1][0] != "Z" for each in children())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    imaged(Store(tmp_path / "store"), "one", folder_of(tmp_path / "in", FILES))
    return tmp_path / "store"


def test_what_is_told_and_what_is_brought_are_of_one_image(store: Path, folder: Path) -> None:
    """Another image takes its name in between. A file that is there was told before."""
    with opening("one", opens(store)) as opened:
        assert (opened.found.bytes, dict(opened.found.notes)) == (7, {"tree.json": b"note"})
        (folder / "tree.json").write_bytes(b"mine")
        Store(store).remove(["one"])
        imaged(Store(store), "one", folder_of(folder.parent / "later", {"core-7.img": b"two"}))
        opened.bring(folder)
        opened.await_brought()
        until(lambda: not alive(), 20, "the child ends once it has brought all")
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {**FILES, "tree.json": b"mine"}


def test_a_child_that_is_asked_for_no_files_ends_with_the_block(store: Path) -> None:
    with opening("one", opens(store)):
        assert alive()
    until(lambda: not alive(), 20, "the child is gone")


@pytest.mark.parametrize("damaged", [False, True])
def test_an_error_of_the_child_is_raised(store: Path, folder: Path, damaged: bool) -> None:
    if not damaged:
        with pytest.raises(NoSuchImage), opening("two", opens(store)):
            pytest.fail("there is no such image")
        return
    with opening("one", opens(store)) as opened:
        (pack,) = (store / "packs").glob("*.pack")
        with pack.open("r+b") as file:
            file.seek(4096)
            file.write(b"!")
        opened.bring(folder)
        with pytest.raises(Damaged):
            opened.await_brought()


def test_a_process_that_was_forked_within_the_block_does_not_end_the_child(store: Path, folder: Path) -> None:
    with opening("one", opens(store)) as opened:
        if not (pid := os.fork()):
            os._exit(_left(opened))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        opened.bring(folder)
        opened.await_brought()
    assert len([*folder.iterdir()]) == len(FILES)


def _left(opened: Opening) -> int:
    fds = [Path(f"/proc/self/fd/{fd}") for fd in (opened._wanted, opened._talk.fd)]
    there = [fd.exists() for fd in fds]
    opened.let_go()
    with suppress(OSError):  # an error that ends the process
        opened.end()
    return 0 if all(there) and not any(fd.exists() for fd in fds) else 1
