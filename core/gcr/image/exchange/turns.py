"""Turns of answers on a link: few are sent at once, the others wait in the order in which they were asked for.

So a piece arrives early and can be passed on, and not at the same time as all others. An answer that takes long, to a
slow peer, keeps no others from the link.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 8  # a receiver that many nodes send to takes little of each
TURN_S = 2.0  # an answer that takes longer goes on beside the next one


class Turns:
    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn; the block may take longer than it lasts."""
        await self._free.acquire()
        over = [self._free.release]

        def end() -> None:
            if over:
                over.pop()()

        timer = asyncio.get_running_loop().call_later(TURN_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()
