"""The one list of ACL calls, `acl.toml`, against the declarations in C, against itself, and against each release."""

import ctypes
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

from acl_machine import DEADLINE, ROOT, AclMachine, folder

from gcr_ascend import abi
from gcr_ascend.acl import Call, attempt, table

ACL_H = ROOT / "shim" / "abi" / "acl.h"
DCMI_H = ROOT / "shim" / "sim" / "acl" / "dcmi" / "dcmi.h"
VERSIONS = ("8.0", "8.5", "9.0", "9.1")
Signature = tuple[str, tuple[str, ...]]  # what is returned, and the parameters, as C types


def without_comments(text: str) -> str:
    return re.sub(r"//.*|/\*.*?\*/", "", text)


def parameter_type(text: str) -> str:
    """`const void* src` is of type `const void*`."""
    words = re.sub(r"\s*\*", "*", text.strip())
    return "" if words == "void" else re.sub(r"\s*\b\w+$", "", words)


def declarations(text: str) -> dict[str, Signature]:
    """Every function a header declares."""
    pattern = r"^((?:const )?\w+\*?) (\w+)\(([^()]*)\);"
    return {
        name: (returns, tuple(filter(None, map(parameter_type, parameters.split(",")))))
        for returns, name, parameters in re.findall(pattern, without_comments(text), re.MULTILINE)
    }


def listed(call: Call) -> Signature:
    plain = {"acl": "aclError", "runtime": "rtError_t", "dcmi": "int"}[call.library]
    return call.returns or plain, call.parameters


def differences(ours: Mapping[str, Signature], theirs: Mapping[str, Signature]) -> dict[str, object]:
    names = ours.keys() | theirs.keys()
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def test_the_list_says_what_the_headers_declare() -> None:
    declared = declarations(ACL_H.read_text()) | declarations(DCMI_H.read_text())
    assert len(declared) > 90
    assert differences({name: listed(call) for name, call in table().calls.items()}, declared) == {}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("size_t size, aclrtMemMallocPolicy policy);", "size_t size);"),
        ("aclError aclrtFree(void* devPtr);", "aclError aclrtFree(const void* devPtr);"),
        ("aclError aclFinalize(void);", ""),
        ("uint64_t* shareableHandle);", "uint32_t* shareableHandle);"),
    ],
)
def test_a_header_that_differs_is_noticed(right: str, wrong: str) -> None:
    text = ACL_H.read_text()
    assert right in text
    changed = declarations(text.replace(right, wrong, 1))
    assert len(differences(declarations(text), changed)) == 1


def test_errors_have_the_numbers_of_the_headers() -> None:
    text = ACL_H.read_text() + DCMI_H.read_text()
    declared = {int(number): name for name, number in re.findall(r"(\w+_ERR\w+) = (-?\d+),", text)}
    assert declared == dict(table().errors)


def test_every_type_of_the_list_is_known() -> None:
    for call in table().calls.values():
        for each in (*call.parameters, *filter(None, [call.returns])):
            assert abi.ctype(each) is not None


def facts_in_c(names: list[str]) -> str:
    """A program that prints size and offsets of every structure."""
    lines = []
    for name in names:
        fields = [field for field, *_ in abi.STRUCTURES[name]._fields_]
        offsets = ", ".join(f"(int)offsetof({name}, {field})" for field in fields)
        lines.append(f'printf("{name}" " %d" "{" %d" * len(fields)}\\n", (int)sizeof({name}), {offsets});')
    includes = f'#include "{ACL_H}"\n#include "{DCMI_H}"\n#include <stdio.h>\n'
    return includes + "int main(void) { " + "\n".join(lines) + " return 0; }"


