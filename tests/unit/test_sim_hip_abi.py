"""shim/abi/hip.h against the vendor's headers, by way of hip-python: its modules were compiled with the real ones.

hip-python names the members of the vendor's structs and the constants; where a member lies is seen by filling the
struct with a pattern and reading the member. Nothing of the simulated runtime takes part.
"""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sim_hip import hip_python
from simulated import ROOT

HEADERS = [ROOT / "shim" / "abi" / name for name in ("hip.h", "hip_device.h")]
GENERATIONS = tuple(hip_python.REQUIREMENTS)
NOT_IN_PYTHON = {
    "HIP_STREAM_LEGACY",  # ours: the vendor's macros cast them to pointers
    "HIP_STREAM_PER_THREAD",
}
CHANGED = {("10", "HIP_FUNC_ATTRIBUTE_MAX")}  # grows with every release
STRUCTS = {
    "dim3": "dim3",
    "hipUUID_t": "hipUUID",
    "hipMemLocation": "hipMemLocation",
    "hipExtent": "hipExtent",
    "hipPitchedPtr": "hipPitchedPtr",
    "hipChannelFormatDesc": "hipChannelFormatDesc",
    "HIP_ARRAY_DESCRIPTOR": "HIP_ARRAY_DESCRIPTOR",
    "HIP_ARRAY3D_DESCRIPTOR": "HIP_ARRAY3D_DESCRIPTOR",
    "hipMemAccessDesc": "hipMemAccessDesc",
    "hipMemAllocationProp": "hipMemAllocationProp",
    "hipMemPoolProps": "hipMemPoolProps",
    "hipPointerAttribute_t": "hipPointerAttribute_t",
    "hipIpcMemHandle_st": "hipIpcMemHandle_t",
    "hipIpcEventHandle_st": "hipIpcEventHandle_t",
    "hip_Memcpy2D": "hip_Memcpy2D",
    "HIP_LAUNCH_CONFIG_st": "HIP_LAUNCH_CONFIG",
    "hipLaunchConfig_st": "hipLaunchConfig_t",
    "hipDeviceProp_t": "hipDeviceProp_t",
}

THEIRS = """
import ctypes, enum, json, sys
from hip import hip

wanted_structs, wanted_constants = json.load(sys.stdin)

# Every aligned word of four bytes is its own, so that what is read shows where it was read. ASCII, and no zero.
WORDS = [bytes([1 + at % 100, 1 + at // 100, 1, 1]) for at in range(1024)]
PATTERN = b"".join(WORDS)

def address(value):
    pointer = value.as_c_void_p() if hasattr(value, "as_c_void_p") else None
    return pointer.value if pointer else None

def offset(made, name, base, size):
    try:
        value = getattr(made, name)
    except Exception:
        return None
    place = address(value)
    if place and base <= place < base + size:
        return place - base  # a struct inside
    if place and not isinstance(value, (int, enum.Enum)):
        value = place
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, int):
        value = (int(value) & 0xffffffff).to_bytes(4, "little")
    known = isinstance(value, bytes) and value[:4] in WORDS
    return WORDS.index(value[:4]) * 4 if known else None

def describe(kind):
    made = kind()
    size, base = made.c_sizeof(), address(made)
    ctypes.memmove(base, PATTERN, size)
    found = {name: offset(made, name, base, size) for name in made.PROPERTIES()}
    return {"size": size, "members": {name: at for name, at in found.items() if at is not None}}

def constants():
    for name in dir(hip):
        value = getattr(hip, name)
        if isinstance(value, type) and issubclass(value, enum.IntEnum):
            yield from ((member, int(number)) for member, number in value.__members__.items())
        elif isinstance(value, int):
            yield name, int(value)

known = dict(constants())
json.dump([{name: describe(getattr(hip, name)) for name in wanted_structs if hasattr(hip, name)},
           {name: known[name] for name in wanted_constants if name in known}], sys.stdout)
"""


def our_constants() -> list[str]:
    text = re.sub(r"//.*", "", "".join(header.read_text() for header in HEADERS))
    return [name for body in re.findall(r"\benum \{(.*?)\};", text, re.S) for name in re.findall(r"(\w+) =", body)]


def our_values(lines: list[str], folder: Path) -> list[int]:
    """Returns a C compiler's values of these expressions over our header."""
    source, program = folder / "ours.c", folder / "ours"
    prints = "".join(f'    printf("%lld\\n", (long long)({line}));\n' for line in lines)
    source.write_text(f'#include <stdio.h>\n#include "abi/hip.h"\nint main(void) {{\n{prints}    return 0;\n}}\n')
    subprocess.run(["cc", "-w", f"-I{ROOT / 'shim'}", source, "-o", program], check=True, timeout=60)
    return [int(line) for line in subprocess.run([program], capture_output=True, check=True).stdout.split()]


@functools.cache
def theirs(generation: str) -> tuple[dict[str, Any], dict[str, int]]:
    env = {"PYTHONPATH": str(hip_python.folder(generation))}
    asked = json.dumps([list(STRUCTS), our_constants()])
    done = subprocess.run(
        [sys.executable, "-c", THEIRS], env=env, input=asked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    structs, constants = json.loads(done.stdout)
    return structs, constants


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_constant_has_the_vendors_value(generation, tmp_path):
    _, known = theirs(generation)
    names = our_constants()
    ours = dict(zip(names, our_values(names, tmp_path), strict=True))
    assert set(ours) - set(known) == NOT_IN_PYTHON
    changed = {name for of, name in CHANGED if of == generation}
    wrong = {name: (ours[name], known[name]) for name in known if ours[name] & 2**32 - 1 != known[name] & 2**32 - 1}
    assert set(wrong) == changed, wrong


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_struct_has_the_vendors_layout(generation, tmp_path):
    structs, _ = theirs(generation)
    assert set(structs) == set(STRUCTS)
    expected: dict[str, int] = {}
    for name, struct in structs.items():
        expected[f"sizeof({STRUCTS[name]})"] = struct["size"]
        expected |= {f"offsetof({STRUCTS[name]}, {member})": at for member, at in struct["members"].items()}
    assert dict(zip(expected, our_values(list(expected), tmp_path), strict=True)) == expected


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_comparison_sees_enough(generation):
    """So that a hip-python that shows less does not make the test above empty."""
    structs, _ = theirs(generation)
    seen = {name: len(struct["members"]) for name, struct in structs.items()}
    assert seen["hipDeviceProp_t"] >= 80
    assert seen["hip_Memcpy2D"] >= 12
    assert structs["hipDeviceProp_t"]["members"]["gcnArchName"] == 1160
    assert structs["hipMemAllocationProp"]["members"]["location"] == 8  # not so before ROCm 5.4
    assert structs["hipMemAllocationProp"]["members"]["allocFlags"] == 24
