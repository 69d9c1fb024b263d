"""The lines between `gcr run` and the process that started it for a program: the library, or `gcr run --detach`.

library -> gcr run      Surroundings, one line
gcr run -> its starter  Begun, one line, then the end: the program runs, or has not been started

Words may hold bytes that are no text, as lone surrogates, so the standard library's encoder writes them.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct, ValidationError, to_builtins

from gcr.converting import convert
from gcr.errors import GcrError
from gcr.protocol.jsonbody import error_from_json, error_to_json


class Line(Struct, frozen=True):
    """A message of one line."""

    def to_line(self) -> bytes:
        return json.dumps(to_builtins(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, text: bytes | str) -> Self:
        """Raises GcrError for a line of another shape."""
        try:
            return convert(json.loads(text), cls)
        except (ValueError, ValidationError) as error:
            raise GcrError(f"a line that is no {cls.__name__}: {error}") from error


class Surroundings(Line, frozen=True):
    """The environment and the folder of a program. None: those of `gcr run`."""

    environment: Mapping[str, str] | None = None
    folder: str | None = None


class Begun(Line, frozen=True, omit_defaults=True):
    """A job whose program runs as `pid`. `log`: the file that a detached one writes to. `error`: it was not started."""

    job: str = ""
    pid: int | None = None
    log: str | None = None
    error: dict[str, Any] | None = None

    @classmethod
    def refused(cls, error: GcrError) -> Self:
        return cls(error=error_to_json(error))

    def checked(self) -> Self:
        """Returns itself. Raises the error that kept the program from its start."""
        if self.error is not None or not self.job:
            raise error_from_json(self.error)
        return self
