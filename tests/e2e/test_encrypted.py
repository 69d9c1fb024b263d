"""Images of jobs in an encrypted store: written and restored with the key, by processes that never say it."""

import base64
import re
from pathlib import Path

from machine import Machine, kill, until
from stored import store_of
from worlds import AMD, ASCEND, everywhere

from gcr.image.crypto.ciphers import cipher_of
from gcr.image.store.store import Store

KEY = bytes(range(50, 82))
OTHER = bytes(range(150, 182))


def kept(machine: Machine, name: str, key: bytes) -> tuple[str, str]:
    """The flags that name it."""
    path = machine.folder / name
    path.write_text(key.hex())
    path.chmod(0o600)
    return ("--key-file", str(path))


def image(machine: Machine) -> tuple[str, ...]:
    return ("--image", "warm", "--store", str(store_of(machine)))


@everywhere(slow=[AMD, ASCEND])  # what is encrypted knows no vendor
def test_a_job_comes_back_from_an_encrypted_image(machine: Machine) -> None:
    comes_back(machine)


def test_a_job_comes_back_from_an_encrypted_live_image(machine: Machine) -> None:
    comes_back(machine, "--live")


def comes_back(machine: Machine, *flags: str) -> None:
    job = machine.told("llm", "mixed 30 1000 5000000", "free_some 7", machine.where.handles(5))
    before, key = job.ask(), kept(machine, "key", KEY)
    words = (*machine.where.options, *image(machine), *flags, "--wait", "durable", *key)
    assert machine.gcr("checkpoint", "llm", *words).code == 0
    assert machine.gcr("verify", "--deep", "--store", str(store_of(machine)), *key).code == 0
    assert machine.gcr("restore", *image(machine), *key).body["state"] == "running"
    assert job.ask() == before
    assert Store(store_of(machine), cipher_of(KEY)).images.manifest("warm").source.job == "llm"
    assert not [path for path in store_of(machine).rglob("*") if path.is_file() and b"start_time" in path.read_bytes()]


def test_with_another_key_a_checkpoint_is_refused_before_anything_stops(machine: Machine) -> None:
    job, before = machine.start()
    Store(store_of(machine), cipher_of(KEY))
    for flags in ((), kept(machine, "other", OTHER)):
        gone = machine.gcr("checkpoint", "llm", *image(machine), *flags)
        error = gone.body["error"]
        assert (gone.code, error["code"], error["state"]) == (3, "wrong_key", "running")
    assert "quiesced" not in machine.logs()["gcrd.log"]
    assert job.ask() == before
    assert Store(store_of(machine), cipher_of(KEY)).images.names() == []


def test_with_another_key_or_a_damaged_image_the_job_stays_where_it_is(machine: Machine) -> None:
    job, before = machine.start()
    key = kept(machine, "key", KEY)
    assert machine.gcr("checkpoint", "llm", *image(machine), "--wait", "durable", *key).code == 0
    refused = machine.gcr("restore", *image(machine), *kept(machine, "other", OTHER))
    assert (refused.code, refused.body["error"]["code"]) == (3, "wrong_key")
    (pack,) = (store_of(machine) / "packs").iterdir()
    good = pack.read_bytes()
    pack.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    refused = machine.gcr("restore", *image(machine), *key)
    assert (refused.code, refused.body["error"]["code"]) == (6, "damaged")
    assert machine.settled() == "suspended"
    pack.write_bytes(good)
    assert machine.gcr("restore", *image(machine), *key).code == 0
    assert job.ask() == before


def test_the_key_is_never_said_and_the_daemon_need_not_live(machine: Machine) -> None:
    machine.told("llm", "alloc 8 4194304")
    machine.inject("image.write hold " + str(machine.folder / "held"))
    assert machine.gcr("checkpoint", "llm", *image(machine), *kept(machine, "key", KEY), "-v").code == 0
    machine.wait_held()
    pids = [machine.daemon(), *machine.children("gcr.image_helper"), *machine.children("gcr.worker")]
    (helper,) = machine.children("gcr.image_helper")
    assert re.search(r"core file size +0 +0 ", Path(f"/proc/{helper}/limits").read_text())
    said = b"".join(Path(f"/proc/{pid}/{what}").read_bytes() for pid in pids for what in ("cmdline", "environ"))
    kill(*machine.children("gcr.daemon"))
    (machine.folder / "held").unlink()
    until(lambda: (store_of(machine) / "images/warm.json").exists() or None, 30, "the image is durable")
    said += "".join(machine.logs().values()).encode()
    assert len(pids) > 2 and b"serves" in said
    assert not [form for form in (KEY, KEY.hex().encode(), base64.b64encode(KEY)) if form in said]
    assert Store(store_of(machine), cipher_of(KEY)).images.manifest("warm").source.job == "llm"


def test_a_helper_that_dies_once_it_has_published_is_believed(machine: Machine) -> None:
    """Another one reads what it wrote: the daemon cannot."""
    machine.told("llm", "alloc 8 4194304")
    machine.inject("image.published die")
    words = (*image(machine), "--wait", "durable", *kept(machine, "key", KEY))
    done = machine.gcr("checkpoint", "llm", *words)
    assert done.code == 0 and done.body["bytes_written"] > 32 << 20
    assert machine.gcr("restore", *image(machine), *kept(machine, "key", KEY)).code == 0
