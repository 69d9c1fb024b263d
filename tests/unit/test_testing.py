"""The kit for backends: what its names cost where they are not used."""

import subprocess
import sys

import pytest

import gcr.testing


def test_every_name_of_the_kit_is_there() -> None:
    assert {name for name in gcr.testing.__all__ if getattr(gcr.testing, name)} == set(gcr.testing._HOME)
    with pytest.raises(AttributeError, match="no attribute 'Contract'"):
        _ = gcr.testing.Contract


def test_a_child_process_of_a_contract_loads_no_pytest() -> None:
    """It took twice as long to start with it, and a test starts one or two."""
    program = (
        "import sys, gcr.testing.peer_main; print(*[name for name in ('pytest', 'statistics') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"
