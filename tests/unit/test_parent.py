"""The image that another builds upon, the changes since, and chunks that are added by their names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imaging import bytes_of, write

from gcr.hashing import CHUNK_BYTES, HashKey, hash_bytes
from gcr.image.chunks.chunk import cut, name_of
from gcr.image.chunks.records import Records
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import RECORD_BYTES, References
from gcr.image.remote.pull import pull
from gcr.image.remote.push import push
from gcr.image.remote.transfer import Transfer
from gcr.image.store.images import Images
from gcr.image.store.store import Store
from gcr.image.write.inherited import Allocation
from gcr.image.write.parent import Parent, parent_of
from gcr.image.write.writer import ImageWriter

SIZE = 3 * CHUNK_BYTES + 100
WHO = (7, 8, 3)  # as in imaging.py


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def found(store: Store, who: tuple[int, int, int] = WHO) -> tuple[Parent | None, str | None]:
    with ImageWriter(store, "child") as writer:
        return parent_of(writer, {who})


def test_the_newest_of_the_very_same_process(store: Store) -> None:
    assert found(store) == (None, None)
    data = bytes_of(2, SIZE)
    for number, name in enumerate(("one", "three", "two")):
        write(store, name, [data, bytes(4096)], created=(1.0, 3.0, 2.0)[number])
    parent, refused = found(store)
    assert parent and (parent.name, refused) == ("three", None)
    assert parent.key == store.images.hashes(store.images.manifest("three")).key
    first, second = parent.allocations[7, 1], parent.allocations[7, 2]
    assert (first.size, second.size, len(first.references), len(second.references)) == (SIZE, 4096, 4, 1)
    assert first.digests == hash_bytes(data, parent.key, CHUNK_BYTES)
    assert first.references.names(3, 4) == [name_of(data[-100:])]
    assert parent.baseline(7).digests(1, SIZE) == first.digests
    for other in ((6, 8, 3), (7, 9, 3), (7, 8, 4)):  # pid, start time, and the place of its stack, which exec changes
        assert found(store, other) == (None, None)


@pytest.mark.parametrize("file", ["images/two.hashes", "images/two.chunks", "pack"])
def test_a_damaged_one_is_passed_over(store: Store, file: str) -> None:
    write(store, "one", [bytes_of(1, SIZE)], created=1.0)
    before = {*store.packs.folder.iterdir()}
    write(store, "two", [bytes_of(2, SIZE)], created=2.0)
    (pack,) = {*store.packs.folder.iterdir()} - before
    path = pack if file == "pack" else store.path / file
    data = bytearray(path.read_bytes())
    data[-1 if file != "pack" else -4090] ^= 1  # of a pack: in its footer
    path.write_bytes(data)
    parent, refused = found(store)
    assert parent and parent.name == "one"
    assert refused and "two" in refused


@pytest.mark.parametrize("way", ["pulled", "pushed into this store"])
def test_one_from_elsewhere_is_passed_over(tmp_path: Path, way: str) -> None:
    """Its hashes may be those of other bytes than it has: nothing but their own digest vouches for them."""
    store, evil = Store(tmp_path / "store"), Store(tmp_path / "evil")
    write(store, "one", [bytes_of(1, SIZE)], created=1.0)
    write(evil, "two", [bytes_of(2, SIZE)], created=2.0)
    bring(evil, store, way)
    assert store.images.is_pulled("two") and not store.images.is_pulled("one")
    parent, refused = found(store)
    assert parent and parent.name == "one"
    assert refused and "two" in refused and "elsewhere" in refused


def bring(source: Store, store: Store, way: str) -> None:
    if way == "pulled":
        pull(store.path, "two", source.path.as_uri(), Transfer("pull"))
    else:
        push(source, "two", store.path.as_uri(), Transfer("push"))


def test_one_that_takes_the_name_of_one_from_elsewhere_is_built_upon(tmp_path: Path) -> None:
    """Also where what was removed could not be tidied up at once."""
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    write(other, "two", [bytes_of(2, SIZE)])
    bring(other, store, "pulled")
    with store.used():
        store.remove(["two"])
        assert store.images.is_pulled("two")
        write(store, "two", [bytes_of(3, SIZE)])
    parent, refused = found(store)
    assert parent and (parent.name, refused) == ("two", None)
    store.remove(["two"])
    bring(other, store, "pulled")
    store.remove(["two"])
    assert list(store.images.folder.iterdir()) == []


def test_one_that_goes_while_it_is_read_is_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "one", [bytes_of(1, SIZE)], created=1.0)
    write(store, "two", [bytes_of(2, SIZE)], created=2.0)
    real = Images.references

    def references(self: Images, manifest: Manifest) -> References:
        if manifest.name == "two" and (store.images.folder / "two.json").exists():
            store.remove(["two"])
            (store.images.folder / "two.chunks").unlink()
        return real(self, manifest)

    monkeypatch.setattr(Images, "references", references)
    parent, refused = found(store)
    assert parent and parent.name == "one"
    assert refused and "removed just now" in refused


def test_one_of_other_chunks_is_passed_over(store: Store) -> None:
    write(store, "one", [bytes_of(1, SIZE)])
    with ImageWriter(store, "child", chunk_bytes=2 * CHUNK_BYTES) as writer:
        parent, refused = parent_of(writer, {WHO})
    assert parent is None and refused and "chunks of" in refused


@given(
    st.dictionaries(st.integers(1, 4), st.tuples(st.integers(1, 3 * CHUNK_BYTES), st.integers(0, 2)), max_size=4),
    st.dictionaries(st.integers(1, 4), st.tuples(st.integers(1, 3 * CHUNK_BYTES), st.integers(0, 2)), max_size=4),
)
def test_what_has_changed_is_what_was_not_at_the_same_place(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> None:
    def names(size: int, seed: int) -> list[bytes]:
        return [f"{length:10} {seed if at else 0:21}".encode() for at, length in cut(size)]

    def records(size: int, seed: int, place: int) -> Records:
        return Records(b"".join(name + bytes([place] * 8) for name in names(size, seed)), RECORD_BYTES)

    known = {(7, id): Allocation(size, records(size, seed, 1), b"", ()) for id, (size, seed) in before.items()}
    there = {(7, id, at * CHUNK_BYTES): name for id, each in before.items() for at, name in enumerate(names(*each))}
    parent = Parent("one", HashKey(bytes(32)), CHUNK_BYTES, known)
    written = {(7, id): (size, records(size, seed, 2)) for id, (size, seed) in now.items()}
    expected = sum(
        length
        for id, (size, seed) in now.items()
        for (at, length), name in zip(cut(size), names(size, seed), strict=True)
        if there.get((7, id, at)) != name
    )
    assert parent.bytes_changed(written) == expected
