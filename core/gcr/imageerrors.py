"""Errors of images and of the stores that keep them."""

from typing import Self

from gcr.errors import GcrError, Refused, RolledBack


class NoSuchImage(Refused):
    """The image is not in the store: `gcr images` lists what the store has; another setting `store` is another store;
    the message says where there is none at all. `gcr pull`: its push was perhaps cut short: push it again.
    """

    code = "no_such_image"


class ImageExists(Refused):
    """An image of that name is there, or is being written: another name, or `gcr rm`; in a store elsewhere: another
    prefix.
    """

    code = "image_exists"


class StepExists(ImageExists):
    """The run has this step already, or it is being saved just now: a run saves a step once. A training that goes on
    from an earlier step saves into another run, or the later steps are removed before (`gcr rm`).
    """

    code = "step_exists"


class ImageNeeded(Refused):
    """A suspended job can come back from this image and from nothing else, since host memory had no room for it: `gcr
    restore JOB` first, or end the job. Nothing was removed.
    """

    code = "image_needed"


class WrongImage(Refused):
    """The image was written by a newer gcr, or is no image; or it is of a process that is gone, or has run since."""

    code = "wrong_image"


class WrongKey(Refused):
    """The store, or the store elsewhere, is encrypted with another key, or no key was given; or it is not encrypted,
    and a key was: [encrypted stores](image-format.md#encrypted-stores). Nothing was changed.
    """

    code = "wrong_key"


class KeyUnusable(Refused):
    """The file or command that should have the key gives none, or the file is open to others: the message says why."""

    code = "key_unusable"


class StoreUnusable(Refused):
    """The store's disk is full, read-only or gone, or has not answered for `store_s` seconds, or its file system has no
    hard links; the message has the system's own words. `gcr push`, `gcr pull`: the [store
    elsewhere](image-format.md#stores-elsewhere) does not answer, is not there, or refuses the credentials.
    """

    code = "store_unusable"


class StoreBusy(Refused):
    """Others read from the store or write to it: try again when they are done."""

    code = "store_busy"


class RunBusy(StoreBusy):
    """Another process writes this run: a former training that has not ended, say. One process at a time writes a run's
    steps; another run may be written meanwhile.
    """

    code = "run_busy"


class NotSaveable(Refused):
    """A tensor is of a kind that a training checkpoint cannot hold: one without bytes (meta), or with bytes in several
    tensors (sparse, quantised, nested, a subclass that wraps others). The message names the tensor. Nothing was saved.
    """

    code = "not_saveable"


class NotSaved(GcrError):
    """A step of a training was not saved, and the message says why, and of which rank; the steps before it are whole.
    The training goes on, unless it asked for `on_error="raise"`.
    """

    code, exit = "not_saved", 4


class Damaged(GcrError):
    """A file of the store is not what was written, or something else lies in its place: `gcr verify --deep` says which
    images; `gcr pull` brings again what was found damaged of one that was pushed, or restore another. From `gcr pull`:
    the message names the object; push the image again, and remove a pack before, of which a push compares size and end
    alone.
    """

    code, exit = "damaged", 6

    @classmethod
    def of(cls, path: object, what: str, hint: str = "gcr verify --deep; restore another image") -> Self:
        return cls(f"{path}: {what}", hint=hint)


class ImageFailed(GcrError):
    """The image was not written, and the message says why; the job was brought back, and runs on. Where another program
    took its room meanwhile it is suspended, as `state` and the message say: `gcr restore` brings it back. With
    `--leave-running`, "needed the room": the copy was still on the device when a program found no memory there, and was
    given up for it; the job has noticed nothing: try again.
    """

    code, exit = "image_failed", 4


class NotDurable(GcrError):
    """`--wait durable` did not wait for longer than `--timeout`: the checkpoint is done, as `state` says, and its image
    is still being written; `gcr ps` says what becomes of it.
    """

    code, exit = "not_durable", 4


BROKEN = "a device, its driver or gcr computes wrongly: gcr doctor; report it with the log"


class HashMissed(RolledBack):
    """`--paranoid` found bytes that differ where their hashes do not; the job runs on, or is back, and there is no
    image or copy. That is a fault of the device, its driver or gcr: `gcr doctor`, a look at the device's own error
    counters, and a report with the log.
    """

    code = "hash_missed"


class CannotSave(Refused):
    """CRIU cannot save a process of the job as it is now. The message names each thing that is in the way, and the
    hint the first remedy. Nothing was touched.
    """

    code = "cannot_save"


class FilesChanged(Refused):
    """Files that the processes had open or mapped are gone, or not as they were when the processes were saved: they
    would read other bytes. The message names the files. Nothing was touched.
    """

    code = "files_changed"


class NotDumped(RolledBack):
    """CRIU could not save the processes, and the message has its own words; they are as they were before."""

    code = "not_dumped"


class NotRestored(RolledBack):
    """CRIU could not bring the processes back, and the message has its own words. None of them is left; the image is as
    it was.
    """

    code = "not_restored"
