"""The way to tell the daemon of progress."""

from collections.abc import Callable

from gcr.api.events import ProgressEvent

Tell = Callable[[ProgressEvent], None]
