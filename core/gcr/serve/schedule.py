"""Times at which models are woken without a request, as cron expressions by the machine's local clock.

Where the clock goes forward and skips a time, it comes an hour later: 02:30 at 03:30. Where the clock goes back and
shows a time twice, it comes once, the first time.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from cronsim import CronSim, CronSimError

LATE_S = 600.0  # a time that was missed by more, as by a suspended machine, is left out
_FAR = float("inf")


class Schedule:
    """`times`: cron expressions of each model. Clocks are seconds since 1970 (`time.time`)."""

    def __init__(self, times: Mapping[str, Sequence[str]], now: float) -> None:
        self._times = {name: each for name, each in times.items() if each}
        self._seen = now
        self._next = {name: self._after(name, now) for name in self._times}

    def due(self, now: float) -> list[str]:
        """Returns the models with a time since the last call. Counts from the new time where a clock was set back."""
        back, self._seen = now < self._seen - 1.0, now
        found = []
        for name, at in self._next.items():
            if back or at < now - LATE_S:
                at = self._after(name, now if back else now - LATE_S)
            if at <= now:
                found.append(name)
                at = self._after(name, now)
            self._next[name] = at
        return found

    def _after(self, name: str, now: float) -> float:
        return min(next_time(each, now) for each in self._times[name])


def next_time(expression: str, now: float) -> float:
    """Returns the first time after `now`, infinity where there is none. Raises ValueError for no expression."""
    return next((at for at in _times(expression, now) if at > now), _FAR)


def _times(expression: str, now: float) -> Iterator[float]:
    """Yields times in order; the first ones may be before `now`, in an hour that the clock shows twice."""
    local = datetime.fromtimestamp(now).replace(fold=0)
    try:
        for each in CronSim(expression, local):
            yield each.timestamp()
    except CronSimError as error:
        raise ValueError(f"{expression!r} is no cron expression such as `0 8 * * Mon-Fri`: {error}") from None
