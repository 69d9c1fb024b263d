"""Another user, and tests that need root to become one."""

import os

import pytest

OTHER = 65501
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
