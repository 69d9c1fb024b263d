"""Groups of one process. A test puts others in their place."""

from types import SimpleNamespace

ALONE = SimpleNamespace(world_size=1, local_rank=0, cpu_group=None)


def get_world_group() -> SimpleNamespace:
    return ALONE


def get_dp_group() -> SimpleNamespace:
    return ALONE
