"""`gcr push` and `gcr pull`: against an S3 server, a process of its own."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if not all(map(importlib.util.find_spec, ("moto", "flask", "obstore"))):
    pytest.skip("moto, an S3 server, or obstore is not installed: pip install '.[test]'", allow_module_level=True)

import obstore
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import CIPHERS, KEY, bytes_of, write

from gcr.image.store.mark import MARK
from gcr.image.store.store import Store
from gcr.testing.machine import until

from .conftest import DEADLINE, Gcr, gcr_command

MIB = 1 << 20
LARGE = 40 * MIB  # several parts, and long enough to be killed in
URL = "s3://bucket/some/prefix"
START_S = 60.0
SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)  # a port that is free when it is taken
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class Server:
    """One for all tests of this module; it keeps objects in memory."""

    def __init__(self, log: Path) -> None:
        command = [sys.executable, "-c", SERVE]
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out)
        assert self._process.stdout
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        until(self._answers, START_S, "the S3 server answers")

    def post(self, path: str, body: bytes = b"") -> None:
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(self.url + path, body, plain, method="POST")
        with _OPENER.open(request, timeout=10):
            pass

    def get(self, path: str) -> bytes:
        with _OPENER.open(self.url + path, timeout=10) as answer:
            found: bytes = answer.read()
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answers(self) -> bool:
        try:
            self.post("/moto-api/reset")
        except OSError:
            return False
        return True


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("s3") / "log")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Empty, and the environment that leads to it; seen as its owner sees it."""
    server.post("/moto-api/reset")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    known = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    made = urllib.request.Request(f"{server.url}/bucket", method="PUT")
    with _OPENER.open(made, timeout=10):
        return S3Store.from_url("s3://bucket")


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GCR_STORE", str(home / "store"))
    return Store(home / "store")


def objects(bucket: S3Store) -> dict[str, int]:
    """But for the mark of a store."""
    found = {each["path"].removeprefix("some/prefix/"): each["size"] for page in obstore.list(bucket) for each in page}
    assert not found or found.pop(MARK) == 0
    return found


def wanted(store: Store, *names: str) -> set[str]:
    """The files of these images."""
    manifests = [store.images.manifest(name) for name in names]
    packs = {f"packs/{pack.id}.pack" for manifest in manifests for pack in manifest.packs}
    return packs | {f"images/{name}{suffix}" for name in names for suffix in (".json", ".chunks", ".hashes")}


def overwritten(bucket: S3Store, path: str, change: bytes, at: int) -> None:
    path = f"some/prefix/{path}"
    data = bytearray(obstore.get(bucket, path).bytes())
    data[at : at + len(change)] = change
    obstore.put(bucket, path, bytes(data))


def refused(gcr: Gcr, *arguments: str, **env: str) -> tuple[int, str]:
    ran = gcr(*arguments, "--json", **env)
    assert "very-secret" not in ran.out + ran.err
    return ran.code, ran.json["error"]["code"]


def test_a_bucket_is_encrypted_with_one_key_or_with_none(gcr: Gcr, home: Path, store: Store, bucket: S3Store) -> None:
    key = home / "key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    write(store, "plain", [bytes_of(1, MIB)])
    encrypted = Store(home / "encrypted", CIPHERS["encrypted"])
    write(encrypted, "warm", [bytes_of(2, MIB)])
    with_key = ("--store", str(encrypted.path), "--key-file", str(key))
    assert gcr("push", "warm", f"{URL}/one", *with_key).code == gcr("push", "plain", f"{URL}/two").code == 0
    before = names(bucket)
    for words in (("push", "warm", f"{URL}/two", *with_key), ("pull", "plain", f"{URL}/two", *with_key)):
        assert gcr(*words, "--json").json["error"]["code"] == "wrong_key"
    for command, name in (("push", "plain"), ("pull", "warm")):
        assert gcr(command, name, f"{URL}/one", "--json").json["error"]["code"] == "wrong_key"
    assert names(bucket) == before
    assert (store.images.names(), encrypted.images.names()) == (["plain"], ["warm"])
    assert gcr("pull", "warm", f"{URL}/one", "--store", str(home / "third"), "--key-file", str(key)).code == 0
    assert Store(home / "third", CIPHERS["encrypted"]).images.manifest("warm") == encrypted.images.manifest("warm")


def names(bucket: S3Store) -> set[str]:
    return {each["path"] for page in obstore.list(bucket) for each in page}


