"""HIP's runtime by ctypes, as far as `hip_device.py` uses it. Names are those of hip_runtime_api.h."""

from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import ClassVar

from c_library import Library, out

PINNED = DEVICE = POSIX = 1
READ_WRITE = 3
DEVICE_TO_DEVICE, DEFAULT = 3, 4  # hipMemcpyKind
MINIMUM = 0
NON_BLOCKING = 1
DISABLE_TIMING = 2


class Location(Structure):
    """hipMemLocation"""

    _fields_: ClassVar = [("type", c_int), ("id", c_int)]


class AllocationFlags(Structure):
    _fields_: ClassVar = [("compressionType", c_ubyte), ("gpuDirectRDMACapable", c_ubyte), ("usage", c_ushort)]


class AllocationProp(Structure):
    """hipMemAllocationProp"""

    _fields_: ClassVar = [
        ("type", c_int),
        ("requestedHandleType", c_int),
        ("location", Location),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class AccessDesc(Structure):
    """hipMemAccessDesc"""

    _fields_: ClassVar = [("location", Location), ("flags", c_int)]


class IpcMemHandle(Structure):
    """hipIpcMemHandle_t"""

    _fields_: ClassVar = [("reserved", c_ubyte * 64)]


Pointer = Stream = Event = Module = Function = Allocation = c_void_p
hip = Library(
    "libamdhip64.so.7",
    {
        "hipSetDevice": (c_int,),
        "hipRuntimeGetVersion": (out(c_int),),
        # memory
        "hipMalloc": (out(Pointer), c_size_t),
        "hipMallocAsync": (out(Pointer), c_size_t, Stream),
        "hipFree": (Pointer,),
        "hipFreeAsync": (Pointer, Stream),
        "hipMemGetAddressRange": (out(Pointer), out(c_size_t), Pointer),
        "hipMemcpy": (Pointer, Pointer, c_size_t, c_int),
        "hipMemcpyAsync": (Pointer, Pointer, c_size_t, c_int, Stream),
        "hipMemsetD32Async": (Pointer, c_int, c_size_t, Stream),
        # virtual memory
        "hipMemGetAllocationGranularity": (out(c_size_t), POINTER(AllocationProp), c_int),
        "hipMemCreate": (out(Allocation), c_size_t, POINTER(AllocationProp), c_uint64),
        "hipMemAddressReserve": (out(Pointer), c_size_t, c_size_t, Pointer, c_uint64),
        "hipMemMap": (Pointer, c_size_t, c_size_t, Allocation, c_uint64),
        "hipMemUnmap": (Pointer, c_size_t),
        "hipMemRelease": (Allocation,),
        "hipMemSetAccess": (Pointer, c_size_t, POINTER(AccessDesc), c_size_t),
        "hipMemExportToShareableHandle": (c_void_p, Allocation, c_int, c_uint64),
        "hipMemImportFromShareableHandle": (out(Allocation), c_void_p, c_int),
        # between processes
        "hipIpcGetMemHandle": (out(IpcMemHandle), Pointer),
        "hipIpcOpenMemHandle": (out(Pointer), IpcMemHandle, c_uint),
        "hipIpcCloseMemHandle": (Pointer,),
        # work
        "hipStreamCreateWithFlags": (out(Stream), c_uint),
        "hipStreamDestroy": (Stream,),
        "hipStreamSynchronize": (Stream,),
        "hipStreamQuery": (Stream,),
        "hipStreamWaitEvent": (Stream, Event, c_uint),
        "hipEventCreateWithFlags": (out(Event), c_uint),
        "hipEventRecord": (Event, Stream),
        "hipEventDestroy": (Event,),
        "hipModuleLoad": (out(Module), c_char_p),
        "hipModuleGetFunction": (out(Function), Module, c_char_p),
        "hipModuleLaunchKernel": (Function, *[c_uint] * 7, Stream, POINTER(c_void_p), POINTER(c_void_p)),
    },
)
