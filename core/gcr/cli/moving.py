"""Parts that `gcr push` and `gcr pull` share: progress and the report."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins
from msgspec.structs import asdict

from gcr import units
from gcr.api.events import ProgressEvent
from gcr.cli import text
from gcr.cli.asking import Asking, Line
from gcr.cli.options import Options
from gcr.cli.output import print_json, print_text, say, success
from gcr.cli.progress import progress_view
from gcr.errors import DeadlinePassed

if TYPE_CHECKING:
    from gcr.image.remote.push import Moved
    from gcr.image.remote.transfer import Moving, Transfer

_GRACE_S = 2.0  # in which work that was told to end may tidy up


def move(
    command: str, options: Options, store: Path, name: str, url: str | None, act: Callable[["Transfer"], "Moved"]
) -> None:
    """Moves an image between the store in this folder and another one, and prints the report. Raises GcrError."""
    began = time.monotonic()
    moved = _moved(command, options, store, act)
    took = time.monotonic() - began
    if options.json:
        print_json(success(command, {"image": name, "url": url, **to_builtins(moved), "wall_s": took}))
    elif moved.packs_moved:
        packs = f"{moved.packs_moved} of {text.plural(moved.packs, 'pack')}"
        print_text(f"{name}: {packs}, {units.size(moved.bytes_moved)} in {text.seconds(took)}")
    else:
        print_text(f"{name}: all of its bytes were there already")
    if moved.rooted is False and not options.json:
        say(f"gcr: {name} is a part of an image over nodes without its root, and counts for nothing until that comes")


def _moved(command: str, options: Options, store: Path, act: Callable[["Transfer"], "Moved"]) -> "Moved":
    options.key().key()  # here: its command may ask its owner, for longer than a store may be silent
    limit = None if options.timeout is None else options.timeout + _GRACE_S
    with progress_view(options.json) as view:

        def told(now: "Moving") -> None:
            view.update(ProgressEvent(**asdict(now)))

        def work(line: Line) -> "Moved":
            return act(_transfer(command, options, line))

        try:
            return Asking(f"{store}, or the one elsewhere,", work, limit, _GRACE_S, told).answer()
        except DeadlinePassed:
            raise _transfer(command, options).overdue() from None


def _transfer(command: str, options: Options, line: Line | None = None) -> "Transfer":
    from gcr.image.remote.transfer import Transfer

    told = (partial(line.tell, "progress"), line.pulse) if line else ()
    return Transfer(command, options.timeout, *told)
