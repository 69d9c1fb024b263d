"""A crew: ranks that run freely, each a process at its own pace, and tell how far they are in memory that all map.

The parent answers lines. `?`: the step in which each lane, a thread of a rank, last looked at every word of its data,
or `wrong …`. `hold RANK`: that rank stays in its own code until `go`. `end`: all ranks end behind one step, look at
every word again, and must end well: `all right`.
"""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from dialogue import note, say

PAGE = 4096
WRONG = 1 << 63
HELD, LAST = PAGE // 8 - 1, PAGE // 8 - 2  # words of the page: 1 + the rank that is held; the step behind which all end
REST = 0.001
SPARE = 64  # steps that no lane takes while the parent decides where all end
ENDING_SECONDS = 60.0


class Page:
    """What is told: a word for each lane, and what the parent wants. `room`: bytes of the ranks' own behind it."""

    def __init__(self, file: int, room: int) -> None:
        self.memory = mmap.mmap(file, PAGE + room)
        self.words = memoryview(self.memory)[:PAGE].cast("Q")
        self.rest = memoryview(self.memory)[PAGE:]

    def tell(self, lane: int, step: int, right: bool) -> None:
        """What is wrong once stays so."""
        self.words[lane] = self.words[lane] & WRONG | (0 if right else WRONG) | step

    def goes_on(self, rank: int, step: int) -> bool:
        """Tells whether a rank may begin a step. Waits while it is held."""
        while self.words[HELD] == rank + 1:
            time.sleep(REST)
        return not 0 < self.words[LAST] < step


def file_of(room: int, path: str = "") -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if path else os.memfd_create("crew")
    os.ftruncate(file, PAGE + room)
    return file


class Crew:
    """The ranks, as their parent sees them. A rank is `PROGRAM WORDS … FILE RANK`.

    first, path: of a crew that is a part of a larger one: its first rank, and the file that all map
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        ranks: int,
        room: int,
        lanes: int = 1,
        first: int = 0,
        path: str = "",
    ) -> None:
        file = file_of(room, path)
        self.page, self.lanes = Page(file, room), range(first * lanes, (first + ranks) * lanes)
        self.started = [
            subprocess.Popen([sys.executable, program, *words, str(file), str(rank)], pass_fds=[file])
            for rank in range(first, first + ranks)
        ]
        note(" ".join(str(each.pid) for each in self.started))
        while not all(self.told()):
            assert all(each.poll() is None for each in self.started)
            time.sleep(0.01)

    def told(self) -> list[int]:
        return list(self.page.words[self.lanes.start : self.lanes.stop])

    def serve(self) -> None:
        say("ready")
        for line in sys.stdin:
            match line.split():
                case ["hold", rank]:
                    self.page.words[HELD] = 1 + int(rank)
                case ["go"]:
                    self.page.words[HELD] = 0
                case ["end"]:
                    say(self.end())
                    return
            say(answer(self.told()))
        for each in self.started:
            each.kill()

    def end(self) -> str:
        """Ends all ranks behind one step, which another part of a larger crew may have chosen already."""
        self.page.words[LAST] = last = self.page.words[LAST] or max(told & ~WRONG for told in self.told()) + SPARE
        codes = [each.wait(ENDING_SECONDS) for each in self.started]
        said = answer(self.told())
        return said if any(codes) or said != " ".join([str(last)] * len(self.lanes)) else "all right"


def answer(told: Sequence[int]) -> str:
    wrong = [f"lane {lane} in {step & ~WRONG}" for lane, step in enumerate(told) if step & WRONG]
    return f"wrong: {', '.join(wrong)}" if wrong else " ".join(map(str, told))
