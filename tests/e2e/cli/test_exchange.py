"""`gcr exchange` and `gcr pull --from`: processes, TLS, tokens, and pulls that are killed."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

if not importlib.util.find_spec("cryptography"):
    pytest.skip("a library of the exchange is not installed: pip install '.[test]'", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[2] / "unit/exchange"))

from certificates import certificate
from imaging import bytes_of, check, read, write

from gcr import background
from gcr.image.store.store import Store

from .conftest import DEADLINE, Gcr, gcr_command

MIB = 1 << 20
DATA = [bytes_of(number, 4 * MIB) for number in range(8)]


@pytest.fixture
def token(home: Path) -> Path:
    path = home / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path


@contextmanager
def exchange(store: Path, token: Path, *more: str) -> Iterator[str]:
    """Runs `gcr exchange` within the block; yields its address."""
    words = ["exchange", "--listen", "127.0.0.1:0", "--store", str(store), "--token-file", str(token), *more]
    with subprocess.Popen(gcr_command(words), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            line = process.stderr.readline()
            assert line.startswith(f"gcr: offering {store} at "), line
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0


def pull_words(token: Path, store: Path, addresses: Sequence[str], *more: str) -> list[str]:
    sources = [word for address in addresses for word in ("--from", address)]
    return ["pull", "warm", *sources, "--token-file", str(token), "--store", str(store), *more]


def test_an_image_goes_from_node_to_node_over_tls(store: Store, home: Path, token: Path, gcr: Gcr) -> None:
    pem, key = certificate(home)
    write(store, "warm", DATA)
    with exchange(store.path, token, "--tls-cert", str(pem), "--tls-key", str(key)) as address:
        assert address.startswith("tls://127.0.0.1:")
        ran = gcr(*pull_words(token, home / "other", [address], "--tls-ca", str(pem), "--json"))
        assert ran.code == 0, ran.err
        found = ran.json
        assert found["url"] is None and found["bytes_moved"] > 32 * MIB
        assert found["peers"] == [{"peer": address, "bytes": found["bytes_moved"], "wrong": False}]
        again = gcr(*pull_words(token, home / "other", [address], "--tls-ca", str(pem)))
        assert (again.code, again.out) == (0, "warm: all of its bytes were there already\n")
        refused = gcr(*pull_words(token, home / "third", [address]))
        assert refused.code == 3 and "--tls-ca" in refused.err
    assert read(Store(home / "other"), "warm") == DATA


def test_the_command_says_where_it_listens_as_json(store: Store, token: Path) -> None:
    import json

    import jsonschema

    from gcr import schemas

    words = ["exchange", "--listen", "[::1]:0", "--token-file", str(token), "--json"]
    with subprocess.Popen(gcr_command(words), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    jsonschema.Draft202012Validator(schemas.load("exchange")).validate(found)
    assert found["url"].startswith("tcp://[::1]:") and found["store"] == str(store.path)


def test_one_goes_on_in_the_background_and_its_note_says_where(store: Store, home: Path, token: Path, gcr: Gcr) -> None:
    note = home / "note"
    words = ["exchange", "--listen", "127.0.0.1:0", "--token-file", str(token), "--detach", "--note", str(note)]
    began = gcr(*words, "--json")
    assert began.code == 0, began.err
    found = began.json
    assert background.found(note) == background.Note(found["pid"], found["url"])
    again = gcr(*words, "--json")
    assert (again.code, again.json["error"]["code"]) == (3, "port_in_use")
    assert str(found["pid"]) in again.json["error"]["message"]
    write(store, "warm", DATA[:1])
    assert gcr(*pull_words(token, home / "other", [found["url"]])).code == 0
    assert background.end(note, DEADLINE) and background.found(note) is None
    taken = gcr(*words[:-1], str(home), "--json")
    assert (taken.code, taken.json["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exchange", "--listen", "0.0.0.0:0"], "there is no TLS"),
        (["exchange", "--listen", "[::]:0"], "there is no TLS"),
        (["exchange", "--listen", "node7:1"], "is no IP address"),
        (["exchange", "--listen", "127.0.0.1:0", "--tls-cert", "x"], "go together"),
        (["exchange", "--listen", "127.0.0.1:0"], "--token-file"),
        (["pull", "warm"], "from a URL, or from nodes"),
        (["pull", "warm", "--from", "node7:7443"], "is no address of a peer"),
        (["pull", "warm", "--from", "tcp://node7:7443"], "by TLS"),
        (["pull", "warm", "--from", "tls://node7:7443"], "--token-file"),
        (["pull", "warm", "--from", "cluster", "--from", "tls://node7:7443"], "stands alone"),
        (["pull", "warm", "--from", "cluster", "--token-file", "x"], "stands alone"),
    ],
)
def test_command_lines_that_cannot_be_meant_are_refused(gcr: Gcr, words: list[str], said: str) -> None:
    ran = gcr(*words)
    assert ran.code == 2 and said in ran.err


def test_a_token_that_others_can_read_is_refused(gcr: Gcr, token: Path) -> None:
    token.chmod(0o644)
    ran = gcr("exchange", "--listen", "127.0.0.1:0", "--token-file", str(token))
    assert ran.code == 2 and "others can reach" in ran.err


def test_an_address_that_is_taken_is_refused(gcr: Gcr, store: Store, token: Path) -> None:
    with exchange(store.path, token) as address:
        place = address.removeprefix("tcp://")
        ran = gcr("exchange", "--listen", place, "--token-file", str(token), "--json")
        assert ran.code == 3 and ran.json["error"]["code"] == "port_in_use"


def test_a_wrong_token_has_an_error_code_of_its_own(gcr: Gcr, store: Store, home: Path, token: Path) -> None:
    write(store, "warm", DATA[:1])
    wrong = home / "wrong"
    wrong.write_text("another")
    wrong.chmod(0o600)
    with exchange(store.path, token) as address:
        ran = gcr(*pull_words(wrong, home / "other", [address], "--json"))
    assert ran.code == 3 and ran.json["error"]["code"] == "peer_unusable"
    assert "another" not in ran.out + ran.err
    assert not (home / "other").exists()


def test_pulls_that_are_killed_leave_no_image_and_the_next_goes_on(store: Store, home: Path, token: Path) -> None:
    """The node's own exchange is among the peers: it offers what the pull has already."""
    write(store, "warm", DATA)
    kills = 0
    with exchange(store.path, token) as source, exchange(home / "other", token) as own:
        command = gcr_command(pull_words(token, home / "other", [source, own]))
        for number in range(12):
            with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
                try:
                    code = process.wait(0.1 + 0.03 * number)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    code = None
            if code is not None:
                assert code == 0
                break
            kills += 1
            time.sleep(0.1)  # its child ends with it
            if (home / "other/images").exists():
                names = Store(home / "other").images.names()
                if names:
                    check(Store(home / "other"), "warm")
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stderr
    other = Store(home / "other")
    assert kills and read(other, "warm") == DATA
    check(other, "warm")
    left = {path.name.partition(".")[2] for path in other.packs.folder.iterdir()}
    assert left == {"pack"}


def test_nodes_that_pull_at_once_exchange_pieces_while_they_pull(store: Store, home: Path, token: Path) -> None:
    write(store, "warm", DATA)
    nodes = [home / f"node{number}" for number in range(3)]
    with exchange(store.path, token) as source, exchange(nodes[0], token) as a, exchange(nodes[1], token) as b:
        commands = [gcr_command(pull_words(token, node, [source, a, b])) for node in nodes]
        pulls = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
        for process in pulls:
            _, said = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, said
    for node in nodes:
        check(Store(node), "warm")


def test_what_is_about_nodes_is_refused_without_nodes(token: Path, home: Path, gcr: Gcr) -> None:
    refused = gcr("pull", "warm", f"file://{home}", "--token-file", str(token))
    assert refused.code == 2 and "--from" in refused.err
