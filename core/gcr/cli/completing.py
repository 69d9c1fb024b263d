"""Completions of a shell besides words of the command line: jobs, images and devices of the moment.

A completion starts no daemon, and gives up after PATIENCE_S without an answer.
"""

from collections.abc import Callable, Iterable
from threading import Thread
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from gcr.api.listings import JobInfo

PATIENCE_S = 1.0

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def jobs(context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of jobs that a daemon knows, each with its state."""
    rows = in_time(_rows)
    return _items(begun, ((row.job, row.state) for row in rows), _given(context))


def ended_jobs(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Completes names of jobs, and of those that have ended."""
    known = jobs(context, param, begun)
    names = {item.value for item in known}
    over = sorted({(run.job, "ended") for run in in_time(_runs) if run.job not in names})
    return [*known, *_items(begun, over)]


def images(context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of the images of the store that the command line, or a setting, names."""
    found = in_time(lambda: _image_names(context.params.get("store")))
    return _items(begun, ((name, "") for name in found), _given(context))


def moves(_context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """`OLD=NEW`: devices that jobs are on, and after the sign those of the machine."""
    old, equals, _new = begun.partition("=")
    if not equals:
        labels = {process.label for row in in_time(_rows) for process in row.processes}
        return _items(begun, ((f"{label}=", "") for label in sorted(filter(None, labels))))
    return _items(begun, ((f"{old}={label}", name) for label, name in in_time(_devices)))


def in_time(ask: Callable[[], Iterable[object]]) -> list:  # type: ignore[type-arg]
    """The answer; nothing where there is an error, or none within PATIENCE_S."""
    found: list[object] = []

    def work() -> None:
        try:
            answer = [*ask()]
        except Exception:  # the shell has no use for it
            return
        found.extend(answer)

    asking = Thread(target=work, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return [*found]


def _rows() -> "Iterable[JobInfo]":
    from gcr.rendezvous.client import Client

    with Client.connect(autostart=False, timeout=PATIENCE_S) as client:
        return client.jobs(PATIENCE_S).jobs


def _runs() -> Iterable[object]:
    from gcr.job import runs

    return (run for run in runs.all_runs() if run.end is not None)


def _image_names(store: str | None) -> Iterable[str]:
    from gcr.image.files.manifest import SUFFIX
    from gcr.image.store.location import store_path
    from gcr.listing import listed

    return [path.name.removesuffix(SUFFIX) for path in listed(store_path(store) / "images", SUFFIX)]


def _devices() -> Iterable[tuple[str, str]]:
    from gcr.cli.commands.devices import present

    return [(row.label, row.name) for row in present(None)]


def _given(context: click.Context) -> set[str]:
    """Words of the command line that came before."""
    values = (value for value in context.params.values() if isinstance(value, tuple | list))
    return {str(word) for value in values for word in value}


def _items(begun: str, found: Iterable[tuple[str, str]], given: Iterable[str] = ()) -> list[CompletionItem]:
    without = set(given)
    return [CompletionItem(name, help=help) for name, help in found if name.startswith(begun) and name not in without]
