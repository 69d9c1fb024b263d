import os
import stat
from pathlib import Path

import pytest

from gcr import config, runtime
from gcr.errors import NoHome, UnsafeRuntime
from gcr.image.store.location import store_path


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "GCR_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def test_the_session_s_runtime_directory_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert runtime.runtime_dir() == tmp_path / "run/gcr"
    assert runtime.socket_path() == tmp_path / "run/gcr/gcrd.sock"


def test_without_one_a_directory_of_this_user_under_the_temporary_one(tmp_path):
    assert runtime.runtime_dir() == tmp_path / f"gcr-{os.getuid()}"


def test_a_socket_may_be_chosen(monkeypatch):
    monkeypatch.setenv("GCR_SOCKET", "/run/gcr/socket")
    assert runtime.socket_path() == Path("/run/gcr/socket")


def test_logs_lie_with_the_state(monkeypatch, tmp_path):
    assert runtime.log_dir() == tmp_path / "home/.local/state/gcr/log"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert runtime.log_dir() == tmp_path / "state/gcr/log"


def test_a_made_directory_is_closed_to_all_others(tmp_path):
    old = os.umask(0)
    try:
        made = [runtime.runtime_dir(), runtime.log_dir(), runtime.state_dir()]
    finally:
        os.umask(old)
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o770, 0o755, 0o777])
def test_a_directory_open_to_others_is_refused_and_left_as_it_is(tmp_path, mode):
    path = runtime.runtime_dir()
    path.chmod(mode)
    with pytest.raises(UnsafeRuntime, match=f"{mode:04o}"):
        runtime.runtime_dir()
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_directory_of_another_user_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "gcr"
    path.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(UnsafeRuntime, match="belongs to user"):
        runtime.own_directory(path)


def test_a_link_is_refused_even_to_a_directory_of_ours(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeRuntime, match="not a directory"):
        runtime.own_directory(tmp_path / "link")


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "gcr").write_text("")
    with pytest.raises(UnsafeRuntime):
        runtime.own_directory(tmp_path / "gcr")


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsafeRuntime, match="cannot make"):
        runtime.own_directory(tmp_path / "file/gcr")


@pytest.fixture(params=["no home", "a home that cannot be written to"])
def homeless(monkeypatch, request, tmp_path):
    """Sets up a container with a user that is a number alone."""
    if request.param == "no home":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda _uid: {}[0])
    else:
        monkeypatch.setattr(os, "access", lambda path, _mode: "home" not in str(path) and path != tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "GCR_CONFIG", "GCR_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_needs_none(tmp_path):
    assert runtime.state_dir() == tmp_path / "run/gcr/state"
    assert runtime.log_dir() == tmp_path / "run/gcr/state/log"
    assert config.load().threads > 0


@pytest.mark.usefixtures("homeless")
def test_what_needs_a_home_says_which_variable_to_set(monkeypatch, tmp_path):
    with pytest.raises(NoHome) as caught:
        store_path()
    assert "GCR_STORE" in caught.value.hint and "XDG_DATA_HOME" in caught.value.hint
    assert store_path(str(tmp_path / "store")) == tmp_path / "store"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert store_path() == tmp_path / "data/gcr/store"


def test_a_tilde_without_a_home_is_refused():
    with pytest.raises(NoHome, match="nobody-is-called-so"):
        runtime.expanded("~nobody-is-called-so/store")
