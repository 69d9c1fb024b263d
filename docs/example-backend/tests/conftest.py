import pytest

pytest_plugins = ["gcr.testing.plugin"]


@pytest.fixture
def gcr_vendor() -> str:
    return "acme"
