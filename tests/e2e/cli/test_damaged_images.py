"""Damaged images: `gcr images` and `verify` name them, and they hide no other image."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, write

from gcr.image.files.manifest import Manifest, _digest
from gcr.image.files.smallfiles import MOST_MANIFEST
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

from .conftest import DEADLINE, MIB, Gcr


def test_a_damaged_image_hides_no_other(gcr: Gcr, store: Store) -> None:
    for name in ("bad", "good"):
        write(store, name, [bytes_of(1, 4096)])
    path = store.images.folder / "bad.json"
    path.write_text(path.read_text().replace('"job": "llm"', '"job": "lln"'))
    bad, good = gcr("images", "--json").json["images"]
    assert bad["damaged"] and good["damaged"] is None
    assert "DAMAGED" in gcr("images").out
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")
    assert gcr("verify", "good", "--deep").out == "good: good\n"
    assert gcr("prune", "--keep-last", "0").code == 0
    assert store.images.names() == ["bad"]  # what cannot be read is kept


def test_only_a_deep_look_finds_a_flipped_bit_of_a_chunk(gcr: Gcr, store: Store) -> None:
    write(store, "warm", [bytes_of(1, MIB)])
    (pack,) = store.packs.folder.iterdir()
    data = bytearray(pack.read_bytes())
    data[8192] ^= 1
    pack.write_bytes(data)
    assert gcr("verify", "warm").code == 0
    ran = gcr("verify", "warm", "--deep", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (6, "damaged")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def a_link(path: Path) -> None:
    path.symlink_to(path.with_suffix(".aside"))


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * MOST_MANIFEST)


FOREIGN = [os.mkfifo, a_folder, a_socket, a_link, too_large]


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_what_is_no_file_of_ours_is_damage_and_hides_no_other_image(
    gcr: Gcr, store: Store, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["chunks", "hashes", "json", "pack"]
    for number, name in enumerate(["good", *names]):
        write(store, name, [bytes_of(number, 4096)])
    (pack,) = store.images.manifest("pack").packs
    for path in (
        store.packs.folder / f"{pack.id}.pack",
        *(store.images.folder / f"{name}.{name}" for name in names[:3]),
    ):
        path.rename(path.with_suffix(".aside"))
        monkeypatch.chdir(path.parent)
        make(path)
    began = time.monotonic()
    assert [each["image"] for each in gcr("images", "--json").json["images"] if each["damaged"]] == ["json"]
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["message"].rpartition(": ")[2]) == (6, ", ".join(names))
    write(store, "new", [bytes_of(4, 4096)])  # it is built upon nothing of that
    assert gcr("verify", "good", "new", "--deep").code == 0
    assert time.monotonic() - began < DEADLINE / 2


NONSENSE = {
    "created": [1e300, -1.0, float("nan"), float("inf"), "now", None, True],
    "bytes_total": [-1, 1.5, 10**30, "1", None],
    "simulated": ["yes", 1],
    "job": [None, 7, ["llm"], "l\x1b[2Jm", "l\nm"],
    "models": [{"GPU-1": 3}, {"GPU-1": "\x1b]0;x\x07"}, []],
    "timings": [{"stop": float("nan")}, {"stop": "soon"}],
    "chunk_bytes": [0, -1, 1e9],
    "parent": [3],
    "processes": [[3], None],
}


def test_nonsense_with_a_right_digest_is_damage(store: Store) -> None:
    good = write(store, "warm", [bytes_of(1, 4096)]).to_bytes()
    for name, value in [(name, value) for name, values in NONSENSE.items() for value in values]:
        document = json.loads(good)
        document["image"][name] = value
        document["digest"] = _digest(document["image"])
        with pytest.raises(Damaged):
            raise AssertionError(f"{name} {value} {Manifest.from_bytes(json.dumps(document).encode(), 'warm')}")


def test_an_image_that_claims_to_be_huge_is_refused_at_once(gcr: Gcr, store: Store) -> None:
    manifest = write(store, "warm", [bytes_of(1, 4096)])
    document = json.loads(manifest.to_bytes())
    document["image"]["processes"][0]["table"]["handles"][0]["spec"]["size"] = 1 << 60
    document["digest"] = _digest(document["image"])
    (store.images.folder / "warm.json").write_text(json.dumps(document))
    assert gcr("images").code == gcr("inspect", "warm").code == 0
    assert gcr("verify", "--json").json["error"]["code"] == "damaged"


def test_all_that_is_damaged_is_named(gcr: Gcr, store: Store) -> None:
    for number, name in enumerate(("bad", "good", "newer", "worse")):
        write(store, name, [bytes_of(number, 4096)])
    for name in ("bad", "worse"):
        (store.images.folder / f"{name}.chunks").write_bytes(b"")
    newer = store.images.folder / "newer.json"
    newer.write_text(newer.read_text().replace('"format": 1', '"format": 9'))
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["message"].endswith("2 of 3 are damaged: bad, worse")) == (6, True)
    assert gcr("rm", "bad", "worse").code == 0
    ran = gcr("verify", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "wrong_image")
