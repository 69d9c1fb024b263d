// SPDX-License-Identifier: Apache-2.0
//
// What src/device asks of a vendor's driver: one table a vendor, filled in by src/<vendor>/ops.cpp. CUDA, HIP and ACL
// have the same triple (reserve addresses, create physical memory, map one at the other); the differences are said here.
//
// Calls    the driver's own functions, never our exported ones: what src/device does for a program is in flight already.
// Results  the vendor's code, unchanged: the program may be given it. 0 is success for every vendor.
// Devices  the vendor's ordinals in this process, below kMaxDevices. Masks: bit d is device d.
// Threads  any. A thread of the program calls with whatever it made current itself; one of ours stands in a Current
//          (devices.h). No lock of ours is held across any of these.
#ifndef GCR_DEVICE_OPS_H
#define GCR_DEVICE_OPS_H

#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "gcr/wire.h"

namespace gcr {
namespace device {

using Result = int32_t;
constexpr Result kSuccess = 0;
constexpr int kMaxDevices = 32;  // the wire's access masks have 32 bits

struct Owner;

// What a program asked physical memory to be, in the vendor's own layout. Only the vendor's half looks inside.
struct Properties {
    alignas(8) unsigned char bytes[64];

    template <typename Native>
    static Properties of(const Native& native) {
        static_assert(sizeof native <= sizeof bytes && std::is_trivially_copyable<Native>::value, "copied as bytes");
        Properties properties{};
        memcpy(properties.bytes, &native, sizeof native);
        return properties;
    }
    template <typename Native>
    Native as() const {
        static_assert(sizeof(Native) <= sizeof bytes && std::is_trivially_copyable<Native>::value, "copied as bytes");
        Native native;
        memcpy(&native, bytes, sizeof native);
        return native;
    }
};

struct Facts {
    bool shareable;  // physical memory of this device can be mapped at will and can leave as a descriptor
    uint64_t granularity;  // bytes; of shareable memory as plain() asks for it
    uint32_t extras;  // the vendor's own
    bool copied_only;  // shareable, but for the descriptor: its bytes leave as copies
};

// A stream as the program named it. `id` is no other stream's, also after this one was destroyed.
struct StreamName {
    uint64_t handle;
    uint64_t owner;  // whose end is its end. CUDA: a context
    uint64_t id;
    bool per_thread;  // handle 0 is the thread's own
    bool of_thread;  // the calling thread's own: no other thread can name it
};

// What a thread of ours must undo; the vendor's own.
struct Entered {
    uint64_t words[2];
};

enum Quirk : uint32_t {
    // unmap and set_access take exactly one mapping a call. ACL: aclrtUnmapMem is told no size.
    kOneMappingACall = 1,
    // A mapping is of a whole handle, and accessible to its own device at once: bytes are copied where the program has
    // mapped them, since a second mapping may not be had. ACL.
    kMapsWithAccess = 2,
};

// What the vendor calls the calls that an error message may have to name.
struct CallNames {
    const char* unmap;
    const char* set_access;
    const char* export_fd;
    const char* import_fd;
};

struct DeviceOps {
    wire::Vendor vendor;
    CallNames names;
    uint32_t quirks;  // Quirk
    Result out_of_memory;
    Result invalid_value;
    Result not_supported;

    // ---- devices. count and uuid: asked once, never while the control state is frozen
    uint32_t (*count)();
    bool (*uuid)(int device, uint8_t uuid[16]);
    Facts (*facts)(int device);  // asked once a device
    // Makes the calling thread, one of ours, able to make the calls below for memory of `device`, if anything can; what
    // it needs for that stays alive until leave(), by the same thread.
    void (*enter)(int device, Entered* entered);
    void (*leave)(const Entered& entered);
    // Returns when the work of this owner is done (CUDA: of its context; HIP, ACL: of its device). May take for ever.
    Result (*synchronize)(Owner* owner);
    uint32_t (*captures)();  // stream captures in progress; no lock, no driver call

    // ---- addresses. `wanted` 0: anywhere. Else there or not at all: a driver that gives another address and calls it
    // success (CUDA, HIP) gets it back here.
    Result (*reserve)(uint64_t size, uint64_t wanted, uint64_t* address);
    Result (*give_back)(uint64_t address, uint64_t size);

    // ---- physical memory
    Properties (*plain)(int device);  // of memory behind the vendor's plain allocation call
    int (*device_of)(const Properties& asked);
    bool (*exportable)(const Properties& asked);  // as a descriptor, the way it was asked for
    void (*describe)(const Properties& asked, wire::HandleRecord* record);  // the fields named after the vendor's
    // `export_too`: exportable as a descriptor besides what was asked. `flags`: the program's, or 0.
    Result (*create)(uint64_t size, const Properties& asked, uint64_t flags, bool export_too, uint64_t* real);
    Result (*release)(uint64_t real);
    Result (*export_fd)(uint64_t real, int* descriptor);
    Result (*import_fd)(int descriptor, uint64_t* real);  // the caller closes the descriptor

    // ---- mappings. HIP and ACL map whole physical memory only (offset 0, its size)
    Result (*map)(uint64_t address, uint64_t size, uint64_t offset, uint64_t real);
    Result (*unmap)(uint64_t address, uint64_t size);
    // A device in `write` reads and writes, a device only in `read` reads; others stay as they are. Both 0: success.
    Result (*set_access)(uint64_t address, uint64_t size, uint32_t read, uint32_t write);
    Result (*drop_access)(uint64_t address, uint64_t size, uint32_t devices);

    // ---- bytes. The copy is done when it returns. It may wait for the program's streams: only while the gate is closed.
    Result (*copy_to_host)(void* host, uint64_t address, uint64_t size);
    Result (*copy_to_device)(uint64_t address, const void* host, uint64_t size);

    // ---- stream order; or null: the vendor's pools are the driver's alone. Only idle() and passed() disturb a
    // capture; mark() and follow() of a stream that is captured become part of it
    bool (*capturing)(const StreamName& stream);  // or not to be told
    bool (*idle)(const StreamName& stream);
    bool (*mark)(const StreamName& stream, uint64_t* event);  // records; makes the event if it is 0
    bool (*passed)(const StreamName& stream, uint64_t event);
    bool (*follow)(const StreamName& stream, const StreamName& other, uint64_t event);  // waits for what `other` did
    void (*forget_event)(const StreamName& stream, uint64_t event);

    // ---- or null: released memory leaves, whatever becomes of its address. Bytes in use on the device that enter() made
    // current, of all processes; 0: not known.
    uint64_t (*used)();

    // ---- or null: through host memory. Between two addresses of one device; done when it returns. Gate closed, as above.
    Result (*copy_within)(uint64_t to, uint64_t from, uint64_t size);
};

}  // namespace device
}  // namespace gcr

#endif  // GCR_DEVICE_OPS_H
