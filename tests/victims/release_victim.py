"""A server as SGLang has it: this process speaks with the user and has no device, and a scheduler has it all.

The scheduler's loop is like SGLang's: it reads requests, and calls the driver in between unless it is paused.
"""

import asyncio
import logging
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("sglang_standin")))

from sglang.srt.managers import io_struct
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.plugins import load_plugins
from told import serve

PATIENCE_S = 60
POLL_S = 0.005


class Scheduler:
    def __init__(self, line: Connection) -> None:
        from told_victim import Program

        self.line, self.program, self.is_paused, self.asked = line, Program(), False, 0

    def loop(self) -> None:
        """Ends with the other process."""
        while True:
            if self.line.poll(POLL_S):
                self.process(self.line.recv())
            if not self.is_paused:
                self.program.settle()  # its self-checks

    def process(self, request: Any) -> None:
        match request:
            case io_struct.PauseGenerationReqInput():
                self.is_paused = True
            case io_struct.ContinueGenerationReqInput():
                self.is_paused = False
            case io_struct.FlushCacheReqInput():
                self.program.settle()
                self.line.send(io_struct.FlushCacheReqOutput(success=True))
            case str():
                name, *words = request.split()
                self.line.send(getattr(self, name, None) or getattr(self.program, name)(*map(int, words)))
            case _:
                self.asked += 1
                self.line.send(None)

    @property
    def ping(self) -> str:
        return f"{'paused' if self.is_paused else 'serving'} {self.asked}"


class Front:
    def __init__(self) -> None:
        load_plugins()
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        context.Process(target=run_scheduler, args=(theirs,), daemon=True).start()
        arguments = SimpleNamespace(nnodes=1, use_ray=False, tokenizer_worker_num=1, pp_size=1)
        self.manager = TokenizerManager(arguments, self.send)
        self.loop = asyncio.new_event_loop()

    def send(self, request: Any) -> Any:
        """Sends a request to the scheduler. Returns the answer."""
        self.line.send(request)
        if isinstance(request, io_struct.PauseGenerationReqInput | io_struct.ContinueGenerationReqInput):
            return None
        return self.answer()

    def answer(self) -> Any:
        """Returns the scheduler's next answer, `none` if it does not come."""
        return self.line.recv() if self.line.poll(PATIENCE_S) else "none"

    def waits(self) -> str:
        """Tells whether an answer is due that does not come yet."""
        return str(not self.line.poll(0.3))

    def release(self, *tags: str) -> str:
        return self.done(
            self.manager.release_memory_occupation(io_struct.ReleaseMemoryOccupationReqInput(tags=[*tags]))
        )

    def resume(self, *tags: str) -> str:
        asked = io_struct.ResumeMemoryOccupationReqInput(tags=[*tags])
        return self.done(self.manager.resume_memory_occupation(asked))

    def done(self, asked: Any) -> str:
        try:
            self.loop.run_until_complete(asked)
        except Exception as error:
            return f"{getattr(error, 'code', type(error).__name__)}: {error}"
        return "ok"

    def scheduler(self, *words: object) -> str:
        return str(self.send(" ".join(map(str, words))))

    def later(self, word: str) -> str:
        """Asks the scheduler, whose answer `answer` returns."""
        self.line.send(word)
        return "ok"


def run_scheduler(line: Connection) -> None:
    load_plugins()
    try:
        Scheduler(line).loop()
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    serve(Front())
