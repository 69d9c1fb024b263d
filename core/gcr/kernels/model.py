"""Kernels and their arguments, the same for every vendor."""

from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """The kind of an argument, as far as the file says."""

    POINTER = "pointer"  # to device memory
    VALUE = "value"  # too small for a pointer, or of floating point type
    OPAQUE = "opaque"  # eight bytes or more: may be a pointer, or a structure that holds some
    SCRATCH = "scratch"  # an address in shared or local memory, which no checkpoint sees
    OBJECT = "object"  # image, sampler, texture, surface, queue, pipe
    HIDDEN = "hidden"  # put there by the runtime, not by the program


class Access(StrEnum):
    """The kernel's use of memory through an argument. Another argument may point to the same memory."""

    READ_ONLY = "read_only"  # proven: no write goes through it
    WRITTEN = "written"  # a write through it is there, or cannot be told from one
    UNKNOWN = "unknown"  # to be taken as written


class Proof(StrEnum):
    """The source of an access."""

    COMPILER = "compiler"  # the compiler's own inference, in the metadata of the code object
    PTX = "ptx"  # every use of the argument was followed in the PTX


class Form(StrEnum):
    """The encoding of device code."""

    CUBIN = "cubin"
    PTX = "ptx"
    CODE_OBJECT = "code_object"  # AMD
    UNREAD = "unread"  # known to be there, not understood


class Argument(Struct, frozen=True):
    """One kernel argument. `offset` and `size` are bytes; `access` is None for what is not memory."""

    index: int
    offset: int
    size: int
    kind: Kind
    access: Access | None = None
    proof: Proof | None = None


class Kernel(Struct, frozen=True):
    """`name` is the symbol, as mangled as it is; `argument_bytes` is the size of the whole argument block."""

    name: str
    argument_bytes: int
    arguments: tuple[Argument, ...]


class Image(Struct, frozen=True):
    """Device code for one architecture. `place` says where in the file; `note` why it could not be read."""

    place: str
    form: Form
    target: str
    kernels: tuple[Kernel, ...] = ()
    note: str = ""


def memory_kind(size: int) -> Kind:
    """Returns the kind of an argument of `size` bytes of which no more is known."""
    return Kind.OPAQUE if size >= 8 else Kind.VALUE
