"""Plugins as strangers write them: installed with an entry point, or named in the environment; some of them broken."""

import subprocess
import sys
from pathlib import Path

import pytest

from gcr import hookspecs
from gcr.errors import BackendMissing
from gcr.plugins import load_backend, load_plugins

GOOD = """
import pluggy
hookimpl = pluggy.HookimplMarker("gcr")
class Backend:
    name = "{name}"
    interface = {interface}
    def probe(self): return []
    def devices(self): return []
    def drain(self, device): raise NotImplementedError
    def control(self): raise NotImplementedError
@hookimpl
def gcr_backends():
    return [Backend()]
"""


def good(name: str, interface: object = 1) -> str:
    return GOOD.format(name=name, interface=interface)


BROKEN = {
    "raises": ("raise RuntimeError('at import')", "RuntimeError: at import"),
    "missing": (None, "ModuleNotFoundError"),
    "syntax": ("def (", "SyntaxError"),
    "unknown_hook": (good("u") + "\n@hookimpl\ndef gcr_nonsense(): ...\n", "gcr_nonsense"),
    "wrong_arguments": (good("w").replace("gcr_backends()", "gcr_backends(surprise)"), "surprise"),
    "hook_raises": (good("h").replace("return [Backend()]", "1 / 0"), "ZeroDivisionError"),
    "no_name": (good("n").replace("name =", "label ="), "AttributeError"),
    "old": (good("o", 0), "upgrade the plugin"),
    "too_new": (good("t", 2), "upgrade gcr"),
    "unversioned": (good("v", None), "does not say which interface"),
    "half": (good("a").replace("def drain", "def brain"), "lacks drain"),
    "no_list": (good("l").replace("return [Backend()]", "return 5"), "TypeError"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a module on the path, with an entry point unless told otherwise. Nothing else is found."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("GCR_PLUGINS", raising=False)
    real = sys.modules["gcr.plugins"].entry_points
    ours = lambda group: [e for e in real(group) if e.distribution.startswith("stranger")]  # noqa: E731
    monkeypatch.setattr("gcr.plugins.entry_points", ours)

    def add(module: str, code: str | None, entry: bool = True) -> None:
        if code is not None:
            (tmp_path / f"{module}.py").write_text(code)
        if entry:
            info = tmp_path / f"stranger_{module}-1.2.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stranger-{module}\nVersion: 1.2\n")
            (info / "entry_points.txt").write_text(f"[gcr]\n{module} = {module}\n")

    yield add
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_a_stranger_s_plugin_is_found_by_its_entry_point(install):
    install("acme", good("acme"))
    plugins = load_plugins()
    assert plugins.backend("acme").name == "acme"
    assert plugins.found["acme"].origin == "acme of stranger-acme 1.2"
    assert plugins.broken == []


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_listed_and_harms_no_other(install, kind):
    code, error = BROKEN[kind]
    install("broken", code)
    install("acme", good("acme"))
    plugins = load_plugins()
    assert list(plugins.backends) == ["acme"]
    (broken,) = plugins.broken
    assert (broken.name, broken.origin) == ("broken", "broken of stranger-broken 1.2")
    assert error in broken.error
    with pytest.raises(BackendMissing, match="is broken"):
        plugins.backend("broken")


def test_a_plugin_may_be_named_in_the_environment(install, monkeypatch):
    install("gcr_acme", good("acme"), entry=False)
    monkeypatch.setenv("GCR_PLUGINS", " gcr_acme , gcr_missing,")
    plugins = load_plugins()
    assert plugins.found["acme"].origin == "GCR_PLUGINS=gcr_acme"
    assert [broken.name for broken in plugins.broken] == ["missing"]


def test_a_plugin_that_is_both_installed_and_named_is_loaded_once(install, monkeypatch):
    install("acme", good("acme"))
    monkeypatch.setenv("GCR_PLUGINS", "acme")
    plugins = load_plugins()
    assert list(plugins.backends) == ["acme"]
    assert plugins.broken == []


def test_a_name_that_is_taken_stays_with_the_first(install):
    install("acme", good("acme"))
    install("thief", good("acme"))
    plugins = load_plugins()
    assert plugins.found["acme"].origin.startswith("acme ")
    assert "already there" in plugins.broken[0].error


def test_one_backend_is_loaded_without_the_plugins_of_other_names(install):
    install("acme", good("acme"))
    install("other", good("second"))
    assert load_backend("acme").name == "acme"
    assert "acme" in sys.modules and "other" not in sys.modules
    assert load_backend("second").name == "second"  # a plugin need not be called as its backend is
    with pytest.raises(BackendMissing, match="found: acme, second"):
        load_backend("third")


def test_no_backend_of_that_name_says_which_there_are(install):
    install("acme", good("acme"))
    with pytest.raises(BackendMissing, match="found: acme"):
        load_plugins().backend("nvidia")


def test_every_hook_says_when_where_and_what_it_may_touch():
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("gcr_")]
    assert hooks
    for hook in hooks:
        assert hasattr(hook, "gcr_spec"), hook
        for word in ("Called", "worker", "may touch"):
            assert word in hook.__doc__


def test_the_backends_in_this_tree_are_found_like_a_stranger_s_and_load_no_vendor_library():
    root = Path(__file__).parents[2]
    code = (
        "import sys; from gcr.plugins import load_plugins; found = load_plugins();"
        "print(found.broken, sorted(found.backends));"
        "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'pynvml', 'torch', 'hip', 'acl')])"
    )
    backends = ":".join(f"{root}/backends/{name}" for name in ("amd", "ascend", "nvidia"))
    environment = {"PYTHONPATH": f"{root}/core:{backends}", "GCR_PLUGINS": "gcr_amd,gcr_ascend,gcr_nvidia"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["[] ['amd', 'ascend', 'nvidia']", "[]"], done.stderr