def test_structures_are_laid_out_as_in_c(tmp_path: Path) -> None:
    source, program = tmp_path / "facts.c", tmp_path / "facts"
    source.write_text(facts_in_c(list(abi.STRUCTURES)))
    subprocess.run(["cc", "-Wall", "-Werror", "-o", program, source], check=True, timeout=DEADLINE)
    printed = subprocess.run([program], capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    expected = [
        " ".join(map(str, [name, ctypes.sizeof(kind), *(getattr(kind, field).offset for field, *_ in kind._fields_)]))
        for name, kind in abi.STRUCTURES.items()
    ]
    assert printed.splitlines() == expected


def test_the_declarations_compile_as_cpp_and_can_be_named(tmp_path: Path) -> None:
    source = tmp_path / "names.cpp"
    source.write_text(
        f'#include "{ACL_H}"\n'
        "using Malloc = decltype(gcr::acl_abi::aclrtMalloc)*;\n"
        'static_assert(sizeof(gcr::acl_abi::aclrtPhysicalMemProp) == 32, "");\n'
        'static_assert(sizeof(gcr::acl_abi::aclrtMemAccessDesc) == 24, "");\n'
        "Malloc none = nullptr;\n"
    )
    words = [
        "c++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fno-exceptions",
        "-c",
        "-o",
        tmp_path / "names.o",
        source,
    ]
    subprocess.run(words, check=True, timeout=DEADLINE)


# ---- releases -------------------------------------------------------------------------------------------------------
EXPORT = {each for each in table().calls if "ShareableHandle" in each}  # which 8.0 plays without


def exported(library: Path) -> set[str]:
    words = ["nm", "-D", "--defined-only", str(library)]
    text = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_release_has_its_symbols_and_no_others(version: str) -> None:
    calls = table().calls.values()
    expected = {each.name for each in calls if each.library != "dcmi" and (each.since or "8.0") <= version}
    assert exported(folder(version) / "libascendcl.so") == expected - (EXPORT if version == "8.0" else set())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_binding_tells_what_a_release_lacks(tmp_path: Path, version: str) -> None:
    program = """
        say(*(int(has(each)) for each in ("aclrtMalloc", "aclrtMemExportToShareableHandle", "aclrtSnapShotProcessLock",
                                          "aclrtSnapShotCallbackRegister", "rtSnapShotProcessGetState")))
        say(acl.aclsysGetCANNVersion(0).version.decode(), acl.aclrtGetSocName().decode())
        try:
            acl.aclrtSnapShotCallbackRegister(0, SnapShotCallBack(lambda device, argument: 0), None)
        except DriverTooOld as old:
            say(old.message)
    """
    known = {"8.0": "1 0 0 0 0", "8.5": "1 1 1 0 1", "9.0": "1 1 1 1 1", "9.1": "1 1 1 1 1"}[version]
    lacks = ["this CANN has no aclrtSnapShotCallbackRegister: it came with CANN 9.0"] if version < "9" else []
    expected = [known, f"{version}.0.SIMULATED Ascend910B-SIMULATED", *lacks]
    assert AclMachine(tmp_path, version).run(program) == expected


def test_one_runtime_behind_every_library_name(tmp_path: Path) -> None:
    program = """
        use()
        lock()
        others = [ctypes.CDLL(name) for name in ("libacl_rt.so", "libruntime.so", "libascendcl.so")]
        state = ctypes.c_int32()
        for library in others:
            library.rtSnapShotProcessGetState(ctypes.byref(state))
            say(state.value, ctypes.cast(library.aclrtMalloc, ctypes.c_void_p).value
                == ctypes.cast(others[0].aclrtMalloc, ctypes.c_void_p).value)
    """
    assert AclMachine(tmp_path).run(program) == ["1 True"] * 3


# ---- without a runtime ----------------------------------------------------------------------------------------------
def test_a_missing_library_is_a_typed_error_at_the_first_call(tmp_path: Path) -> None:
    machine = AclMachine(tmp_path)
    program = """
        for call in (lambda: acl.aclInit(None), lambda: acl.dcmi_init(), lambda: has("aclInit"),
                     lambda: acl.rtSnapShotProcessGetState()):
            try:
                call()
            except BackendMissing as missing:
                say(missing.code, "lib" in missing.message, bool(missing.hint))
    """
    assert machine.run(program, LD_LIBRARY_PATH=str(tmp_path)) == ["backend_missing True True"] * 4


def test_a_failed_call_names_itself_and_the_error(tmp_path: Path) -> None:
    program = """
        for call in (lambda: acl.aclrtSetDevice(99), lambda: acl.aclrtMalloc(1, 99),
                     lambda: acl.dcmi_get_device_hbm_info(0, 0)):
            try:
                call()
            except DriverError as error:
                say(error.message)
    """
    assert AclMachine(tmp_path).run(program) == [
        "aclrtSetDevice: ACL_ERROR_RT_INVALID_DEVICEID (107001)",
        "aclrtMalloc: ACL_ERROR_RT_PARAM_INVALID (107000)",
        "dcmi_get_device_hbm_info: DCMI_ERR_CODE_NOT_REDAY (-8012)",
    ]


def test_a_wrong_number_of_arguments_never_reaches_the_library() -> None:
    with pytest.raises(TypeError, match="aclrtMalloc takes 2 arguments, 3 were given"):
        attempt("aclrtMalloc", 1, 2, 3)
    with pytest.raises(TypeError, match="aclrtFree takes 1 arguments, 0 were given"):
        attempt("aclrtFree")
    with pytest.raises(AttributeError, match=r"acl\.toml does not list aclrtNothing"):
        attempt("aclrtNothing")
