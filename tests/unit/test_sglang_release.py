"""gcr's hooks for SGLang: the schedulers are paused before the job is suspended, and nothing waits for them afterwards.

SGLang is a stand-in (tests/victims/sglang_standin); test_sglang_interface.py holds that against the real one.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.errors import GcrError, NoRoom, UnsupportedState, WrongState

STANDIN = Path(__file__).resolve().parents[2] / "tests" / "victims" / "sglang_standin"
ALL = ["weights", "kv_cache", "cuda_graph"]


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets afterwards whatever was loaded of the stand-in, and the hooks."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(STANDIN))
    for name, value in {"GCR_SGLANG": "1", "GCR_TOKEN": "t", "GCR_SOCKET": "s"}.items():
        monkeypatch.setenv(name, value)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("sglang", "gcr_sglang"):
            del sys.modules[name]


class Server:
    """A server with the hooks. `did`: the requests that its scheduler got and the commands that gcr got, in order.

    begun: the commands that gcr got, before the door was opened to them
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.managers import io_struct
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.plugins import load_plugins

        from gcr_sglang import release

        load_plugins()
        self.io, self.did, self.begun = io_struct, list[str](), list[str]()
        self.fails: dict[str, Exception] = {}
        self.flushed = io_struct.FlushCacheReqOutput(success=True)
        self.door = threading.Event()
        self.door.set()
        self.arguments = SimpleNamespace(nnodes=1, use_ray=False, tokenizer_worker_num=1, pp_size=1)
        self.manager = TokenizerManager(self.arguments, self._asked)
        for name in ("suspend", "restore"):
            monkeypatch.setattr(release, f"{name}_own", lambda name=name: self._commanded(name))

    def _asked(self, obj: Any) -> Any:
        kind = type(obj).__name__.removesuffix("ReqInput")
        self.did.append(kind)
        if kind == "PauseGeneration":
            assert obj.mode in ("retract", "in_place")
        if kind == "ContinueGeneration":
            assert not obj.torch_empty_cache
        return self.flushed if kind == "FlushCache" else None

    def _commanded(self, name: str) -> None:
        self.begun.append(name)
        assert self.door.wait(5), "the event loop stands still"
        self.did.append(name)
        if error := self.fails.get(name):
            raise error

    async def release(self, tags: list[str] | None = None) -> None:
        await self.manager.release_memory_occupation(self.io.ReleaseMemoryOccupationReqInput(tags=tags))

    async def resume(self, tags: list[str] | None = None) -> None:
        await self.manager.resume_memory_occupation(self.io.ResumeMemoryOccupationReqInput(tags=tags), None)

    async def pause(self, mode: str) -> None:
        await self.manager.pause_generation(self.io.PauseGenerationReqInput(mode=mode))

    async def go_on(self) -> None:
        await self.manager.continue_generation(self.io.ContinueGenerationReqInput(torch_empty_cache=False))

    def taken(self) -> list[str]:
        did, self.did = self.did, []
        return did


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def do(*steps: Callable[[], Awaitable[None]]) -> None:
    async def all_of_them() -> None:
        for step in steps:
            await step()

    asyncio.run(all_of_them())


RELEASED = ["PauseGeneration", "FlushCache", "suspend"]
RESUMED = ["restore", "ContinueGeneration"]


@pytest.mark.parametrize("tags", [None, [], ALL])
def test_the_job_is_suspended_after_the_pause_and_restored_before_it_ends(
    server: Server, tags: list[str] | None
) -> None:
    do(lambda: server.release(tags), lambda: server.release(tags))
    assert (server.taken(), server.manager.is_pause) == (RELEASED, True)
    do(lambda: server.resume(["weights"]))
    assert (server.taken(), server.manager.is_pause) == (RESUMED, False)
    do(lambda: server.resume(["kv_cache"]))
    assert server.did == []


def test_some_tags_are_sglangs_own_matter_until_they_are_back(server: Server) -> None:
    do(lambda: server.release(["weights", "kv_cache"]), server.release, lambda: server.resume(["kv_cache"]))
    assert server.taken() == ["ReleaseMemoryOccupation"] * 2 + ["ResumeMemoryOccupation"]
    do(server.resume, server.resume)
    assert server.taken() == ["ResumeMemoryOccupation"]
    do(server.release)
    assert server.did == RELEASED


