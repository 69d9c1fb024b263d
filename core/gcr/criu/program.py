"""The program CRIU of this machine: where it is, its version, and what it can do on this kernel with our privileges."""

import os
import shutil
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.config import load
from gcr.criu.conversation import Conversation, conversation, criu_folder
from gcr.criu.messages import RequestType
from gcr.errors import CriuUnusable

OLDEST = (4, 1)  # the first that reads the vDSO of Linux 6.13 and later
_INSTALL = "install CRIU 4.1 or newer, or set `criu` in config.toml; a daemon reads it when it starts: gcr daemon stop"
SECONDS = 20.0  # `check` looks at every feature of the kernel
_QUIET = 1  # log level: errors


class Criu(Struct, frozen=True):
    """A CRIU that works here. `tracks`: the kernel tells which pages of a process were written."""

    program: Path
    version: tuple[int, int, int]
    tracks: bool
    lazy: bool

    def __str__(self) -> str:
        lacking = [name for name, there in (("dirty tracking", self.tracks), ("lazy pages", self.lazy)) if not there]
        return f"{'.'.join(map(str, self.version))} at {self.program}" + (
            f", without {', '.join(lacking)}" if lacking else ""
        )


def find() -> Path:
    """Returns the program that the setting `criu` names, else that on the path. Raises CriuUnusable."""
    chosen = load().criu
    found = shutil.which(chosen or "criu")
    if found is None:
        raise CriuUnusable(f"no program {chosen or 'criu'}", hint=_INSTALL)
    return Path(found)


def look(program: Path | None = None) -> Criu:
    """Asks CRIU. Raises CriuUnusable where it is missing, too old, or cannot work here, and LibraryMissing."""
    program = program or find()
    with conversation(program) as asked:
        version = _version(asked)
    if version < OLDEST:
        text = f"{program} is of version {'.'.join(map(str, version))}"
        raise CriuUnusable(text, hint=_INSTALL)
    with conversation(program) as asked:
        features = asked.ask(
            RequestType.FEATURE_CHECK, SECONDS, features={"mem_track": True, "lazy_pages": True}
        ).features
    _check(program)
    return Criu(program, version, features.mem_track, features.lazy_pages)


def _version(asked: Conversation) -> tuple[int, int, int]:
    found = asked.ask(RequestType.VERSION, SECONDS).version
    return found.major_number, found.minor_number, found.sublevel


def _check(program: Path) -> None:
    """Raises CriuUnusable where CRIU says that it cannot dump or restore here."""
    there = os.open(criu_folder(), os.O_RDONLY | os.O_DIRECTORY)  # CRIU wants a folder, and writes nothing to it
    try:
        with conversation(program) as asked:
            answer: Any = asked.ask(RequestType.CHECK, SECONDS, opts={"images_dir_fd": there, "log_level": _QUIET})
            if not answer.success:
                text = _reason(answer) or asked.last_words() or "it does not say why"
                raise CriuUnusable(f"{program} cannot work here: {text}", hint=f"{program} check")
    finally:
        os.close(there)


def _reason(answer: Any) -> str:
    """Returns what CRIU says in its answer, which is often nothing: then its log may tell."""
    return answer.cr_errmsg.strip() or (os.strerror(answer.cr_errno) if answer.cr_errno else "")
