"""The disk that a run takes: parts of a state that rest while others change keep no old pack."""

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from gcr.checkpoints.run import doomed, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.image.chunks.entry import BLOCK
from gcr.image.files.manifest import Manifest
from gcr.image.write.usage import SHARE

SMALL = 32 << 10
RECORD = b"what it is"
Places = set[tuple[str, int]]  # pack and block of each chunk, which has one block


class Training:
    """A training whose state is parts of one block; each part is a version, which never comes back once it is over."""

    def __init__(self, folder: Path, parts: int, keep_last: int, keep_every: int | None = None, world: int = 1) -> None:
        self.run, self.keep = run_in(folder / "store", "train"), (keep_last, keep_every)
        self.parts, self.world = [*range(parts)], world
        self.versions, self.step = parts, 0
        self.beside: dict[int, Places] = {}  # by step: the places of all steps that were there once it was saved

    def changes(self, parts: Sequence[int]) -> None:
        for part in parts:
            self.parts[part], self.versions = self.versions, self.versions + 1

    def saves(self) -> Manifest:
        self.step += 1
        going = self.run.going(self.step, *self.keep)
        saving = Saving(self.run, self.step, SMALL)
        shares = [write_share(self.run, self.step, self._files(rank), SMALL, 1, going) for rank in range(self.world)]
        manifest = saving.commit(shares, RECORD, self.world, Framework("torch", {}))
        self.run.remove(doomed(self.run.steps(), *self.keep))
        self.beside[self.step] = Places().union(*map(self._places, self.run.steps()))
        return manifest

    def _files(self, rank: int) -> list[tuple[str, memoryview]]:
        """The ranks of a training have some parts in common."""
        mine = [each for number, each in enumerate(self.parts) if number % 3 == 0 or number % self.world == rank]
        data = (random.Random(each).randbytes(BLOCK) for each in mine)
        return [(f"{rank}.{number}", memoryview(bytearray(each))) for number, each in enumerate(data)]

    def _places(self, step: int) -> Places:
        images = self.run.store().images
        manifest = images.manifest(self.run.image(step))
        found = images.references(manifest)
        return {(manifest.packs[pack].id, block) for pack, block in zip(found.packs, found.blocks, strict=True)}

    @property
    def blocks(self) -> int:
        """The blocks of all chunks in the store."""
        return sum(reader.chunks.borders[-1] - 1 for reader in self.run.store().packs.trusted())


# To make a history shorter takes minutes.
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(parts=21, keep_last=1, keep_every=4, world=2, saves=3, rng=random.Random(17))
@given(
    parts=st.integers(1, 24),
    keep_last=st.integers(1, 3),
    keep_every=st.sampled_from([None, None, 4]),
    world=st.integers(1, 2),
    saves=st.integers(1, 10),
    rng=st.randoms(),
)
def test_the_disk_is_bounded_whatever_rests_and_for_how_long(
    parts: int, keep_last: int, keep_every: int | None, world: int, saves: int, rng: random.Random
) -> None:
    """Of each pack a quarter was used when a step that is there referred to it. So many times the live bytes stay.

    A chunk that both ranks wrote counts in both packs, and lies in one of them: the save after the first resting step
    that stays finds the other pack sparse.
    """
    quiet = keep_last + (keep_every or 0) * (world > 1)
    with TemporaryDirectory() as folder:
        training = Training(Path(folder), parts, keep_last, keep_every, world)
        chances = [rng.choice([0.0, 0.05, 0.5, 0.9, 1.0]) for _ in range(parts)]
        written = again = 0
        for save in range(saves + quiet + 1):
            manifest = training.saves()
            written += manifest.costs.bytes_written
            again += manifest.costs.bytes_written if save > saves else 0
            live = Places().union(*(training.beside[step] for step in training.run.steps()))
            assert training.blocks <= SHARE * len(live)
            new = training.versions * BLOCK + len(RECORD)
            assert world > 1 or (SHARE - 1) * written <= SHARE * new, "ranks write what they have in common themselves"
            if save < saves:
                training.changes([part for part in range(parts) if rng.random() < chances[part]])
        assert again <= manifest.costs.bytes_total, "a state that rests is written again once at most"
        assert manifest.costs.bytes_written == 0, "so many times nothing has changed"
        training.run.verify(training.step)


@pytest.mark.parametrize("keep_last, most", [(1, 1), (3, 4)])
def test_a_part_that_rests_keeps_no_old_step(tmp_path: Path, keep_last: int, most: int) -> None:
    """Of several steps the older ones may refer to a pack that the last one has left."""
    training = Training(tmp_path, 40, keep_last)
    for _ in range(8):
        training.saves()
        assert training.blocks <= most * 40 + 1
        training.changes(range(1, 40))
    assert training.run.verify(8) > 40 * BLOCK


def test_parts_that_come_to_rest_one_by_one_keep_few_old_steps(tmp_path: Path) -> None:
    """Each step has a chunk that is in all later ones."""
    training = Training(tmp_path, 40, 1)
    for step in range(12):
        training.saves()
        training.changes(range(step, 40))
    assert training.blocks < 2 * 40
