"""Records of migrations: which node has a job while it moves. Each change is durable, one process at a time makes it.

    <state>/migrations/<host>/<job>.json    {"digest": …, "record": {…}}
                              lock          locked while a record changes

    source   copying → leaving → given        or → kept
    target   arriving → (no record: it has the job)

The source decides. From `leaving` on the migration alone may bring the job back there, and once it was given away
nothing may. While a job arrives, its gates stay closed at the target.
"""

import fcntl
import json
import logging
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from msgspec import MsgspecError, Struct, to_builtins
from msgspec.structs import replace

from gcr.converting import convert
from gcr.errors import NoRecord
from gcr.job.mover import Fate, Mover
from gcr.job.roundimages import migration_of
from gcr.listing import listed
from gcr.migrationerrors import GivenAway, MigrationUnderWay, NoSuchMigration
from gcr.runtime import own_directory, state_dir

log = logging.getLogger(__name__)


class Stage(StrEnum):
    """The stage of a migration at one node."""

    COPYING = "copying"  # source: the job runs
    LEAVING = "leaving"  # source: it is stopped, or about to be
    GIVEN = "given"  # source: the target has it
    KEPT = "kept"  # source: it comes back here
    ARRIVING = "arriving"  # target: the source has not given it away yet


class Migration(Struct, frozen=True, kw_only=True):
    """A record. `peer`: the other node, as the command line named it · `images`: those made for it, the last one last

    store: the path of the store that has them · `here`: this node, as the command line named it
    mover: the command that moves the job; None in a record of an earlier gcr
    """

    id: str
    job: str
    stage: Stage
    peer: str
    store: str
    images: tuple[str, ...] = ()
    here: str = "NODE"
    mover: Mover | None = None

    @property
    def source(self) -> str:
        return self.peer if self.stage is Stage.ARRIVING else self.here

    @property
    def target(self) -> str:
        return self.here if self.stage is Stage.ARRIVING else self.peer

    @property
    def command(self) -> str:
        """Returns the command that settles it, with both nodes."""
        words = ("gcr", "migrate", self.job, "--from", self.source, "--to", self.target, "--recover")
        return shlex.join(words)

    @property
    def fate(self) -> Fate:
        """Returns what is known here of the command that moves the job."""
        return self.mover.fate if self.mover else Fate.UNKNOWN

    @property
    def may_return(self) -> bool:
        """Returns whether this node may bring the job back by itself: it has not given it away, and no command will."""
        return self.stage in (Stage.COPYING, Stage.LEAVING, Stage.KEPT) and self.fate is Fate.GONE


BEFORE = {
    Stage.LEAVING: (Stage.COPYING, Stage.LEAVING),
    Stage.GIVEN: (Stage.LEAVING, Stage.GIVEN),
    Stage.KEPT: (Stage.COPYING, Stage.LEAVING, Stage.KEPT),
}


