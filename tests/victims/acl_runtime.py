"""Ascend's runtime by ctypes, as far as `acl_device.py` and `acl_told.py` use it. Names are those of acl_rt.h."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import ClassVar

from c_library import Library, out

HBM_HUGE, HBM_HUGE1G = 4, 10  # aclrtMemAttr
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # aclrtMemcpyKind
HUGE1G_ONLY = 6  # aclrtMemMallocPolicy
DEVICE = 1
EVERYBODY = 1  # may import a shareable handle
LOCK_PRE, UNLOCK_POST = 0, 5  # the first and the last aclrtSnapShotStage
SnapShotCallBack = CFUNCTYPE(c_uint32, c_int32, c_void_p)


class MemLocation(Structure):
    """aclrtMemLocation"""

    _fields_: ClassVar = [("id", c_uint32), ("type", c_int32)]


class PhysicalMemProp(Structure):
    """aclrtPhysicalMemProp"""

    _fields_: ClassVar = [
        ("handleType", c_int32),
        ("allocationType", c_int32),
        ("memAttr", c_int32),
        ("location", MemLocation),
        ("reserve", c_uint64),
    ]


Stream = Binary = Function = Handle = c_void_p
acl = Library(
    "libascendcl.so",
    {
        "aclInit": (c_char_p,),
        "aclrtSetDevice": (c_int32,),
        "aclrtGetDevice": (out(c_int32),),
        "aclrtSynchronizeDevice": (),
        # memory
        "aclrtMalloc": (out(c_void_p), c_size_t, c_int32),
        "aclrtFree": (c_void_p,),
        "aclrtMemcpy": (c_void_p, c_size_t, c_void_p, c_size_t, c_int32),
        "aclrtMemcpyAsync": (c_void_p, c_size_t, c_void_p, c_size_t, c_int32, Stream),
        "aclrtMemsetAsync": (c_void_p, c_size_t, c_int32, c_size_t, Stream),
        # virtual memory
        "aclrtReserveMemAddress": (out(c_void_p), c_size_t, c_size_t, c_void_p, c_uint64),
        "aclrtMallocPhysical": (out(Handle), c_size_t, POINTER(PhysicalMemProp), c_uint64),
        "aclrtFreePhysical": (Handle,),
        "aclrtMapMem": (c_void_p, c_size_t, c_size_t, Handle, c_uint64),
        "aclrtUnmapMem": (c_void_p,),
        "aclrtMemExportToShareableHandle": (Handle, c_int32, c_uint64, out(c_uint64)),
        # work
        "aclrtCreateStream": (out(Stream),),
        "aclrtSynchronizeStream": (Stream,),
        "aclrtStreamQuery": (Stream, out(c_int32)),
        "aclrtBinaryLoadFromFile": (c_char_p, c_void_p, out(Binary)),
        "aclrtBinaryGetFunction": (Binary, c_char_p, out(Function)),
        "aclrtLaunchKernelWithHostArgs": (
            Function,
            c_uint32,
            Stream,
            c_void_p,
            c_void_p,
            c_size_t,
            c_void_p,
            c_size_t,
        ),
        # snapshots of a process
        "aclrtSnapShotProcessLock": (c_int, c_void_p),
        "aclrtSnapShotProcessUnlock": (c_int, c_void_p),
        "aclrtSnapShotProcessBackup": (c_int, c_void_p),
        "aclrtSnapShotProcessRestore": (c_int, c_void_p),
        "aclrtSnapShotCallbackRegister": (c_int32, SnapShotCallBack, c_void_p),
    },
)
attempt = acl.attempt
