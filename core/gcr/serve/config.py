"""The file of `gcr serve`, checked as a whole before anything starts. docs/serve.md lists every key."""

import os
import re
import shlex
import string
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, field

from gcr.converting import convert
from gcr.names import JOB_NAME, meant
from gcr.protocol.begun import Surroundings
from gcr.serve import quantities
from gcr.serve.commands import PORT
from gcr.serveerrors import BadServeConfig
from gcr.tokens import token_in

T = TypeVar("T")
V = TypeVar("V")

LEAVE, END = "leave", "end"
_MOST_ALIAS = 200
_LEAST_IDLE_S = 0.1


class Unasked(Struct, frozen=True, kw_only=True):
    """Moves of a model without a request.

    idle: parked after so many seconds without one, None: not for that reason · wake: cron expressions of times at
    which it is brought to the device
    """

    idle: float | None = None
    wake: tuple[str, ...] = ()


class Beginning(Struct, frozen=True, kw_only=True):
    """A server's way to its first request.

    health: path that answers 200 once it is ready · longest: seconds from its command to then · image: that instant is
    kept in an image, from which later servers come; the text is the version of the program. None: no image
    """

    health: str
    longest: float
    image: str | None = None


class ModelConfig(Struct, frozen=True, kw_only=True):
    """A model. Times in seconds, sizes in bytes.

    command: words, of which some may hold `{port}` · port: None for any that is free · memory: device memory that it
    takes, None where the file says nothing · wait: longest time that a request may wait · surroundings: additions to
    the environment, and the folder
    """

    name: str
    command: tuple[str, ...]
    port: int | None
    beginning: Beginning
    priority: int
    pinned: bool
    unasked: Unasked
    memory: int | None
    wait: float
    aliases: tuple[str, ...]
    surroundings: Surroundings


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits on clients. connections: most at once · idle: seconds without a request · max_body: bytes"""

    connections: int
    idle: float
    max_body: int


class Parking(Struct, frozen=True, kw_only=True):
    """The ways of `gcr checkpoint` by which models are parked. data_only: None: as long as the memory stays, too"""

    data_only: bool | None = None
    resident: bool = True


class ServeConfig(Struct, frozen=True, kw_only=True):
    """All of the file. Times in seconds, sizes in bytes.

    memory: device memory for all models together, None: what the devices have · queue: most requests that wait for one
    model · hold: a model with requests keeps its room so long · grace: requests may go on so long after SIGTERM
    """

    host: str
    port: int
    token: str | None = None
    policy: str
    memory: int | None
    clients: ClientLimits
    queue: int
    hold: float
    grace: float
    on_stop: str
    parking: Parking
    models: Mapping[str, ModelConfig]

    def called(self) -> Mapping[str, str]:
        """Returns the model of each name that a request may use."""
        return {alias: each.name for each in self.models.values() for alias in (each.name, *each.aliases)}


class _Times(Struct, forbid_unknown_fields=True, kw_only=True):
    """The times of a model."""

    idle: str | int | float | None = None
    wake: list[str] = field(default_factory=list)
    start: str | int | float = "10m"
    wait: str | int | float = "2m"


class _Model(_Times, forbid_unknown_fields=True, kw_only=True):
    command: str | list[str]
    port: int | None = None
    health: str = "/health"
    image: str | None = None
    priority: int = 0
    pinned: bool = False
    memory: str | int | None = None
    aliases: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None


class _Clients(Struct, forbid_unknown_fields=True, kw_only=True):
    connections: int = 400
    idle: str | int | float = "75s"


class _Parking(Struct, forbid_unknown_fields=True, kw_only=True):
    data_only: bool | None = None
    resident: bool = True


class _Serve(_Parking, forbid_unknown_fields=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8080
    token_file: str | None = None
    policy: str = "lru"
    memory: str | int | None = None
    max_body: str | int = "64MiB"
    queue: int = 1000
    hold: str | int | float = "1s"
    grace: str | int | float = "30s"
    on_stop: str = LEAVE
    clients: dict[str, Any] = field(default_factory=dict)


class _File(Struct, forbid_unknown_fields=True, kw_only=True):
    models: dict[str, dict[str, Any]]
    serve: dict[str, Any] = field(default_factory=dict)


def load(path: Path) -> ServeConfig:
    """Raises BadServeConfig, which names the place in the file."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadServeConfig(f"{path}: {error.strerror}", hint="docs/serve.md has an example") from error
    except ValueError as error:
        raise BadServeConfig(f"{path}: {error}") from error
    try:
        return _checked(body, path.resolve().parent)
    except ValueError as error:
        raise BadServeConfig(f"{path}: {error}", hint="docs/serve.md lists every key") from error


