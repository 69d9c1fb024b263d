"""Jobs that are parked: they leave their device in place by CRIU, and their processes end until the restore."""

from pathlib import Path

import jsonschema
from machine import Machine

from gcr import schemas

WORKER = 16 << 20  # bytes on the device: a worker of gcr's stays warm


def park(machine: Machine) -> dict[str, object]:
    """The job is suspended as a whole: nothing is on its device, and no process of it is left."""
    gone = machine.gcr("checkpoint", "llm")
    assert gone.code == 0, (gone.body, gone.stderr)
    jsonschema.Draft202012Validator(schemas.load("checkpoint")).validate(gone.body)
    assert (gone.body["state"], gone.body["vram_after_bytes"]) == ("suspended", 0)
    assert "image" not in gone.body
    return gone.body


def places(machine: Machine) -> list[Path]:
    """Returns the private places of this machine's jobs: others' tests have theirs in the same folder."""
    ids = {path.name.split(".")[1] for path in (machine.folder / "state/gcr/jobs").glob("llm.*.json")}
    return [path for each in ids for path in Path("/dev/shm").glob(f"gcr-parked-llm-{each}-*")]
