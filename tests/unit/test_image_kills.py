"""Writers and a cleaner on one store, each killed at a random instant and followed by another."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from imaging import CIPHERS, check, numbered, read, write

from gcr.image.store.store import Store

WRITER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from imaging import CIPHERS, numbered, write
from pathlib import Path
from gcr.image.store.store import Store
store, who = Store(Path(sys.argv[2]), CIPHERS[sys.argv[4]]), sys.argv[3]
print("ready", flush=True)
number = len(store.images.names())
while True:
    write(store, f"{who}-{number}", numbered(number))
    number += 1
    time.sleep(0.02)
"""
HERE = Path(__file__).parent
CLEANER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from imaging import CIPHERS
from gcr.imageerrors import NoSuchImage, StoreBusy
from gcr.image.store.store import Store
store = Store(Path(sys.argv[2]), CIPHERS[sys.argv[4]])
print("ready", flush=True)
while True:
    names = store.images.names()
    try:
        store.remove(names[2:])
        store.clean()
    except (NoSuchImage, StoreBusy):
        pass
"""


def number_of(name: str) -> int:
    return int(name.partition("-")[2])


def kills(folder: Path, count: int, seed: int, cipher: str = "plain") -> None:
    chance, store = random.Random(seed), Store(folder / "store", CIPHERS[cipher])
    write(store, "first-0", numbered(0))
    children = [began(who, folder, cipher) for who in ("a", "b", "cleaner")]
    try:
        for _ in range(count):
            time.sleep(chance.uniform(0.0, 0.2))
            victim = chance.randrange(len(children))
            who, child = children[victim]
            child.kill()
            child.communicate()
            children[victim] = began(who, folder, cipher)
    finally:
        for _, child in children:
            child.kill()
            child.communicate()
    for name in store.images.names():
        check(store, name)
        assert read(store, name) == numbered(number_of(name))
    store.clean(patience=5.0)
    left = {path.name.partition(".")[0] for path in store.packs.folder.iterdir()}
    assert left == {pack.id for name in store.images.names() for pack in store.images.manifest(name).packs}
    write(store, "last-1", numbered(1))


def began(who: str, folder: Path, cipher: str) -> tuple[str, "subprocess.Popen[str]"]:
    code = CLEANER if who == "cleaner" else WRITER
    words = [sys.executable, "-c", code, str(HERE), str(folder / "store"), who, cipher]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout
    child.stdout.readline()  # empty where it ended at once: another of its name may hold the claim still
    return who, child


@pytest.mark.parametrize("cipher", ["encrypted", pytest.param("plain", marks=pytest.mark.slow)])
def test_every_image_is_whole_after_any_kill(tmp_path: Path, cipher: str) -> None:
    kills(tmp_path, 8, 1, cipher)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_any_process_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    kills(tmp_path, 40, seed)
