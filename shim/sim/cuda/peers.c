// SPDX-License-Identifier: Apache-2.0
//
// Peer access between devices of this process.
#include "front.h"

SIM_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    ENTER();
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer && sim_device_reaches((unsigned)device, (unsigned)peer);
    return CUDA_SUCCESS;
}

enum { P2P_ACCESS_SUPPORTED = 2, P2P_ATOMIC_SUPPORTED = 3, P2P_ATTRIBUTES_END = 6 };

SIM_API CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice device, CUdevice peer) {
    ENTER();
    if (!value || attribute <= 0 || attribute >= P2P_ATTRIBUTES_END) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device);
    DEVICE(peer);
    if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
    bool told = attribute == P2P_ACCESS_SUPPORTED || attribute == P2P_ATOMIC_SUPPORTED;
    *value = told && sim_device_reaches((unsigned)device, (unsigned)peer);
    return CUDA_SUCCESS;
}

static CUresult check_peer(CUcontext peer) {
    if (!sim_object_is_locked(peer, SIM_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    return peer->alive ? CUDA_SUCCESS : 709;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CONTEXT(context);
    CUresult result = check_peer(peer);
    if (result) return result;
    if (peer->device == context->device) return front_result(SIM_PEER_UNSUPPORTED);
    if (!sim_device_reaches(context->device, peer->device)) return front_result(SIM_PEER_UNSUPPORTED);
    if (context->peers >> peer->device & 1) return front_result(SIM_PEER_ALREADY_ENABLED);
    context->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    ENTER();
    LOCK();
    CONTEXT(context);
    CUresult result = check_peer(peer);
    if (result) return result;
    if (!(context->peers >> peer->device & 1)) return front_result(SIM_PEER_NOT_ENABLED);
    context->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}
