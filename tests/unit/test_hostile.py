"""A store elsewhere that lies: each lie is a typed error, and the store here stays as it was.

The images are forged by a party that knows the format: each digest is that of the forged bytes.
"""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imaging import bytes_of, check, write
from remotes import pulled, pushed, rewritten

from gcr.errors import GcrError
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN
from gcr.image.files.references import RECORD_BYTES
from gcr.image.pack import format as packs
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

DATA = [bytes_of(1, CHUNK_BYTES + 5000), bytes_of(2, 9000), bytes(CHUNK_BYTES)]
ROOM = 1 << 30  # bytes of address space that a pull may take beyond what the test has
Attack = Callable[[Path], object]


@pytest.fixture
def away(tmp_path: Path) -> Path:
    made, folder = Store(tmp_path / "made"), tmp_path / "away"
    write(made, "warm", DATA)
    pushed(made, folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Returns the store that pulls; it has an image."""
    made = Store(tmp_path / "here")
    write(made, "mine", [bytes_of(3, 9000)])
    return made


def image(change: Callable[[dict[str, Any]], object]) -> Attack:
    return lambda away: rewritten(away / "images/warm.json", PLAIN, change)


def table(change: Callable[[dict[str, Any]], object]) -> Attack:
    return image(lambda body: change(body["processes"][0]["table"]))


def references(change: Callable[[bytearray], object]) -> Attack:
    def attack(away: Path) -> None:
        path = away / "images/warm.chunks"
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)
        image(lambda body: body.update(chunks=name_of(bytes(data)).hex()))(away)

    return attack


def instead_of(pattern: str, make: Callable[[Path], object]) -> Attack:
    def attack(away: Path) -> None:
        (path,) = away.glob(pattern)
        path.unlink()
        make(path)

    return attack


def enormous(away: Path) -> None:
    """Sparse files stand for what a server sends without end."""
    last = {"spec": {"id": 99, "size": 1 << 54}, "offset": 1 << 40}
    table(
        lambda body: body["handles"].append(
            {**body["handles"][0], **last, "spec": {**body["handles"][0]["spec"], **last["spec"]}}
        )
    )(away)
    for kind in ("chunks", "hashes"):
        os.truncate(away / f"images/warm.{kind}", (1 << 54) // CHUNK_BYTES * RECORD_BYTES)


def index_without_end(away: Path) -> None:
    """A pack that is nothing but an index."""
    (path,) = away.glob("packs/*.pack")
    count = (1 << 36) // 40
    size = BLOCK + -(-count * 40 // BLOCK) * BLOCK + BLOCK
    facts = packs.FACTS.pack(packs.FOOTER_MAGIC, 1, count, BLOCK) + bytes(32)
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(size - BLOCK)
        file.write((facts + name_of(facts)).ljust(BLOCK, b"\0"))
    image(lambda body: body["packs"][0].update(seal=name_of(facts).hex(), bytes=size))(away)


def many_packs(away: Path) -> None:
    """They are not there."""
    image(lambda body: body["packs"].extend({**body["packs"][0], "id": f"{i:032x}"} for i in range(20_000)))(away)


def into(data: bytearray, at: int, number: int) -> None:
    data[at : at + 4] = number.to_bytes(4, "little")


ATTACKS: dict[str, Attack] = {
    "a negative offset": table(lambda body: body["handles"][0].update(offset=-4096)),
    "allocations that overlap": table(lambda body: body["handles"][1].update(offset=4096)),
    "an allocation of a negative size": table(lambda body: body["handles"][0]["spec"].update(size=-1)),
    "an allocation as large as no memory": table(lambda body: body["handles"][2]["spec"].update(size=1 << 62)),
    "all of it enormous": enormous,
    "a pack that is not there": references(lambda data: into(data, 32, 99)),
    "a block that is not there": references(lambda data: into(data, 36, 1 << 30)),
    "a chunk of another name": references(lambda data: data.__setitem__(slice(0, 32), bytes(32))),
    "bytes that are called zeros": references(lambda data: into(data, 32, 0xFFFFFFFF)),
    "two chunks in one place": references(lambda data: data.__setitem__(slice(0, 40), data[40:80])),
    "an index without end": index_without_end,
    "very many packs": many_packs,
    "a name in another folder": image(lambda body: body.update(name="../../warm")),
    "an absolute name": image(lambda body: body.update(name="/tmp/warm")),
    "a pack in another folder": image(lambda body: body["packs"][0].update(id="../" * 10 + "a" * 2)),
    "a pack longer than declared": image(lambda body: body["packs"][0].update(bytes=2 * BLOCK)),
    "a pack shorter than declared": image(lambda body: body["packs"][0].update(bytes=1 << 50)),
    "deep nesting": lambda away: (away / "images/warm.json").write_bytes(b"[" * 1_000_000),
    **{
        f"{kind} instead of {pattern}": instead_of(pattern, make)
        for pattern in ("images/warm.json", "images/warm.chunks", "packs/*.pack")
        for kind, make in {
            "a pipe": os.mkfifo,
            "a folder": Path.mkdir,
            "a link to all memory": lambda path: path.symlink_to("/proc/self/mem"),
            "a link to no end of zeros": lambda path: path.symlink_to("/dev/zero"),
            "a link to itself": lambda path: path.symlink_to(path),
        }.items()
    },
}


def outside(root: Path, store: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all that is not in the store; of packs a test itself changes some."""
    found = (path for path in root.rglob("*") if not path.is_relative_to(store) and path.suffix != ".pack")
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in found)


def is_refused(store: Store, away: Path) -> GcrError:
    before = outside(store.path.parent, store.path)
    limits, used = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used * resource.getpagesize() + ROOM, limits[1]))
    try:
        with pytest.raises(GcrError) as refused:
            pulled(store, away)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert store.images.names() == ["mine"]
    check(store, "mine")
    assert outside(store.path.parent, store.path) == before
    return refused.value


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(store: Store, away: Path, name: str) -> None:
    ATTACKS[name](away)
    assert isinstance(is_refused(store, away), Damaged)


def test_a_pack_that_changes_between_two_reads_is_refused(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was right when it was looked at."""
    from gcr.image.remote.remote import Remote

    real = Remote.part

    def part(self: Remote, path: str, at: int, size: int) -> memoryview:
        found = real(self, path, at, size)
        (away / path).write_bytes(bytes((away / path).stat().st_size))
        return found

    monkeypatch.setattr(Remote, "part", part)
    assert isinstance(is_refused(store, away), Damaged)


LEAVES = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


def places(body: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the places at which a value can be put into an image's JSON."""
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_with_anything_in_it_is_refused_or_whole(store: Store, away: Path, data: st.DataObject) -> None:
    """With any value in it, an image that was pulled can be verified."""
    path = away / "images/warm.json"
    before = path.read_bytes()
    at = data.draw(st.sampled_from(places(json.loads(before)["image"])[1:]))

    def change(body: Any) -> None:
        for key in at[:-1]:
            body = body[key]
        body[at[-1]] = data.draw(LEAVES)

    try:
        rewritten(path, PLAIN, change)
        pulled(store, away)
    except GcrError:
        assert store.images.names() == ["mine"]
    else:
        check(store, "warm")
        store.remove(["warm"])
    finally:
        path.write_bytes(before)
