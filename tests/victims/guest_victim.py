"""A program that borrows memory of a rank of p2p_victim.py, which has not asked it to: each line is done and answered.

`take WORD`: the words of p2p_victim.py (`word NUMBER`) of a cached descriptor. `drop`. `?`: its first word, or `none`.
"""

import ctypes
import os
import sys

from c_library import Failed
from cuda_driver import driver
from dialogue import note, say
from sharing import Piece, Sharing


class Guest:
    def __init__(self) -> None:
        driver.cuInit(0)
        device = driver.cuDeviceGet(0)
        context = driver.cuDevicePrimaryCtxRetain(device)
        driver.cuCtxSetCurrent(context)
        self.sharing = Sharing(device, context, f"guest-{os.getpid()}", 0)
        self.piece: Piece | None = None

    def take(self, word: str) -> str:
        try:
            self.piece = self.sharing.take("cached", word)
        except Failed as failed:
            note(str(failed))
            return f"code {failed.code}"
        return self.look()

    def drop(self) -> str:
        if self.piece:
            self.piece.drop()
        self.piece = None
        return self.look()

    def look(self) -> str:
        if not self.piece:
            return "none"
        word = ctypes.c_uint64()
        driver.cuMemcpyDtoH_v2(ctypes.addressof(word), self.piece.address, 8)
        return hex(word.value)


def main() -> None:
    guest = Guest()
    say("ready")
    for line in sys.stdin:
        word, *rest = line.split()
        say(guest.look() if word == "?" else getattr(guest, word)(*rest))


if __name__ == "__main__":
    main()
