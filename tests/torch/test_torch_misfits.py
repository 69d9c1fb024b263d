"""Bad input to a Checkpointer: saved right or refused by name; the steps before and after it stand."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("kind", ["shared storage", "kinds"])
def test_it_comes_back_as_it_was(ranks: Any, tmp_path: Path, kind: str) -> None:
    assert ranks("misfit_programs.comes_back", store=str(tmp_path / "store"), kind=kind) == [[]]


@pytest.mark.parametrize("kind", ["meta", "sparse", "csr", "quantised", "wrapping", "nested"])
def test_it_is_refused_by_name(ranks: Any, tmp_path: Path, kind: str) -> None:
    found = ranks("misfit_programs.is_refused", store=str(tmp_path / "store"), kind=kind)[0]
    assert found == ("NotSaved: NotSaveable", True, [1, 3])


@pytest.mark.parametrize(
    "moment, error, steps, values",
    [
        ("full disk", "NotSaved: StoreUnusable", [1, 3], [1.0, 3.0]),
        ("full memory", "NotSaved: OSError", [1, 3], [1.0, 3.0]),
        ("saved before", "NotSaved: StepExists", [1, 2, 3], [1.0, 2.0, 3.0]),
        ("fork", "saved", [1, 2, 3, 9], [1.0, -2.0, 3.0, 9.0]),
    ],
)
def test_the_training_goes_on(
    ranks: Any, tmp_path: Path, moment: str, error: str, steps: list[int], values: list[float]
) -> None:
    store = str(tmp_path / "store")
    assert ranks("misfit_programs.goes_on", store=store, moment=moment) == [(error, steps, values)]
