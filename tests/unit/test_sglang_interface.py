"""gcr's hooks and the stand-in that they are tested with, against SGLang's source, which GCR_SGLANG_SOURCE names.

SGLang needs a GPU and gigabytes of packages. So CI leaves this out; its unpacked wheel is enough here.
"""

import ast
import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcr_sglang import MANAGER, register, release
from gcr_sglang.release import TAGS, Release

STANDIN = Path(__file__).resolve().parents[2] / "tests" / "victims" / "sglang_standin"
SOURCE = os.environ.get("GCR_SGLANG_SOURCE", "")
MANAGERS = "sglang/srt/managers"
HOOKED = f"{MANAGERS}/tokenizer_manager.py"
CONTROL = f"{MANAGERS}/tokenizer_control_mixin.py"
SCHEDULER = f"{MANAGERS}/scheduler.py"
REQUESTS = f"{MANAGERS}/io_struct.py"
REGISTRY = "sglang/srt/plugins/hook_registry.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def real(path: str) -> ast.Module:
    if not SOURCE:
        pytest.skip("GCR_SGLANG_SOURCE names no folder with SGLang's source")
    return ast.parse((Path(SOURCE) / path).read_text())


def standin(path: str) -> ast.Module:
    return ast.parse((STANDIN / path).read_text())


def class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    (found,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name]
    return found


def methods(tree: ast.Module, name: str) -> dict[str, str]:
    """Returns the public methods of a class: whether they are async, their parameters and defaults."""
    return {
        each.name: f"{type(each).__name__} {plain(each.args)}"
        for each in class_of(tree, name).body
        if isinstance(each, Function) and not each.name.startswith("_")
    }


def plain(arguments: ast.arguments) -> str:
    """Returns the parameters without their types, which the stand-in does not have all of."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for each in every:
        each.annotation = None
    return ast.unparse(arguments)


def function(tree: ast.Module, owner: str, name: str) -> Function:
    (found,) = [each for each in class_of(tree, owner).body if isinstance(each, Function) and each.name == name]
    return found


def fields(tree: ast.Module, name: str) -> dict[str, str]:
    """Returns the fields of a request, with their defaults."""
    return {
        each.target.id: ast.unparse(each.value) if each.value else ""
        for each in class_of(tree, name).body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def calls(node: ast.AST) -> list[str]:
    return [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]


@pytest.mark.parametrize(
    "path, name",
    [(CONTROL, "TokenizerControlMixin"), (HOOKED, "TokenizerManager"), (REGISTRY, "HookRegistry")],
)
def test_the_standin_has_methods_of_the_real_one(path: str, name: str) -> None:
    theirs, ours = methods(real(path), name), methods(standin(path), name)
    assert {each: theirs.get(each) for each in ours} == ours


def test_every_method_that_is_hooked_is_there_and_async() -> None:
    manager = class_of(real(HOOKED), "TokenizerManager")
    assert "TokenizerControlMixin" in map(ast.unparse, manager.bases)
    assert f"{HOOKED.removesuffix('.py').replace('/', '.')}.TokenizerManager" == MANAGER
    found = methods(real(HOOKED), "TokenizerManager") | methods(real(CONTROL), "TokenizerControlMixin")
    assert all(found[name].startswith("AsyncFunctionDef") for name in Release().hooks())
    wrap = ast.unparse(real(REGISTRY))
    assert "return hook(original_fn, *args, **kwargs)" in wrap
    assert "GENERAL_PLUGINS_GROUP = 'sglang.srt.plugins'" in ast.unparse(real("sglang/srt/plugins/__init__.py"))


def test_the_real_registry_puts_the_hooks_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """That module needs the standard library alone, so it is run here; the class that is hooked is the stand-in's."""
    real(REGISTRY)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(STANDIN))
    spec = importlib.util.spec_from_file_location("sglang.srt.plugins.hook_registry", Path(SOURCE) / REGISTRY)
    assert spec
    assert spec.loader
    registry = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, registry)
    spec.loader.exec_module(registry)
    for name, value in {"GCR_SGLANG": "1", "GCR_TOKEN": "t", "GCR_SOCKET": "s"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(release, "suspend_own", lambda: did.append("suspend"))
    did = list[str]()
    try:
        register()
        registry.HookRegistry.apply_hooks()
        from sglang.srt.managers.io_struct import FlushCacheReqOutput, ReleaseMemoryOccupationReqInput
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        arguments = SimpleNamespace(nnodes=1, use_ray=False, tokenizer_worker_num=1, pp_size=1)
        manager = TokenizerManager(arguments, lambda _request: FlushCacheReqOutput(success=True))
        asyncio.run(manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(), None))
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "sglang":
                del sys.modules[name]
    assert did == ["suspend"]


