"""An image is opened once: what is told of it, and what is brought, are of the same image, and no child stays."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Timer

import pytest
from imaging import folder_of, imaged

from gcr.cli.asking import Asking, Line
from gcr.cli.opening import Opening, opening
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, NotRestored
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


def fill(opened: Opening) -> None:
    with opened.filling():
        pass


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
        assert alive(), "it has the memory of the processes"
        assert opened.await_files()
        fill(opened)
        until(lambda: not alive(), 20, "the child ends once it has written that")
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
        assert not opened.await_files()
        with pytest.raises(Damaged):
            opened.await_brought()


def test_a_process_that_was_forked_within_the_block_does_not_end_the_child(store: Path, folder: Path) -> None:
    with (block := opening("one", opens(store))) as opened:
        if not (pid := os.fork()):
            os._exit(_left(opened, block))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        opened.bring(folder)
        opened.await_brought()
    assert len([*folder.iterdir()]) == len(FILES)


def _left(opened: Opening, block: AbstractContextManager[Opening]) -> int:
    talk, orders = (Path(f"/proc/self/fd/{fd}") for fd in (opened._talk.fd, opened._orders.fileno()))
    there = talk.exists(), orders.exists()
    opened.let_go()
    there = *there, talk.exists(), orders.exists()
    with suppress(OSError):  # an error that ends the process
        block.__exit__(None, None, None)
    return 0 if (*there, orders.exists()) == (True, True, False, True, False) else 1


def test_a_process_that_was_forked_within_the_block_has_the_memory_filled(store: Path, folder: Path) -> None:
    with opening("one", opens(store)) as opened:
        opened.bring(folder)
        opened.await_brought()
        if not (pid := os.fork()):
            opened.let_go()
            fill(opened)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with pytest.raises(NotRestored, match=r"has died|did not answer"):  # it has ended
            fill(opened)


def test_a_child_that_has_the_memory_outlives_its_starter_and_not_the_processes_that_ask(
    store: Path, folder: Path
) -> None:
    told, tell = os.pipe()
    if not (starter := os.fork()):
        starter_of_mine = os.getpid()
        with opening("one", opens(store)) as opened:
            opened.bring(folder)
            opened.await_brought()
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            opened.let_go()
            until(lambda: os.getppid() != starter_of_mine, 20, "its starter has died")
            fill(opened)
            os.write(tell, b"filled")
            os._exit(0)
    os.close(tell)
    os.waitpid(starter, 0)
    with os.fdopen(told, "rb") as stream:
        assert stream.read() == b"filled"


@pytest.mark.parametrize("fault", ["fail", "die"])
def test_memory_that_is_not_written_is_told(
    store: Path, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = folder.parent / "rules"
    rules.write_text(f"restore.fill {fault}\n")
    monkeypatch.setenv("GCR_FAULTS", str(rules))
    with opening("one", opens(store)) as opened:
        opened.bring(folder)
        opened.await_brought()
        with pytest.raises(NotRestored, match="injected" if fault == "fail" else "has died"):
            fill(opened)


def test_an_error_beside_the_filling_waits_for_its_end(
    store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are ended then, and others may have their pids."""
    rules, held = folder.parent / "rules", folder.parent / "held"
    rules.write_text(f"restore.fill hold {held}\n")
    monkeypatch.setenv("GCR_FAULTS", str(rules))
    with opening("one", opens(store)) as opened:
        opened.bring(folder)
        opened.await_brought()
        letting_go = Timer(0.2, held.unlink)
        with pytest.raises(KeyError), opened.filling():
            until(held.exists, 20, "the child is about to write")
            letting_go.start()
            raise KeyError
        assert not held.exists()


def test_an_image_that_comes_later_is_opened_once_it_is_there(store: Path, folder: Path) -> None:
    def come() -> None:
        imaged(Store(store), "two", folder_of(folder.parent / "later", {"core-7.img": b"two"}))

    with opening("two", opens(store), until_there=come) as opened:
        opened.bring(folder)
        opened.await_brought()
    assert (folder / "core-7.img").read_bytes() == b"two"


def test_a_child_ends_where_the_image_does_not_come(store: Path) -> None:
    def stay_away() -> None:
        assert alive()
        raise KeyError

    with pytest.raises(KeyError), opening("two", opens(store), until_there=stay_away):
        pytest.fail("there is no such image")
    until(lambda: not alive(), 20, "the child is gone")


def test_packs_that_were_read_ahead_are_not_read_again(store: Path) -> None:
    """Their chunks are, and compared."""
    ahead = Store(store)
    ahead.packs.read_ahead()
    (pack,) = (store / "packs").glob("*.pack")
    with pack.open("r+b") as file:
        file.truncate(8192)  # its index is gone, and not its first chunk
    with pytest.raises(Damaged), ImageReader(Store(store), "one"):
        pytest.fail("its index was read")
    with ImageReader(ahead, "one") as reader:
        assert bytes(reader.read_files(["core-7.img"])["core-7.img"]) == b"one"
    with pack.open("r+b") as file:
        file.seek(4096)
        file.write(b"!")
    with ImageReader(ahead, "one") as reader, pytest.raises(Damaged):
        reader.read_files(["core-7.img"])
