"""Programs for the model: random ones, and six shapes that training and inference have."""

from random import Random

from ranks import Call, Group, Thread

US, MS = 1e-6, 1e-3


def collective(lines: dict, members, thread: int, stream: str, duration: float, name: int, deps=()) -> None:
    """Appends one collective's calls to the programs of its members' threads."""
    calls = Group(Call(stream, duration, name, "coupled", deps) for _ in members)
    for rank, call in zip(members, calls, strict=True):
        call.group = calls
        lines[rank, thread].append(call)


def spin(line: list, stream: str) -> None:
    """A kernel that spins until a later call of its own thread has run."""
    ended = Call(f"{stream}-set", 5 * US, kind="set")
    line += [Call(f"{stream}-wait", kind="wait", group=Group([ended])), Call(f"{stream}-set", 20 * US), ended]


def threads(lines: dict) -> list[Thread]:
    return [Thread(rank, number, program) for (rank, number), program in lines.items()]


def random_program(rng: Random, steps: int = 10) -> list[Thread]:
    """Ranks whose threads have collectives in one order each, so that they end where no gate closes.

    Thread k has streams and communicators of its own. Signatures are right: one for each communicator.
    """
    n, lanes = rng.choice((2, 2, 3, 4)), rng.choice((1, 1, 2))
    lines: dict = {(rank, lane): [] for rank in range(n) for lane in range(lanes)}
    groups = [sorted(rng.sample(range(n), rng.randrange(2, n + 1))) for _ in range(2)]
    for number in range(steps):
        lane, rank = rng.randrange(lanes), rng.randrange(n)
        _random_step(rng, lines, lane, rank, groups, number, n)
    return threads(lines)


def _random_step(rng: Random, lines: dict, lane: int, rank: int, groups: list, number: int, n: int) -> None:
    line, kind = lines[rank, lane], rng.randrange(10)
    if kind < 4:
        which = rng.randrange(len(groups))
        stream = f"main{lane}" if rng.random() < 0.4 else f"comm{lane}.{which}"  # a graph runs where kernels do
        name = 1 + lane * 10 + which * 2 + stream.startswith("main")
        collective(lines, groups[which], lane, stream, rng.choice((40 * US, 8 * MS)), name, (f"main{lane}",))
    elif kind < 6:
        deps = (f"comm{lane}.0", f"comm{lane}.1") if rng.random() < 0.5 else ()
        line.append(Call(f"main{lane}", rng.choice((0.0, 100 * US, 30 * MS)), deps=deps))
    elif kind == 6:
        line.append(("sync",) if rng.random() < 0.7 else ("host", rng.choice((100 * US, 20 * MS))))
    elif kind == 7:
        for each in range(n):
            lines[each, lane].append(("bar", number))
    elif kind == 8:
        spin(line, f"spin{lane}.{number}")
    else:
        line += [("begin",), Call(f"main{lane}", 10 * US), ("end",)]


# ---- six shapes: `steps` steps of a program of n ranks. `synced`: threads wait for their work at the end of each.


def ddp(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """Gradients are reduced in buckets on a stream of their own, behind the kernels that make them."""
    lines = _lines(n)
    for _ in range(steps):
        for line in lines.values():
            line.append(("host", rng.uniform(0, skew)))
            line += _kernels(rng, 8)
        for _ in range(4):
            for line in lines.values():
                line += _kernels(rng, 2)
            collective(lines, range(n), 0, "nccl", 300 * US, 1, ("main",))
        for line in lines.values():
            line.append(Call("main", 400 * US, deps=("nccl",)))
        _synced(lines, synced)
    return threads(lines)


def tensor_parallel(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """One captured graph a step holds all collectives."""
    lines = _lines(n)
    for _ in range(steps):
        for line in lines.values():
            line += [("host", rng.uniform(0, skew)), Call("main", 50 * US)]
        collective(lines, range(n), 0, "main", 8 * MS, 1)
        for line in lines.values():
            line.append(Call("main", 30 * US))
        _synced(lines, synced)
    return threads(lines)


def pipeline(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """Each rank receives from the one before it, and sends to the next."""
    lines = _lines(n)
    for step in range(steps):
        for rank in range(n):
            line = lines[rank, 0]
            line.append(("host", rng.uniform(0, skew)))
            line += [Call("main", rng.uniform(50 * US, 2 * MS), deps=("comm",)) for _ in range(4)]
            if rank < n - 1:
                collective(lines, (rank, rank + 1), 0, "comm", 50 * US, 1 + rank, ("main",))
        _synced(lines, synced)
        for line in lines.values():
            line += [("bar", step)] * synced
    return threads(lines)


def two_communicators(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """Tensor parallel in pairs, data parallel across: two threads a rank, on streams of their own."""
    lines = {**_lines(n), **_lines(n, 1)}
    for _ in range(steps):
        for line in lines.values():
            line.append(("host", rng.uniform(0, skew)))
        for _ in range(6):
            for line in _of(lines, 0):
                line.append(Call("main", rng.uniform(20 * US, 300 * US)))
            for first in range(0, n, 2):
                collective(lines, (first, first + 1), 0, "main", 40 * US, 10 + first)
        collective(lines, range(n), 1, "dp", 900 * US, 1)
        _synced({key: line for key, line in lines.items() if key[1] == 0}, synced)
    return threads(lines)


def spinning(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """Besides collectives, a kernel that waits for a later one of its own thread."""
    lines = _lines(n)
    for step in range(steps):
        for line in lines.values():
            line.append(("host", rng.uniform(0, skew)))
            spin(line, "spin")
        collective(lines, range(n), 0, "main", 200 * US, 1, ("spin-wait",))
        _synced(lines, synced)
        for line in lines.values():
            line += [("bar", step)] * synced
    return threads(lines)


def long_kernels(rng: Random, n: int, steps: int, synced: bool, skew: float) -> list[Thread]:
    """Kernels that take longer than the coordinator waits for a change."""
    lines = _lines(n)
    for _ in range(steps):
        for line in lines.values():
            line.append(("host", rng.uniform(0, skew)))
            line += [Call("main", rng.choice((100 * US, MS, 30 * MS))) for _ in range(3)]
        collective(lines, range(n), 0, "main", 300 * US, 1)
        _synced(lines, synced)
    return threads(lines)


SHAPES = (ddp, tensor_parallel, pipeline, two_communicators, spinning, long_kernels)


def _lines(n: int, thread: int = 0) -> dict:
    return {(rank, thread): [] for rank in range(n)}


def _of(lines: dict, thread: int) -> list:
    return [line for (_, number), line in lines.items() if number == thread]


def _kernels(rng: Random, count: int) -> list[Call]:
    return [Call("main", rng.uniform(20 * US, 200 * US)) for _ in range(count)]


def _synced(lines: dict, synced: bool) -> None:
    for line in lines.values():
        line += [("sync",)] * synced
