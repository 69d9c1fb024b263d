// SPDX-License-Identifier: Apache-2.0
//
// Coupled kernels: their launches end only once other processes have made theirs. Known by their names when the program
// looks them up; their launches are counted by signature, so that a daemon can tell which process is behind. A graph that
// holds one is launched as one.
//
// Signature  the kernel's name, and which of the streams with coupled launches its stream is, by first use: the same in
//            every process of a communicator that all begin to use in one order.
// Threads    learn: any, under a lock. note, signature_of: any thread in a gated call; no lock, no allocation, no system
//            call. list: the agent's.
// Full       a table that is full leaves what comes later unknown: local.
#ifndef GCR_CORE_COUPLED_H
#define GCR_CORE_COUPLED_H

#include "core/call.h"
#include "core/lock.h"
#include "gcr/wire.h"

namespace gcr {
namespace coupled {

bool is_coupled_name(const char* name);
void learn(uint64_t function, const char* name);  // of a kernel that the program looked up
void learn_same(uint64_t function, uint64_t kernel);  // another handle of one

// The coupled kernels of a graph, in any order.
struct Content {
    uint64_t hash = 0;  // 0: none
    const char* name = nullptr;  // of the first one
    void add(uint64_t function, const char* driver_name);  // of a kernel; its name where the driver tells it, else null
};
bool any();  // the program has looked one up; without one no graph has to be read
void learn_graph(uint64_t graph, const Content& content);  // an executable one; with no content: forgets it

uint64_t signature_of(const Call& call);  // 0: local
void note(const Call& call, uint32_t thread);  // about to be made
uint32_t launched(uint64_t signature);
uint32_t maker_of(uint64_t signature);  // the thread that has made them all; kSeveralThreads, also for none
uint32_t list_made(wire::MadeRecord* found, uint32_t limit);

// Launches on streams of which `idle` is false. A stream that is idle is forgotten until its next launch if `forget` is
// set: nothing may be between note() and the driver then.
uint32_t list(wire::IncompleteRecord* found, uint32_t limit, bool (*idle)(uint64_t stream), bool forget);

Lock& lock();  // for fork
void reset_after_fork();

}  // namespace coupled
}  // namespace gcr

#endif  // GCR_CORE_COUPLED_H
