"""Settings: one table, read from config.toml, then GCR_* in the environment, then flags; the last one wins.

`python -m gcr.config` prints the table of docs/configuration.md.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from gcr.errors import UsageError
from gcr.runtime import home_dir

log = logging.getLogger(__name__)

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_CONFIG = "GCR_CONFIG"
_MEANING, _LEAST, _MOST, _FORM = "meaning", "least", "most", "form"
_UIDS = r"(\d{1,10}(,\d{1,10})*)?"


def _setting(default: Any, meaning: str, least: float = 0, most: float = float("inf"), form: str = ".*") -> Any:
    return field(default=default, metadata={_MEANING: meaning, _LEAST: least, _MOST: most, _FORM: form})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting. Times in seconds unless the name says otherwise, sizes in bytes."""

    prepare_s: float = _setting(60.0, "longest PREPARE: exporting every allocation while the program runs", 0.1)
    quiesce_s: float = _setting(10.0, "longest wait for the devices to become idle; then the program runs on", 0.1)
    hand_over_s: float = _setting(60.0, "longest HAND OVER, and longest mapping back, which has 60 s at least", 0.1)
    control_s: float = _setting(60.0, "longest driver checkpoint or restore of one process", 0.1)
    drain_s: float = _setting(120.0, "longest copy between device and host", 0.1)
    cut_s: float = _setting(
        10.0, "longest that a program stands still for other nodes to come to the same cut; then it runs on", 0.1
    )
    stage_s: float = _setting(30.0, "longest STAGE: handing the arena's segments to agents and supervisor", 0.1)
    worker_start_s: float = _setting(60.0, "longest start of a worker, its driver context included", 0.1)
    pulse_ms: int = _setting(
        20, "without progress for so long, the closed gate lets calls through; 0: never", 0, 60_000
    )
    arena_share: float = _setting(
        0.5, "largest share of available host memory, and of the cgroup's limit, the arenas may take", 1e-6, 0.95
    )
    segment_bytes: int = _setting(1 << 30, "largest arena segment", 2 << 20, 1 << 36)
    slot_bytes: int = _setting(
        64 << 20,
        "a slot of the ring through which the bytes of an image pass",
        2 << 20,
        1 << 32,
    )
    prepare_arena: bool = _setting(True, "fill and pin the arena in the background, so that a checkpoint need not")
    keep_copy: bool = _setting(
        True,
        "a job that comes back leaves its copy in the arena while no job needs the room; "
        "its next checkpoint copies only what has changed since",
    )
    worker_idle_s: float = _setting(600.0, "a worker ends after this, once no job runs on its device", 0)
    daemon_idle_s: float = _setting(3600.0, "a daemon without jobs ends after this", 1)
    threads: int = _setting(
        8,
        "threads of a worker that fill and pin host memory in the background, at most half of the cores; "
        "a checkpoint or restore that waits for it has all cores",
        1,
        256,
    )
    refill_threads: int = _setting(
        0,
        "threads of a worker that copy host memory to the device through pinned slots, where it is not pinned itself; "
        "0: three quarters of the cores, 12 at most",
        0,
        64,
    )
    criu: str = _setting("", "the program CRIU, 4.1 or newer; empty: `criu` on the path")
    criu_plugins: str = _setting("", "folder with CRIU's plugins; empty: where CRIU installs them")
    daemon_uid: int = _setting(
        -1, "user id of another user's daemon to obey, besides your own and root's; -1: none", -1, (1 << 32) - 2
    )
    allow_uid: str = _setting(
        "",
        "user ids, as `1000,1001`, that your daemon serves besides yours and root's; see docs/security.md",
        form=_UIDS,
    )
    share: str = _setting(
        "tickets",
        "what a program gets that exports device memory as a descriptor: `tickets`, which processes under gcr import, "
        "or the `driver`'s own, which any process imports; such memory is not handed over",
        form="tickets|driver",
    )
    store: str = _setting("", "where images are kept; empty: gcr/store in `$XDG_DATA_HOME`, else in ~/.local/share")
    store_s: float = _setting(60.0, "longest silence of the disk or server that has the store; then it is refused", 0.1)
    key_file: str = _setting("", "file with the key of an encrypted store; empty: none")
    key_command: str = _setting("", "command that prints that key, run without a shell; empty: none")
    keep_jobs: int = _setting(200, "ended jobs that `gcr ps --all` remembers, with their logs; for 30 days", 1, 100_000)
    job_log_bytes: int = _setting(16 << 20, "a detached job's log may grow so large, and one older part of it", 4096)
    batch: int = _setting(64, "descriptors in one message; the target holds no more at a time", 1, 253)


