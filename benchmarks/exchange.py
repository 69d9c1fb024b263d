"""Measures how fast nodes get an image from one of them by `gcr exchange` and `gcr pull --from`. Uses no device.

    python benchmarks/exchange.py --nodes 8 --mib 512 --mb-per-s 20 --out FILE

Each node has a store, an exchange and a pull, which are processes of this machine. A token bucket in each bounds what a
node sends and what it receives, and so stands for the node's link. The bound is the image's bytes by the rate: no node
can have the image earlier. `copies`: bytes of packs that the source sent, by those of the image. Connections use TLS,
with a certificate made for the run, unless `--plain`. All processes share the cores: `cpu_s` is what they took, without
their start; `cpu_s_a_gb`: for each GB that arrived. Where cores are too slow for the links, a lower rate with smaller
pieces (`--piece-kib`) has as many pieces as a larger image. `--nodes 1 --mb-per-s 0`: one node's pull. `takers` of
`cpu_s_a_gb` is the part of `taking` that processes of the pull took which take bytes (`--takers`), with their start.
"""

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from image_ways import described

HERE = Path(__file__).resolve()
NAME, TOKEN = "a", "the token of a benchmark"
MIB = 1 << 20
BURST_S = 0.05
LEAST_S = 0.01  # a shorter sleep costs more than it is worth


class Bucket:
    """A link of so many bytes a second, in one direction; of 0: no link at all."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at, self._lock = rate, 0.0, threading.Lock()

    def carry(self, size: int) -> None:
        """Waits until the link has carried so many more bytes."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BURST_S) + size / self._rate
            left = self._free_at - now
        if left > LEAST_S:
            time.sleep(left)


def offer(store: Path, rate: float, files: Sequence[str]) -> None:
    """An exchange alone in this process. Prints its port; at the end of its input, what it sent and took."""
    from gcr.image.exchange.address import server_tls
    from gcr.image.exchange.server import Exchange, Listening
    from gcr.listening import listening

    link = Bucket(rate)

    class Bounded(Exchange):
        def send(self, visit: Any, data: memoryview) -> None:
            link.carry(len(data))
            super().send(visit, data)

    with listening("127.0.0.1", 0, "") as sock:
        tls = server_tls(*map(Path, files)) if files else None
        with Bounded(store, Listening(sock, tls, TOKEN)) as exchange:
            used = cpu_s()
            print(sock.getsockname()[1], flush=True)
            sys.stdin.readline()
        print(json.dumps({"sent": exchange.sent, "cpu_s": cpu_s() - used}), flush=True)


def pull(store: Path, rate: float, files: Sequence[str], ports: Sequence[int], piece: int, takers: int) -> None:
    """A pull alone in this process. It begins after a line of input; prints what it took."""
    from gcr.image.crypto.cipher import PLAIN
    from gcr.image.exchange import coming, giver, lines
    from gcr.image.exchange.address import PeerAddress, Trust
    from gcr.image.exchange.pulling import Peers, pull_from_peers
    from gcr.image.remote.transfer import Transfer

    link, real = Bucket(rate), lines.Line.part

    def bounded(line: lines.Line, made: Any, into: memoryview) -> int:
        size = real(line, made, into)
        link.carry(size)
        return size

    coming.LEAST_PIECE = piece
    if rate:
        takers = 0  # the link is bounded in this process
    if takers >= 0:
        giver.LEAST_TO_TAKE, giver.how_many = (0 if takers else sys.maxsize), lambda: max(takers, 2)
    if rate:
        lines.Line.part = bounded  # type: ignore[method-assign]
    addresses = [PeerAddress("127.0.0.1", port, bool(files)) for port in ports]
    peers = Peers(addresses, TOKEN, Trust.of(Path(files[0]) if files else None))
    print("ready", flush=True)
    used = cpu_s()
    sys.stdin.readline()
    moved = pull_from_peers(store, NAME, peers, None, Transfer("pull"), PLAIN)
    at, children = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    takers_cpu_s = children.ru_utime + children.ru_stime
    found = {"at": at, "bytes": moved.bytes_moved, "cpu_s": cpu_s() - used, "takers_cpu_s": takers_cpu_s}
    print(json.dumps(found), flush=True)


def cpu_s() -> float:
    """Returns the seconds of a core that this process took, and its children that have ended."""
    found = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


