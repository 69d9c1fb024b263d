"""The exchange of one migration: its store, at a free port, with a token and a certificate of its own.

It is a process of its own, `python -m gcr.migration_helper.offering FD JOB ID HOST`, so that it outlives the daemon and
the step that began it. It tells its address, token and certificate on FD, and ends once the record of the migration is
gone. Nothing secret is on its command line, and the key lies on the disk only while it is read.
"""

import ipaddress
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from msgspec import DecodeError
from msgspec.json import decode, encode

from gcr.api.migrations import Exchange, Offer, Offered
from gcr.cluster.keys import Keys
from gcr.errors import DeadlinePassed, GcrError, UsageError
from gcr.image.exchange import server
from gcr.image.exchange.address import server_tls
from gcr.image.store.location import store_path
from gcr.job.migrations import Migrations
from gcr.listening import listening, url_of
from gcr.protocol.jsonbody import error_from_json, error_to_json
from gcr.rendezvous.launch import start_module
from gcr.runtime import runtime_dir

START_S = 30.0
_LOOK_S = 1.0
_MODULE = "gcr.migration_helper.offering"


def offered(step: Offer) -> Offered:
    """Begins to offer the store. Raises LibraryMissing, PortInUse, DeadlinePassed, UsageError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(theirs.fileno()), step.job, step.id, step.host]
        process = start_module(_MODULE, arguments, os.environ, theirs.fileno(), "migration.log")
        theirs.close()
        ours.settimeout(START_S)
        try:
            said = _all_of(ours)
        except TimeoutError as late:
            process.kill()
            process.wait()
            text = f"the exchange of the migration has not started after {START_S:g} s"
            raise DeadlinePassed(text, hint="gcr daemon logs") from late
    try:
        body = decode(said)
    except DecodeError:
        raise GcrError("the exchange of the migration did not start", hint="gcr daemon logs") from None
    if "error" in body:
        raise error_from_json(body["error"])
    return Offered(exchange=Exchange(**body))


def _all_of(line: socket.socket) -> bytes:
    said = bytearray()
    while data := line.recv(1 << 16):
        said += data
    return bytes(said)


def main(argv: list[str]) -> int:
    line, (job, id, host) = socket.socket(fileno=int(argv[0])), argv[1:]
    try:
        _serve(line, job, id, host)
    except GcrError as error:
        _tell(line, encode({"error": error_to_json(error)}))
        return error.exit
    return 0


def _serve(line: socket.socket, job: str, id: str, host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"{host!r} is no IP address of this node", hint="gcr migrate --host ADDRESS") from None
    keys = Keys.made()
    with tempfile.TemporaryDirectory(dir=runtime_dir(), prefix="migration-") as folder:
        tls = server_tls(_written(folder, "cert.pem", keys.certificate), _written(folder, "key.pem", keys.key))
    with listening(host, 0, "is this an address of this machine?") as sock:
        exchange = Exchange(url_of(sock, "tls"), keys.token, keys.certificate)
        threading.Thread(target=_end_with_record, args=(job, id), daemon=True).start()
        server.run(store_path(), server.Listening(sock, tls, keys.token), lambda: _tell(line, encode(exchange)))


def _written(folder: str, name: str, text: str) -> Path:
    """Writes a file for this user alone. Raises OSError."""
    path = Path(folder) / name
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _tell(line: socket.socket, text: bytes) -> None:
    with line:
        line.sendall(text)


def _end_with_record(job: str, id: str) -> None:
    while True:
        time.sleep(_LOOK_S)
        found = Migrations.here().of(job)
        if found is None or found.id != id:
            os.kill(os.getpid(), signal.SIGTERM)
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
