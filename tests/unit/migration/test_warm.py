"""The target starts what the return of the processes asks for, before the source stops the job."""

from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

from gcr.api.migrations import Warm, World
from gcr.api.requests import MigrateRequest
from gcr.daemon.commands import migrating
from gcr.daemon.commands.asked import Asked


def test_the_control_helper_has_started_its_driver_and_each_worker_is_there() -> None:
    done = list[str]()

    def does(what: str) -> Callable[..., object]:
        return lambda *_: done.append(what)

    node: Any = SimpleNamespace(
        control=lambda world: SimpleNamespace(devices=does(f"control of {world.backend}")),
        worker=lambda _world, device: done.append(device),
    )
    step = Warm(job="llm", id="0" * 32, world=World("nvidia", False, {}), devices=("GPU-1", "GPU-2"))
    request = MigrateRequest(step=step.to_json(), timeout=1.0)
    migrating.run(node, request, Asked(lambda _event: None, Event()))
    assert sorted(done) == ["GPU-1", "GPU-2", "control of nvidia"]