class Migrations(Struct, frozen=True):
    """The records of one node."""

    folder: Path

    @classmethod
    def here(cls) -> "Migrations":
        """Makes no folder: a job comes back on a full disk, too. Raises UnsafeRuntime."""
        host = blake2b(socket.gethostname().encode(), digest_size=8).hexdigest()
        return cls(state_dir() / "migrations" / host)

    def of(self, job: str) -> Migration | None:
        """Returns the record of a job that moves, or has moved. Raises NoRecord where it does not read back."""
        try:
            return _record_in((self.folder / f"{job}.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, MsgspecError) as error:
            text = f"the record of the migration of {job} does not read back: {error}"
            raise NoRecord(text, hint=f"look at {self.folder}, and at the other node") from error

    def all(self) -> list[Migration]:
        """Returns every record. Raises NoRecord where one does not read back."""
        try:
            paths = listed(self.folder, ".json")
        except FileNotFoundError:  # no job has moved yet
            return []
        return [each for path in paths if (each := self.of(path.stem))]

    def readable(self) -> list[Migration]:
        """Returns the records that read back. Raises OSError."""
        with suppress(FileNotFoundError):
            return [each for path in listed(self.folder, ".json") if (each := self._readable(path.stem))]
        return []

    def _readable(self, job: str) -> Migration | None:
        try:
            return self.of(job)
        except NoRecord as error:
            log.debug("%s", error)  # a command about the job raises it
            return None

    def begin(self, record: Migration) -> None:
        """Raises MigrationUnderWay where another migration of the job is not over; OSError."""
        with self._locked():
            found = self.of(record.job)
            if found and found.id != record.id:
                raise under_way(found)
            self._write(record)

    def move(self, job: str, id: str, stage: Stage) -> Migration:
        """Changes the stage of a record at the source. Returns the record, as it is then.

        Raises NoSuchMigration where there is none, GivenAway or MigrationUnderWay where the stage does not follow;
        OSError.
        """
        with self._locked():
            found = self.of(job)
            if found is None or found.id != id:
                raise NoSuchMigration(f"job {job} has no migration {id} here", hint=f"gcr migrate {job} --recover")
            if found.stage not in BEFORE[stage]:
                raise given_away(found) if found.stage is Stage.GIVEN else under_way(found)
            moved = replace(found, stage=stage)
            if moved != found:
                self._write(moved)
            return moved

    def note_image(self, job: str, id: str, image: str) -> tuple[str, ...]:
        """Notes an image before it is made. Returns those that were noted before. Raises NoSuchMigration, OSError."""
        with self._locked():
            found = self.of(job)
            if found is None or found.id != id:
                raise NoSuchMigration(f"job {job} has no migration {id} here", hint=f"gcr migrate {job} --recover")
            if image in found.images:
                return found.images[: found.images.index(image)]
            self._write(replace(found, images=(*found.images, image)))
            return found.images

    def end(self, job: str, id: str, stages: Sequence[Stage] = tuple(Stage)) -> Migration | None:
        """Removes the record of this migration, if it is at one of these stages. Returns it. Raises OSError."""
        with self._locked():
            found = self.of(job)
            if found is None or found.id != id or found.stage not in stages:
                return None
            (self.folder / f"{job}.json").unlink()
            self._sync()
            return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Makes the folder. Raises UnsafeRuntime, OSError."""
        own_directory(self.folder.parent)
        own_directory(self.folder)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write(self, record: Migration) -> None:
        path = self.folder / f"{record.job}.json"
        fresh = path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(_text_of(record))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
        self._sync()

    def _sync(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def refuse_to_run(job: str, id: str | None) -> None:
    """Raises GivenAway, MigrationUnderWay where a job may not run here: it moves, and not by this migration."""
    found = Migrations.here().of(job)
    if found is None or found.stage in (Stage.COPYING, Stage.KEPT):
        return
    if found.stage is Stage.ARRIVING and found.id == id:
        return
    raise given_away(found) if found.stage is Stage.GIVEN else under_way(found)


def refuse_to_return(job: str) -> None:
    """Raises GivenAway, MigrationUnderWay where the processes of a job may not be made again here."""
    found = Migrations.here().of(job)
    if found and found.stage in (Stage.LEAVING, Stage.GIVEN):
        raise given_away(found) if found.stage is Stage.GIVEN else under_way(found)


def refuse_to_leave(job: str, image: str | None) -> None:
    """Raises NoSuchMigration where a job would be stopped into the image of a migration that is over.

    A coordinator may have been slow while another one settled its migration.
    """
    migration = migration_of(image or "")
    if migration is None:
        return
    record = Migrations.here().of(job)
    if record is None or not record.id.startswith(migration) or record.stage is not Stage.LEAVING:
        raise NoSuchMigration(f"the migration {migration}… of job {job} is not under way any more", hint="gcr ps")


def given_away(found: Migration) -> GivenAway:
    return GivenAway(
        f"job {found.job} was given away to node {found.peer}, migration {found.id}",
        hint=f"gcr ps there; {found.command} if it is not there",
    )


def under_way(found: Migration) -> MigrationUnderWay:
    way = "from" if found.stage is Stage.ARRIVING else "to"
    return MigrationUnderWay(
        f"job {found.job} is moving {way} node {found.peer}, migration {found.id} ({found.stage})",
        hint=f"{found.command} if its command has died",
    )


def _text_of(record: Migration) -> bytes:
    body = to_builtins(record)
    return json.dumps({"digest": _digest(body), "record": body}, indent=1).encode()


def _record_in(text: bytes) -> Migration:
    body = json.loads(text)
    if body["digest"] != _digest(body["record"]):
        raise ValueError("the digest is wrong")
    return convert(body["record"], Migration)


def _digest(body: object) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=32, person=b"gcr migration").hexdigest()
