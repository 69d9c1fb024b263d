"""The contract that every backend of gcr holds, on the simulated driver."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from gcr.testing import BackendContract, ControlContract, DrainContract


class TestContract(BackendContract, DrainContract, ControlContract):
    backend = "gcr_acme:AcmeBackend"
    vendor_libraries = ("libacme.so",)
    victim_command: ClassVar = (sys.executable, str(Path(__file__).with_name("victim.py")))

    @pytest.fixture
    def environment(self, gcr_device: Mapping[str, str]) -> Mapping[str, str]:
        return gcr_device
