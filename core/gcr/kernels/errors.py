"""Why a file could not be read. All of them are refusals: nothing is touched by reading."""

from gcr.errors import Refused


class CannotRead(Refused):
    """No such file, no permission, or not a regular file."""

    code = "cannot_read"


class UnknownFormat(Refused):
    """The file is none of those that hold device code."""

    code = "unknown_format"


class MalformedFile(Refused):
    """The file begins like one of those, and contradicts itself."""

    code = "malformed_file"


class FileTooLarge(Refused):
    """A part of it is, or would be when decompressed, larger than anything a compiler writes."""

    code = "file_too_large"
