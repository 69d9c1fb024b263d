"""The exchange of images of this node, as a part of a cluster: its keys on disk, and the process that listens.

The process is `gcr exchange --detach`. A file in the runtime directory names it, so an actor that was made again finds
it. The keys are in the state folder, for the user alone.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from gcr import background
from gcr.cluster.keys import Keys
from gcr.errors import DeadlinePassed
from gcr.library.answers import asked
from gcr.runtime import own_directory, socket_path, state_dir

START_S = 60.0
END_S = 10.0


def token_file() -> Path:
    return _folder() / "token"


def certificate_file() -> Path:
    return _folder() / "exchange.pem"


def key_file() -> Path:
    return _folder() / "exchange.key"


def kept() -> Keys | None:
    """Returns the keys that this node has, None for none. Raises UnsafeRuntime, OSError."""
    try:
        token, certificate, key = (path.read_text() for path in (token_file(), certificate_file(), key_file()))
    except FileNotFoundError:
        return None
    return Keys(token=token, certificate=certificate, key=key)


def keep(keys: Keys) -> None:
    """Writes them to files of mode 0600. Raises UnsafeRuntime, OSError."""
    for path, text in ((token_file(), keys.token), (key_file(), keys.key), (certificate_file(), keys.certificate)):
        new = path.with_name(f"{path.name}.{os.getpid()}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        new.rename(path)


def address() -> str | None:
    """Returns where this node's exchange listens, None where none runs. Raises UnsafeRuntime, OSError."""
    note = background.found(_note_file())
    return note.url if note else None


def begin(keys: Keys, host: str, port: int, environment: Mapping[str, str]) -> str:
    """Returns the address of an exchange that runs with these keys; one with others, or elsewhere, is ended first.

    host, port: an IP address of this node, and 0 for any free port · environment: that of a user of this node
    Raises as `gcr exchange`; DeadlinePassed, UnsafeRuntime, OSError.
    """
    note = background.found(_note_file())
    if note and note.certificate == keys.name and _listens(note.url, host, port) and kept() == keys:
        return note.url
    end()
    keep(keys)
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    files = ["--token-file", str(token_file()), "--tls-cert", str(certificate_file()), "--tls-key", str(key_file())]
    words = ["exchange", "--detach", "--note", str(_note_file()), "--listen", listen, *files]
    return str(asked(words, START_S, environment, "/")["url"])


def end() -> bool:
    """Ends the exchange of this node, and returns whether one ran. Raises DeadlinePassed, UnsafeRuntime, OSError."""
    try:
        return background.end(_note_file(), END_S)
    except TimeoutError as error:
        raise DeadlinePassed(str(error)) from error


def _listens(url: str, host: str, port: int) -> bool:
    place, _, number = url.rpartition("://")[2].rpartition(":")
    return place.strip("[]") == host and port in (0, int(number))


def _folder() -> Path:
    return own_directory(state_dir() / "cluster")


def _note_file() -> Path:
    """Beside the daemon's socket: another daemon of the user is another node."""
    return socket_path().with_suffix(".exchange")
