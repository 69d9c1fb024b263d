"""The steps of a run: names, listing, verification, removal.

A step is the image `<run>.<step, twelve digits>`. The manifest of an image is linked to its name when everything that
it names is durable, so a listed step is whole.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from gcr.checkpoints.elsewhere import Elsewhere
from gcr.checkpoints.steps import DIGITS, RUN, image_of, steps_among
from gcr.errors import UsageError
from gcr.image.chunks.chunk import name_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.crypto.key import KeySource
from gcr.image.files.manifest import Manifest
from gcr.image.read.reader import ImageReader
from gcr.image.remote.remote import parsed
from gcr.image.store.location import is_none
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage
from gcr.runtime import data_dir, expanded

_MOST_STEP = 10**DIGITS - 1


class Run(Struct, frozen=True):
    """A run of a training, in the store of this folder. Several processes may use it; one at a time writes.

    The key of an encrypted store is that of the settings. `url`: of the bucket that has the run. The folder then has
    the last step alone.
    """

    folder: Path
    name: str
    url: str = ""

    @property
    def elsewhere(self) -> Elsewhere:
        return Elsewhere(self.url, self.name)

    def store(self) -> Store:
        """Opens the store; makes a missing one. Raises StoreUnusable, UnsafeRuntime, WrongKey, KeyUnusable."""
        return Store(self.folder, _cipher())

    def image(self, step: int) -> str:
        """Returns the name of the image of a step. Raises UsageError."""
        return image_of(self.name, checked_step(step))

    def steps(self) -> Sequence[int]:
        """Returns the steps that are saved, in order. Makes no store. Raises as `store`; Damaged, WrongImage."""
        return self.elsewhere.steps(_cipher()) if self.url else self._steps_here()

    def _steps_here(self) -> Sequence[int]:
        if is_none(self.folder):
            return ()
        return steps_among(self.store().images.names(), self.name)

    def latest(self) -> int | None:
        """Returns the last step that is saved, None if there is none. Raises as `store`."""
        return max(self.steps(), default=None)

    def manifest(self, step: int) -> Manifest:
        """Raises NoSuchImage, Damaged, WrongImage; as `store`."""
        if self.url:
            found = self.elsewhere.manifest(self.image(step), _cipher())
            if found is None or step not in self.steps():
                raise NoSuchImage(f"run {self.name} at {self.url} has no step {step}")
            return found
        if is_none(self.folder):
            raise NoSuchImage(f"run {self.name} has no step {step}: there is no store in {self.folder}")
        return self.store().images.manifest(self.image(step))

    def bring(self, step: int) -> None:
        """Makes sure that the folder has the step. Raises as `manifest`."""
        self.manifest(step)
        if self.url:
            self.elsewhere.bring(self.store(), self.image(step))

    def verify(self, step: int) -> int:
        """Compares every byte of a step with what was written, of one elsewhere after it was brought here.

        Returns the bytes. Raises as `manifest`.
        """
        self.bring(step)
        with ImageReader(self.store(), self.image(step), threads=2) as reader:
            return sum(reader.check())

    def remove(self, steps: Iterable[int]) -> int:
        """Removes steps from the folder, and the chunks that no other image needs. Returns the bytes freed.

        The chunks stay until a later removal while another process uses the store. Steps that are gone are no error. A
        bucket keeps what it has. Raises Damaged, StoreUnusable.
        """
        store, there = self.store(), {*self._steps_here()}
        names = [self.image(step) for step in steps if step in there]
        try:
            return store.remove(names) if names else 0
        except NoSuchImage:  # another process has removed one just now
            return 0

    def going(self, step: int, keep_last: int | None, keep_every: int | None) -> Sequence[str]:
        """Returns the images that go from the folder once this step is saved; see `doomed`. Raises as `store`."""
        here = self._steps_here()
        gone = here if self.url else doomed([*here, step], keep_last, keep_every)
        return [self.image(each) for each in gone if each != step]

    def keep_only(self, step: int) -> None:
        """Removes all other steps of the run from the folder, which a bucket has. Raises as `remove`."""
        self.remove(each for each in self._steps_here() if each != step)


def _cipher() -> Cipher:
    return cipher_of(KeySource.chosen().key())


def run_in(store: str | os.PathLike[str], name: str, cache: str | os.PathLike[str] | None = None) -> Run:
    """Returns a run in the store of a folder, or in a bucket, given by its URL. Opens nothing.

    cache: the folder of a run in a bucket; None: one in the user's data directory. Raises UsageError, NoHome.
    """
    if not isinstance(name, str) or not RUN.match(name):
        raise UsageError(f"{name!r} is no name of a run: {RUN.pattern.removesuffix(chr(92) + 'Z')}")
    text = os.fspath(store)
    if "://" not in text:
        return Run(expanded(text).absolute(), name)
    parts = parsed(text)
    if parts.scheme == "file":
        return Run(Path(unquote(parts.path)), name)
    url = text.rstrip("/")
    folder = data_dir() / "training" / name_of(url.encode()).hex()[:16] if cache is None else expanded(os.fspath(cache))
    return Run(folder.absolute(), name, url)


def checked_step(step: int) -> int:
    """Returns the step. Raises UsageError if no run can have it."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _MOST_STEP:
        raise UsageError(f"{step!r} is no step: a whole number from 0 to {_MOST_STEP}")
    return step


def doomed(steps: Collection[int], keep_last: int | None, keep_every: int | None) -> Sequence[int]:
    """Returns the steps to remove: all but the last `keep_last`, and multiples of `keep_every`. None: no such rule.

    Without `keep_last` no step goes.
    """
    if keep_last is None:
        return ()
    old = sorted(steps)[: max(0, len(steps) - keep_last)]
    return [step for step in old if not (keep_every and step % keep_every == 0)]
