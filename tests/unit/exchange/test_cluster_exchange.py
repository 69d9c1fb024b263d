"""The exchange of a cluster's node: one runs, with the keys of the cluster, and only their holders get anything."""

import importlib.util
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

if not importlib.util.find_spec("cryptography"):
    pytest.skip("a library of the exchange is not installed: pip install '.[test]'", allow_module_level=True)

from imaging import write
from nodes import pulled, running
from remotes import COMMON, contents

from gcr.cluster import exchanges
from gcr.cluster.keys import Keys
from gcr.errors import UsageError
from gcr.exchangeerrors import PeerUnusable
from gcr.image.exchange.address import PeerAddress, Trust, pinned_tls, server_tls
from gcr.image.store.store import Store
from gcr.serveerrors import PortInUse


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("GCR_SOCKET", raising=False)
    monkeypatch.setenv("GCR_STORE", str(tmp_path / "store"))
    yield tmp_path
    exchanges.end()


@pytest.fixture
def cipher() -> None:
    """This module has plain stores alone."""


def begin(keys: Keys, host: str = "127.0.0.1", port: int = 0) -> str:
    return exchanges.begin(keys, host, port, dict(os.environ))


def test_one_exchange_runs_with_the_keys_that_were_given(home: Path) -> None:
    first, second = Keys.made(), Keys.made()
    assert (exchanges.address(), exchanges.kept(), exchanges.end()) == (None, None, False)
    url = begin(first)
    assert url.startswith("tls://127.0.0.1:")
    assert (begin(first), exchanges.address(), exchanges.kept()) == (url, url, first)
    port = int(url.rpartition(":")[2])
    assert begin(first, port=port) == url
    files = [exchanges.token_file(), exchanges.key_file(), exchanges.certificate_file()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {path.name for path in files[0].parent.iterdir()} == {file.name for file in files}, "no half file stays"
    store = Store(home / "store")
    write(store, "warm", [COMMON])
    peer, there = PeerAddress.parsed(url), Store(home / "other")
    with pytest.raises(PeerUnusable, match="does not know the token"):
        pulled(there, [peer], token=second.token, trust=Trust(pinned=first.certificate))
    pulled(there, [peer], token=first.token, trust=Trust(pinned=first.certificate))
    assert contents(there.path) == contents(store.path)
    exchanges.keep(second)  # as another node does in a home that both have
    other = begin(second)
    assert other != url
    assert (exchanges.address(), exchanges.kept()) == (other, second)
    with pytest.raises(PeerUnusable, match="no peer answers"):
        pulled(Store(home / "third"), [peer], token=first.token, trust=Trust(pinned=first.certificate))
    assert exchanges.end() and exchanges.address() is None


def test_an_exchange_that_cannot_listen_says_why_and_none_runs() -> None:
    with pytest.raises(PortInUse, match=r"192\.0\.2\.1"):
        begin(Keys.made(), "192.0.2.1")
    assert exchanges.address() is None


def test_the_certificate_of_a_cluster_is_good_at_any_address_and_no_other_one_is(home: Path) -> None:
    files = []
    for name in ("one", "two"):
        keys = Keys.made()
        pem, key = home / f"{name}.pem", home / f"{name}.key"
        pem.write_text(keys.certificate)
        key.write_text(keys.key)
        key.chmod(0o600)
        files.append((pem, key))
        assert keys.key not in repr(keys) and keys.token not in repr(keys)
    store, other = Store(home / "store"), Store(home / "other")
    write(store, "warm", [COMMON])
    with running(store.path, tls=server_tls(*files[0])) as node:
        for trust in (Trust(pinned=files[1][0].read_text()), Trust.of(files[0][0])):
            with pytest.raises(PeerUnusable, match="certificate"):
                pulled(other, [node], trust=trust)
        pulled(other, [node], trust=Trust(pinned=files[0][0].read_text()))
    assert contents(other.path) == contents(store.path)
    with pytest.raises(UsageError):
        pinned_tls(files[0][1].read_text())
    assert pinned_tls(files[0][0].read_text()).verify_mode is ssl.CERT_REQUIRED
