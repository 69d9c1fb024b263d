"""A checkpoint, a restore and a recovery of a job over nodes, from the first greeting to the report."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from gcr.api.clusters import ClusterReport
from gcr.api.partrequests import DropPartsRequest, KeepPartRequest, PartsRequest
from gcr.api.requests import CheckpointRequest, RestoreRequest
from gcr.cluster.coordination import Task
from gcr.cluster.images import newest
from gcr.cluster.messages import Outcome
from gcr.cluster.nodes import Link
from gcr.cluster.running import GRACE_S, Running, Transfer
from gcr.clustererrors import NodeUnreachable, naming
from gcr.cuterrors import CutFailed, CutGivenUp, CutUnsettled, NotOneCut
from gcr.cutroot import Root, image_named
from gcr.errors import GcrError, Interrupted, Lost, Refused, UsageError

log = logging.getLogger(__name__)

Answered = TypeVar("Answered")

DEFAULT_TIMEOUT = 300.0


class Result(Struct, frozen=True):
    """The report of a task, and its error: None where it was done."""

    report: ClusterReport
    error: GcrError | None


class Over(Struct, frozen=True):
    """The nodes of a job, by name. `still_s`, `grace_s`: as of `Running`."""

    links: Mapping[str, Link]
    still_s: float
    grace_s: float = GRACE_S

    def checkpoint(self, request: CheckpointRequest) -> Result:
        """Suspends the job on every node at one cut, or lets it run on on every node.

        Raises what a node cannot be greeted for, before anything is begun.
        """
        with self._left_in_the_end():
            self._greet()
            done = self._run(Task.CHECKPOINT, request, self.links)
            if request.image and done.error is None:
                self._drop_former(request)
        return done

    def restore_image(self, image: str, store: str | None, how: Callable[[Root], RestoreRequest]) -> Result:
        """Brings a job back from the newest whole cut of an image, on the nodes that have its parts.

        how: makes the request, which names the cut (Root.name). Raises NoSuchImage, CutIncomplete; else as `restore`.
        """
        with self._left_in_the_end():
            self._greet()
            found = newest(image, self._each(lambda link: link.parts(PartsRequest(image=image, store=store)).parts))
            for rank in found.lacking:
                word = KeepPartRequest(root=found.root.to_text(), part=found.root.part(rank), store=store)
                self._each(lambda link, word=word: link.keep(word), [found.nodes[rank]])  # type: ignore[misc]
            return self._run(Task.RESTORE, how(found.root), {node: self.links[node] for node in found.nodes})

    def restore(self, request: RestoreRequest) -> Result:
        """Brings the job back on every node, or leaves it suspended on every node. Raises as `checkpoint`."""
        return self._carried_out(Task.RESTORE, request)

    def recover(self, request: RestoreRequest) -> Result:
        """Leaves a cut that stands on every node as it is; else has the job run on every node that answers."""
        return self._carried_out(Task.RECOVER, request, greeted=False)

    def _carried_out(self, task: Task, request: Transfer, greeted: bool = True) -> Result:
        with self._left_in_the_end():
            if greeted:
                self._greet()
            return self._run(task, request, self.links)

    def _run(self, task: Task, request: Transfer, links: Mapping[str, Link]) -> Result:
        running = Running(task, links, request, request.timeout or DEFAULT_TIMEOUT, self.still_s, self.grace_s)
        report = running.run()
        return Result(report, _error(report, running))

    def _greet(self) -> None:
        """Raises the first error, with the node's name, once all have answered or failed; nothing was begun."""
        self._each(lambda link: link.greet())

    def _each(self, ask: Callable[[Link], Answered], nodes: Iterable[str] | None = None) -> Mapping[str, Answered]:
        """Asks these nodes, all at once; None: every node. Raises as `_greet`."""
        chosen = self.links.keys() if nodes is None else nodes
        with ThreadPoolExecutor(max(1, len(self.links)), "gcr-ask") as pool:
            asked = {node: pool.submit(ask, self.links[node]) for node in chosen}
        for node, done in asked.items():
            error = done.exception()
            if isinstance(error, Refused):
                raise naming(node, error)
            if isinstance(error, GcrError):
                raise NodeUnreachable(f"node {node} does not answer: {error.message}", hint=error.hint) from error
            if error is not None:
                raise error
        return {node: done.result() for node, done in asked.items()}

    def _drop_former(self, request: CheckpointRequest) -> None:
        """Removes the parts of earlier cuts: the new ones count. What stays is older, and no restore takes it."""
        image = image_named(str(request.image))
        former = DropPartsRequest(image=image, cut=str(request.cut), store=request.store)
        try:
            self._each(lambda link: link.drop(former))
        except GcrError as error:
            log.warning("image %s: the parts of earlier cuts stay: %s", image, error.message)

    @contextmanager
    def _left_in_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            for node, link in self.links.items():
                try:
                    link.close()
                except GcrError as error:
                    log.info("node %s: %s", node, error.message)


def _error(report: ClusterReport, running: Running) -> GcrError | None:
    if report.outcome == Outcome.DONE:
        return None
    node, cause = _cause(running)
    if running.interrupted and report.outcome != Outcome.UNSETTLED and not isinstance(cause, Lost):
        return Interrupted(f"interrupted; {_standing(report)}")
    if report.outcome == Outcome.REFUSED:
        return _refusal(report, node, cause)
    if isinstance(cause, Lost):
        return naming(node, cause)
    why = f"node {node}: {cause.message}" if cause else "not all nodes came as far in time"
    if running.heard.apart and (cause is None or isinstance(cause, CutGivenUp)):
        why = f"the job did not come to a standstill: {running.heard.apart}"
    if report.outcome == Outcome.UNSETTLED:
        text = f"{why}; {_standing(report)}"
        return CutUnsettled(text, hint=f"gcr cluster recover {report.job}, with all its nodes")
    return CutFailed(f"{why}; {_standing(report)}", hint=cause.hint if cause else "a longer --timeout")


def _refusal(report: ClusterReport, node: str, cause: GcrError | None) -> GcrError:
    if isinstance(cause, Refused | UsageError):
        return naming(node, cause)
    if cause is not None:
        return CutFailed(f"node {node}: {cause.message}; {_standing(report)}", hint=cause.hint)
    if report.cut is None or len({each.place for each in report.nodes}) > 1:
        return NotOneCut(_standing(report), hint=f"gcr cluster recover {report.job}, with all its nodes")
    return CutFailed(f"not all nodes were admitted in time; {_standing(report)}", hint="a longer --timeout")


def _cause(running: Running) -> tuple[str, GcrError | None]:
    """Returns the first error that is of a node's own, and the node."""
    own = [(node, error) for node, error in running.heard.errors.items() if not isinstance(error, CutGivenUp)]
    return next(iter(own or running.heard.errors.items()), ("", None))


def _standing(report: ClusterReport) -> str:
    """Returns in words where the job stands: `it is suspended on 3 nodes and running on 1`."""
    count = Counter(each.place for each in report.nodes)
    words = " and ".join(f"{place} on {number}" for place, number in sorted(count.items()))
    return f"job {report.job} is {words} of {len(report.nodes)} nodes"
