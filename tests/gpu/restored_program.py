"""Works on the device as it is asked, by lines `WORK SECONDS`. Answers the seconds of the work, or the driver's error.

long      one kernel of so many seconds
kernels   short kernels, one after the other, each waited for; answers the longest wait
sets      the same with memory that is set
onto      the same with copies within the device
to        the same with copies to the host and back
trap, assert   a kernel that does so
"""

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "victims"))

from cuda.bindings import driver
from cuda_calls import check, primary_context
from dialogue import say

BYTES = 64 << 20
SHORT_NS = 1000
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 word[6] = {102, 97, 108, 115, 101, 0};

.visible .entry spin(.param .u64 ns) {
  .reg .u64 %begin, %now, %ns;
  .reg .pred %p;
  ld.param.u64 %ns, [ns];
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %p, %now, %ns;
  @%p bra again;
  ret;
}

.visible .entry trap(.param .u64 ns) {
  trap;
  ret;
}

.visible .entry assert(.param .u64 ns) {
  .reg .b64 %text, %size;
  mov.u64 %text, word;
  cvta.global.u64 %text, %text;
  mov.u64 %size, 1;
  {
    .param .b64 a;
    .param .b64 b;
    .param .b32 c;
    .param .b64 d;
    .param .b64 e;
    st.param.b64 [a], %text;
    st.param.b64 [b], %text;
    st.param.b32 [c], 1;
    st.param.b64 [d], %text;
    st.param.b64 [e], %size;
    call.uni __assertfail, (a, b, c, d, e);
  }
  ret;
}
"""


class Failed(Exception):
    """The driver's error."""


def _done(result: tuple[Any, ...]) -> None:
    if int(result[0]):
        raise Failed(result[0].name)


class Worker:
    def __init__(self) -> None:
        primary_context()
        self.stream = check(driver.cuStreamCreate(1))
        module = check(driver.cuModuleLoadData(PTX + b"\0"))
        names = ("spin", "trap", "assert")
        self.functions = {name: check(driver.cuModuleGetFunction(module, name.encode())) for name in names}
        self.device, self.host = check(driver.cuMemAlloc(2 * BYTES)), check(driver.cuMemAllocHost(BYTES))
        self.short: dict[str, Callable[[], None]] = {
            "kernels": lambda: self.launch("spin", SHORT_NS),
            "sets": lambda: _done(driver.cuMemsetD8Async(self.device, 0, BYTES, self.stream)),
            "onto": lambda: _done(driver.cuMemcpyDtoDAsync(int(self.device) + BYTES, self.device, BYTES, self.stream)),
            "to": self.to_the_host_and_back,
        }
        self.work("kernels", 0.01)  # all is loaded

    def work(self, work: str, seconds: float) -> float:
        """Returns the longest wait, in seconds. Raises Failed."""
        if work not in self.short:
            return self.waited(lambda: self.launch("spin" if work == "long" else work, int(seconds * 1e9)))
        end, longest = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            longest = max(longest, self.waited(self.short[work]))
        return longest

    def waited(self, work: Callable[[], None]) -> float:
        began = time.monotonic()
        work()
        _done(driver.cuStreamSynchronize(self.stream))
        return time.monotonic() - began

    def launch(self, name: str, ns: int) -> None:
        given = ((ns,), (ctypes.c_uint64,))
        _done(driver.cuLaunchKernel(self.functions[name], 1, 1, 1, 32, 1, 1, 0, self.stream, given, 0))

    def to_the_host_and_back(self) -> None:
        _done(driver.cuMemcpyDtoHAsync(self.host, self.device, BYTES, self.stream))
        _done(driver.cuMemcpyHtoDAsync(self.device, self.host, BYTES, self.stream))


def main() -> None:
    worker = Worker()
    say("ready")
    for line in sys.stdin:
        work, seconds = line.split()
        try:
            say(f"{worker.work(work, float(seconds)):.3f}")
        except Failed as error:
            say(str(error))


if __name__ == "__main__":
    main()
