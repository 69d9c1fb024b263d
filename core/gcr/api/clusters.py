"""Reports of a cut over several nodes, with the fields of the JSON that the command line prints."""

from collections.abc import Mapping
from typing import Any

from msgspec import field

from gcr.api.answers import Answer
from gcr.api.reports import CheckpointReport, RestoreReport


class NodeReport(Answer, frozen=True, kw_only=True):
    """One node's part. `place`: running, suspended, stopped, as_before where it refused, held at a barrier by another
    coordinator, gone, or silent where it is not known.

    report: of its checkpoint or restore, None where it made none · error: its own, as in the answer of a command
    """

    node: str
    place: str
    report: CheckpointReport | RestoreReport | None = None
    error: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        report = self.report.to_json() if self.report else None
        error = dict(self.error) if self.error is not None else None
        return {"node": self.node, "place": self.place, "report": report, "error": error}


class ClusterReport(Answer, frozen=True, kw_only=True):
    """The report of a cut, or of the way back from it. `cut`: its id, None where no cut has suspended the job.

    outcome: done, refused, taken_back or unsettled · image: that was made, or that it came back from
    phases_s: seconds from the command's begin until every node had come to each barrier, and until the end
    """

    job: str
    image: str | None = None
    cut: str | None
    outcome: str
    nodes: tuple[NodeReport, ...]
    phases_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        plain = {"job": self.job, "image": self.image, "cut": self.cut, "outcome": self.outcome}
        times = {"phases_s": dict(self.phases_s), "wall_s": self.wall_s}
        return {**plain, **times, "nodes": [node.to_json() for node in self.nodes]}
