"""Ranks that lend each other device memory and compute in it together, as NCCL's do with P2P.

Each rank is a process of its own, with a device of its own. It has a meeting place, which all ranks map and the
collective kernel writes to, and pieces, which it lends to its right neighbour in one of the ways of sharing.py. A step
is a few rounds without a wait; then a piece is made, another taken, others freed. The parent uses no device: it leads
the ranks. What they must say is in p2p_model.py.

--interactive: each line is done and answered: `rounds`, `make WAY`, `take NUMBER`, `drop NUMBER owner`, `drop NUMBER
borrower`, `word NUMBER` (by which rank 0's piece can be borrowed), `?`. A rank that has ended says `gone`.
"""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import getpid
from pathlib import Path
from typing import Any

from cuda_device import launch
from cuda_driver import NON_BLOCKING, driver
from dialogue import note, parser, perform, say
from p2p_model import HEAD, ROUNDS, SIDES, TAIL, WORDS, added, changed, half_of_piece, half_of_tail, life, sha256
from sharing import Piece, Sharing

MOST_RESULTS = 64
THREAD_LOCAL = 1  # mode of a capture
LONG_MS = 60  # of the work before a new piece is filled, which its borrower's stream waits for
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


class Rank:
    """`pieces`: what it has mapped, by number and side."""

    def __init__(self, options: Any) -> None:
        self.rank, self.ranks, self.collective, self.epoch = options.rank, options.ranks, options.collective, 0
        self.graphs: list[Any] | None = [] if options.graphs else None  # that are under way
        driver.cuInit(0)
        device = driver.cuDeviceGet(0 if options.one_device else self.rank)
        context = driver.cuDevicePrimaryCtxRetain(device)
        driver.cuCtxSetCurrent(context)
        self.stream = driver.cuStreamCreate(NON_BLOCKING)
        module = driver.cuModuleLoadData(Path(options.kernels).read_bytes())
        self.kernels = {
            name: driver.cuModuleGetFunction(module, name.encode())
            for name in ("add", "fill", "spin", "digest", self.collective)
        }
        self.sharing = Sharing(device, context, options.group, self.rank)
        self.pieces: dict[tuple[int, str], Piece] = {}
        self.events: list[Any] = []  # of its own pieces. They outlive these: a borrower may still wait for them
        self.data = int(driver.cuMemAlloc_v2(WORDS * 8))
        self.results = int(driver.cuMemAlloc_v2(MOST_RESULTS * 8))
        self.places = int(driver.cuMemAlloc_v2(self.ranks * 8))
        self.launch("fill", U64(self.data), U64(WORDS), U64(self.rank))
        self.way = options.meet
        self.own, self.word = self.sharing.lend(self.way)
        self.set(self.own.address + self.own.size - TAIL, half_of_tail(self.rank), TAIL)

    def do(self, line: str) -> str:
        word, *rest = line.split()
        return str(getattr(self, word)(*rest))

    def meet(self, *words: str) -> str:
        """Maps the meeting places of all. They are where the kernel finds them from here on."""
        self.window, self.at = self.sharing.gather(self.way, self.own, words)
        driver.cuMemcpyHtoD_v2(self.places, (U64 * self.ranks)(*self.at), self.ranks * 8)
        return "met"

    # ---- the life of a piece ----------------------------------------------------------------------------------

    def make(self, number: str, way: str) -> str:
        piece, word = self.sharing.lend(way)
        if piece.event:
            self.events.append(piece.event)
            self.launch("spin", U32(LONG_MS))
        self.set(piece.address, half_of_piece(self.rank, int(number)), piece.size, piece.event)
        self.pieces[int(number), "owner"] = piece
        return word

    def take(self, number: str, way: str, *words: str) -> str:
        piece = self.pieces[int(number), "borrower"] = self.sharing.take(way, words[self.rank - 1])
        self.wait(piece)
        return "ok"

    def drop(self, number: str, side: str) -> str:
        driver.cuStreamSynchronize(self.stream)
        self.pieces.pop((int(number), side)).drop()
        return "ok"

    def close(self) -> None:
        for piece in (*self.pieces.values(), self.window, self.own):
            piece.drop()
        for event in self.events:
            driver.cuEventDestroy_v2(event)

    # ---- work -------------------------------------------------------------------------------------------------

    def launch(self, kernel: str, *values: Any) -> None:
        launch(self.kernels[kernel], 1, 1, self.stream, *values)

    def set(self, address: int, half: int, size: int, event: Any = None) -> None:
        """Others may read it once the event has happened; without an event, from here on."""
        driver.cuMemsetD32Async(address, half, size // 4, self.stream)
        if event:
            driver.cuEventRecord(event, self.stream)
        else:
            driver.cuStreamSynchronize(self.stream)

    def wait(self, piece: Piece) -> None:
        if piece.event:
            driver.cuStreamWaitEvent(self.stream, piece.event, 0)

    def held(self) -> list[tuple[str, Piece]]:
        """Returns the pieces in order, those of its own first where the number is the same."""
        keys = sorted(self.pieces, key=lambda key: (key[0], SIDES.index(key[1])))
        return [(side, self.pieces[number, side]) for number, side in keys]

    def rounds(self) -> str:
        """Several rounds without a wait, then what came of them."""
        for turn in range(ROUNDS):
            self.epoch += 1
            self.change(SIDES[turn] if turn < len(SIDES) else "")
            with self.as_graph():
                self.launch("add", U64(self.data), U64(WORDS), U64(added(self.epoch, self.rank)))
                self.launch("spin", U32(1 + (3 * self.epoch + 2 * self.rank) % 4))
                place = U32(self.rank), U32(self.ranks), U32(self.epoch)
                self.launch(self.collective, U64(self.places), *place, U64(self.data), U32(WORDS))
        heads = [(piece.address, HEAD) for _, piece in self.held()]
        found = [(self.data, WORDS), *heads]
        for index, (address, words) in enumerate(found):
            self.launch("digest", U64(address), U64(words), U64(self.results + 8 * index))
        driver.cuStreamSynchronize(self.stream)
        while self.graphs:
            driver.cuGraphExecDestroy(self.graphs.pop())
        return sha256(self.read(self.results, 8 * len(found)))[:16]

    @contextmanager
    def as_graph(self) -> Iterator[None]:
        """Launches what is done within the block as one graph, with --graphs."""
        if self.graphs is None:
            yield
            return
        driver.cuStreamBeginCapture_v2(self.stream, THREAD_LOCAL)
        yield
        graph = driver.cuStreamEndCapture(self.stream)
        self.graphs.append(driver.cuGraphInstantiateWithFlags(graph, 0))
        driver.cuGraphDestroy(graph)
        driver.cuGraphLaunch(self.graphs[-1], self.stream)

    def change(self, turn: str) -> None:
        """Adds to pieces of its own or to borrowed ones, never both in one round."""
        for side, piece in self.held():
            if side == turn:
                value = changed(self.epoch, self.rank, side)
                if side == "borrower":
                    self.wait(piece)
                self.launch("add", U64(piece.mirror or piece.address), U64(HEAD), U64(value))
                if side == "owner" and piece.event:
                    driver.cuEventRecord(piece.event, self.stream)

    def digest(self) -> str:
        """Everything that it reaches."""
        driver.cuStreamSynchronize(self.stream)
        tails = [(place + self.own.size - TAIL, TAIL) for place in self.at]
        pieces = [(piece.address, piece.size) for _, piece in self.held()]
        return sha256(b"".join(self.read(*each) for each in [(self.data, WORDS * 8), *tails, *pieces]))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        driver.cuMemcpyDtoH_v2(data, address, size)
        return data.raw


def serve(options: Any) -> None:
    rank = Rank(options)
    say(rank.word)
    for line in sys.stdin:
        say(rank.do(line))
    rank.close()


class Ranks:
    """The processes, as their parent sees them. `made`: the way of each piece, and by which words it is borrowed."""

    def __init__(self, options: Any) -> None:
        self.made: list[tuple[str, list[str]]] = []
        self.steps = 0
        more = [f"--group=group-{getpid()}", *(["--one-device"] if options.one_device else [])]
        more += ["--graphs"] if options.graphs else []
        for name in ("ranks", "kernels", "collective", "meet"):
            more += [f"--{name}", str(getattr(options, name))]
        self.ranks = [begin(rank, more) for rank in range(options.ranks)]
        self.tell("meet", *map(hear, self.ranks))

    def tell(self, *words: str) -> list[str]:
        for rank in self.ranks:
            assert rank.stdin
            with suppress(BrokenPipeError):
                rank.stdin.write(" ".join(words) + "\n")
        return [hear(rank) for rank in self.ranks]

    def answer(self, line: str) -> str:
        word, *rest = line.split()
        if word in ("rounds", "make", "take", "drop", "word"):
            return str(getattr(self, word)(*rest))
        return self.digest()

    def step(self) -> str:
        said = self.rounds()
        if "gone" in said:
            raise SystemExit("victim: a rank ended")
        for line in life(self.steps):
            self.answer(line)
        self.steps += 1
        return said

    def rounds(self) -> str:
        return " ".join(self.tell("rounds"))

    def make(self, way: str) -> str:
        number = len(self.made)
        self.made.append((way, self.tell("make", str(number), way)))
        return f"made {number}"

    def take(self, number: str) -> str:
        way, words = self.made[int(number)]
        self.tell("take", number, way, *words)
        return f"took {number}"

    def drop(self, number: str, side: str) -> str:
        self.tell("drop", number, side)
        return f"dropped {number}"

    def word(self, number: str) -> str:
        return self.made[int(number)][1][0]

    def digest(self) -> str:
        return " ".join(self.tell("digest"))

    def close(self) -> None:
        for rank in self.ranks:
            assert rank.stdin
            with suppress(BrokenPipeError):
                rank.stdin.close()
        codes = [rank.wait() for rank in self.ranks]
        note(f"ranks ended with {codes}")
        if any(codes):
            raise SystemExit(f"victim: the ranks ended with {codes}")


def begin(rank: int, more: list[str]) -> "subprocess.Popen[str]":
    words = [sys.executable, __file__, "--rank", str(rank), *more]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def hear(rank: "subprocess.Popen[str]") -> str:
    assert rank.stdout
    return rank.stdout.readline().strip() or "gone"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kernels", required=True)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--one-device", action="store_true")
    arguments.add_argument("--collective", default="cross_device_reduce_peers", help="or `peer_reduce`")
    arguments.add_argument("--graphs", action="store_true", help="each round is a captured graph")
    arguments.add_argument(
        "--meet",
        choices=["asked", "twice", "cached", "legacy", "small"],
        default="asked",
        help="how the meeting places are lent",
    )
    arguments.add_argument("--rank", type=int, help="of a rank; its parent gives this and the next one")
    arguments.add_argument("--group")
    options = arguments.parse_args()
    if options.rank is not None:
        serve(options)
        return
    ranks = Ranks(options)
    if options.interactive:
        say("ready")
        for line in sys.stdin:
            say(ranks.answer(line))
    else:
        perform(options, ranks)
    ranks.close()


if __name__ == "__main__":
    main()