def test_an_image_goes_to_a_bucket_and_comes_back(gcr: Gcr, store: Store, bucket: S3Store, home: Path) -> None:
    write(store, "one", [bytes_of(1, LARGE)])
    write(store, "warm", [bytes_of(1, LARGE), bytes_of(2, MIB), bytes(MIB)])
    first = gcr("push", "one", URL, "--json").json
    assert (first["packs"], first["packs_moved"]) == (1, 1)
    second = gcr("push", "warm", URL, "--json").json
    assert (second["packs"], second["packs_moved"]) == (2, 1)
    assert second["bytes_moved"] < 2 * MIB < second["bytes"]
    assert set(objects(bucket)) == wanted(store, "one", "warm")
    other = str(home / "other")
    ran = gcr("pull", "warm", URL, "--store", other)
    assert ran.out.startswith("warm: 2 of 2 packs, 41.0 MiB in ")
    assert ran.err.startswith("  pull ")
    assert gcr("verify", "--deep", "--store", other).out == "warm: good\n"
    again = gcr("pull", "warm", URL, "--store", other, "--json").json
    assert (again["packs_moved"], again["bytes_moved"]) == (0, 0)
    assert gcr("pull", "one", URL, "--store", other, "--json").json["packs_moved"] == 0
    assert gcr("push", "warm", URL).out == "warm: all of its bytes were there already\n"


def test_what_is_refused_changes_nothing(gcr: Gcr, store: Store, bucket: S3Store, server: Server, home: Path) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    other = Store(home / "other")
    write(other, "warm", [bytes_of(2, MIB)])
    assert refused(gcr, "push", "cold", URL) == (3, "no_such_image")
    assert refused(gcr, "push", "cold", URL, GCR_STORE=str(home / "nowhere")) == (3, "no_such_image")
    assert refused(gcr, "pull", "cold", URL) == (3, "no_such_image")
    assert refused(gcr, "push", "warm", "https://bucket/prefix") == (2, "usage")
    assert objects(bucket) == {}
    assert gcr("push", "warm", URL).code == 0
    before = objects(bucket)
    for command in ("push", "pull"):
        assert refused(gcr, command, "warm", URL, "--store", str(other.path)) == (3, "image_exists")
        assert refused(gcr, command, "warm", "s3://no-such-bucket/prefix") == (3, "store_unusable")
        with socket.socket() as deaf:  # it has a port, and does not listen
            deaf.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            assert refused(gcr, command, "warm", URL, AWS_ENDPOINT_URL=nobody) == (3, "store_unusable")
    server.post("/moto-api/reset-auth", b"0")
    try:
        for command in ("push", "pull"):
            assert refused(gcr, command, "warm", URL) == (3, "store_unusable")
    finally:
        server.post("/moto-api/reset-auth", b"inf")
    assert objects(bucket) == before
    assert gcr("verify", "--deep", "--store", str(other.path)).out == "warm: good\n"


def test_damage_there_is_found_and_nothing_appears_here(gcr: Gcr, store: Store, bucket: S3Store, home: Path) -> None:
    write(store, "warm", [bytes_of(1, LARGE)])
    gcr("push", "warm", URL)
    other = str(home / "other")
    (pack,) = (path for path in objects(bucket) if path.endswith(".pack"))
    whole = objects(bucket)[pack]
    overwritten(bucket, pack, b"x", 20 * MIB)
    assert refused(gcr, "pull", "warm", URL, "--store", other) == (6, "damaged")
    obstore.put(bucket, f"some/prefix/{pack}", b"cut short")
    assert refused(gcr, "pull", "warm", URL, "--store", other) == (6, "damaged")
    assert gcr("images", "--store", other).out == "no images\n"
    assert gcr("push", "warm", URL, "--json").json["packs_moved"] == 1
    assert objects(bucket)[pack] == whole
    overwritten(bucket, "images/warm.json", b"9", len(b'{\n "format": '))
    assert refused(gcr, "pull", "warm", URL, "--store", other) == (3, "wrong_image")
    obstore.delete(bucket, "some/prefix/images/warm.json")
    assert refused(gcr, "pull", "warm", URL, "--store", other) == (3, "no_such_image")
    assert not list((home / "other/packs").iterdir())