def _converted(where: str, body: Mapping[str, Any], kind: type[T]) -> T:
    """Raises ValueError for keys that are unknown or missing, and for values of another type."""
    try:
        return convert(body, kind)
    except ValidationError as error:
        text = str(error).replace(" - at `$.", f" - at `{where}." if where else " - at `")
        unknown = text.partition("unknown field `")[2].partition("`")[0]
        known: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
        raise ValueError(f"{where}{': ' * bool(where)}{text}{meant(unknown, known) if unknown else ''}") from None


def _checked(body: Mapping[str, Any], folder: Path) -> ServeConfig:
    """Raises ValueError."""
    file = _converted("", body, _File)
    if not file.models:
        raise ValueError("there is no model: [models.NAME]")
    serve = _converted("serve", file.serve, _Serve)
    models = {name: _model(name, each, folder) for name, each in file.models.items()}
    if serve.on_stop not in (LEAVE, END):
        raise ValueError(f'serve.on_stop: {serve.on_stop!r} is neither "{LEAVE}" nor "{END}"')
    if not serve.host:
        raise ValueError("serve.host is empty")
    config = ServeConfig(
        host=serve.host,
        port=_port("serve.port", serve.port, least=0),
        token=_token(serve.token_file, folder),
        policy=serve.policy,
        memory=_optional("serve.memory", serve.memory, quantities.size),
        clients=_clients(serve),
        queue=_at_least("serve.queue", serve.queue, 1),
        hold=_at("serve.hold", serve.hold, quantities.seconds),
        grace=_at("serve.grace", serve.grace, quantities.seconds),
        on_stop=serve.on_stop,
        parking=Parking(data_only=serve.data_only, resident=serve.resident),
        models=models,
    )
    _check_ports(config)
    _check_names(config)
    _check_room(config)
    return config


def _clients(serve: _Serve) -> ClientLimits:
    given = _converted("serve.clients", serve.clients, _Clients)
    idle = _at("serve.clients.idle", given.idle, quantities.seconds)
    if idle < _LEAST_IDLE_S:
        raise ValueError(f"serve.clients.idle: {given.idle!r} is less than {_LEAST_IDLE_S:g} s")
    return ClientLimits(
        connections=_at_least("serve.clients.connections", given.connections, 1),
        idle=idle,
        max_body=_at("serve.max_body", serve.max_body, quantities.size),
    )


def _model(name: str, body: Mapping[str, Any], folder: Path) -> ModelConfig:
    if not JOB_NAME.match(name):
        raise ValueError(f"models.{name!r} is no name of a job: [a-z][a-z0-9._-]{{0,62}}; other names go to `aliases`")
    where = f"models.{name}"
    given = _converted(where, body, _Model)
    command = _command(where, given.command)
    if given.port is None and not any(PORT in word for word in command):
        raise ValueError(f"{where}: neither {PORT} in the command nor `port`: where does the server listen?")
    if not given.health.startswith("/") or not given.health.isprintable() or " " in given.health:
        raise ValueError(f"{where}.health: {given.health!r} is no path, such as /health")
    return ModelConfig(
        name=name,
        command=command,
        port=None if given.port is None else _port(f"{where}.port", given.port, least=1),
        beginning=Beginning(
            health=given.health,
            longest=_at(f"{where}.start", given.start, quantities.seconds),
            image=_optional(f"{where}.image", given.image, _version),
        ),
        priority=given.priority,
        pinned=given.pinned,
        unasked=Unasked(
            idle=_optional(f"{where}.idle", given.idle, quantities.seconds),
            wake=tuple(_at(f"{where}.wake", each, _cron) for each in given.wake),
        ),
        memory=_optional(f"{where}.memory", given.memory, quantities.size),
        wait=_at(f"{where}.wait", given.wait, quantities.seconds),
        aliases=tuple(_alias(where, each) for each in given.aliases),
        surroundings=Surroundings(_environment(where, given.env), _folder(where, given.cwd, folder)),
    )


