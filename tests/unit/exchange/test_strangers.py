"""A stranger on the network gets nothing, and keeps nothing from others."""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import certificate
from imaging import bytes_of, write
from nodes import TOKEN, Running, pulled, running
from remotes import COMMON, contents

from gcr.errors import UsageError
from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange import door, server
from gcr.image.exchange.address import PeerAddress, Trust, client_tls, server_tls
from gcr.image.exchange.wire import IMAGES, LOOK, MARK, PACKS
from gcr.image.store.store import Store
from gcr.testing.machine import until

RIGHT = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    write(found, "warm", [COMMON])
    return found


@pytest.fixture
def node(store: Store) -> Iterator[Running]:
    with running(store.path) as found:
        yield found


def asked(
    node: Running, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: bytes = b""
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", node.address.port, timeout=10)
    try:
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def paths(store: Store) -> list[str]:
    (pack,) = store.packs.folder.iterdir()
    return [MARK, f"{IMAGES}warm.json", f"{IMAGES}none.json", f"{PACKS}{pack.stem}", LOOK, "/", "/1", "/2/mark"]


@pytest.mark.parametrize("token", [None, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN, "ü" * 30])
def test_a_stranger_gets_the_same_answer_for_any_path(store: Store, node: Running, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token.encode().decode("latin-1")}
    for path in paths(store):
        for method in ("GET", "POST", "PUT", "OPTIONS"):
            status, body, shown = asked(node, path, headers, method)
            shown.pop("Date")
            assert (status, body) == (401, b"")
            assert {name: value for name, value in shown.items() if name != "Content-Type"} == {
                "Server": "gcr",
                "WWW-Authenticate": "Bearer",
                "Content-Length": "0",
                "Connection": "close",
            }


def test_what_is_no_request_of_a_node_is_refused(store: Store, node: Running) -> None:
    (pack,) = store.packs.folder.iterdir()
    seal = store.images.manifest("warm").packs[0].seal.hex()
    whole = f"{PACKS}{pack.stem}"
    sealed = {**RIGHT, "If-Match": f'"{seal}"'}
    assert asked(node, whole, {**sealed, "Range": "bytes=0-9"})[:2] == (206, pack.read_bytes()[:10])
    for headers, code in (
        (RIGHT, 400),
        (sealed, 400),
        ({**sealed, "Range": "bytes=9-0"}, 400),
        ({**sealed, "Range": "bytes=0-"}, 400),
        ({**sealed, "Range": f"bytes=0-{10**17}"}, 404),
        ({**sealed, "Range": "bytes=0-9", "If-Match": f'"{"0" * 64}"'}, 404),
        ({**sealed, "Range": "bytes=0-9", "If-Match": '"x"'}, 400),
    ):
        assert asked(node, whole, headers)[:2] == (code, b""), headers
    for path in ("../gcr-store", "warm.json.new", "warm.pulled", "../lock", "warm", "%2e%2e/gcr-store", "x" * 3000):
        assert asked(node, f"{IMAGES}{path}", RIGHT)[0] == 404, path
    for path in ("../images/warm.json", "0" * 32, f"{pack.stem}.pack", "..%2f..%2fetc"):
        assert asked(node, f"{PACKS}{path}", {**sealed, "Range": "bytes=0-9"})[0] == 404, path
    for body in (b"", b"{", b"[]", b'{"packs": 1}', b'{"packs": {"a": {}}}', b" " * (server.MOST_LOOK + 1)):
        assert asked(node, LOOK, RIGHT, "POST", body)[0] == 400, body[:20]
    for body in (b'{"packs": {}}', b'{"packs": {"../x": {"seal": "zz"}}}'):
        assert asked(node, LOOK, RIGHT, "POST", body)[:2] == (200, b'{"packs":{}}')
    assert asked(node, "/1/other", RIGHT)[0] == 404


def test_links_and_pipes_in_the_place_of_files_are_not_followed(store: Store, node: Running, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (store.path / "images/link.json").symlink_to(tmp_path / "secret")
    assert asked(node, f"{IMAGES}link.json", RIGHT)[:2] == (404, b"")


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n", b"GET /1/mark HTTP/1.1\r\nAuthorization: "])
@pytest.mark.parametrize("secret", [False, True], ids=["plain", "tls"])
def test_a_connection_that_shows_no_token_is_closed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, secret: bool
) -> None:
    """One that sends a byte now and then, too."""
    monkeypatch.setattr(door, "GREETING_S", 0.2)
    tls = server_tls(*certificate(tmp_path)) if secret else None
    with (
        running(store.path, tls=tls) as node,
        socket.create_connection(("127.0.0.1", node.address.port), timeout=0.05) as slow,
    ):
        slow.sendall(said)
        began = time.monotonic()
        while not has_ended(slow):
            assert time.monotonic() - began < PATIENCE_S


def has_ended(slow: socket.socket) -> bool:
    try:
        slow.send(b"\x16")
        return slow.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_head_without_an_end_is_refused(store: Store, node: Running) -> None:
    with socket.create_connection(("127.0.0.1", node.address.port), timeout=10) as made:
        made.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4096)
        assert made.recv(1 << 16).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_exchange_that_ends_takes_its_connections_along(store: Store, node: Running) -> None:
    made = http.client.HTTPConnection("127.0.0.1", node.address.port, timeout=10)
    made.request("GET", MARK, headers=RIGHT)
    made.getresponse().read()
    rested = made.sock
    node.end()
    assert rested.recv(100) == b""
    made.close()
    assert [each.name for each in threading.enumerate() if each.name in ("gcr-visit", "gcr-exchange")] == []


