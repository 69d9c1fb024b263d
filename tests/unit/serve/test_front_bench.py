"""The benchmark of the front of `gcr serve`, rehearsed: it runs, and each request is answered."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import front


def test_it_measures_the_bare_server_and_both_ways_through_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "CLIENTS", (2,))
    found = front.measured(front.built(tmp_path), tmp_path, 0.1)
    rows = [row for way in ("bare", *front.PATHS) for row in found[way]]
    assert len(rows) == 3
    assert all(row["answers_per_s"] > 10 and row["failed"] == 0 and row["p50_s"] > 0 for row in rows)