def _command(where: str, given: str | Sequence[str]) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(given) if isinstance(given, str) else given)
    except ValueError as error:
        raise ValueError(f"{where}.command: {error}") from None
    if not words or not words[0]:
        raise ValueError(f"{where}.command names no program")
    for word in words:
        if "\0" in word:
            raise ValueError(f"{where}.command has a null character in it")
    return words


def _environment(where: str, given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{where}.env: {name!r} is no environment variable")
    return given


def _alias(where: str, text: str) -> str:
    if not text or len(text) > _MOST_ALIAS or not text.isprintable() or text.strip(string.whitespace) != text:
        raise ValueError(f"{where}.aliases: {text!r} is no name of 1 to {_MOST_ALIAS} printable characters")
    return text


def _cron(text: object) -> str:
    """Returns a cron expression. Raises ValueError for another text."""
    from gcr.serve.schedule import next_time  # its library is of the extra `serve`, and most files need none

    next_time(str(text), time.time())
    return str(text)


def _version(text: object) -> str:
    """Returns the version of a program. Raises ValueError for what cannot be a part of an image's name."""
    if not re.fullmatch(r"[a-z0-9._-]{1,20}", str(text)):
        raise ValueError(f"{text!r} is no version: [a-z0-9._-]{{1,20}}")
    return str(text)


def _folder(where: str, given: str | None, base: Path) -> str | None:
    if given is None:
        return None
    path = base / given
    if not path.is_dir():
        raise ValueError(f"{where}.cwd: {given!r} is no folder")
    return str(path)


def _token(given: str | None, base: Path) -> str | None:
    """Returns the bearer token. A file that others can read is refused."""
    if given is None:
        return None
    return _at("serve.token_file", base / given, token_in)


def _check_ports(config: ServeConfig) -> None:
    taken = {config.port: "serve"} if config.port else {}
    for each in config.models.values():
        if each.port is None:
            continue
        if each.port in taken:
            raise ValueError(f"models.{each.name}.port: {taken[each.port]} has port {each.port} already")
        taken[each.port] = each.name


def _check_names(config: ServeConfig) -> None:
    taken = {name: name for name in config.models}
    for each in config.models.values():
        for alias in each.aliases:
            if taken.setdefault(alias, each.name) != each.name:
                raise ValueError(f"models.{each.name}.aliases: {taken[alias]} is called {alias!r} already")


def _check_room(config: ServeConfig) -> None:
    if config.memory is None:
        return
    pinned = [each for each in config.models.values() if each.pinned]
    if sum(each.memory or 0 for each in pinned) > config.memory:
        names = ", ".join(each.name for each in pinned)
        raise ValueError(f"the pinned models {names} need more than serve.memory")
    kept = sum(each.memory or 0 for each in pinned)
    for each in config.models.values():
        if not each.pinned and kept + (each.memory or 0) > config.memory:
            raise ValueError(f"models.{each.name}.memory: there is no room for it beside the pinned models")


def _optional(where: str, value: object, parse: Callable[[object], T]) -> T | None:
    return None if value is None else _at(where, value, parse)


def _at(where: str, value: V, parse: Callable[[V], T]) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _at_least(where: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"{where}: {value} is less than {least}")
    return value


def _port(where: str, value: int, *, least: int) -> int:
    if not least <= value <= 65535:
        raise ValueError(f"{where}: {value} is no port")
    return value


def environment_of(model: ModelConfig) -> dict[str, str]:
    """Returns the whole environment of a model's server."""
    return {**os.environ, **(model.surroundings.environment or {})}
