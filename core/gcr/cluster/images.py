"""Images of a job over nodes: the cut that a restore takes, by the parts that nodes have. No socket and no clock."""

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gcr.api.partrequests import ImagePart
from gcr.cuterrors import CutIncomplete
from gcr.cutroot import Root, newest_first
from gcr.imageerrors import NoSuchImage

log = logging.getLogger(__name__)

There = Mapping[str, Sequence[ImagePart]]
"""The parts of one image that each node has, of any cuts."""


class Found(Struct, frozen=True):
    """A cut with all of its parts. `nodes`: those that have them, by rank · `lacking`: ranks without the root."""

    root: Root
    nodes: tuple[str, ...]
    lacking: tuple[int, ...]


def newest(image: str, there: There) -> Found:
    """Returns the newest whole cut: a node has its root, and each part is on a node.

    Raises NoSuchImage where no node has a part, CutIncomplete where no cut has all of its parts.
    """
    roots = newest_first([root for parts in there.values() for part in parts if (root := root_of(part))])
    for root in roots:
        homes = homes_of(root, there)
        if len(homes) == len(root.parts):
            rooted = [_has_root(there[node], root.part(rank)) for rank, node in enumerate(homes)]
            return Found(root, tuple(homes), tuple(rank for rank, has in enumerate(rooted) if not has))
    raise _incomplete(image, there, roots)


def homes_of(root: Root, there: There) -> list[str]:
    """Returns the nodes that have the parts, in the order of their ranks; a part that no node has is left out."""
    homes: list[str] = []
    for rank, wanted in enumerate(root.parts):
        having = [node for node, parts in there.items() if _has(parts, root, rank) and node not in homes]
        homes += [wanted.node] if wanted.node in having else having[:1]  # several, where nodes share a store
    return homes


def root_of(part: ImagePart) -> Root | None:
    """Returns the root of a node's part; None where it is missing."""
    try:
        return Root.from_text(part.root) if part.root else None
    except ValueError as error:
        log.info("image %s: %s", part.image, error)
        return None


def _has(parts: Sequence[ImagePart], root: Root, rank: int) -> bool:
    return any(part.image == root.part(rank) and part.seal == root.parts[rank].seal for part in parts)


def _has_root(parts: Sequence[ImagePart], name: str) -> bool:
    return any(part.root for part in parts if part.image == name)


def _incomplete(image: str, there: There, roots: Sequence[Root]) -> NoSuchImage | CutIncomplete:
    held = {part.image: node for node, parts in there.items() for part in parts}
    if not held:
        return NoSuchImage(f"no node has a part of an image {image!r}", hint="gcr images, on each node")
    if not roots:
        names = ", ".join(sorted(held))
        text = f"the parts of image {image} are no whole: their cut was given up before all were durable ({names})"
        return CutIncomplete(text, hint=f"gcr rm {next(iter(sorted(held)))}, on each node")
    root = roots[0]
    missing = [
        f"part {rank + 1} of {len(root.parts)}, of node {each.node}"
        for rank, each in enumerate(root.parts)
        if not any(_has(parts, root, rank) for parts in there.values())
    ]
    text = f"image {image} is not whole on these nodes: they lack {'; '.join(missing)}, of cut {root.cut}"
    return CutIncomplete(text, hint="name all nodes that have a part: gcr images, on each")
