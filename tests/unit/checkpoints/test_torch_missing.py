"""`gcr.torch` without PyTorch: nothing is loaded before a name is used, and then the error says what to do."""

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['torch'] = None\n"


def ran(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_loaded_before_a_name_is_used() -> None:
    assert ran("import gcr.torch; print('gcr_torch' in sys.modules, 'Checkpointer' in dir(gcr.torch))") == "False True"


@pytest.mark.parametrize("use", ["from gcr.torch import Checkpointer", "import gcr.torch.dcp"])
def test_the_error_names_the_extra(use: str) -> None:
    code = f"import gcr\ntry:\n    {use}\nexcept gcr.LibraryMissing as error:\n    print(error.hint)"
    assert ran(code) == "pip install 'gpu-cr[torch]'"


def test_an_adapter_has_an_extra_of_its_own() -> None:
    code = "try:\n    import gcr.torch.{}\nexcept gcr.LibraryMissing as error:\n    print(error.hint)\n"
    adapters = ("transformers", "lightning", "pytorch_lightning")
    found = ran("import gcr\n" + "".join(code.format(each) for each in adapters)).splitlines()
    assert found == [f"pip install 'gpu-cr[{each.removeprefix('pytorch_')}]'" for each in adapters]


def test_an_unknown_name_is_none() -> None:
    assert ran("import gcr.torch; print(hasattr(gcr.torch, 'Keeper'))") == "False"
