"""Errors of gcr's own table over hip-python without an installed runtime."""

from types import SimpleNamespace

import pytest

from gcr.errors import BackendMissing
from gcr_amd.runtime import Hip

TOLD = "failed to dlopen 'b'libamdhip64.so'': b'libamdhip64.so: cannot open shared object file'"
SYMBOL = "failed to dlsym 'b\"hipInit\"'"


@pytest.mark.parametrize(
    ("told", "readable"),
    [
        (TOLD, "failed to dlopen 'libamdhip64.so': libamdhip64.so: cannot open shared object file"),
        (SYMBOL, "failed to dlsym 'hipInit'"),
        ("no such call in lib'x", "no such call in lib'x"),
    ],
)
def test_what_hip_python_says_in_bytes_is_said_in_words(told: str, readable: str) -> None:
    def absent(_flags: int) -> None:
        raise RuntimeError(told)

    table = Hip("hip-python", lambda: SimpleNamespace(hipInit=absent), results="hipError_t", hint="install it")
    with pytest.raises(BackendMissing) as caught:
        table.hipInit(0)
    assert (caught.value.message, caught.value.hint) == (f"hipInit: {readable}", "install it")
