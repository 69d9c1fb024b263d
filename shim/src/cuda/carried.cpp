// SPDX-License-Identifier: Apache-2.0
#include "cuda/carried.h"

#include "hooks/real.h"

namespace gcr {
namespace cuda {
namespace {

struct Carried : TreeNode<Carried> {
    uint64_t bytes;
    Reason reason;
    CUcontext context;
};

Lock lock;  // guards the tree; after state.lock where both are held
Tree<Carried> things;

CUcontext context_now() {
    CUcontext context = nullptr;
    real::cuCtxGetCurrent(&context);
    return context;
}

void insert(uint64_t key, uint64_t bytes, Reason reason, CUcontext context) {
    Carried* thing = make<Carried>();
    if (thing == nullptr) return;
    *thing = {{key, nullptr, nullptr}, bytes, reason, context};
    Guard guard(lock);
    if (things.insert(thing))
        add_uncovered(reason, bytes);
    else
        free(thing);
}

}  // namespace

void carry(uint64_t key, uint64_t bytes, Reason reason) {
    insert(key, bytes, reason, context_now());
}

void carry(const void* key, uint64_t bytes, Reason reason) {
    carry(reinterpret_cast<uint64_t>(key), bytes, reason);
}

CarriedThing stop_carrying(uint64_t key) {
    Guard guard(lock);
    Carried* thing = things.find(key);
    if (thing == nullptr) return {};
    CarriedThing found{true, thing->bytes, thing->reason, thing->context};
    things.erase(thing);
    drop_uncovered(thing->reason, thing->bytes);
    free(thing);
    return found;
}

void carry_again(uint64_t key, const CarriedThing& thing) {
    insert(key, thing.bytes, thing.reason, thing.context);
}

void forget_carried_of(CUcontext context) {
    Guard guard(lock);
    for (Carried* thing = things.first(); thing != nullptr;) {
        Carried* next = things.after(thing);
        if (thing->context == context) {
            things.erase(thing);
            drop_uncovered(thing->reason, thing->bytes);
            free(thing);
        }
        thing = next;
    }
}

uint64_t carried_bytes(uint64_t key) {
    Guard guard(lock);
    Carried* thing = things.find(key);
    return thing == nullptr ? 0 : thing->bytes;
}

void forget_carried_after_fork() {
    lock.reset_after_fork();
    things.forget_all();
}

Lock& carried_lock() {
    return lock;
}

}  // namespace cuda
}  // namespace gcr
