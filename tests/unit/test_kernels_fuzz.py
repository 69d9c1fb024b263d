"""The reader answers any damaged file, or refuses it with its own error, soon and in bounded memory."""

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcr.errors import Refused
from gcr.kernels import inspect_file

DATA = Path(__file__).parents[1] / "data/kernels"
NAMES = [
    "large.cubin",
    "sm_100.cubin",
    "relocatable.cubin",
    "compute_100.ptx",
    "plain.fatbin",
    "zstd.fatbin",
    "lz4.fatbin",
    "libcuda_kernels.so.1",
    "gfx942.co",
    "plain.hipfb",
    "zstd.hipfb",
    "libhip_kernels.so.1",
]
SOON_S = 20.0
FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def answers_or_refuses(content: bytes) -> bool:
    """Returns True if the file was read; any error but a refusal fails the test."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        began = time.monotonic()
        try:
            images = inspect_file(Path(file.name))
        except Refused as error:
            assert error.exit == 3
            return False
        finally:
            assert time.monotonic() - began < SOON_S
    for argument in (argument for image in images for kernel in image.kernels for argument in kernel.arguments):
        assert min(argument.index, argument.offset, argument.size) >= 0
    return True


@pytest.mark.parametrize("name", NAMES)
def test_the_file_itself_is_read(name: str) -> None:
    assert answers_or_refuses((DATA / name).read_bytes())


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_truncated(name: str, data: st.DataObject) -> None:
    whole = (DATA / name).read_bytes()
    answers_or_refuses(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_bits_flipped(name: str, data: st.DataObject) -> None:
    content = bytearray((DATA / name).read_bytes())
    near = st.integers(0, min(len(content), 512) - 1)
    for at in data.draw(st.lists(near | st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    answers_or_refuses(bytes(content))


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_words_replaced(name: str, data: st.DataObject) -> None:
    """Sizes and offsets are what a flipped bit seldom makes interesting."""
    content = bytearray((DATA / name).read_bytes())
    word = st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x10", b"\1", b"\xff\xff"])
    for _ in range(data.draw(st.integers(1, 4))):
        at, new = data.draw(st.integers(0, len(content) // 4 - 2)) * 4, data.draw(word)
        content[at : at + len(new)] = new
    answers_or_refuses(bytes(content))


HEADS = [b"", b"\x7fELF\x02\x01\x01", b"\x50\xed\x55\xba\x01\0\x10\0", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB\2\0\1\0"]


@FUZZ
@given(head=st.sampled_from(HEADS), rest=st.binary(max_size=600))
def test_noise(head: bytes, rest: bytes) -> None:
    answers_or_refuses(head + rest)


PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p)\n{ "
REPEATED: dict[str, Callable[[int], bytes]] = {
    "open comments": lambda n: PTX + b"/*" * n,
    "open strings": lambda n: PTX + b'"\n' * n,
    "open brackets": lambda n: PTX + b"st" + b"[" * n + b"; }",
    "open braces": lambda n: PTX + b"{" * n,
    "labels": lambda n: PTX + b"a:" * n + b"; }",
    "kernels without an end": lambda n: PTX + b".entry a(" * n,
    "kernels in kernels": lambda n: PTX + b".entry a(){" * n,
    "kernels without a body": lambda n: PTX + b"} " + b".entry a " * n,
    "blank lines": lambda n: b".version 8.0" + b"\n" * n,
    "line numbers": lambda n: PTX + b".loc 1 2 3 " * n,
    "spaces": lambda n: PTX + b"st" + b" " * n + b"x; }",
    "versions": lambda n: b" " * n + b".version 8.0",
    "copies backwards": lambda n: (
        PTX
        + b"ld.param.u64 r0, [p]; "
        + b"".join(b"mov.u64 r%d, r%d;" % (i + 1, i) for i in reversed(range(n // 16)))
        + b"}"
    ),
    "modifiers": lambda n: PTX + b"ld" + b".a" * n + b" x, [p]; }",
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED.keys())
def test_nothing_takes_the_square_of_the_file(make: Callable[[int], bytes]) -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        answers_or_refuses(make(count))
        return time.process_time() - began

    assert seconds(400_000) < 6.0


def test_memory_is_bounded() -> None:
    """Headers that ask for a lot get nothing that the file does not hold."""
    content = bytearray((DATA / "zstd.fatbin").read_bytes())
    content[16 + 56 : 16 + 64] = (256 << 20).to_bytes(8, "little")
    tracemalloc.start()
    try:
        assert not answers_or_refuses(bytes(content))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
