"""`gcr inspect-kernels`: the kernels in a file, and what is proven about their arguments."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from gcr import units
from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.errors import Refused

if TYPE_CHECKING:
    from gcr.kernels import Argument, Image, Kernel

_HINTS = {
    "cannot_read": "name a regular file that you may read",
    "unknown_format": "gcr inspect-kernels --help lists the formats",
    "malformed_file": "is it cut short or damaged? If it works otherwise, report it",
    "file_too_large": "docs/errors.md has the limits",
}
_HEAD = ("", "ARG", "OFFSET", "SIZE", "KIND", "ACCESS", "PROOF")


@click.command(
    "inspect-kernels",
    epilog=examples("gcr inspect-kernels libkernels.so", "gcr inspect-kernels --json kernels.fatbin"),
)
@click.argument("file", type=click.Path(path_type=Path))
@common_options
@click.pass_obj
def command(options: Options, file: Path) -> None:
    """List the kernels in FILE with their arguments, and which of these are proven to be only read.

    FILE is a cubin, a CUDA fat binary, PTX, an AMD code object, a HIP offload bundle, or an executable or shared object
    that holds some. It is only read: nothing in it runs, and no driver is asked.
    """
    images = _inspected(file)
    if options.json:
        print_json(success("inspect-kernels", {"file": str(file), "images": [to_builtins(image) for image in images]}))
    else:
        print_text(_render(images))


def _inspected(file: Path) -> Sequence["Image"]:
    from gcr.kernels import inspect_file

    try:
        return inspect_file(file)
    except Refused as refused:
        if refused.code not in _HINTS:  # nothing about this file
            raise
        message = f"{file}: {refused.message.removeprefix(f'{file}: ')}"
        raise type(refused)(message, hint=_HINTS[refused.code]) from refused


def _render(images: Sequence["Image"]) -> str:
    return "\n\n".join(map(_shown, images)) or "no device code"


def _shown(image: "Image") -> str:
    count = image.note or text.plural(len(image.kernels), "kernel")
    head = "  ".join(part for part in (image.form, image.target, image.place, count) if part)
    return "\n".join([_printable(head), *(line for kernel in image.kernels for line in _lines(kernel))])


def _lines(kernel: "Kernel") -> Iterator[str]:
    yield f"  {_printable(kernel.name)}  {units.size(kernel.argument_bytes)} of arguments"
    if kernel.arguments:
        yield text.table(_HEAD, [_cells(argument) for argument in kernel.arguments])


def _cells(argument: "Argument") -> tuple[str, ...]:
    numbers = (str(argument.index), str(argument.offset), str(argument.size))
    return ("  ", *numbers, argument.kind, argument.access or "-", argument.proof or "-")


def _printable(name: str) -> str:
    """Returns a name without control characters: a terminal would obey those that a file may hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
