"""The names of a run's steps: step 1000 of the run `train` is the image `train.000000001000`."""

import re
from collections.abc import Iterable, Sequence

RUN = re.compile(r"[a-z][a-z0-9_-]{0,47}\Z")
DIGITS = 12
RECORD = "record"  # the file of a step that says what its other files are
_STEP = re.compile(rf"[0-9]{{{DIGITS}}}\Z")


def image_of(run: str, step: int) -> str:
    """Returns the name of the image of a step."""
    return f"{run}.{step:0{DIGITS}}"


def steps_among(images: Iterable[str], run: str) -> Sequence[int]:
    """Returns the steps of the run, in order, that are among images, which are given by their names."""
    parts = (name.rpartition(".") for name in images)
    return sorted(int(number) for of, _, number in parts if of == run and _STEP.match(number))
