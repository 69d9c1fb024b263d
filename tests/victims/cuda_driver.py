"""CUDA's driver API by ctypes, as far as `cuda_device.py` and `told_victim.py` use it. Names are those of cuda.h."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import ClassVar

from c_library import Library, out

PINNED = DEVICE = POSIX = 1
HOST_NUMA = 3
FABRIC = 8
PORTABLE, DEVICE_MAPPED = 1, 2
READ_WRITE = 3
ATTACH_GLOBAL = 1
NON_BLOCKING = 1
DISABLE_TIMING = 2
INTERPROCESS = 4
HostFn = CFUNCTYPE(None, c_void_p)


class Location(Structure):
    """CUmemLocation"""

    _fields_: ClassVar = [("type", c_int), ("id", c_int)]


class AllocationFlags(Structure):
    _fields_: ClassVar = [
        ("compressionType", c_ubyte),
        ("gpuDirectRDMACapable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class AllocationProp(Structure):
    """CUmemAllocationProp"""

    _fields_: ClassVar = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", Location),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class AccessDesc(Structure):
    """CUmemAccessDesc"""

    _fields_: ClassVar = [("location", Location), ("flags", c_int)]


class MulticastObjectProp(Structure):
    """CUmulticastObjectProp"""

    _fields_: ClassVar = [("numDevices", c_uint), ("size", c_size_t), ("handleTypes", c_uint64), ("flags", c_uint64)]


class IpcMemHandle(Structure):
    """CUipcMemHandle"""

    _fields_: ClassVar = [("reserved", c_ubyte * 64)]


class IpcEventHandle(Structure):
    """CUipcEventHandle"""

    _fields_: ClassVar = [("reserved", c_ubyte * 64)]


Context = Stream = Event = Module = Function = Graph = GraphExec = c_void_p
DevicePtr = Allocation = c_uint64
driver = Library(
    "libcuda.so.1",
    {
        "cuInit": (c_uint,),
        "cuDeviceGet": (out(c_int), c_int),
        "cuDevicePrimaryCtxRetain": (out(Context), c_int),
        "cuCtxSetCurrent": (Context,),
        "cuCtxGetDevice": (out(c_int),),
        "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
        # memory
        "cuMemGetInfo_v2": (out(c_size_t), out(c_size_t)),
        "cuMemAlloc_v2": (out(DevicePtr), c_size_t),
        "cuMemAllocAsync": (out(DevicePtr), c_size_t, Stream),
        "cuMemAllocManaged": (out(DevicePtr), c_size_t, c_uint),
        "cuMemFree_v2": (DevicePtr,),
        "cuMemFreeAsync": (DevicePtr, Stream),
        "cuMemGetAddressRange_v2": (out(DevicePtr), out(c_size_t), DevicePtr),
        "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
        "cuMemHostUnregister": (c_void_p,),
        "cuMemHostGetDevicePointer_v2": (out(DevicePtr), c_void_p, c_uint),
        "cuMemHostGetFlags": (out(c_uint), c_void_p),
        "cuMemcpyHtoD_v2": (DevicePtr, c_void_p, c_size_t),
        "cuMemcpyDtoH_v2": (c_void_p, DevicePtr, c_size_t),
        "cuMemcpyDtoDAsync_v2": (DevicePtr, DevicePtr, c_size_t, Stream),
        "cuMemsetD32_v2": (DevicePtr, c_uint, c_size_t),
        "cuMemsetD32Async": (DevicePtr, c_uint, c_size_t, Stream),
        # virtual memory
        "cuMemGetAllocationGranularity": (out(c_size_t), POINTER(AllocationProp), c_int),
        "cuMemCreate": (out(Allocation), c_size_t, POINTER(AllocationProp), c_uint64),
        "cuMemAddressReserve": (out(DevicePtr), c_size_t, c_size_t, DevicePtr, c_uint64),
        "cuMemMap": (DevicePtr, c_size_t, c_size_t, Allocation, c_uint64),
        "cuMemUnmap": (DevicePtr, c_size_t),
        "cuMemRelease": (Allocation,),
        "cuMemSetAccess": (DevicePtr, c_size_t, POINTER(AccessDesc), c_size_t),
        "cuMemAddressFree": (DevicePtr, c_size_t),
        "cuMemExportToShareableHandle": (c_void_p, Allocation, c_int, c_uint64),
        "cuMemImportFromShareableHandle": (out(Allocation), c_void_p, c_int),
        "cuMulticastCreate": (out(Allocation), POINTER(MulticastObjectProp)),
        # events
        "cuEventQuery": (Event,),
        # between processes
        "cuIpcGetMemHandle": (out(IpcMemHandle), DevicePtr),
        "cuIpcOpenMemHandle_v2": (out(DevicePtr), IpcMemHandle, c_uint),
        "cuIpcCloseMemHandle": (DevicePtr,),
        "cuIpcGetEventHandle": (out(IpcEventHandle), Event),
        "cuIpcOpenEventHandle": (out(Event), IpcEventHandle),
        # work
        "cuStreamCreate": (out(Stream), c_uint),
        "cuStreamDestroy_v2": (Stream,),
        "cuStreamSynchronize": (Stream,),
        "cuStreamQuery": (Stream,),
        "cuStreamWaitEvent": (Stream, Event, c_uint),
        "cuStreamWaitValue32_v2": (Stream, DevicePtr, c_uint, c_uint),
        "cuStreamBeginCapture_v2": (Stream, c_int),
        "cuStreamEndCapture": (Stream, out(Graph)),
        "cuGraphInstantiateWithFlags": (out(GraphExec), Graph, c_uint64),
        "cuGraphDestroy": (Graph,),
        "cuGraphLaunch": (GraphExec, Stream),
        "cuGraphExecDestroy": (GraphExec,),
        "cuEventCreate": (out(Event), c_uint),
        "cuEventRecord": (Event, Stream),
        "cuEventDestroy_v2": (Event,),
        "cuModuleLoadData": (out(Module), c_void_p),
        "cuModuleGetFunction": (out(Function), Module, c_char_p),
        "cuLaunchKernel": (Function, *[c_uint] * 7, Stream, POINTER(c_void_p), POINTER(c_void_p)),
        "cuLaunchHostFunc": (Stream, HostFn, c_void_p),
    },
)
