// SPDX-License-Identifier: Apache-2.0
//
// Our declarations of the CUDA driver's ABI beside the vendor's: compiling this file is the test.
// The test writes ours.h and theirs.h: OURS(name) for every constant of abi/cuda.h, THEIRS(name) for those the vendor's header has;
// DECLARED(symbol) for every function it declares in this mode.
#include "abi/cuda.h"

namespace ours {
#define OURS(name) constexpr long value_of_##name = gcr::cuda_abi::name;
#include "ours.h"
}  // namespace ours

namespace gcr {
namespace cuda_abi {
#define GCR_HOOK(symbol, base, version, stream, kind, parameters, arguments) \
    using type_of_##symbol = CUresult parameters;
#define GCR_ALONE(symbol, base, version, stream) using type_of_##symbol = void;
#include "hooks/cuda.def"
}  // namespace cuda_abi
}  // namespace gcr

#include <cuda.h>

#include <type_traits>

#define THEIRS(name) \
    static_assert(ours::value_of_##name == static_cast<long>(name), #name);  // some are macros of theirs

// ---- functions: same number of parameters, each passed the same way
template <class T>
constexpr int way = std::is_pointer<T>::value          ? 1
                    : std::is_floating_point<T>::value ? 2
                    : std::is_class<T>::value          ? 3
                                                       : 4;

template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && way<A> == way<B>;

template <class A, class B>
struct Same : std::false_type {};
template <class R, class S, class... P, class... Q>
struct Same<R(P...), S(Q...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(P) == sizeof...(Q))
            return alike<R, S> && (alike<P, Q> && ...);
        else
            return false;
    }();
};
template <class B>
struct Same<void, B> : std::true_type {};  // a passive symbol: we never call it

#define DECLARED(symbol) static_assert(Same<gcr::cuda_abi::type_of_##symbol, decltype(::symbol)>::value, #symbol);
#include "theirs.h"

// ---- structs
#define SIZE(type)                                                                                                  \
    static_assert(sizeof(gcr::cuda_abi::type) == sizeof(::type) && alignof(gcr::cuda_abi::type) == alignof(::type), \
                  #type)
#define MEMBER(type, member)                                                                               \
    static_assert(__builtin_offsetof(gcr::cuda_abi::type, member) == __builtin_offsetof(::type, member) && \
                      sizeof(gcr::cuda_abi::type::member) == sizeof(::type::member),                       \
                  #type "." #member)
SIZE(CUdeviceptr);
SIZE(CUmemGenericAllocationHandle);
SIZE(CUuuid);
SIZE(CUipcMemHandle);
SIZE(CUipcEventHandle);
SIZE(CUmemPoolPtrExportData);
SIZE(CUmemLocation);
MEMBER(CUmemLocation, type);
MEMBER(CUmemLocation, id);
SIZE(CUmemAccessDesc);
MEMBER(CUmemAccessDesc, location);
MEMBER(CUmemAccessDesc, flags);
SIZE(CUmemAllocationProp);
MEMBER(CUmemAllocationProp, type);
MEMBER(CUmemAllocationProp, requestedHandleTypes);
MEMBER(CUmemAllocationProp, location);
MEMBER(CUmemAllocationProp, win32HandleMetaData);
MEMBER(CUmemAllocationProp, allocFlags);
MEMBER(CUmemAllocationProp, allocFlags.compressionType);
MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
MEMBER(CUmemAllocationProp, allocFlags.usage);
SIZE(CUmulticastObjectProp);
MEMBER(CUmulticastObjectProp, numDevices);
MEMBER(CUmulticastObjectProp, size);
MEMBER(CUmulticastObjectProp, handleTypes);
MEMBER(CUmulticastObjectProp, flags);
SIZE(CUmemPoolProps);
MEMBER(CUmemPoolProps, allocType);
MEMBER(CUmemPoolProps, handleTypes);
MEMBER(CUmemPoolProps, location);
MEMBER(CUmemPoolProps, maxSize);
MEMBER(CUmemPoolProps, usage);
SIZE(CUarrayMapInfo);
MEMBER(CUarrayMapInfo, resourceType);
MEMBER(CUarrayMapInfo, resource);
MEMBER(CUarrayMapInfo, subresourceType);
MEMBER(CUarrayMapInfo, subresource);
MEMBER(CUarrayMapInfo, memOperationType);
MEMBER(CUarrayMapInfo, memHandleType);
MEMBER(CUarrayMapInfo, memHandle);
MEMBER(CUarrayMapInfo, offset);
MEMBER(CUarrayMapInfo, deviceBitMask);
MEMBER(CUarrayMapInfo, flags);
SIZE(CUDA_ARRAY_DESCRIPTOR);
MEMBER(CUDA_ARRAY_DESCRIPTOR, Format);
MEMBER(CUDA_ARRAY_DESCRIPTOR, NumChannels);
SIZE(CUDA_ARRAY3D_DESCRIPTOR);
MEMBER(CUDA_ARRAY3D_DESCRIPTOR, Depth);
MEMBER(CUDA_ARRAY3D_DESCRIPTOR, Flags);
SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS);
MEMBER(CUDA_ARRAY_MEMORY_REQUIREMENTS, size);
MEMBER(CUDA_ARRAY_MEMORY_REQUIREMENTS, alignment);
