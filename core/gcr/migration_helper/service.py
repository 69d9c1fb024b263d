"""Takes the one step that the daemon asks for."""

import logging

from gcr.api.answers import Answer
from gcr.api.events import ProgressEvent
from gcr.api.migrations import Abandon, Forget, Look, Offer, Pull, Run, step_of
from gcr.errors import PeerGone, UsageError
from gcr.migration_helper import arriving, looking, offering
from gcr.migration_helper.telling import Tell
from gcr.protocol.channel import Request

log = logging.getLogger("gcr.migration")


def serve(request: Request) -> None:
    """Answers one step."""
    body = request.json()

    def tell(event: ProgressEvent) -> None:
        request.progress(event.to_json())

    try:
        request.reply_json(_taken(body, tell).to_json())
    except PeerGone:
        log.info("the caller has gone before its answer")


def _taken(body: dict[str, object], tell: Tell) -> Answer:
    step, limit = body.get("step"), body.get("limit")
    if not isinstance(step, dict) or not isinstance(limit, float):
        raise UsageError("a step of a migration, and its seconds")
    match step_of(step):
        case Look() as found:
            return looking.looked(found)
        case Offer() as found:
            return offering.offered(found)
        case Pull() as found:
            return arriving.pulled(found, limit, tell)
        case Run() as found:
            return arriving.run(found, limit)
        case Abandon() as found:
            return arriving.abandoned(found)
        case Forget() as found:
            return arriving.forgotten(found)
        case found:
            raise UsageError(f"the daemon takes this step itself: {type(found).__name__}")
