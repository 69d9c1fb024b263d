"""Errors: each knows its code, the process state it leaves behind, what the user can do, and the exit code.

Branch on the type or on `code`, never on the text. `EXIT` below mirrors the table of exit codes in docs/contract.md §3.
"""

import errno
import os
from collections.abc import Sequence
from typing import ClassVar, Self


class GcrError(Exception):
    """Base of everything gcr raises on purpose."""

    code: ClassVar[str] = "internal"
    exit: ClassVar[int] = 1

    def __init__(self, message: str, *, state: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.hint = hint


class UsageError(GcrError):
    """The command line, or a request, does not parse."""

    code, exit = "usage", 2


class Refused(GcrError):
    """The request was refused, and nothing was touched."""

    code, exit = "refused", 3


class NoSuchJob(Refused):
    code = "no_such_job"


class NoOutput(Refused):
    """The job's output is not in a log: it runs, or ran, in the foreground."""

    code = "no_output"


class NoRecord(Refused):
    """The job has no record, since none could be written: the disk is full, say. So its end is not known."""

    code = "no_record"


class EndUnknown(Refused):
    """The job has ended, and its exit code is in no record: its supervisor was killed, or could not write it."""

    code = "end_unknown"


class NotOurs(Refused):
    """The process belongs to another user."""

    code = "not_ours"


class NotAGpuProcess(Refused):
    code = "not_a_gpu_process"


class JobEnding(Refused):
    """All processes of the job have ended, or are in exit(): their drivers shut down."""

    code = "job_ending"


class WrongState(Refused):
    """The job is not in a state from which this can begin: already suspended, not suspended, busy."""

    code = "wrong_state"


class UnsupportedState(Refused):
    """The driver would take this job and could not give it back (UVM, multicast, IPC, NCCL, verbs, MIG …)."""

    code = "unsupported_state"


class NoRoom(Refused):
    """Memory or a store's disk is short by `missing` bytes (None: unknown). `device`: the UUID of a full device."""

    code = "no_room"
    missing: int | None = None
    device: str | None = None

    def __init__(
        self,
        message: str,
        *,
        missing: int | None,
        device: str | None = None,
        state: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, state=state, hint=hint)
        self.missing, self.device = missing, device


class NoContext(Refused):
    """No context on the device can be had: it is full, or another program has it exclusively."""

    code = "no_context"


class DeviceShared(Refused):
    """The runtime brings a process back only to a device that no other process uses, and one does, or would."""

    code = "device_shared"


class WrongDevice(Refused):
    """There is no such device, the job does not use it, or two of its devices would meet on it."""

    code = "wrong_device"


class DriverTooOld(Refused):
    code = "driver_too_old"


class BackendMissing(Refused):
    """No such backend, or it is broken or has no device here."""

    code = "backend_missing"


class WrongVersion(Refused):
    """The daemon is of another version."""

    code = "wrong_version"


class UnsafeRuntime(Refused):
    """The socket directory has the wrong owner or mode."""

    code = "unsafe_runtime"


class NoHome(Refused):
    """This user has no home directory, and no variable says where to write instead."""

    code = "no_home"


class NameTaken(Refused):
    code = "name_taken"


class LibraryMissing(Refused):
    """A library of an extra is not installed; the hint says how to."""

    code = "library_missing"


class CannotStart(Refused):
    """The program of `gcr run` cannot be started: no such file, not executable."""

    code = "cannot_start"


class DaemonUnavailable(Refused):
    code = "daemon_unavailable"


class NotAllKnown(Refused):
    """A daemon that has just begun lacks processes of which its predecessor left word."""

    code = "not_all_known"

    @classmethod
    def of(cls, pids: Sequence[int]) -> Self:
        which = ", ".join(map(str, pids))
        text = f"processes that have not come back to the daemon: {which}; a job may be missing until they do"
        return cls(text, hint=f"is it stopped? kill -CONT {pids[0]}")


class RolledBack(GcrError):
    """Something failed on the way; the target runs on (or is as suspended as before)."""

    code, exit = "rolled_back", 4


class SwapFailed(RolledBack):
    """The job that was to come back did not; the other one is back, unless the message says that it is suspended."""

    code = "swap_failed"


class NoDescriptors(RolledBack):
    """A process may open no more files; gcr's keep one open for each allocation."""

    code = "no_descriptors"

    def __init__(
        self, message: str, *, state: str | None = None, hint: str = "docs/troubleshooting.md#descriptors"
    ) -> None:
        super().__init__(message, state=state, hint=hint)


class DeadlinePassed(RolledBack):
    code = "deadline_passed"


class NotRead(DeadlinePassed):
    """The peer's queue stays full; the message was not sent."""

    code = "not_read"


class StillRuns(DeadlinePassed):
    """It was waited for, and has not ended; nothing was done to it."""

    code = "still_runs"


class Stuck(DeadlinePassed):
    """The devices did not become idle; the message names the streams."""

    code = "stuck"


class DriverError(RolledBack):
    """A vendor call failed; the message names the call and the vendor's error."""

    code = "driver_error"


class DriverGone(RolledBack):
    """The driver of a process has shut down: as far as its device goes, the process has ended."""

    code = "driver_gone"


class MoveRefused(RolledBack):
    """The driver would not bring a process back on other devices; it is suspended as before."""

    code = "move_refused"


class StagedGone(RolledBack):
    """A suspended program closed descriptors that its agent kept for it; its keeper has them, too."""

    code = "staged_gone"


class AddressTaken(RolledBack):
    """Another thread of the program took an address of device memory; the program waits until it is free."""

    code = "address_taken"


class NotDeviceMemory(RolledBack):
    """A descriptor that should be device memory is something else."""

    code = "not_device_memory"


class NotTakenBack(RolledBack):
    """A failure could not be undone for want of device memory; the job is suspended and can be restored."""

    code = "not_taken_back"

    def __init__(self, message: str, *, missing: int, state: str | None = None, hint: str = "") -> None:
        super().__init__(message, state=state, hint=hint)
        self.missing = missing


class Unanswered(GcrError):
    """It was done, but a process that should go on does not answer; it goes on as soon as it does."""

    code, exit = "unanswered", 4


class PeerGone(RolledBack):
    """A process of gcr's, or the target, died in the middle."""

    code = "peer_gone"


class StandsStill(GcrError):
    """A checkpoint failed, and a process cannot take its memory back. gcr keeps the memory and goes on trying."""

    code, exit = "stands_still", 5


class Lost(GcrError):
    """The target cannot continue."""

    code, exit = "lost", 5


class Interrupted(GcrError):
    code, exit = "interrupted", 130


BROKEN = "a device, its driver or gcr computes wrongly: gcr doctor; report it with the log"


class HashMissed(RolledBack):
    """Found by --paranoid: bytes differ and their hashes are the same. A device, its driver or gcr computes wrongly."""

    code = "hash_missed"


def typed(error: Exception) -> GcrError:
    """Returns gcr's errors as they are, a lack of descriptors as NoDescriptors, and any other as an internal error."""
    if isinstance(error, GcrError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NoDescriptors(f"process {os.getpid()}: {error.strerror}")
    return GcrError("internal error; the traceback is in the log")
