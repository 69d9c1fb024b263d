"""The C types of `acl.toml` as ctypes: scalars, handles, structures, callbacks. shim/abi/acl.h is the reference."""

import ctypes
from typing import Any, ClassVar


class MemLocation(ctypes.Structure):
    _fields_: ClassVar = [("id", ctypes.c_uint32), ("type", ctypes.c_int32)]


class PhysicalMemProp(ctypes.Structure):
    _fields_: ClassVar = [
        ("handleType", ctypes.c_int32),
        ("allocationType", ctypes.c_int32),
        ("memAttr", ctypes.c_int32),
        ("location", MemLocation),
        ("reserve", ctypes.c_uint64),
    ]


class MemAccessDesc(ctypes.Structure):
    _fields_: ClassVar = [("flags", ctypes.c_int32), ("location", MemLocation), ("rsv", ctypes.c_uint8 * 12)]


class PtrAttributes(ctypes.Structure):
    _fields_: ClassVar = [("location", MemLocation), ("pageSize", ctypes.c_uint32), ("rsv", ctypes.c_uint32 * 4)]


class CANNPackageVersion(ctypes.Structure):
    _fields_: ClassVar = [
        ("version", ctypes.c_char * 128),
        ("majorVersion", ctypes.c_char * 64),
        ("minorVersion", ctypes.c_char * 64),
        ("releaseVersion", ctypes.c_char * 64),
        ("patchVersion", ctypes.c_char * 64),
        ("reserved", ctypes.c_char * 128),
    ]


class DeviceUuid(ctypes.Structure):
    _fields_: ClassVar = [("bytes", ctypes.c_uint8 * 16)]


class SnapShotBackupArgs(ctypes.Structure):
    _fields_: ClassVar = [("backupFlags", ctypes.c_uint32), ("reserved", ctypes.c_char * 60)]


class SnapShotRestoreArgs(ctypes.Structure):
    _fields_: ClassVar = [("restoreFlags", ctypes.c_uint32), ("reserved", ctypes.c_char * 60)]


class ChipInfo(ctypes.Structure):
    _fields_: ClassVar = [
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_ver", ctypes.c_char * 32),
        ("aicore_cnt", ctypes.c_uint),
    ]


class HbmInfo(ctypes.Structure):
    """Sizes in MB."""

    _fields_: ClassVar = [
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwith_util_rate", ctypes.c_uint),
    ]


class ProcMemInfo(ctypes.Structure):
    """`proc_mem_usage` in bytes."""

    _fields_: ClassVar = [("proc_id", ctypes.c_int), ("proc_mem_usage", ctypes.c_ulong)]


class DieId(ctypes.Structure):
    _fields_: ClassVar = [("soc_die", ctypes.c_uint * 5)]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "aclrtMemLocation": MemLocation,
    "aclrtPhysicalMemProp": PhysicalMemProp,
    "aclrtMemAccessDesc": MemAccessDesc,
    "aclrtPtrAttributes": PtrAttributes,
    "aclCANNPackageVersion": CANNPackageVersion,
    "aclrtUuid": DeviceUuid,
    "aclrtSnapShotBackupArgs": SnapShotBackupArgs,
    "aclrtSnapShotRestoreArgs": SnapShotRestoreArgs,
    "struct dcmi_chip_info": ChipInfo,
    "struct dcmi_hbm_info": HbmInfo,
    "struct dcmi_proc_mem_info": ProcMemInfo,
    "struct dcmi_die_id": DieId,
}

HANDLES = ("Context", "Stream", "Event", "DrvMemHandle", "BinHandle", "FuncHandle")
ENUMS = (
    "aclrtMemMallocPolicy",
    "aclrtMemcpyKind",
    "aclrtMemAttr",
    "aclrtMemHandleType",
    "aclrtMemGranularityOptions",
    "aclrtMemSharedHandleType",
    "aclrtStreamStatus",
    "aclrtEventRecordedStatus",
    "aclCANNPackageName",
    "aclrtSnapShotStage",
    "rtProcessState",
    "dcmi_die_type",
)
OPAQUE = ("aclrtMallocConfig", "aclrtBinaryLoadOptions", "aclrtLaunchKernelCfg", "aclrtPlaceHolderInfo")

HostFunc = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SnapShotCallBack = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int32, ctypes.c_void_p)

SCALARS: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "void*": ctypes.c_void_p,
    "char*": ctypes.c_void_p,  # a buffer that the call writes
    "const char*": ctypes.c_char_p,
    "aclrtHostFunc": HostFunc,
    "aclrtSnapShotCallBack": SnapShotCallBack,
    **{f"aclrt{name}": ctypes.c_void_p for name in HANDLES},
    **dict.fromkeys(ENUMS, ctypes.c_int32),
}


def ctype(name: str) -> Any:
    """The ctypes type of a C type as `acl.toml` writes it. Raises KeyError for one that is not known here."""
    if name in SCALARS:
        return SCALARS[name]
    plain = name.removeprefix("const ")
    if not plain.endswith("*"):
        return STRUCTURES.get(plain) or SCALARS[plain]
    pointed = plain.removesuffix("*")
    if pointed in OPAQUE or pointed == "void":
        return ctypes.c_void_p
    return ctypes.POINTER(STRUCTURES.get(pointed) or SCALARS[pointed])
