"""Numbers of all jobs of this user just now for Prometheus, as the daemon tells them. Names: docs/serve.md."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Thread

from msgspec import Struct, field
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gcr.api.listings import JobInfo
from gcr.errors import GcrError
from gcr.job.states import State
from gcr.rendezvous.client import CONNECT_TIMEOUT, Client

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0  # a scraper comes less often


class Look(Struct, frozen=True):
    """The jobs at one time, and the bytes of their device data, by state."""

    jobs: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)


def jobs_of_daemon() -> Iterable[JobInfo]:
    """Returns the jobs of this user. Starts no daemon: raises DaemonUnavailable, and as `Client.request`."""
    with Client.connect(autostart=False, timeout=CONNECT_TIMEOUT) as client:
        return client.jobs().jobs


class JobsNow(Collector):
    """Shows the last look, and none while the jobs are not known. `ask`: lists them."""

    def __init__(self, registry: CollectorRegistry, ask: Callable[[], Iterable[JobInfo]]) -> None:
        self._ask = ask
        self._last: Look | None = None
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("gcr_jobs", "Jobs by state.", labels=["state"])
        data = GaugeMetricFamily("gcr_job_bytes", "Device data of jobs, by the job's state.", labels=["state"])
        if last := self._last:
            for state in State:
                jobs.add_metric([state.value], last.jobs.get(state, 0))
                data.add_metric([state.value], last.bytes.get(state, 0))
        return [jobs, data]

    def look(self) -> None:
        """Asks the daemon. One that does not answer leaves nothing to show."""
        try:
            found = list(self._ask())
        except (GcrError, OSError) as error:
            if self._last is not None:  # else it was said before
                log.info("jobs are not known: %s", error)
            self._last = None
            return
        data: Counter[str] = Counter()
        for job in found:
            data[job.state] += job.bytes
        self._last = Look(Counter(job.state for job in found), data)

    def follow(self) -> None:
        """Looks again and again, in a thread that lasts as long as the process."""
        Thread(target=self._follow, name="gcr-serve-jobs", daemon=True).start()

    def _follow(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_EVERY_S)
