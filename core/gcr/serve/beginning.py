"""Restores a model's server from its image, and writes that image.

An error of the image is logged and counted; the model's command starts the server all the same.
"""

import logging

from gcr.errors import GcrError
from gcr.serve.config import ModelConfig
from gcr.serve.metrics import Metrics
from gcr.serve.upstream import Found, Jobs

log = logging.getLogger(__name__)


async def from_image(jobs: Jobs, model: ModelConfig, metrics: Metrics) -> Found | None:
    """Returns the server that came back from its image; None if there is none, or if it did not come back."""
    if model.beginning.image is None:
        return None
    try:
        return await jobs.restored(model)
    except GcrError as error:
        log.warning("%s: its image does not bring it back: %s; its command starts it", model.name, error)
        metrics.failed(model.name, error.code)
        return None


async def to_image(jobs: Jobs, model: ModelConfig, metrics: Metrics) -> None:
    """Has the server saved, before its first request, so that the image holds nothing of a client."""
    if model.beginning.image is None:
        return
    try:
        await jobs.saved(model)
    except GcrError as error:
        log.warning("%s: no image of it was written: %s", model.name, error)
        metrics.failed(model.name, error.code)
