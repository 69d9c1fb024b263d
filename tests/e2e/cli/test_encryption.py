"""Encrypted stores as a user has them: a key by option, environment or command; without it nothing is said or done."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import CIPHERS, KEY, bytes_of, write

from gcr.image.store.store import Store

from .conftest import Gcr
from .fake_daemon import FakeDaemon

MIB = 1 << 20
READS = (["images"], ["inspect", "warm"], ["verify"], ["rm", "warm"], ["prune", "--keep-last", "0"])


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GCR_STORE", str(home / "store"))
    made = Store(home / "store", CIPHERS["encrypted"])
    write(made, "warm", [bytes_of(1, MIB)])
    return made


@pytest.fixture
def key(home: Path) -> str:
    return kept(home / "key", KEY)


def kept(path: Path, key: bytes) -> str:
    path.write_text(key.hex())
    path.chmod(0o600)
    return str(path)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", READS, ids=lambda words: words[0])
def test_with_the_key_it_is_a_store_like_any_other(gcr: Gcr, store: Store, key: str, words: list[str]) -> None:
    plain = Store(store.path.parent / "plain")
    write(plain, "warm", [bytes_of(1, MIB)])
    by_option = gcr(*words, "--key-file", key)
    assert by_option.code == 0
    if words[0] not in ("rm", "prune"):
        assert gcr(*words, GCR_KEY_FILE=key).out == gcr(*words, "--key-command", f"cat {key}").out == by_option.out
        assert gcr(*words, "--store", str(plain.path)).out == by_option.out
    else:
        assert not store.images.names() and not list(store.packs.folder.iterdir())


@pytest.mark.parametrize("words", READS, ids=lambda words: words[0])
def test_without_it_or_with_another_one_nothing_is_done(
    gcr: Gcr, home: Path, store: Store, key: str, words: list[str]
) -> None:
    other = kept(home / "other", bytes(range(32, 64)))
    before = contents(store.path)
    for flags in ([], ["--key-file", other], ["--key-command", f"cat {other}"]):
        ran = gcr(*words, *flags, "--json")
        assert (ran.code, ran.json["error"]["code"]) == (3, "wrong_key")
    for flags in (["--key-file", str(home / "nothing")], ["--key-command", "false"]):
        ran = gcr(*words, *flags, "--json")
        assert (ran.code, ran.json["error"]["code"]) == (3, "key_unusable")
    assert gcr(*words, "--key-file", key, "--key-command", "true").code == 2
    assert contents(store.path) == before


def test_a_key_for_a_store_that_is_not_encrypted_is_refused_unless_it_is_taken_back(
    gcr: Gcr, home: Path, key: str
) -> None:
    plain = Store(home / "plain")
    write(plain, "warm", [bytes_of(1, MIB)])
    words = ("verify", "--store", str(plain.path))
    assert gcr(*words, "--json", GCR_KEY_FILE=key).json["error"]["code"] == "wrong_key"
    assert gcr(*words, "--key-file", "", GCR_KEY_FILE=key).out == "warm: good\n"


def test_damage_is_damage(gcr: Gcr, store: Store, key: str) -> None:
    (pack,) = store.packs.folder.iterdir()
    data = bytearray(pack.read_bytes())
    data[8192] ^= 1
    pack.write_bytes(data)
    assert gcr("verify", "--key-file", key).code == 0
    ran = gcr("verify", "--deep", "--key-file", key, "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")
    path = store.images.folder / "warm.json"
    path.write_bytes(path.read_bytes()[:-1])
    ran = gcr("restore", "--image", "warm", "--key-file", key, "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")


def test_an_image_goes_elsewhere_and_comes_back_as_it_lies_there(gcr: Gcr, home: Path, store: Store, key: str) -> None:
    away, other = (home / "away").as_uri(), home / "other"
    assert gcr("push", "warm", away, "--key-file", key).code == 0
    ran = gcr("pull", "warm", away, "--store", str(other), "--json")
    assert (ran.code, ran.json["error"]["code"], other.exists()) == (3, "wrong_key", False)
    assert gcr("pull", "warm", away, "--store", str(other), "--key-file", key).code == 0
    assert gcr("verify", "--deep", "--store", str(other), "--key-file", key).out == "warm: good\n"
    pack, *_ = store.packs.folder.iterdir()
    assert (other / "packs" / pack.name).read_bytes() == pack.read_bytes()


def test_the_daemon_is_given_a_descriptor_and_no_key(gcr: Gcr, daemon: FakeDaemon, home: Path, key: str) -> None:
    counter = home / "times"
    command = home / "command"
    command.write_text(f"#!/bin/sh\necho run >> {counter}\ncat {key}\n")
    command.chmod(0o700)
    came: list[list[bytes]] = []
    answer = daemon.answers["checkpoint"]

    def look(body, request):  # type: ignore[no-untyped-def]
        fds = request.take_fds()
        came.append([Path(f"/proc/self/fd/{fd}").read_bytes() for fd in fds])
        return answer(body, request)

    daemon.answers["checkpoint"] = look
    assert gcr("checkpoint", "llm", "--image", "warm", "--key-command", str(command)).code == 0
    assert gcr("checkpoint", "llm", "--image", "warm").code == 0
    assert gcr("checkpoint", "llm", GCR_KEY_FILE=str(home / "nothing")).code == 0, "it is not needed"
    assert came == [[KEY], [], []]
    assert counter.read_text() == "run\n"
    first, *rest = daemon.asked
    assert first["encrypted"] is True and not any("encrypted" in each for each in rest)
    assert KEY.hex() not in repr(daemon.asked)


@pytest.mark.parametrize("command", ["checkpoint", "restore"])
@pytest.mark.parametrize("option", ["--key-file", "--key-command"])
def test_a_key_that_is_not_needed_is_a_mistake(gcr: Gcr, daemon: FakeDaemon, command: str, option: str) -> None:
    assert gcr(command, "llm", option, "cat").code == 2
    assert daemon.asked == []


def test_restoring_from_an_image_asks_for_the_key_once(
    gcr: Gcr, daemon: FakeDaemon, home: Path, store: Store, key: str
) -> None:
    counter, command = home / "times", home / "command"
    command.write_text(f"#!/bin/sh\necho run >> {counter}\ncat {key}\n")
    command.chmod(0o700)
    assert gcr("restore", "--image", "warm", "--key-command", str(command)).code == 0
    assert (daemon.asked[0]["target"], daemon.asked[0]["encrypted"]) == ("llm", True)
    assert counter.read_text() == "run\n"
