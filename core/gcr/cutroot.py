"""The root of an image that several nodes have a part of: it names every part, and vouches for none without the others.

images/<part>.cut    {"digest": "<blake2b of the root's JSON>", "root": {…}}

Each node's store has the same one. It is written last, once every part is durable; without it the parts are no image.
"""

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Self

from msgspec import Struct, ValidationError, to_builtins

from gcr.converting import convert
from gcr.errors import UsageError

SUFFIX = ".cut"
MOST = 16 << 20  # bytes of a root: that of some 100,000 nodes
MOST_OF_A_NAME = 40  # characters, so that the name of a part is one of an image
_DIGITS = 16  # the images of a training have twelve
_PART = re.compile(rf"(.+)\.([0-9a-f]{{{_DIGITS}}})\.(?:0|[1-9][0-9]{{0,4}})\Z")
_SEAL = re.compile(r"[0-9a-f]{64}\Z")
_CUT = re.compile(r"[0-9a-f]{32}\Z")


class RootPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One node's part. `node`: its name at the time · `seal`: of the manifest of its image · `bytes`: of the image."""

    node: str
    seal: str
    bytes: int


class Root(Struct, frozen=True, forbid_unknown_fields=True):
    """An image of a job over nodes, by its parts in the order of their ranks.

    image: its name · cut: the id of the cut · created: seconds since the epoch, by the coordinator's clock
    """

    image: str
    cut: str
    job: str
    created: float
    parts: tuple[RootPart, ...]

    @property
    def name(self) -> str:
        """Returns the name of this cut of the image: each part's begins with it."""
        return cut_name(self.image, self.cut)

    def part(self, rank: int) -> str:
        """Returns the name of the image that the part of this rank is."""
        return part_name(self.name, rank)

    def rank_of(self, seal: str) -> int | None:
        """Returns the rank of the part with this seal, from 0; None where it is no part."""
        return next((rank for rank, each in enumerate(self.parts) if each.seal == seal), None)

    def to_text(self) -> str:
        body = to_builtins(self)
        return json.dumps({"digest": _digest(body), "root": body}, indent=1)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Raises ValueError for a text that is no root, or is not what was written."""
        try:
            document = json.loads(text)
            body = document["root"]
            if document["digest"] != _digest(body):
                raise ValueError("its digest is wrong")
            found = convert(body, cls)
        except (KeyError, TypeError, RecursionError, ValidationError) as error:
            raise ValueError(f"it is no root of an image: {error}") from error
        found._refuse_nonsense()
        return found

    def _refuse_nonsense(self) -> None:
        seals = [each.seal for each in self.parts]
        right = _CUT.match(self.cut) and all(map(_SEAL.match, seals)) and all(each.bytes >= 0 for each in self.parts)
        texts = (self.image, self.job, *(each.node for each in self.parts))
        if not (right and self.parts and len({*seals}) == len(seals) and all(map(str.isprintable, texts))):
            raise ValueError("it contradicts itself")


def cut_name(image: str, cut: str) -> str:
    """Returns the name of one cut of an image. Raises UsageError for a name that is too long."""
    if len(image) > MOST_OF_A_NAME:
        raise UsageError(f"the name of an image over nodes has {MOST_OF_A_NAME} characters at most: {image}")
    return f"{image}.{cut[:_DIGITS]}"


def part_name(cut_name: str, rank: int) -> str:
    """Returns the name of the image that the part of this rank is. Nodes may share a store, so it has the rank."""
    return f"{cut_name}.{rank}"


def image_named(cut_name: str) -> str:
    """Returns the name of the image that a cut is of."""
    return cut_name.rpartition(".")[0]


def image_of(part: str) -> str | None:
    """Returns the name of the image that a part by this name may be of; None where it is no part's name."""
    found = _PART.match(part)
    return found[1] if found else None


def newest_first(roots: Sequence[Root]) -> Sequence[Root]:
    """Returns each root once, the newest first; two of one time in the order of their cuts."""
    by_cut = {each.cut: each for each in roots}
    return sorted(by_cut.values(), key=lambda root: (root.created, root.cut), reverse=True)


def _digest(body: Any) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=32, person=b"gcr cut root").hexdigest()
