"""The part of the HTTP process that speaks with the scheduler. It has no device.

`scheduler`: takes a request. It returns the answer, or at once where SGLang waits for none.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin


class TokenizerManager(TokenizerControlMixin):
    def __init__(self, server_args: Any, scheduler: Callable[[Any], Any]) -> None:
        self.server_args, self.scheduler, self.is_pause = server_args, scheduler, False

    async def pause_generation(self, obj: Any) -> None:
        self.is_pause = True
        if obj.mode != "abort":
            self.scheduler(obj)

    async def continue_generation(self, obj: Any) -> None:
        self.is_pause = False
        self.scheduler(obj)
