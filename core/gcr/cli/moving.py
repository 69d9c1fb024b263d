"""What `gcr push` and `gcr pull` share: progress, and how they say what has moved."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import asdict
from threading import Thread
from typing import TYPE_CHECKING

from gcr.cli import text
from gcr.cli.options import Options
from gcr.cli.output import print_json, print_text, success
from gcr.cli.progress import progress_view

if TYPE_CHECKING:
    from gcr.image.push import Moved
    from gcr.image.transfer import Transfer

_GRACE_S = 2.0  # in which work that was told to end may tidy up


def move(command: str, options: Options, name: str, url: str, act: Callable[["Transfer"], "Moved"]) -> None:
    """Do it and print the report. Raises GcrError."""
    from gcr.image.transfer import Transfer

    began = time.monotonic()
    with progress_view(options.json) as progress:
        moved = _awaited(act, Transfer(command, options.timeout, progress.update))
    took = time.monotonic() - began
    if options.json:
        print_json(success(command, {"image": name, "url": url, **asdict(moved), "wall_s": took}))
    elif moved.packs_moved:
        packs = f"{moved.packs_moved} of {text.plural(moved.packs, 'pack')}"
        print_text(f"{name}: {packs}, {text.size(moved.bytes_moved)} in {text.seconds(took)}")
    else:
        print_text(f"{name}: all of its bytes were there already")


def _awaited(act: Callable[["Transfer"], "Moved"], transfer: "Transfer") -> "Moved":
    """A request that nobody answers holds up neither Ctrl-C nor the deadline: this process ends, and it with it.

    That is safe at any instant, as a kill is.
    """
    answer: Future[Moved] = Future()

    def work() -> None:
        try:
            answer.set_result(act(transfer))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=work, name="gcr-transfer", daemon=True).start()
    try:
        return answer.result(None if transfer.timeout is None else transfer.timeout + _GRACE_S)
    except TimeoutError:
        raise transfer.overdue() from None
    except KeyboardInterrupt:
        transfer.stop()
        wait([answer], _GRACE_S)
        raise