@pytest.mark.parametrize("error", [NoRoom("no host memory", missing=1), OSError("no socket")])
def test_where_gcr_fails_the_server_runs_on(server: Server, error: Exception) -> None:
    server.fails["suspend"] = error
    with pytest.raises(type(error)):
        do(server.release)
    assert (server.taken(), server.manager.is_pause) == ([*RELEASED, "ContinueGeneration"], False)
    server.fails.clear()
    do(server.release)
    assert server.did == RELEASED


def test_a_server_whose_cache_is_not_flushed_is_not_suspended(server: Server) -> None:
    server.flushed = server.io.FlushCacheReqOutput(success=False)
    with pytest.raises(WrongState, match="did not flush"):
        do(server.release)
    assert server.did == ["PauseGeneration", "FlushCache", "ContinueGeneration"]


def test_a_restore_that_fails_may_be_tried_again(server: Server) -> None:
    do(server.release)
    server.taken()
    server.fails["restore"] = NoRoom("full", missing=1)
    with pytest.raises(NoRoom):
        do(server.resume)
    assert (server.taken(), server.manager.is_pause) == (["restore"], True)
    server.fails.clear()
    do(server.resume)
    assert server.did == RESUMED


def test_a_server_that_the_user_paused_stays_paused(server: Server) -> None:
    do(lambda: server.pause("abort"), server.release, server.resume)
    assert (server.taken(), server.manager.is_pause) == ([*RELEASED, "restore"], True)
    do(server.go_on, server.release, lambda: server.pause("in_place"), server.resume)
    assert server.did == ["ContinueGeneration", *RELEASED, "PauseGeneration", "restore"]


def test_no_request_may_go_on_while_the_memory_is_released(server: Server) -> None:
    do(server.release)
    with pytest.raises(WrongState, match="is released"):
        do(server.go_on)
    assert server.taken() == RELEASED
    do(server.resume, server.go_on)
    assert server.did == [*RESUMED, "ContinueGeneration"]


def test_a_release_that_is_cancelled_is_over_with_the_resume(server: Server) -> None:
    async def cancelled() -> None:
        server.door.clear()
        call = asyncio.create_task(server.release())
        while len(server.did) < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        back = asyncio.create_task(server.resume())
        await asyncio.sleep(0.1)
        assert server.begun == ["suspend"]
        server.door.set()
        await back

    do(cancelled)
    assert server.did == [*RELEASED, "restore", "ContinueGeneration"]


@pytest.mark.parametrize(
    "argument, value", [("nnodes", 2), ("use_ray", True), ("tokenizer_worker_num", 2), ("pp_size", 2)]
)
def test_a_server_that_cannot_be_paused_as_one_is_refused(server: Server, argument: str, value: object) -> None:
    setattr(server.arguments, argument, value)
    with pytest.raises(UnsupportedState):
        do(server.release)
    assert server.did == []


def test_the_server_goes_on_serving_while_gcr_is_at_work(server: Server) -> None:
    async def other_work() -> None:
        server.door.clear()
        call = asyncio.create_task(server.release())
        while len(server.did) < 2:
            await asyncio.sleep(0.001)
        server.door.set()
        await call

    do(other_work)
    assert server.did == RELEASED


def test_calls_at_once_take_turns(server: Server) -> None:
    async def both() -> None:
        await asyncio.gather(server.release(), server.resume(), server.release())

    do(both)
    assert server.did == [*RELEASED, *RESUMED, *RELEASED]


@pytest.mark.parametrize("unset", ["GCR_SGLANG", "GCR_TOKEN"])
def test_without_the_switch_or_gcr_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch, unset: str) -> None:
    monkeypatch.delenv(unset)
    server = Server(monkeypatch)
    do(server.release, server.resume)
    assert server.did == ["ReleaseMemoryOccupation", "ResumeMemoryOccupation"]


def test_the_plugin_is_found_by_sglangs_name_for_such() -> None:
    (found,) = [each for each in entry_points(group="sglang.srt.plugins") if each.name == "gcr"]
    assert found.value == "gcr_sglang:register"


def test_errors_are_gcrs_own(server: Server) -> None:
    """SGLang answers a request that failed by the text of the error."""
    server.fails["suspend"] = NoRoom("no host memory", missing=1)
    with pytest.raises(GcrError) as caught:
        do(server.release)
    assert str(caught.value) == "no host memory"
