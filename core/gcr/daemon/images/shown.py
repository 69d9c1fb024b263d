"""Images that the daemon has made, as reports and `gcr ps` show them."""

from msgspec.structs import asdict, replace

from gcr.api.listings import ImageState
from gcr.api.reports import CheckpointReport
from gcr.daemon.images.imaging import Imaging
from gcr.image.files.manifest import Cut
from gcr.protocol.operations.image import Written


def row(imaging: Imaging) -> ImageState:
    """Returns the image's row in `gcr ps`."""
    error = imaging.error.message if imaging.error else None
    return ImageState(name=imaging.order.name, state=imaging.state, durable_s=imaging.durable_s, error=error)


def reported(imaging: Imaging, report: CheckpointReport) -> CheckpointReport:
    """Returns the report with the fields of docs/contract.md §4 that a checkpoint with an image has besides."""
    named = replace(
        report,
        image=imaging.order.name,
        cut=(Cut.PROCESS if imaging.order.whole else Cut.DEVICE).value,
        durable_s=imaging.durable_s,
        parent=imaging.upon.parent,
        parent_refused=imaging.upon.refused,
    )
    cost = imaging.cost
    return replace(named, **asdict(cost), dedup_ratio=_ratio(cost)) if cost else named


def _ratio(cost: Written) -> float | None:
    """Returns how many bytes each stored one stands for; None where none was stored."""
    return cost.bytes_total / cost.bytes_written if cost.bytes_written else None