def admitted(config: Config) -> frozenset[int]:
    """Returns the ids of `allow_uid`."""
    return frozenset(int(word) for word in config.allow_uid.split(",") if word)


def load(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Config:
    """The settings in force; a flag that is None was not given. Raises UsageError naming where a bad value stands."""
    path = file or config_path()
    if file is None and path and os.environ.get(_CONFIG) and not path.exists():
        raise UsageError(
            f"{_CONFIG} names {path}, and there is no such file", hint=f"unset {_CONFIG}, or make the file"
        )
    chosen = {**(_from_file(path) if path else {}), **_from_environment()}
    log.debug("settings of %s and the environment: %s", path, ", ".join(sorted(chosen)) or "none")
    known = {each.name: each for each in fields(Config)}
    for name, value in (flags or {}).items():
        if value is not None:
            chosen[name] = _parsed(_known(name, known, "a flag"), value, f"--{name.replace('_', '-')}")
    return Config(**chosen)


def config_path() -> Path | None:
    """`$GCR_CONFIG`, else `$XDG_CONFIG_HOME/gcr/config.toml`; None for a user without a home directory."""
    if chosen := os.environ.get(_CONFIG):
        return Path(chosen)
    base, home = os.environ.get("XDG_CONFIG_HOME"), home_dir()
    folder = Path(base) if base else home / ".config" if home else None
    return folder / "gcr" / "config.toml" if folder else None


def settings() -> list[str]:
    """Their names."""
    return [each.name for each in fields(Config)]


def meanings() -> list[tuple[str, str]]:
    """Each setting, and what it is."""
    return [(each.name, _meaning(each)) for each in fields(Config)]


def environment_name(setting: str) -> str:
    return f"GCR_{setting.upper()}"


def markdown_table() -> str:
    """The table of docs/configuration.md: setting, type, default, environment variable, meaning."""
    rows = ["| setting | type | default | environment | meaning |", "|---|---|---|---|---|"]
    for each in fields(Config):
        kind = _kind(each).__name__
        facts = (f"`{each.name}`", kind, _shown(each.default), f"`{environment_name(each.name)}`", _meaning(each))
        rows.append(f"| {' | '.join(facts)} |")
    return "\n".join(rows)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            import tomllib  # most processes find no file

            body = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    known = {each.name: each for each in fields(Config)}
    return {name: _parsed(_known(name, known, str(path)), value, f"{path}: {name}") for name, value in body.items()}


def _from_environment() -> dict[str, Any]:
    present = [(each, os.environ.get(environment_name(each.name), "")) for each in fields(Config)]
    return {each.name: _parsed(each, text, environment_name(each.name)) for each, text in present if text}


def _known(name: str, known: Mapping[str, "Field[Any]"], source: str) -> "Field[Any]":
    if name not in known:
        raise UsageError(f"{source}: no setting is called {name!r}", hint="docs/configuration.md lists them")
    return known[name]


def _parsed(setting: "Field[Any]", value: object, source: str) -> Any:
    kind = _kind(setting)
    if kind is str:
        return _text(value, setting.metadata[_FORM], source)
    found = _boolean(value) if kind is bool else _number(value, kind)
    least, most = setting.metadata[_LEAST], setting.metadata[_MOST]
    if found is None or (kind is not bool and not least <= found <= most):
        bounds = "" if kind is bool else f" from {least:g} to {most:g}"
        raise UsageError(f"{source}: {value!r} is not {_ARTICLE[kind]}{bounds}")
    return found


_ARTICLE = {bool: "true or false", int: "a whole number", float: "a number"}


def _text(value: object, form: str, source: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{source}: {value!r} is not text")
    if not re.fullmatch(form, value, re.DOTALL):
        raise UsageError(f"{source}: {value!r} is not as `{form}`")
    return value


def _boolean(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _number(value: object, kind: type) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return cast(float, kind(value)) if isinstance(value, str) or kind(value) == value else None
    except (ValueError, OverflowError):  # int(inf)
        return None


def _kind(setting: "Field[Any]") -> type:
    return cast(type, setting.type)


def _meaning(setting: "Field[Any]") -> str:
    return cast(str, setting.metadata[_MEANING])


def _shown(default: object) -> str:
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


if __name__ == "__main__":
    print(markdown_table())  # noqa: T201
