"""The operations of an image helper on a node's parts of images over nodes. No encrypted store has any."""

from contextlib import suppress
from pathlib import Path

from gcr.cutroot import Root
from gcr.errors import UsageError
from gcr.faults import reach
from gcr.image.disk.failing import usable
from gcr.image.store.location import is_none
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage
from gcr.protocol.operations import image as ops
from gcr.protocol.operations.operation import Answer, Handlers


def _found(asked: ops.FindParts) -> ops.FoundParts:
    """Raises StoreUnusable, WrongKey."""
    path = Path(asked.store)
    with usable(path):
        if is_none(path):
            return ops.FoundParts(())
        parts = Store(path).roots.parts(asked.image, asked.job)
        return ops.FoundParts(
            tuple(
                ops.FoundPart(
                    image=each.manifest.name,
                    job=each.manifest.source.job,
                    created=each.manifest.created,
                    seal=each.seal,
                    bytes=each.bytes,
                    whole=each.is_whole,
                    root=each.root.to_text() if each.root else None,
                )
                for each in parts
            )
        )


def _keep(asked: ops.KeepRoot) -> None:
    """Raises NoSuchImage, WrongImage, Damaged, StoreUnusable, WrongKey, UsageError."""
    try:
        root = Root.from_text(asked.root)
    except ValueError as error:
        raise UsageError(str(error)) from error
    path = Path(asked.store)
    with usable(path):
        reach("image.root")
        Store(path).roots.keep(root, asked.part)
        reach("image.rooted")


def _drop(asked: ops.DropParts) -> None:
    """Raises StoreUnusable, WrongKey."""
    path = Path(asked.store)
    with usable(path):
        store = Store(path)
        old = [*store.roots.older(asked.image, asked.cut)]
        with suppress(NoSuchImage):  # another node that shares the store has removed them just now
            store.remove([each.name for each in old], seals={each.name: each.seal() for each in old})


OF_PARTS: Handlers = {
    ops.FindParts: lambda asked, _fds, _request: Answer(_found(asked)),
    ops.KeepRoot: lambda asked, _fds, _request: _keep(asked),
    ops.DropParts: lambda asked, _fds, _request: _drop(asked),
}
