"""Sources of a store's key: an invalid key is refused by its source's name, and never repeated."""

import base64
import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gcr.api.requests import RestoreRequest
from gcr.daemon.images.order import place_of
from gcr.errors import DeadlinePassed, GcrError, UsageError
from gcr.image.crypto import key as keys
from gcr.image.crypto.key import KeySource, lent_key
from gcr.imageerrors import KeyUnusable

KEY = bytes(range(100, 132))
SECRET = "correct horse battery staple 123"  # 32 characters


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GCR_KEY_FILE", "GCR_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.toml"
    file.touch()  # GCR_CONFIG names a file that is there
    monkeypatch.setenv("GCR_CONFIG", str(file))
    return file


def kept(folder: Path, data: bytes, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def refusal(source: KeySource) -> str:
    with pytest.raises(KeyUnusable) as refused:
        source.key()
    return f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    "written",
    [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", base64.b64encode(KEY), base64.b64encode(KEY) + b"\n"],
)
def test_a_key_is_32_bytes_as_they_are_or_in_text(tmp_path: Path, written: bytes) -> None:
    assert KeySource.chosen(kept(tmp_path, written)).key() == KEY


@pytest.mark.parametrize(
    "written",
    [
        b"",
        KEY[:31],
        KEY + b"\n",
        KEY.hex().encode()[:-1],
        KEY.hex().encode()[:-1] + b"g",
        base64.b64encode(KEY[:31]),
        base64.b64encode(KEY)[:-2] + b"!=",
        SECRET.encode(),
        SECRET.encode() + b"\n",
        bytes(32),
        b"00" * 32,
        b"\x01\x02" * 16,
    ],
)
def test_bytes_that_were_not_drawn_at_random_are_no_key_and_not_repeated(tmp_path: Path, written: bytes) -> None:
    said = refusal(KeySource.chosen(kept(tmp_path, written)))
    assert "openssl rand" in said
    assert not any(part.decode(errors="ignore") in said for part in (written.strip(), written[:8]) if len(part) > 4)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    file = kept(tmp_path, KEY, mode)
    assert f"chmod 600 {file}" in refusal(KeySource.chosen(file))


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(tmp_path, KEY)
    monkeypatch.setattr(os, "getuid", lambda: Path(file).stat().st_uid + 4711)
    if Path(file).stat().st_uid == 0:
        assert KeySource.chosen(file).key() == KEY, "root's is anybody's"
    else:
        assert "belongs to user" in refusal(KeySource.chosen(file))


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    assert "No such file" in refusal(KeySource.chosen(str(tmp_path / "nothing")))
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    assert "directory" in refusal(KeySource.chosen(str(folder)))


def test_a_command_prints_the_key_and_no_shell_sees_it(tmp_path: Path) -> None:
    file = kept(tmp_path, KEY.hex().encode())
    assert KeySource.chosen(None, f"cat '{file}'").key() == KEY
    said = refusal(KeySource.chosen(None, f"cat {file}; touch {tmp_path}/touched"))
    assert "exit code 1" in said
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("false", "false, which should print the key, failed with exit code 1"),
        ("gcr-no-such-program --password secret", "cannot be run: No such file"),
        (f"echo {SECRET}", "no key"),
        ("cat 'unfinished", "does not parse"),
        ("  ", "empty"),
        ("cat", "0 bytes"),  # there is nothing to read from
    ],
)
def test_a_command_that_gives_none(command: str, what: str) -> None:
    said = refusal(KeySource.chosen(None, command))
    assert what in said
    assert "secret" not in said and SECRET not in said


def test_a_command_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "COMMAND_SECONDS", 0.2)
    began = time.monotonic()
    assert "longer than 0.2 s" in refusal(KeySource.chosen(None, "sleep 30"))
    assert time.monotonic() - began < 10


def test_neither_is_waited_for_longer_than_its_caller_has(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for source in (KeySource.chosen(None, "sleep 30", 0.2), KeySource.chosen(str(pipe), None, 0.2)):
        began = time.monotonic()
        with pytest.raises(DeadlinePassed, match=r" 0\.2 s"):
            source.key()
        assert time.monotonic() - began < 10


def test_a_command_whose_child_keeps_its_output_open_is_not_waited_for(tmp_path: Path) -> None:
    """An agent that it started, say. The key is all there when the command has ended."""
    file = kept(tmp_path, KEY.hex().encode())
    began = time.monotonic()
    assert KeySource.chosen(None, f"sh -c 'sleep 30 & cat {file}'").key() == KEY
    assert time.monotonic() - began < 10


def test_a_command_that_prints_without_end_is_cut_off() -> None:
    assert "no key" in refusal(KeySource.chosen(None, "yes"))


def test_a_key_may_come_through_a_pipe_that_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    writer = subprocess.Popen(["sh", "-c", f"sleep 0.5; echo {KEY.hex()} > {pipe}"])
    assert KeySource.chosen(str(pipe)).key() == KEY
    assert writer.wait(10) == 0
    monkeypatch.setattr(keys, "COMMAND_SECONDS", 0.2)
    assert "no key was written" in refusal(KeySource.chosen(str(pipe)))


def test_no_hint_changes_the_mode_of_a_device() -> None:
    assert "chmod" not in refusal(KeySource.chosen("/dev/null"))


def test_options_come_before_settings_and_the_environment_before_the_file(
    tmp_path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KeySource.chosen().key() is None
    settings.write_text('key_command = "from the file"')
    assert KeySource.chosen() == KeySource(command="from the file")
    monkeypatch.setenv("GCR_KEY_COMMAND", "from the environment")
    assert KeySource.chosen() == KeySource(command="from the environment")
    assert KeySource.chosen("file") == KeySource(file="file")
    assert KeySource.chosen("").key() is None
    monkeypatch.setenv("GCR_KEY_FILE", "both")
    for both in ((None, None), ("file", "command")):
        with pytest.raises(UsageError):
            KeySource.chosen(*both)


def test_it_is_read_once_and_not_shown(tmp_path: Path) -> None:
    source = KeySource.chosen(kept(tmp_path, KEY))
    assert source.key() == KEY
    Path(source.file).unlink()
    assert source.key() == KEY
    assert repr(KEY)[2:-1] not in repr(source) and KEY.hex() not in repr(source)


def test_a_key_that_was_lost_on_its_way_is_missed() -> None:
    """Otherwise the image would be written in the clear."""
    request = RestoreRequest(target="llm", store="/store", image="warm")
    sealed = replace(request, encrypted=True)
    assert place_of(request, []).of("warm") == ("/store", False, "warm")
    for asked, fds in ((sealed, []), (request, [3]), (sealed, [3, 4])):
        with pytest.raises(UsageError, match="did not arrive"):
            place_of(asked, fds)


def test_what_is_lent_is_read_by_another_and_gone_then(tmp_path: Path) -> None:
    with KeySource.chosen(kept(tmp_path, KEY)).lent() as fds:
        (fd,) = fds
        assert lent_key(fds, True) == lent_key(fds, True) == KEY
        for change in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 0)):
            with pytest.raises(OSError):
                change()
        with pytest.raises(GcrError):
            lent_key(fds, False)
    with pytest.raises(OSError):
        os.fstat(fd)
    with KeySource().lent() as fds:
        assert lent_key(fds, False) is None
        with pytest.raises(UsageError, match="did not arrive"):
            lent_key(fds, True)
