"""States and moments that a Checkpointer may meet, one after the other, for tests that run them on ranks."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rank_programs import bits, unsaveable
from training_programs import _wait_for

from gcr.torch import Checkpointer

State = dict[str, Any]


def refused(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {type(error.__cause__).__name__}" if error else "saved"


def filled(step: int, value: float) -> State:
    """Returns the state of a step, each of another size: no buffer of another step fits."""
    return {"a": torch.full((1000 + step,), value)}


# ---- states: what is saved, and what is loaded into -----------------------------------------------------------------


def views_of_one_storage() -> State:
    whole = torch.arange(60.0).reshape(6, 10)
    return {"whole": whole, "rows": whole[2:4], "column": whole[:, 3], "again": whole, "spread": whole[0].expand(3, 10)}


def kinds_that_differ() -> State:
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "turned": base.t(),
        "complex": torch.complex(base, -base),
        "conjugate": torch.complex(base, base).conj(),
        "bfloat16": base.to(torch.bfloat16),
        "fp8": base.to(torch.float8_e4m3fn),
        "bool": base > 5,
        "number": torch.tensor(7, dtype=torch.int16),
        "none": torch.empty(0, 3),
        "nan": torch.tensor([float("nan"), -0.0]),
    }


SAVED = {"shared storage": views_of_one_storage, "kinds": kinds_that_differ}


def comes_back(rank: int, world: int, store: str, kind: str) -> list[str]:
    """Saves a state, changes it, and loads it. Returns the names of what is not bit for bit what it was."""
    state = SAVED[kind]()
    expected = {name: bits(each).clone() for name, each in state.items()}
    found = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in state.items()}
    with Checkpointer(store, on_error="raise") as keeper:
        keeper.save(1, dict(state))
        for each in state.values():
            each.untyped_storage().fill_(255)
        keeper.wait()
        keeper.load(1, found)
    return [name for name, each in found.items() if not torch.equal(bits(each), expected[name])]


def is_refused(rank: int, world: int, store: str, kind: str) -> tuple[str, bool, list[int]]:
    """Saves a good state, a bad one, and a good one. Returns the error, whether it names the tensor, and the steps."""
    with Checkpointer(store) as keeper:
        keeper.save(1, {"good": torch.ones(3)})
        error = keeper.save(2, {"good": torch.ones(3), "bad": unsaveable()[kind]}).durable.exception(30)
        keeper.save(3, {"good": torch.ones(3)})
        keeper.wait()
        return refused(error), "bad" in str(error), list(keeper.steps())


# ---- moments: each is a block in which the second of three saves is made -------------------------------------------


@contextmanager
def full_disk(_keeper: Checkpointer, _folder: Path) -> Iterator[None]:
    with patch.object(os, "pwritev", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        yield


@contextmanager
def full_memory(keeper: Checkpointer, _folder: Path) -> Iterator[None]:
    keeper._stager.close()  # memory of earlier saves would serve
    with patch.object(os, "posix_fallocate", side_effect=OSError(errno.ENOMEM, "Cannot allocate memory")):
        yield


@contextmanager
def saved_before(keeper: Checkpointer, _folder: Path) -> Iterator[None]:
    keeper.save(2, filled(2, 2.0)).durable.result(30)
    yield


@contextmanager
def fork(keeper: Checkpointer, folder: Path) -> Iterator[None]:
    """A child is forked while a save is under way, and ends while it is."""
    held = folder / "held"
    (folder / "faults").write_text(f"checkpoint.share_written hold {held}\n")
    os.environ["GCR_FAULTS"] = str(folder / "faults")
    keeper.save(9, filled(9, 9.0))
    _wait_for(held.exists)
    if not (child := os.fork()):
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    held.unlink()
    yield


MOMENTS: dict[str, Callable[..., Any]] = {
    each.__name__.replace("_", " "): each for each in (full_disk, full_memory, saved_before, fork)
}


def goes_on(rank: int, world: int, store: str, moment: str) -> tuple[str, list[int], list[float]]:
    """Saves three steps, the second in a bad moment. Returns its error, the steps, and what they have."""
    with Checkpointer(store, in_flight=2) as keeper:
        keeper.save(1, filled(1, 1.0))
        keeper.wait()
        with MOMENTS[moment](keeper, Path(store).parent):
            error = keeper.save(2, filled(2, -2.0)).durable.exception(30)
        keeper.save(3, filled(3, 3.0))
        keeper.wait()
        values = []
        for step in keeper.steps():
            state = filled(step, 0.0)
            keeper.load(step, state)
            values.append(state["a"].unique().item())
        return refused(error), list(keeper.steps()), values
