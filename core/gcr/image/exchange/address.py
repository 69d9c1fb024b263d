"""Addresses of exchanges, and TLS on both ends.

tls://HOST:PORT     a network; the certificate must be one for HOST, of an authority that is trusted
tcp://HOST:PORT     without TLS, on a loopback address alone
"""

import ipaddress
import ssl
import stat
from functools import cached_property
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct

from gcr.errors import UsageError
from gcr.image.exchange.wire import PORT

_LEAST_TLS = ssl.TLSVersion.TLSv1_3  # both ends are gcr's
_EXAMPLE = f"such as tls://node7:{PORT}"


class PeerAddress(Struct, frozen=True):
    """The address of a peer's exchange."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Raises UsageError for another address, and for one without TLS that is not this machine's own."""
        try:
            url = urlsplit(text)
            host, port = url.hostname or "", url.port or PORT
        except ValueError as error:
            raise UsageError(f"--from {text!r} is no address of a peer: {error}", hint=_EXAMPLE) from error
        if url.scheme not in ("tls", "tcp") or not host or url.path.strip("/") or url.query or "@" in url.netloc:
            raise UsageError(f"--from {text!r} is no address of a peer", hint=_EXAMPLE)
        if url.scheme == "tcp" and not is_loopback(host):
            raise UsageError(f"--from {text}: a peer on a network is reached by TLS", hint=f"tls://{url.netloc}")
        return cls(host, port, url.scheme == "tls")

    @property
    def base(self) -> str:
        """Returns the beginning of a URL."""
        return f"{'https' if self.tls else 'http'}://{self.place}"

    def __str__(self) -> str:
        return f"{'tls' if self.tls else 'tcp'}://{self.place}"

    @property
    def place(self) -> str:
        """Returns host and port, as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Trust(Struct, frozen=True, dict=True):
    """The certificates that peers may show. `context`: TLS that trusts these alone; raises UsageError.

    authority: the file of an authority, "" for those of the system · pinned: instead, one certificate in PEM
    """

    authority: str = ""
    pinned: str = ""

    @classmethod
    def of(cls, authority: Path | None) -> Self:
        """Returns trust in the authority of a file, whichever folder the process is in later; None: of the system."""
        return cls("" if authority is None else str(authority.absolute()))

    def check(self) -> None:
        """Raises UsageError for what is no certificate."""
        assert self.context

    @cached_property
    def context(self) -> ssl.SSLContext:
        if self.pinned:
            return pinned_tls(self.pinned)
        return client_tls(Path(self.authority) if self.authority else None)


def is_loopback(host: str) -> bool:
    """Returns whether the address is this machine's own; of names only `localhost` is."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raises UsageError for files that cannot be used, and for a key that others can read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _LEAST_TLS
    try:
        if stat.S_IMODE(key.stat().st_mode) & 0o077:
            raise UsageError(f"--tls-key: others can reach {key}", hint=f"chmod 600 {key}")
        context.load_cert_chain(certificate, key, password="")  # else an encrypted key asks at the terminal
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(f"--tls-cert {certificate}, --tls-key {key}: {error}") from error
    return context


def client_tls(authority: Path | None) -> ssl.SSLContext:
    """Returns TLS that trusts certificates of this authority, else those of the system. Raises UsageError."""
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ValueError) as error:
        raise UsageError(f"--tls-ca {authority}: {error}") from error
    context.minimum_version = _LEAST_TLS
    return context


def pinned_tls(certificate: str) -> ssl.SSLContext:
    """Returns TLS that trusts this one certificate alone, at any address (cluster/keys.py).

    certificate: PEM. Raises UsageError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate names no host; without its key no node can show it
    context.minimum_version = _LEAST_TLS
    try:
        context.load_verify_locations(cadata=certificate)
    except (OSError, ValueError) as error:
        raise UsageError(f"this is no certificate of an exchange: {error}") from error
    return context