def killed(*arguments: str, when: Callable[[], object]) -> None:
    ran = subprocess.Popen(gcr_command(arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(when, 30, "it is half way")
    ran.kill()
    assert ran.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_push_that_is_killed_half_way_is_made_again(
    gcr: Gcr, store: Store, bucket: S3Store, server: Server, home: Path
) -> None:
    write(store, "one", [bytes_of(1, MIB)])
    write(store, "warm", [bytes_of(1, MIB), bytes_of(2, 2 * LARGE)])
    killed("push", "warm", URL, when=lambda: b"<UploadId>" in server.get("/bucket?uploads"))
    there = objects(bucket)
    assert len(there) < 2 and not any(path.startswith("images") for path in there)
    assert refused(gcr, "pull", "warm", URL, "--store", str(home / "other")) == (3, "no_such_image")
    assert 1 <= gcr("push", "warm", URL, "--json").json["packs_moved"] <= 2 - len(there)  # one may still have arrived
    assert set(objects(bucket)) == wanted(store, "warm")
    assert gcr("pull", "warm", URL, "--store", str(home / "other")).code == 0


@pytest.mark.slow
def test_a_pull_that_is_killed_half_way_is_made_again(gcr: Gcr, store: Store, home: Path) -> None:
    write(store, "one", [bytes_of(1, MIB)])
    write(store, "warm", [bytes_of(1, MIB), bytes_of(2, 2 * LARGE)])
    gcr("push", "warm", URL)
    other = Store(home / "other")

    def half_way() -> bool:
        found = [path.stat() for path in other.packs.folder.glob("*.pack.part")]
        return any(LARGE // 2 < 512 * each.st_blocks < 2 * LARGE for each in found)

    killed("pull", "warm", URL, "--store", str(other.path), when=half_way)
    assert gcr("images", "--store", str(other.path)).out == "no images\n"
    again = gcr("pull", "warm", URL, "--store", str(other.path), "--json").json
    assert 0 < again["bytes_moved"] < again["bytes"] - LARGE // 4
    assert gcr("verify", "warm", "--deep", "--store", str(other.path)).code == 0
    assert wanted(other, "warm") == wanted(store, "warm")


@pytest.mark.slow
def test_one_image_is_pushed_twice_at_once(store: Store, bucket: S3Store, gcr: Gcr, home: Path) -> None:
    write(store, "warm", [bytes_of(1, LARGE)])
    both = [subprocess.Popen(gcr_command(("push", "warm", URL)), stderr=subprocess.PIPE) for _ in range(2)]
    assert [(ran.communicate(timeout=60), ran.returncode)[1] for ran in both] == [0, 0]
    assert set(objects(bucket)) == wanted(store, "warm")
    assert gcr("pull", "warm", URL, "--store", str(home / "other")).code == 0


def test_two_images_of_one_name_are_pushed_at_once(store: Store, bucket: S3Store, gcr: Gcr, home: Path) -> None:
    """One arrives, whole."""
    other = Store(home / "other")
    for number, each in enumerate((store, other)):
        write(each, "warm", [bytes_of(number, LARGE)])
    commands = [("push", "warm", URL, "--store", str(each.path)) for each in (store, other)]
    both = [subprocess.Popen(gcr_command(command), stderr=subprocess.PIPE) for command in commands]
    assert sorted((ran.communicate(timeout=60), ran.returncode)[1] for ran in both) == [0, 3]
    winner = (store, other)[[ran.returncode for ran in both].index(0)]
    assert {path for path in objects(bucket) if not path.startswith("packs")} == {
        "images/warm.json",
        "images/warm.chunks",
        "images/warm.hashes",
    }
    assert gcr("pull", "warm", URL, "--store", str(home / "third")).code == 0
    assert Store(home / "third").images.manifest("warm") == winner.images.manifest("warm")


def test_an_image_is_pulled_while_others_are_removed(gcr: Gcr, store: Store, home: Path) -> None:
    write(store, "warm", [bytes_of(1, LARGE)])
    gcr("push", "warm", URL)
    other = Store(home / "other")
    pull = subprocess.Popen(gcr_command(("pull", "warm", URL, "--store", str(other.path))))
    removed = 0
    while pull.poll() is None or not removed:
        write(other, f"old{removed}", [bytes_of(3 + removed, MIB)])
        assert gcr("prune", "--keep-last", "1", "--store", str(other.path)).code == 0
        removed += 1
    assert (pull.returncode, removed > 0) == (0, True)
    assert gcr("verify", "warm", "--deep", "--store", str(other.path)).code == 0


@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_server_that_never_answers_delays_no_other_command(gcr: Gcr, store: Store, command: str) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        began = time.monotonic()
        assert refused(gcr, command, "warm", URL, "--timeout", "1", **nobody) == (4, "deadline_passed")
        silent.accept()[0].close()
        ran = subprocess.Popen(gcr_command((command, "warm", URL, "--json")), env=os.environ | nobody)
        with silent.accept()[0]:
            ran.send_signal(signal.SIGINT)
            assert ran.wait(DEADLINE) == 130
        assert time.monotonic() - began < DEADLINE / 2