@pytest.mark.parametrize("each", [each.name for each in standin(REQUESTS).body if isinstance(each, ast.ClassDef)])
def test_requests_have_the_fields_that_are_read_or_set(each: str) -> None:
    assert fields(real(REQUESTS), each) == fields(standin(REQUESTS), each)


def test_the_tags_and_the_mode_are_sglangs() -> None:
    named: dict[str, ast.expr] = {}
    for each in real("sglang/srt/constants.py").body:
        if isinstance(each, ast.Assign):
            named[ast.unparse(each.targets[0])] = each.value
    every = named["GPU_MEMORY_ALL_TYPES"]
    assert isinstance(every, ast.List)
    assert {ast.literal_eval(named[ast.unparse(each)]) for each in every.elts} == TAGS
    pause = ast.unparse(class_of(real(REQUESTS), "PauseGenerationReqInput"))
    assert "mode: Literal['abort', 'retract', 'in_place']" in pause


def test_arguments_of_the_server_that_are_read_are_there() -> None:
    folder = "sglang/srt/arg_groups/fields"
    known = {name for part in ("parallel", "device", "serving") for name in fields_of_any(real(f"{folder}/{part}.py"))}
    assert {"nnodes", "use_ray", "tokenizer_worker_num", "pp_size"} <= known
    assert "self.server_args = server_args" in ast.unparse(function(real(HOOKED), "TokenizerManager", "__init__"))


def fields_of_any(tree: ast.Module) -> set[str]:
    return {name for each in tree.body if isinstance(each, ast.ClassDef) for name in fields(tree, each.name)}


@pytest.mark.parametrize("name", ["event_loop_normal", "event_loop_overlap"])
def test_a_paused_scheduler_reads_requests_and_does_nothing_else(name: str) -> None:
    """Any call of the driver in its loop would wait for the restore."""
    (loop,) = [each for each in function(real(SCHEDULER), "Scheduler", name).body if isinstance(each, ast.While)]
    assert [ast.unparse(each) for each in loop.body[:3]] == [
        "if self.gracefully_exit:\n    break",
        "self.ingest_requests()",
        "if self._engine_paused:\n    self._record_scheduler_state_for_paused_engine()\n    continue",
    ]


def test_a_paused_scheduler_counts_on_the_host_alone() -> None:
    state = function(real(SCHEDULER), "Scheduler", "_record_scheduler_state_for_paused_engine")
    assert set(calls(state)) == {
        "self.is_fully_idle",
        "self.metrics_reporter.record_scheduler_idle",
        "self.metrics_reporter.record_scheduler_active",
        "time.monotonic_ns",
    }


def test_requests_come_to_all_ranks_by_the_host() -> None:
    receiver = real(f"{MANAGERS}/scheduler_components/request_receiver.py")
    assert "force_cpu_device" not in ast.unparse(receiver)
    groups = [
        ast.unparse(argument)
        for call in ast.walk(receiver)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "broadcast_pyobj"
        for argument in call.args
    ]
    assert groups.count("tp_group.cpu_group") == 2
    common = real("sglang/srt/utils/common.py")
    (broadcast,) = [each for each in common.body if isinstance(each, Function) and each.name == "broadcast_pyobj"]
    assert ast.unparse(broadcast.args).endswith("force_cpu_device: bool=True")


def test_the_watchdog_leaves_a_paused_scheduler_alone() -> None:
    watchdog = ast.unparse(real(f"{MANAGERS}/scheduler_components/invariant_checker.py"))
    assert "is_active=lambda: scheduler.is_initializing or scheduler.cur_batch_for_debug is not None" in watchdog
    pause = function(real(SCHEDULER), "Scheduler", "pause_generation")
    after = ast.unparse(pause).partition("mode == 'in_place'")[2]
    assert "self.cur_batch_for_debug = None" in after


def test_new_requests_wait_in_the_manager_while_it_is_paused() -> None:
    generate = ast.unparse(function(real(HOOKED), "TokenizerManager", "generate_request"))
    waits = generate.index("self.is_pause_cond.wait_for(lambda: not self.is_pause)")
    assert waits < generate.index("self._tokenize_one_request(obj)") < generate.index("self._send_one_request(")


def test_the_server_answers_a_request_that_failed() -> None:
    server = real("sglang/srt/entrypoints/http_server.py")
    routes = {each.name: each for each in server.body if isinstance(each, Function)}
    for name in ("release_memory_occupation", "resume_memory_occupation"):
        (guarded,) = [each for each in routes[name].body if isinstance(each, ast.Try)]
        assert calls(guarded.body[0])[0] == f"_global_state.tokenizer_manager.{name}"
        assert ast.unparse(guarded.handlers[0]) == "except Exception as e:\n    return _create_error_response(e)"
