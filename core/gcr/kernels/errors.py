"""Why a file could not be read. All of them are refusals: nothing is touched by reading."""

from gcr.errors import Refused


class CannotRead(Refused):
    """`gcr inspect-kernels` found no such file, had no permission, or it is not a regular file."""

    code = "cannot_read"


class UnknownFormat(Refused):
    """The file is none of those that hold device code: `gcr inspect-kernels --help` lists them."""

    code = "unknown_format"


class MalformedFile(Refused):
    """The file contradicts itself: it is cut short or damaged; if it works otherwise, report it."""

    code = "malformed_file"


class FileTooLarge(Refused):
    """A part of the file is, or claims to be when decompressed, larger than 256 MiB, or its metadata than 16 MiB."""

    code = "file_too_large"
