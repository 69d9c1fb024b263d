"""Checks of what the library is given. Each raises UsageError, before a daemon or a store is asked."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any

from gcr.errors import UsageError

Stream = int | IO[Any] | None
Environment = Mapping[str, str]
Folder = str | os.PathLike[str]


def words_of(program: Sequence[str | os.PathLike[str]]) -> list[str]:
    """A command line: the program and its arguments."""
    if isinstance(program, str | bytes | os.PathLike):
        raise UsageError(f"{program!r} is one text, not a list of words", hint='["python", "serve.py"], or shlex.split')
    words = [_word(each) for each in _iterated(program)]
    if not words or not words[0]:
        raise UsageError("the list of words names no program")
    return words


def checked_environment(environment: Environment | None) -> dict[str, str] | None:
    if environment is None:
        return None
    if not isinstance(environment, Mapping):
        raise UsageError("env is a mapping of names to values")
    found = {_word(name): _word(value) for name, value in environment.items()}
    for name in found:
        if not name or "=" in name:
            raise UsageError(f"{name!r} is no name of an environment variable")
    return found


def checked_folder(folder: Folder | None) -> str | None:
    if folder is None:
        return None
    path = _word(folder)
    if not Path(path).is_dir():
        raise UsageError(f"cwd {path!r} is no folder")
    return path


def check_stream(name: str, stream: Stream, *, is_error: bool = False) -> None:
    if stream is None or hasattr(stream, "fileno"):
        return
    known = (DEVNULL, PIPE, STDOUT) if is_error else (DEVNULL, PIPE)
    if not isinstance(stream, int) or isinstance(stream, bool) or (stream < 0 and stream not in known):
        raise UsageError(f"{name}={stream!r} is neither a file nor what subprocess takes in its place")


def _iterated(program: Sequence[str | os.PathLike[str]]) -> list[Any]:
    try:
        return list(program)
    except TypeError:
        raise UsageError(f"{program!r} is not a list of words") from None


def _word(value: object) -> str:
    if not isinstance(value, str | bytes | os.PathLike):
        raise UsageError(f"{value!r} is not text")
    text = os.fsdecode(value)
    if "\0" in text:
        raise UsageError(f"{text!r} has a null character in it")
    return text
