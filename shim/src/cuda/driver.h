// SPDX-License-Identifier: Apache-2.0
//
// The driver's own calls, and what stands around them when the shim itself makes them.
#ifndef GCR_CUDA_DRIVER_H
#define GCR_CUDA_DRIVER_H

#include "cuda/state.h"
#include "hooks/real.h"

namespace gcr {
namespace cuda {

// Makes a context current for as long as it lives, and the one before it afterwards. Null: does nothing.
class CurrentContext {
  public:
    explicit CurrentContext(CUcontext context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    bool pushed_ = false;
};

// A context that stays alive while we work with it. For our own threads, which the program does not know of.
class PinnedContext {
  public:
    explicit PinnedContext(CUdevice device);  // of that device if there is one, else any
    explicit PinnedContext(CUcontext handle);
    ~PinnedContext();
    PinnedContext(const PinnedContext&) = delete;
    PinnedContext& operator=(const PinnedContext&) = delete;
    CUcontext handle() const { return context_ == nullptr ? nullptr : context_->handle; }
    CUdevice device() const { return context_ == nullptr ? -1 : context_->device; }

  private:
    Context* context_ = nullptr;
};

struct DeviceFacts {
    bool vmm;      // virtual memory management and descriptors of physical memory
    bool rdma;
    uint64_t granularity;
};
DeviceFacts device_facts(CUdevice device);  // asked of the driver once
uint32_t device_count();
void device_uuid(CUdevice device, uint8_t uuid[16]);  // makes no driver call after the first

inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}
inline uint32_t device_bit(CUdevice device) {
    return device < 0 || device >= kMaxDevices ? 0 : 1u << device;
}

// cuMemSetAccess for every device in the masks: whoever is in `write` reads and writes, who is only in `read` reads.
CUresult set_access(CUdeviceptr address, uint64_t size, uint32_t read, uint32_t write);
CUresult drop_access(CUdeviceptr address, uint64_t size, uint32_t devices);

}  // namespace cuda
}  // namespace gcr

#endif  // GCR_CUDA_DRIVER_H
