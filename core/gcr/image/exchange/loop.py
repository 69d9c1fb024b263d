"""The event loop of an exchange, and of a pull."""

import asyncio
import logging
from typing import Any

import uvloop

log = logging.getLogger(__name__)


def new_loop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_told)
    return loop


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what no caller hears. A connection that the other end has closed is nothing to warn of.

    uvloop 0.23 reports it as a RuntimeError where TLS had bytes to send.
    """
    if "transport" in context and isinstance(context.get("exception"), OSError | RuntimeError):
        log.info("a connection ended: %s", context["exception"])
    else:
        loop.default_exception_handler(context)
