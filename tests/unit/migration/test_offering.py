"""The exchange of a migration begins in time, or none is left."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gcr.api.migrations import Offer
from gcr.errors import DeadlinePassed
from gcr.migration_helper import offering
from gcr.processes import start_time
from gcr.rendezvous import launch


def test_an_exchange_that_does_not_begin_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    silent, told = tmp_path / "silent", tmp_path / "pid"
    silent.write_text(f"#!/bin/sh\necho $$ > {told}.new && mv {told}.new {told}\nexec sleep 600\n")
    silent.chmod(0o700)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=str(silent)))
    monkeypatch.setattr(offering, "START_S", 1.0)
    with pytest.raises(DeadlinePassed, match="has not started"):
        offering.offered(Offer(job="llm", id="a" * 32, host="127.0.0.1"))
    assert start_time(int(told.read_text())) is None
