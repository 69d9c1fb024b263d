"""Counts of `gcr serve` for Prometheus. Names and labels: docs/serve.md. No label comes from a request."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gcr.serve.states import State

_LATENCY = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Row(Struct, frozen=True):
    """A model just now. `active`: requests that it answers; `bytes`: of device memory, None before that is known."""

    model: str
    state: State
    active: int
    waiting: int
    bytes: int | None


class Now(Collector):
    """Numbers of this instant."""

    def __init__(self, look: Callable[[], Iterable[Row]]) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        state = GaugeMetricFamily("gcr_serve_model_state", "1 for the state of a model.", labels=["model", "state"])
        active = GaugeMetricFamily("gcr_serve_requests_in_flight", "Requests that a model answers.", labels=["model"])
        queue = GaugeMetricFamily("gcr_serve_requests_waiting", "Requests that wait for a model.", labels=["model"])
        size = GaugeMetricFamily("gcr_serve_model_bytes", "Device memory that a model takes.", labels=["model"])
        for row in self._look():
            for each in State:
                state.add_metric([row.model, each.value], float(each is row.state))
            active.add_metric([row.model], row.active)
            queue.add_metric([row.model], row.waiting)
            if row.bytes is not None:
                size.add_metric([row.model], row.bytes)
        return [state, active, queue, size]


class Metrics:
    """One registry of its own; nothing is global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        kept = self.registry
        self._requests = Counter("gcr_serve_requests", "Requests by their answer.", ["model", "code"], registry=kept)
        self._seconds = Histogram(
            "gcr_serve_request_seconds",
            "From a request's head to its answer's end.",
            ["model"],
            buckets=_LATENCY,
            registry=kept,
        )
        self._waits = Histogram(
            "gcr_serve_wait_seconds",
            "Waits of requests for a model that was away.",
            ["model"],
            buckets=_LATENCY,
            registry=kept,
        )
        self._moves = Counter(
            "gcr_serve_swaps", "Models started, parked and woken.", ["model", "direction"], registry=kept
        )
        self._took = Histogram(
            "gcr_serve_swap_seconds", "How long that took.", ["model", "direction"], buckets=_LATENCY, registry=kept
        )
        self._phases = Counter("gcr_serve_phase_seconds", "Time by phase.", ["direction", "phase"], registry=kept)
        self._failures = Counter(
            "gcr_serve_failures", "What did not work, by error code.", ["model", "reason"], registry=kept
        )

    def watch(self, look: Callable[[], Iterable[Row]]) -> None:
        self.registry.register(Now(look))

    def answered(self, model: str, status: int, seconds: float) -> None:
        """Counts a request. `model` is empty where the request named none that is known."""
        found = self._answers.get((model, status))
        if found is None:
            found = self._requests.labels(model, str(status)), self._seconds.labels(model)
            self._answers[model, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def waited(self, model: str, seconds: float) -> None:
        self._waits.labels(model).observe(seconds)

    def moved(self, model: str, direction: str, seconds: float) -> None:
        self._moves.labels(model, direction).inc()
        self._took.labels(model, direction).observe(seconds)

    def phases(self, direction: str, seconds: Mapping[str, float]) -> None:
        for phase, each in seconds.items():
            self._phases.labels(direction, phase).inc(max(0.0, each))

    def failed(self, model: str, reason: str) -> None:
        self._failures.labels(model, reason).inc()

    def text(self, accepted: Sequence[str]) -> tuple[bytes, str]:
        """Returns all of it, in the format that a scraper accepts, and the content type."""
        encoder, kind = choose_encoder(",".join(accepted))
        return encoder(self.registry), kind
