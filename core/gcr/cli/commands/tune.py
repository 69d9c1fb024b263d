"""`gcr tune`: how a training should save on this machine's disk, and why."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcr import units
from gcr.cli.asking import Asking, Line
from gcr.cli.options import Options, common_options, examples, parse_share, parse_size
from gcr.cli.output import print_json, print_text, success
from gcr.cli.text import plural, seconds, table
from gcr.image.store.location import store_path

if TYPE_CHECKING:
    from gcr.checkpoints.compression import Codec
    from gcr.checkpoints.tuning import Choice, Load, Rates

_GRACE_S = 5.0  # for the end of a write, after Ctrl-C
_positive = click.FloatRange(min=0, min_open=True, max=86400)


@click.command("tune", epilog=examples("gcr tune /data/run --bytes 16GiB --step 0.5 --blocked 0.03 --slowdown 3%"))
@click.argument("store", metavar="STORE")
@click.option("--bytes", "save_bytes", metavar="SIZE", required=True, callback=parse_size, help="Bytes of one save.")
@click.option("--step", "step_s", metavar="SECONDS", type=_positive, required=True, help="Of one step without saves.")
@click.option(
    "--blocked",
    "blocked_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=86400),
    default=0.0,
    help="For which a save blocks the training, as Save.blocked_s says; 0 by default.",
)
@click.option(
    "--slowdown",
    metavar="SHARE",
    default="3%",
    callback=parse_share,
    help="Time that the training may lose to saves, of the time of its steps; 3% by default.",
)
@common_options
@click.pass_obj
def command(options: Options, store: str, save_bytes: int, step_s: float, blocked_s: float, slowdown: float) -> None:
    """Measure a disk, and say how a training should save to it, and how often.

    STORE is the folder of a training's store, which need not be there yet. For some 15 seconds random bytes are written
    beside it, and removed. Host memory may have half of what is available.
    """
    from gcr.checkpoints.compression import codec
    from gcr.checkpoints.tuning import MEMORY_SHARE, Load, chosen, copies
    from gcr.memory.hostmemory import available_host_bytes

    path = store_path(store)
    load = Load(save_bytes, step_s, blocked_s, slowdown, int(MEMORY_SHARE * available_host_bytes()))
    copies(load)  # before it takes the time to measure
    measured = _measured(options, path, save_bytes)
    choice, found = chosen(measured, load), codec()
    why = [*_reasons(load, choice), _compression(load, choice, found)]
    if options.json:
        print_json(success("tune", _fields(path, load, choice, measured, why) | {"compression": _of_codec(found)}))
    else:
        print_text(_said(path, choice, why, measured))


def _measured(options: Options, path: Path, save_bytes: int) -> "Sequence[Rates]":
    from gcr.checkpoints.measuring import measured

    options.key().key()  # here: its command may ask its owner, for longer than a store may be silent

    def work(line: Line) -> "Sequence[Rates]":
        return measured(path, save_bytes, line.pulse)

    return Asking(str(path), work, options.timeout, _GRACE_S).answer()


def _reasons(load: "Load", choice: "Choice") -> Iterator[str]:
    """Yields sentences that say what was measured, and what follows from it."""
    took = _rate(load.save_bytes / choice.write_s)
    yield (
        f"The disk takes {took} from {plural(choice.threads, 'thread')} in chunks of {units.size(choice.chunk_bytes)}: "
        f"to write a save of {units.size(load.save_bytes)} takes {seconds(choice.write_s)}, and at worst it is durable "
        f"after {seconds(choice.slow_s)}."
    )
    yield _bound(load, choice)
    yield (
        f"Saves block the training for {100 * load.blocked_s / (choice.every * load.step_s):.2g} % of its time; "
        f"{100 * load.slowdown:.3g} % is allowed."
    )
    more = "a save that takes long does not hold up the next" if choice.in_flight > 1 else "no save waits for another"
    yield (
        f"With {plural(choice.in_flight, 'save')} in flight {more}; each has a copy of the state in host memory, where "
        f"saves may have {units.size(load.host_bytes)}."
    )


def _compression(load: "Load", choice: "Choice", codec: "Codec | None") -> str:
    """Says whether compression pays, as compress="auto" decides by the state itself."""
    from gcr.checkpoints.compression import GAIN, gain

    if codec is None:
        return "Compression was not measured: it needs the extra compression."
    times = gain(load.save_bytes / choice.write_s, codec.bytes_per_s, codec.ratio)
    of = f"one thread takes {_rate(codec.bytes_per_s)} of weights in float32, and leaves {100 * codec.ratio:.0f} %"
    if times < GAIN:
        return f'Compression would make no save faster: {of}. compress="auto" would be off.'
    return f'Compression would make a save {times:.1f} times as fast: {of}. compress="auto" would be on.'


def _of_codec(codec: "Codec | None") -> dict[str, float] | None:
    return {"bytes_per_s": codec.bytes_per_s, "ratio": codec.ratio} if codec else None


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.0f} MB/s"


def _bound(load: "Load", choice: "Choice") -> str:
    every = f"{plural(choice.every, 'step')}, {seconds(choice.every * load.step_s)}"
    match choice.bound:
        case "blocked":
            return f"The bound on the slowdown sets the interval: it takes {every} to earn {seconds(load.blocked_s)}."
        case "disk":
            return f"The disk sets the interval: a save needs {every}, with some room."
        case "memory":
            return f"Host memory sets the interval: without room for more copies the slowest save has {every}."
    return f"Nothing keeps the training from a save with each step, every {seconds(load.step_s)}."


def _fields(
    path: Path, load: "Load", choice: "Choice", measured: "Sequence[Rates]", why: Sequence[str]
) -> dict[str, object]:
    return {
        "store": str(path),
        "bytes": load.save_bytes,
        "step_s": load.step_s,
        "blocked_s": load.blocked_s,
        "slowdown": load.slowdown,
        "host_bytes": load.host_bytes,
        "threads": choice.threads,
        "chunk_bytes": choice.chunk_bytes,
        "in_flight": choice.in_flight,
        "every": choice.every,
        "bound": choice.bound,
        "interval_s": choice.every * load.step_s,
        "write_s": choice.write_s,
        "slow_s": choice.slow_s,
        "lost": load.blocked_s / (choice.every * load.step_s),
        "why": why,
        "measured": [
            {"threads": each.threads, "chunk_bytes": each.chunk_bytes, "bytes_per_s": [*each.bytes_per_s]}
            for each in measured
        ],
    }


def _said(path: Path, choice: "Choice", why: Sequence[str], measured: "Sequence[Rates]") -> str:
    ways = {(each.threads, each.chunk_bytes): _rate(each.undisturbed) for each in measured}
    chunks = sorted({chunk for _, chunk in ways})
    rows = [
        [str(threads), *(ways.get((threads, chunk), "") for chunk in chunks)]
        for threads in sorted({threads for threads, _ in ways})
    ]
    settings = f"threads={choice.threads}, chunk_bytes={choice.chunk_bytes}, in_flight={choice.in_flight}"
    lines = [
        f"Checkpointer({str(path)!r}, {settings})",
        f"a save every {plural(choice.every, 'step')}",
        "",
        *why,
        "",
        "The best trial of each way:",
    ]
    return "\n".join([*lines, table(["threads", *map(units.size, chunks)], rows)])
