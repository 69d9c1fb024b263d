"""Errors: each knows its code, the process state it leaves behind, what the user can do, and the exit code.

Branch on the type or on `code`, never on the text. `EXIT` below mirrors the table of exit codes in docs/contract.md §3.
"""

import errno
import os
from collections.abc import Sequence
from typing import ClassVar, Self


class GcrError(Exception):
    """An error of gcr's; as itself a bug in gcr: the traceback is in `cli.log`, beside the daemon's log."""

    code: ClassVar[str] = "internal"
    exit: ClassVar[int] = 1

    def __init__(self, message: str, *, state: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.hint = hint


class UsageError(GcrError):
    """The command line, a setting or a request does not parse; `--help`."""

    code, exit = "usage", 2


class Refused(GcrError):
    """The request was refused, and nothing was touched; the message says why."""

    code, exit = "refused", 3


class NoSuchJob(Refused):
    """The job is not known: `gcr ps` lists the jobs."""

    code = "no_such_job"


class NoOutput(Refused):
    """The job was not run with `gcr run -d`, or its log went with its record: `gcr ps --all --json` names the log."""

    code = "no_output"


class NoRecord(Refused):
    """The job's record could not be written, and the message says why: the disk with gcr's state is full, say. Make
    room there.

    So the job's end is not known.
    """

    code = "no_record"


class EndUnknown(Refused):
    """The job's supervisor was killed, so that no process could see its exit code, or it could not write it down: `gcr
    ps --all` says when it ended.
    """

    code = "end_unknown"


class NotOurs(Refused):
    """The process belongs to another user: run gcr as that user."""

    code = "not_ours"


class NotAGpuProcess(Refused):
    """The process holds nothing on a device, or its program has become one that does not."""

    code = "not_a_gpu_process"


class JobEnding(Refused):
    """Every process of the job has ended or is in `exit()`: there is nothing left to suspend or to bring back; `gcr
    ps`.
    """

    code = "job_ending"


class WrongState(Refused):
    """The job is suspended already, or not suspended, or busy: `gcr ps`; or a process of it is stopped (SIGSTOP, a
    debugger): let it go on.
    """

    code = "wrong_state"


class UnsupportedState(Refused):
    """The driver would take the job and never give it back (UVM, multicast, memory of another job, verbs, MIG …):
    [limitations](limitations.md).
    """

    code = "unsupported_state"


class NoRoom(Refused):
    """Memory or a disk is short: the message, and `missing` under `--json`, say how much host or device memory, or room
    on the disk of the store. Where that disk may have too little, a checkpoint warns, and begins: zeros, and chunks
    that the store has, are not written.

    `missing`: bytes, None if unknown. `device`: the UUID of a full device.
    """

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
    """A worker lost its context, or has none where it needs one: try again.

    The device is full, or another program has it exclusively.
    """

    code = "no_context"


class DeviceShared(Refused):
    """An Ascend job comes back only to a device that no other process uses: the message names the process that does, or
    would ([Ascend](ascend.md)).
    """

    code = "device_shared"


class OwnerEnded(Refused):
    """A suspended process holds device memory of another process of its job, and that one has ended meanwhile,
    and so have the processes of gcr that kept its bytes: the message names both. The job stays suspended.
    """

    code = "owner_ended"


class WrongDevice(Refused):
    """`gcr restore --device` names a device that is not there, or of another model, or that the job does not use, or
    two of its devices would meet on one, or one would not reach the memory of another that it uses: `gcr devices`,
    `gcr ps`. Or a job that was stopped used a device that this machine does not have.
    """

    code = "wrong_device"


class DriverTooOld(Refused):
    """An NVIDIA driver of branch r570 or newer is needed; for `gcr restore --device` r580."""

    code = "driver_too_old"


class BackendMissing(Refused):
    """The backend is not there, is broken, or has no device here: `gcr backends` lists what was found, and what is
    broken. `gcr demo`: its bindings are not installed, the message says how.
    """

    code = "backend_missing"


class WrongVersion(Refused):
    """The daemon is of a later version, or of one too early to hand over to this one by itself: `gcr daemon stop
    --force`, and the same again. Every job stays as it is, suspended ones too. Where the message names a protocol,
    restore what is suspended with the gcr that started the daemon.
    """

    code = "wrong_version"


class UnsafeRuntime(Refused):
    """The runtime directory or a store has another owner or a wider mode, or the socket another user: the hint says
    what mends it.
    """

    code = "unsafe_runtime"


class NoHome(Refused):
    """The user has no home directory that can be written to, as a number alone in a container: the message says which
    variable to set.
    """

    code = "no_home"


class NameTaken(Refused):
    """A job of that name runs already."""

    code = "name_taken"


class LibraryMissing(Refused):
    """A library of an extra is missing: `pip install 'gpu-cr[EXTRA]'`. The message says which: `inspect`, `remote`,
    `encryption`, `compression`, `process`, `torch`, `transformers`, `lightning`, `serve`, `exchange`, `llm-d`, `ray`.
    """

    code = "library_missing"


class CriuUnusable(Refused):
    """CRIU is missing, older than 4.1, or cannot work on this kernel or with these privileges; the message says why."""

    code = "criu_unusable"


class CannotStart(Refused):
    """The program of `gcr run` was not found, or is not executable."""

    code = "cannot_start"


class DaemonUnavailable(Refused):
    """The daemon could not be reached or started: `gcr daemon logs`."""

    code = "daemon_unavailable"


class NotAllKnown(Refused):
    """A daemon that has just begun lacks processes that were under the one before it, so `gcr ps` does not say "no
    jobs": one that is stopped (`kill -CONT PID`), or that needs some seconds more.
    """

    code = "not_all_known"

    @classmethod
    def of(cls, pids: Sequence[int]) -> Self:
        which = ", ".join(map(str, pids))
        text = f"processes that have not come back to the daemon: {which}; a job may be missing until they do"
        return cls(text, hint=f"is it stopped? kill -CONT {pids[0]}")


class RolledBack(GcrError):
    """Something failed on the way; the program runs on, or is as suspended as before."""

    code, exit = "rolled_back", 4


class SwapFailed(RolledBack):
    """The job that was to come back did not, and the message says why; the other one runs again, or is suspended if the
    message says so: `gcr ps`.
    """

    code = "swap_failed"


class NoDescriptors(RolledBack):
    """A process of gcr's, or the program, may open no more files; the job is where it was:
    [descriptors](troubleshooting.md#descriptors).

    gcr's processes keep one open for each allocation.
    """

    code = "no_descriptors"

    def __init__(
        self, message: str, *, state: str | None = None, hint: str = "docs/troubleshooting.md#descriptors"
    ) -> None:
        super().__init__(message, state=state, hint=hint)


class DeadlinePassed(RolledBack):
    """A phase took longer than allowed: `--timeout`, or the phase's setting. Where the message names a supervisor that
    is stopped, `kill -CONT PID` helps.
    """

    code = "deadline_passed"


class NotRead(DeadlinePassed):
    """A process of gcr's reads nothing, so that a message to it could not be sent: it is stopped, or overloaded."""

    code = "not_read"


class StillRuns(DeadlinePassed):
    """`gcr wait --timeout` waited in vain; the job was left alone."""

    code = "still_runs"


class Stuck(DeadlinePassed):
    """The devices did not become idle, and the message names the streams: [my job is
    stuck](troubleshooting.md#my-job-is-stuck).
    """

    code = "stuck"


class DriverError(RolledBack):
    """A call of the vendor's driver failed; the message names it, and the vendor's error."""

    code = "driver_error"


class DriverGone(RolledBack):
    """A process is in `exit()`, or its driver has shut down. The command was taken back; the process goes on to its
    end, with its own exit code: try again.
    """

    code = "driver_gone"


class MoveRefused(RolledBack):
    """The driver does not bring the process back on these devices; it is suspended as before: [other
    devices](limitations.md#other-devices), `gcr restore` without `--device`.
    """

    code = "move_refused"


class StagedGone(RolledBack):
    """A suspended program closed all its descriptors, those that its agent kept for the restore among them, and the
    job's supervisor, which has the same, has died.
    """

    code = "staged_gone"


class AddressTaken(RolledBack):
    """A runtime keeps memory with its address, and another thread of the program took the address in the instant it was
    free. The program waits until it is free again, and runs on: try again.
    """

    code = "address_taken"


class NotDeviceMemory(RolledBack):
    """A descriptor that should be device memory was something else: report it."""

    code = "not_device_memory"


class NotTakenBack(RolledBack):
    """A checkpoint failed, and another program took the device memory that was released: the job is suspended, nothing
    is lost; `gcr restore` when there is room.
    """

    code = "not_taken_back"

    def __init__(self, message: str, *, missing: int, state: str | None = None, hint: str = "") -> None:
        super().__init__(message, state=state, hint=hint)
        self.missing = missing


class Unanswered(GcrError):
    """A restore was done, and a process does not answer, because it is stopped, say: it goes on as soon as it does."""

    code, exit = "unanswered", 4


class PeerGone(RolledBack):
    """A process of gcr's, or the target, died in the middle: `gcr ps`, then try again."""

    code = "peer_gone"


class StandsStill(GcrError):
    """A checkpoint failed, and the driver of a process refuses to take its memory back: the other processes run on,
    this one stands still. gcr keeps the memory and tries again every few seconds; `gcr recover` tries at once.
    """

    code, exit = "stands_still", 5


class Lost(GcrError):
    """The program cannot continue: the driver refused to give it back, or all that held its state died."""

    code, exit = "lost", 5


class Interrupted(GcrError):
    """You pressed Ctrl-C; the message says where the job stands. During `--wait durable` the checkpoint is done
    already: the job stays as it is, and its image is still being written.
    """

    code, exit = "interrupted", 130


def typed(error: Exception) -> GcrError:
    """Returns gcr's errors as they are, a lack of descriptors as NoDescriptors, and any other as an internal error."""
    if isinstance(error, GcrError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NoDescriptors(f"process {os.getpid()}: {error.strerror}")
    return GcrError("internal error; the traceback is in the log")
