"""Machines of which the arena has less room than a job: its checkpoint goes straight to an image."""

from machine import Machine, Victim, kill, until
from stored import store_of

from gcr.image.store.store import Store
from gcr.memory.hostmemory import available_host_bytes

MIB = 1 << 20
SLOT = 2 * MIB
RING = 3 * SLOT  # what the arena has room for, nearly
MOST = 8 * SLOT  # how large a ring can be, since what is available comes and goes
LARGE = "alloc 12 4194304"  # many times as much
MIDDLE = "checkpoint.filled_7"


def room(machine: Machine, nbytes: int) -> None:
    """Limits the arenas of workers that start from here on; kills those that run."""
    machine.extra |= {
        "GCR_CONFIG": str(machine.folder / "config.toml"),
        "GCR_SLOT_BYTES": str(SLOT),
        "GCR_SEGMENT_BYTES": str(SLOT),
        "GCR_PREPARE_ARENA": "false",
    }
    share = (nbytes + SLOT / 2) / available_host_bytes()
    (machine.folder / "config.toml").write_text(f"arena_share = {share:.9f}\n")
    kill(*machine.children("gcr.worker"))


def words(machine: Machine, *flags: str, job: str = "llm") -> tuple[str, ...]:
    return ("checkpoint", job, *machine.where.options, "--image", "warm", "--store", str(store_of(machine)), *flags)


def large(machine: Machine, *lines: str) -> tuple[Victim, str]:
    room(machine, RING)
    job = machine.told("llm", *(lines or (LARGE,)))
    return job, job.ask()


def comes_back(machine: Machine, job: Victim, before: str) -> None:
    """Brings the job back from the image alone, through a ring as well."""
    machine.come_back()
    assert job.ask() == before


def nothing_is_left(machine: Machine) -> None:
    until(lambda: not machine.children("gcr.image_helper") or None, 20, "the helper ends")
    store = Store(store_of(machine))
    assert (store.images.names(), list(store.packs.folder.iterdir())) == ([], [])
    assert not [
        path.name for path in store.images.folder.iterdir() if path.name != "warm.json.new"
    ]  # no process has its claim
