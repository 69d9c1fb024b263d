"""Images from which servers begin: one for each model, of the instant in which a server of it was first healthy.

The name of an image says for which model, command, environment, folder and options of `gcr run` it is, and for which
version of the program. So a model that was changed gets a new one, and a simulated one is apart from a real one.
"""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from gcr.imageerrors import CannotSave, Damaged, FilesChanged, ImageExists, NoSuchImage, WrongImage
from gcr.library import calls
from gcr.library.answers import asked
from gcr.library.job import Job
from gcr.serve.config import ModelConfig

log = logging.getLogger(__name__)

STALE = (FilesChanged, WrongImage, Damaged)  # no later try would restore such an image
REMOVE_S = 600.0
CLOSING_S = 5.0  # a server closes connections that ended at the other side within
AGAIN_S = 0.2
_DIGITS = 8  # of the digest in a name
_MOST_NAME = 24  # characters of the model's name in it; a name of an image has 63 at most


def image_of(model: ModelConfig, options: Sequence[str]) -> str:
    """Returns the name of the model's image. `options`: of `gcr run`."""
    first = model.surroundings
    environment = sorted((first.environment or {}).items())
    described = [model.name, model.command, model.port, environment, first.folder, list(options)]
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    return f"serve.{model.name[:_MOST_NAME]}.{model.beginning.image}.{digest[:_DIGITS]}"


def restored(model: ModelConfig, options: Sequence[str]) -> bool:
    """Restores the model's server from its image. Returns False where there is none.

    Raises what `gcr restore --image` says. An image that no later try would restore is removed.
    """
    image = image_of(model, options)
    try:
        calls.restore(image, timeout=model.beginning.longest)
    except NoSuchImage:
        return False
    except STALE:
        log.warning("job %s: image %s is removed: it cannot be restored any more", model.name, image)
        with suppress(NoSuchImage):
            asked(["rm", image], REMOVE_S)
        raise
    return True


def saved(model: ModelConfig, options: Sequence[str]) -> None:
    """Writes the model's server to its image, processes and all; it runs on. Does nothing where there is an image.

    Raises what `gcr checkpoint --image` says.
    """
    image, end = image_of(model, options), time.monotonic() + CLOSING_S
    with suppress(ImageExists):
        while True:
            try:
                Job(model.name, None).checkpoint(image=image, processes=True, leave_running=True, wait="durable")
                return
            except CannotSave:  # its server closes the connections of the questions for its health only now
                if time.monotonic() > end:
                    raise
            time.sleep(AGAIN_S)