def visits() -> bool:
    """Tells whether a connection is served."""
    return any(each.name == "gcr-visit" for each in threading.enumerate())


def test_connections_beyond_the_limit_are_closed(store: Store, node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 0)
    with pytest.raises((http.client.HTTPException, OSError)):
        asked(node, MARK, RIGHT)
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 1)
    assert asked(node, MARK, RIGHT)[0] == 200


def test_an_exchange_outlives_a_moment_without_threads(node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_given: object, **_more: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(server, "Thread", none)
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(node, MARK, RIGHT)
    assert asked(node, MARK, RIGHT)[0] == 200


def test_answers_beyond_the_limit_are_put_off(
    store: Store, node: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pack,) = store.packs.folder.iterdir()
    seal = store.images.manifest("warm").packs[0].seal.hex()
    monkeypatch.setattr(server, "MOST_SENDING", 0)
    headers = {**RIGHT, "If-Match": f'"{seal}"', "Range": "bytes=0-9"}
    assert asked(node, f"{PACKS}{pack.stem}", headers)[:2] == (503, b"")


def test_a_peer_that_takes_nothing_is_given_up(store: Store, node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALLED_S", 0.3)
    manifest = write(store, "large", [bytes_of(3, 16 << 20)])
    pack, seal = store.packs.folder / f"{manifest.packs[0].id}.pack", manifest.packs[0].seal.hex()
    head = f"GET {PACKS}{pack.stem} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f'If-Match: "{seal}"\r\nRange: bytes=0-{pack.stat().st_size - 1}\r\n\r\n'
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", node.address.port))
        lazy.sendall(head.encode())
        until(visits, PATIENCE_S, "it is served")
        until(lambda: not visits(), 8, "it is given up")  # in ten seconds it would be for other reasons
        came = 0
        try:
            while some := lazy.recv(1 << 20):
                came += len(some)
        except ConnectionResetError:
            pass
        assert came < pack.stat().st_size


def test_tls_both_ways(store: Store, tmp_path: Path) -> None:
    mine, another = certificate(tmp_path), certificate(tmp_path, "another")
    elsewhere = certificate(tmp_path, "elsewhere", "127.0.0.2")
    other = Store(tmp_path / "other")
    with running(store.path, tls=server_tls(*mine)) as node:
        with pytest.raises(PeerUnusable, match="certificate"):
            pulled(other, [node], trust=Trust.of(another[0]))
        with pytest.raises(PeerUnusable, match="certificate"):
            pulled(other, [node], trust=Trust())
        with pytest.raises(PeerUnusable, match="no peer answers"):
            pulled(other, [PeerAddress("127.0.0.1", node.address.port, False)])
        pulled(other, [node], trust=Trust.of(mine[0]))
    assert contents(other.path) == contents(store.path)
    with running(store.path, tls=server_tls(*elsewhere)) as node, pytest.raises(PeerUnusable, match="certificate"):
        pulled(Store(tmp_path / "third"), [node], trust=Trust.of(elsewhere[0]))
    with running(store.path) as node, pytest.raises(PeerUnusable):
        pulled(Store(tmp_path / "fourth"), [PeerAddress("127.0.0.1", node.address.port, True)])


def test_no_older_tls_is_spoken(store: Store, tmp_path: Path) -> None:
    with running(store.path, tls=server_tls(*certificate(tmp_path))) as node:
        old = ssl.create_default_context()
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        plain = socket.create_connection(("127.0.0.1", node.address.port), timeout=10)
        with plain, pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(plain)


def test_files_of_tls_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    for files in ((pem, other), (key, key), (pem, tmp_path / "none"), (tmp_path / "none", key)):
        with pytest.raises(UsageError, match="--tls-cert"):
            server_tls(*files)
    key.chmod(0o640)
    with pytest.raises(UsageError, match="others can reach"):
        server_tls(pem, key)
    for path in (tmp_path / "none", key):
        with pytest.raises(UsageError, match="--tls-ca"):
            client_tls(path)
