"""Requests that are answered by a scheduler."""

import asyncio
from typing import Any

from sglang.srt.managers.io_struct import FlushCacheReqInput, FlushCacheReqOutput


class TokenizerControlMixin:
    scheduler: Any

    async def flush_cache(self, timeout_s: float | None = None) -> FlushCacheReqOutput:
        answer: FlushCacheReqOutput = await self._answer(FlushCacheReqInput(timeout_s=timeout_s))
        return answer

    async def release_memory_occupation(self, obj: Any, request: Any = None) -> None:
        await self._answer(obj)

    async def resume_memory_occupation(self, obj: Any, request: Any = None) -> None:
        await self._answer(obj)

    async def _answer(self, obj: Any) -> Any:
        return await asyncio.to_thread(self.scheduler, obj)
