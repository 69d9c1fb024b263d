"""An Ascend device, by ACL through ctypes: there is no wheel for it."""

import ctypes

try:
    acl = ctypes.CDLL("libascendcl.so")
except OSError as missing:
    raise SystemExit(str(missing)) from None

_OUT_OF_MEMORY = (200000, 207001)  # ACL_ERROR_BAD_ALLOC, ACL_ERROR_RT_MEMORY_ALLOCATION
_HUGE_FIRST = 0
_TO_HOST, _ON_DEVICE = 2, 3
_size, _pointer = ctypes.c_size_t, ctypes.c_void_p

acl.aclrtMalloc.argtypes = (ctypes.POINTER(_pointer), _size, ctypes.c_int)
acl.aclrtFree.argtypes = (_pointer,)
acl.aclrtMemset.argtypes = (_pointer, _size, ctypes.c_int32, _size)
acl.aclrtMemcpy.argtypes = (_pointer, _size, _pointer, _size, ctypes.c_int)


def check(result: int) -> None:
    if result:
        raise SystemExit(f"the runtime returned {result}")


def open_device() -> None:
    check(acl.aclInit(None))
    check(acl.aclrtSetDevice(0))


def allocate(size: int) -> int | None:
    address = _pointer()
    result = acl.aclrtMalloc(ctypes.byref(address), size, _HUGE_FIRST)
    if result in _OUT_OF_MEMORY:
        return None
    check(result)
    return address.value


def free(address: int) -> None:
    check(acl.aclrtFree(address))


def fill(address: int, byte: int, size: int) -> None:
    check(acl.aclrtMemset(address, size, byte, size))


def copy(to: int, source: int, size: int) -> None:
    check(acl.aclrtMemcpy(to, size, source, size, _ON_DEVICE))


def download(address: int, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    check(acl.aclrtMemcpy(data, size, address, size, _TO_HOST))
    return data.raw