class Child:
    """A process of the run, spoken to by lines."""

    def __init__(self, stack: ExitStack, *words: str) -> None:
        command = [sys.executable, str(HERE), *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(self._process.communicate)
        stack.callback(self._process.kill)

    def say(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def heard(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of the run has failed")
        return line


def certificate(folder: Path) -> list[str]:
    """Returns the files of a certificate for the loopback address, and of its key."""
    files = [str(folder / "node.pem"), str(folder / "node.key")]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]]
    subprocess.run(words, check=True, capture_output=True)
    Path(files[1]).chmod(0o600)
    return files


def written(store: Path, size: int) -> int:
    """Writes an image of random bytes; returns the bytes of its packs."""
    from gcr.image.store.store import Store
    from gcr.image.write.writer import ImageWriter

    with mmap.mmap(-1, size) as memory:
        for _ in range(0, size, MIB):
            memory.write(os.urandom(MIB))
        with memoryview(memory) as view, ImageWriter(Store(store), NAME) as writer:
            writer.add([(view, ())])
            manifest = writer.commit(lambda contents: described(NAME, contents, 256 << 10))
    return sum(pack.bytes for pack in manifest.packs)


def measured(
    folder: Path, nodes: int, size: int, rate: float, piece: int = MIB, plain: bool = False, takers: int = -1
) -> dict[str, Any]:
    """Returns one distribution of `size` bytes to so many nodes, each with a link of `rate` bytes a second."""
    total, files = written(folder / "source", size), [] if plain else certificate(folder)
    stores = [folder / f"node{number}" for number in range(nodes)]
    common = [
        "--rate",
        str(rate),
        "--piece-kib",
        str(piece >> 10),
        "--takers",
        str(takers),
        *(word for file in files for word in ("--tls", file)),
    ]
    with ExitStack() as stack:
        offers = [Child(stack, "offer", "--store", str(path), *common) for path in (folder / "source", *stores)]
        ports = [word for each in offers for word in ("--port", each.heard().strip())]
        pulls = [Child(stack, "pull", "--store", str(path), *common, *ports) for path in stores]
        for each in pulls:
            each.heard()
        began = time.monotonic()
        for each in pulls:
            each.say()
        ends = [json.loads(each.heard()) for each in pulls]
        for each in offers:
            each.say()
        sent = [json.loads(each.heard()) for each in offers]
    took, bound = max(end["at"] for end in ends) - began, total / rate if rate else 0.0
    return {
        "nodes": nodes,
        "bytes": total,
        "least_piece_bytes": piece,
        "link_bytes_per_s": rate,
        "tls": not plain,
        "takers": takers,
        "seconds": took,
        "seconds_by_node": sorted(end["at"] - began for end in ends),
        "bound_s": bound,
        "of_the_bound": bound / took,
        "copies": sent[0]["sent"] / total,
        "copies_by_node": sorted(each["sent"] / total for each in sent[1:]),
        "cpu_s": sum(each["cpu_s"] for each in (*ends, *sent)),
        "cpu_s_a_gb": {
            "giving": _a_gb(sent, nodes * total),
            "taking": _a_gb(ends, nodes * total),
            "takers": _a_gb(ends, nodes * total, "takers_cpu_s"),
        },
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "date": time.strftime("%F"),
    }


def _a_gb(found: Sequence[dict[str, Any]], size: int, of: str = "cpu_s") -> float:
    """Returns the seconds of a core that these processes took for each GB of `size` bytes."""
    return float(sum(each[of] for each in found)) / size * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("offer", "pull"), help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--mb-per-s", type=float, default=20.0, help="of each link; 0: no links")
    parser.add_argument("--piece-kib", type=int, default=1024, help="the smallest piece; the product's is the default")
    parser.add_argument("--takers", type=int, default=-1, help="processes of a pull that take bytes; -1: as gcr does")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the stores are; the default is among temporary files")
    parser.add_argument("--out", type=Path)
    for hidden in ("--store", "--rate"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--tls", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--port", action="append", type=int, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "offer":
        offer(Path(options.store), float(options.rate), options.tls)
        return
    if options.part == "pull":
        rate, piece = float(options.rate), options.piece_kib << 10
        pull(Path(options.store), rate, options.tls, options.port, piece, options.takers)
        return
    found = []
    size, rate = options.mib * MIB, options.mb_per_s * 1e6
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            piece = options.piece_kib << 10
            found.append(measured(Path(folder), options.nodes, size, rate, piece, options.plain, options.takers))
        print(json.dumps(found[-1], indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
