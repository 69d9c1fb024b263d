"""Measures the end of a pull that awaits an image, from the image's publication on: its packs go ahead of it.

    python benchmarks/coming_image.py                          # 16 GiB, 60 MiB of them changed, and 400 MiB of files
    python benchmarks/coming_image.py --gb-per-s 1.5           # the source writes no faster than that
    python benchmarks/coming_image.py --mib 16 --part-mib 4    # little to send: what is left are steps in a row

The parents stand in both stores with packs that have no bytes (stopping_image.py). Three processes take part, as in a
migration: one writes the image, one gives (TLS through the loopback address), and one pulls, which waits before the
first byte is written. No device takes part. Prints JSON; times are seconds, `until` counts from the publication.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace
from stopping_image import Job, sparse

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "unit"))

from imaging import bytes_of, described, mapped  # noqa: E402

from gcr.cluster.keys import Keys  # noqa: E402
from gcr.image.crypto.cipher import PLAIN  # noqa: E402
from gcr.image.exchange import giver, server  # noqa: E402
from gcr.image.exchange.address import PeerAddress, Trust, server_tls  # noqa: E402
from gcr.image.exchange.pulling import Peers, Swarming, pull_from_peers  # noqa: E402
from gcr.image.files import ahead  # noqa: E402
from gcr.image.files.imagedfile import ImagedFile  # noqa: E402
from gcr.image.files.manifest import Cut  # noqa: E402
from gcr.image.remote import pull  # noqa: E402
from gcr.image.remote.transfer import Transfer  # noqa: E402
from gcr.image.store.claim import Claim  # noqa: E402
from gcr.image.store.packs import Packs  # noqa: E402
from gcr.image.store.store import Store  # noqa: E402
from gcr.image.write import writer as writing  # noqa: E402
from gcr.image.write.parent import parent_of  # noqa: E402
from gcr.image.write.rate import Rate  # noqa: E402
from gcr.image.write.writer import ImageWriter  # noqa: E402
from gcr.image_helper.lent import Lent  # noqa: E402

MIB, CHUNK = 1 << 20, 256 << 10
FILE = 32 << 20  # bytes of one of the new files
NAME, BEFORE = "last", ("r2", "r1", "r0")  # the images of the rounds, as stopping_image.py names them
WAITING_S = 1.0  # that the pull waits before the first byte is written
TOKEN = "a token of this benchmark alone"
PARTS = (  # of a pull: the functions that end them
    ("awaited", Swarming, "await_image"),
    ("manifest", Swarming, "manifest"),
    ("small files", Swarming, "small"),
    ("packs", Swarming, "bring"),
    ("places", pull, "_refuse_misplaced"),
    ("references", Claim, "write_references"),
    ("hashes", Claim, "write_hashes"),
    ("published", Claim, "publish"),
)


@contextmanager
def patched(of: Any, name: str, told: Callable[..., object]) -> Iterator[None]:
    """Has `told` called with the arguments of a function each time that it has returned."""
    before = getattr(of, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        found = before(*given, **named)
        told(*given)
        return found

    setattr(of, name, wrapped)
    try:
        yield
    finally:
        setattr(of, name, before)


def write(path: Path, job: Job, given: argparse.Namespace, line: Connection) -> None:
    """Writes an image each time that it is told to, once it has read the parent. Tells when what was done."""
    writing.AHEAD_BYTES = given.part_mib * MIB
    store, noise = Store(path), bytes_of(5, FILE)
    files = [mapped(noise) for _ in range(0, given.mib * MIB, FILE)]
    files[-1:] = [files[-1][: (given.mib * MIB - 1) % FILE + 1]]
    while (turn := line.recv()) is not None:
        for number, memory in enumerate(files):
            for at in range(0, len(memory), CHUNK):
                memory[at : at + 12] = bytes_of(turn << 32 | number << 16 | at // CHUNK, 12)
        line.send(written(store, job, files, Rate(given.gb_per_s * 1e9 or None), given.pause_s, line))


def written(
    store: Store, job: Job, files: Sequence[memoryview], rate: Rate, pause_s: float, line: Connection
) -> dict[str, Any]:
    lent, fds, noted = Lent(), job.lent(), list[float]()
    named = [ImagedFile(f"pages-{number}.img", len(each)) for number, each in enumerate(files)]
    plain = described(NAME, job.sizes, created=99.0)
    with ImageWriter(store, NAME, threads=8, rate=rate) as writer:
        parent, refused = parent_of(writer, {(7, 8, 3)})
        assert parent, refused
        writer.key = parent.key
        lent.take(7, fds, True)
        line.send("ready")
        line.recv()
        with patched(ahead, "note", lambda *_: noted.append(time.monotonic())):
            ends = {"began": time.monotonic()}
            writer.add(lent.additions(parent))
            writer.send_ahead()
            ends["memory"] = time.monotonic()
            writer.add_files(zip(named, files, strict=True))
            if pause_s:
                writer.send_ahead()
                time.sleep(pause_s)
            ends["files"] = time.monotonic()
            writer.commit(lambda made: replace(plain(made), files=tuple(named), cut=Cut.PROCESS))
            ends["published"] = time.monotonic()
    lent.close()
    return {**ends, "noted": noted}


@contextmanager
def giving(path: Path, keys: Keys, folder: Path) -> Iterator[PeerAddress]:
    """Runs an exchange of the store in a process of its own."""
    files = folder / "cert.pem", folder / "key.pem"
    for file, text in zip(files, (keys.certificate, keys.key), strict=True):
        file.touch(mode=0o600)
        file.write_text(text)
    with create_server(("127.0.0.1", 0)) as listening:
        way = server.Listening(listening, server_tls(*files), TOKEN)
        made = get_context("fork").Process(target=server.run, args=(path, way, lambda: None), daemon=True)
        made.start()
        try:
            yield PeerAddress("127.0.0.1", listening.getsockname()[1], True)
        finally:
            made.terminate()
            made.join()


def cores_s() -> float:
    found = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def pulled(target: Store, address: PeerAddress, keys: Keys, line: Connection) -> dict[str, Any]:
    """Pulls one image that is written meanwhile; returns when each part was done."""
    ends, taken, used = dict[str, float](), list[float](), cores_s()
    with ExitStack() as stack:
        for part, of, name in PARTS:
            stack.enter_context(patched(of, name, lambda *_, part=part: ends.update({part: time.monotonic()})))
        stack.enter_context(patched(Packs, "take", lambda *_: taken.append(time.monotonic())))
        peers = Peers([address], TOKEN, Trust(pinned=keys.certificate), wait_s=1.0)
        awaited = (target.path, NAME, peers, None, Transfer("pull", 60), PLAIN, lambda: None, BEFORE)
        thread = stack.enter_context(ThreadPoolExecutor(1))  # as in a migration: the main thread does something else
        moved = thread.submit(pull_from_peers, *awaited)
        time.sleep(WAITING_S)
        line.send("go")
        result = moved.result()
        ended = time.monotonic()
    wrote = line.recv()
    published = wrote["published"]
    assert len(taken) == result.packs - 3, "the parents' packs were there before"
    return {
        "source": {part: wrote[part] - wrote["began"] for part in ("memory", "files", "published")},
        "until": {**{part: at - published for part, at in ends.items()}, "end": ended - published},
        "packs_noted": [at - published for at in wrote["noted"]],
        "packs_here": [at - published for at in sorted(taken)],
        "cores_s": cores_s() - used,
    }


def turns(folder: Path, job: Job, given: argparse.Namespace) -> list[dict[str, Any]]:
    source = Store(folder / "source")
    job.rounds(source, 3)
    shutil.copytree(source.path, folder / "target", copy_function=sparse)
    target, keys, found = Store(folder / "target"), Keys.made(), []
    keys = Keys(token=TOKEN, certificate=keys.certificate, key=keys.key)
    ours, theirs = get_context("fork").Pipe()
    writer = get_context("fork").Process(target=write, args=(source.path, job, given, theirs), daemon=True)
    writer.start()
    theirs.close()
    for turn in range(given.turns + 1):
        ours.send(turn)
        assert ours.recv() == "ready"
        with giving(source.path, keys, folder) as address:
            found.append(pulled(target, address, keys, ours))
        for store in (source, target):
            store.remove([NAME])
        if turn:
            print(json.dumps(rounded(found[-1])), file=sys.stderr)
    ours.send(None)
    writer.join()
    return found[1:]  # the first turn has pages and modules to make that others find


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: rounded(each) for name, each in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return round(found, 4) if isinstance(found, float) else found


def medians(found: Sequence[dict[str, Any]], of: str) -> dict[str, float]:
    return {part: statistics.median(each[of][part] for each in found) for part in found[0][of]}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chunks", type=int, default=1 << 16, help="of 256 KiB; a multiple of 64")
    options.add_argument("--runs", type=int, default=60, help="times 1 MiB that changed")
    options.add_argument("--mib", type=int, default=400, help="of files, all of them new")
    options.add_argument("--part-mib", type=int, default=writing.AHEAD_BYTES // MIB, help="of files, ahead together")
    options.add_argument("--gb-per-s", type=float, default=0.0, help="that the source writes; 0: as fast as it can")
    options.add_argument("--pause-s", type=float, default=0.0, help="between the last pack and the image's other files")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--takers", type=int, help="of the pull; else as gcr does")
    given = options.parse_args()
    if given.takers is not None:
        giver.how_many = lambda: given.takers  # type: ignore[assignment]
    job = Job(given.chunks, given.runs)
    with TemporaryDirectory(dir="/dev/shm") as folder:
        found = turns(Path(folder), job, given)
    answer = {
        **{name: each for name, each in vars(given).items() if name != "turns"},
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "median": {**{of: medians(found, of) for of in ("source", "until")}},
        "cores_s": statistics.median(each["cores_s"] for each in found),
        "turns": found,
    }
    print(json.dumps(rounded(answer), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
