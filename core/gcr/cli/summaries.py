"""A checkpoint's report, and a restore's, as people read them."""

from collections import Counter
from collections.abc import Iterator

from gcr import units
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.cli import text
from gcr.cli.output import store_option

MUCH_LEFT = 64 << 20  # bytes: the driver copies some 2 GB a second
MUCH_PINNED = 1 << 30  # bytes: it takes some 15 ms, and 35 to come back


def of_restore(report: RestoreReport) -> str:
    cold = ", the worker's context made anew" if report.cold else ""
    cold += f", {units.size(report.resident_bytes)} of it on the device still" if report.resident_bytes else ""
    where = "".join(f", {old} ▸ {new}" for old, new in report.moved.items())
    lost = "".join(f", without process {pid}" for pid in report.without)
    amount = units.size(report.bytes)
    return f"{report.job} runs again after {text.seconds(report.total_s)} ({amount}{cold}{where}{lost})"


def of_checkpoint(report: CheckpointReport, store: str | None = None) -> str:
    """Returns what was done, and how the job comes back. `store`: the one that was named, with the image."""
    return "\n".join(
        [
            _what_was_done(report, _way_back(report, store)),
            *_what_took_the_driver_long(report),
            *_what_became_of_the_image(report, store),
        ]
    )


def _what_became_of_the_image(report: CheckpointReport, store: str | None) -> Iterator[str]:
    if not report.image:
        return
    if report.parent_refused:
        yield f"  image {report.image} is not built upon the newest one: {report.parent_refused}"
    if report.durable_s is None:
        lists = f"gcr images{store_option(store)}"
        yield f"  image {report.image} is being written: {lists} lists it when it is durable"
        return
    cost = f"{units.size(report.bytes_written or 0)} written of {units.size(report.bytes_total or 0)}"
    yield f"  image {report.image} durable in {text.seconds(report.durable_s)} ({cost})"
    if report.streamed:
        yield "  it alone has the bytes, for which the host had no room: keep it until the job is back"


def _way_back(report: CheckpointReport, store: str | None) -> str:
    if report.state != "stopped":
        return f"Back with: gcr restore {report.job}"
    return f"Back with: gcr restore --image {report.image}{store_option(store)}"


def _what_was_done(report: CheckpointReport, back: str) -> str:
    if report.resident_bytes:
        there = f"{units.size(report.resident_bytes)} stay on the device until another program needs the room"
        stopped = f" (stopped for {text.seconds(report.stop_s)})" if report.stop_s else ""
        more = (report.vram_after_bytes or 0) - report.resident_bytes
        beside = f", and {units.size(more)} that the driver keeps" if more else ""
        return f"{report.job}: suspended{stopped}; {there}{beside}. {back}"
    if report.vram_free_s is None:
        return f"{report.job} runs on, stopped for {text.seconds(report.stop_s)}"
    stays = report.vram_after_bytes
    what = f"VRAM free, but for {units.size(stays)} that the driver keeps," if stays else "VRAM free"
    freed = f"{what} in {text.seconds(report.vram_free_s)} (stopped for {text.seconds(report.stop_s)})"
    by_itself = ", copied by its own agent" if report.strategy == "copyout" else ""
    return f"{report.job}: {freed}{by_itself}. {back}"


def _what_took_the_driver_long(report: CheckpointReport) -> Iterator[str]:
    """One line, if there is more than a context to say of."""
    rows, causes = report.processes, []
    if (contexts := sum(row.contexts for row in rows)) > len({row.pid for row in rows}):
        causes.append(f"saved {contexts} contexts")
    if (pinned := sum(row.pinned_host_bytes for row in rows)) >= MUCH_PINNED:
        causes.append(f"unlocked {units.size(pinned)} of page-locked host memory")
    left = Counter[str]()
    for row in rows:
        left.update(row.uncovered)
    if left.total() > MUCH_LEFT:
        causes.append(f"copied {units.size(left.total())} itself, which gcr cannot move ({', '.join(sorted(+left))})")
    if causes and report.control_s is not None:
        yield f"  the driver took {text.seconds(report.control_s)} of that: it {', '.join(causes)}"
