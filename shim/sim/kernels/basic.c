// SPDX-License-Identifier: Apache-2.0
//
// Kernels for demos and tests. Each moves data in a way a victim program can check afterwards.
#include <gcr_sim_kernel.h>
#include <string.h>
#include <time.h>

#define KERNEL(name) GCR_SIM_KERNEL void name(struct gcr_sim_launch* launch, void** params)
#define PARAMS(name, ...) \
    GCR_SIM_KERNEL const uint32_t name##__params[] = {sizeof((uint32_t[]){__VA_ARGS__}) / 4, __VA_ARGS__}
#define PARAM(type, index) (*(type*)params[index])

// splitmix64: every 64-bit word of a pattern follows from its seed and its index alone.
static uint64_t splitmix(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// fill(out, words, seed)
PARAMS(fill, 8, 8, 8);
KERNEL(fill) {
    uint64_t words = PARAM(uint64_t, 1), seed = PARAM(uint64_t, 2);
    uint64_t* out = launch->view(launch, PARAM(uint64_t, 0), words * 8, 1);
    for (uint64_t i = 0; out && i < words; i++) out[i] = splitmix(seed, i);
}

// digest(in, words, out): out[0] = sum over i of (in[i] + i) * odd, mixed; any changed or moved word changes it
PARAMS(digest, 8, 8, 8);
KERNEL(digest) {
    uint64_t words = PARAM(uint64_t, 1), sum = 0x243f6a8885a308d3u;
    const uint64_t* in = launch->view(launch, PARAM(uint64_t, 0), words * 8, 0);
    uint64_t* out = launch->view(launch, PARAM(uint64_t, 2), 8, 1);
    if (!in || !out) return;
    for (uint64_t i = 0; i < words; i++) sum = (sum ^ (in[i] + i)) * 0x100000001b3u + (sum >> 29);
    *out = sum;
}

// axpy(y, x, a, n): y += a * x, floats
PARAMS(axpy, 8, 8, 4, 8);
KERNEL(axpy) {
    float a = PARAM(float, 2);
    uint64_t n = PARAM(uint64_t, 3);
    float* y = launch->view(launch, PARAM(uint64_t, 0), n * 4, 1);
    const float* x = launch->view(launch, PARAM(uint64_t, 1), n * 4, 0);
    for (uint64_t i = 0; y && x && i < n; i++) y[i] += a * x[i];
}

// add(out, words, value): out[i] += value
PARAMS(add, 8, 8, 8);
KERNEL(add) {
    uint64_t words = PARAM(uint64_t, 1), value = PARAM(uint64_t, 2);
    uint64_t* out = launch->view(launch, PARAM(uint64_t, 0), words * 8, 1);
    for (uint64_t i = 0; out && i < words; i++) out[i] += value;
}

// stamp(out, words, epoch): out[i] = epoch, in ascending order; a copy meanwhile is torn and shows it
PARAMS(stamp, 8, 8, 8);
KERNEL(stamp) {
    uint64_t words = PARAM(uint64_t, 1), epoch = PARAM(uint64_t, 2);
    volatile uint64_t* out = launch->view(launch, PARAM(uint64_t, 0), words * 8, 1);
    for (uint64_t i = 0; out && i < words; i++) out[i] = epoch;
}

static void rest(void) {
    nanosleep(&(struct timespec){0, 200000}, 0);
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// spin(ms): keeps its stream busy
PARAMS(spin, 4);
KERNEL(spin) {
    uint64_t end = now_ms() + PARAM(uint32_t, 0);
    while (now_ms() < end && !launch->stopping(launch)) rest();
}

// spin_until(flag, value): a persistent kernel; returns when *flag equals value
PARAMS(spin_until, 8, 4);
KERNEL(spin_until) {
    const uint32_t* flag = launch->view(launch, PARAM(uint64_t, 0), 4, 0);
    uint32_t value = PARAM(uint32_t, 1);
    while (flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE) != value && !launch->stopping(launch)) rest();
}

// all_reduce(shared, rank, ranks, epoch, data, words): data = the sum of all ranks' data. The ranks meet in memory that all
// map: a flag for each, 64 bytes apart, then two halves in turns, each with room for the words of every rank. It spins until
// the flags of all have come to `epoch`; epochs are 1, 2, 3 … cross_device_reduce: the same, named like the kernel of a
// library that does so.
enum { kFlagStride = 16 };
static size_t meeting_bytes(uint64_t ranks, uint64_t words) {
    return ranks * kFlagStride * 4 + 2 * ranks * words * 8;
}

static uint64_t* half_of(uint32_t* flags, uint64_t ranks, uint32_t epoch, uint64_t words) {
    return (uint64_t*)(flags + ranks * kFlagStride) + epoch % 2 * ranks * words;
}

static void tell(uint32_t* flags, uint32_t rank, uint32_t ranks, uint32_t epoch, const uint64_t* data, uint64_t words) {
    uint64_t* mine = half_of(flags, ranks, epoch, words) + rank * words;
    for (uint64_t i = 0; i < words; i++) mine[i] = data[i];
    __atomic_store_n(&flags[rank * kFlagStride], epoch, __ATOMIC_RELEASE);
}

static int await(struct gcr_sim_launch* launch, const uint32_t* flag, uint32_t epoch) {
    while ((int32_t)(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - epoch) < 0) {
        if (launch->stopping(launch)) return 0;
        rest();
    }
    return 1;
}

static void sum_up(const uint64_t* told, uint32_t ranks, uint64_t* data, uint64_t words) {
    for (uint64_t i = 0; i < words; i++) {
        uint64_t sum = 0;
        for (uint32_t other = 0; other < ranks; other++) sum += told[other * words + i];
        data[i] = sum;
    }
}

static void hear(struct gcr_sim_launch* launch, uint32_t* flags, uint32_t ranks, uint32_t epoch, uint64_t* data,
                 uint64_t words) {
    for (uint32_t other = 0; other < ranks; other++)
        if (!await(launch, &flags[other * kFlagStride], epoch)) return;
    sum_up(half_of(flags, ranks, epoch, words), ranks, data, words);
}

static void meet(struct gcr_sim_launch* launch, void** params) {
    uint32_t rank = PARAM(uint32_t, 1), ranks = PARAM(uint32_t, 2), epoch = PARAM(uint32_t, 3);
    uint32_t words = PARAM(uint32_t, 5);
    uint32_t* flags = launch->view(launch, PARAM(uint64_t, 0), meeting_bytes(ranks, words), 1);
    uint64_t* data = launch->view(launch, PARAM(uint64_t, 4), words * 8, 1);
    if (!flags || !data) return;
    tell(flags, rank, ranks, epoch, data, words);
    hear(launch, flags, ranks, epoch, data, words);
}
PARAMS(all_reduce, 8, 4, 4, 4, 8, 4);
KERNEL(all_reduce) {
    meet(launch, params);
}
PARAMS(cross_device_reduce, 8, 4, 4, 4, 8, 4);
KERNEL(cross_device_reduce) {
    meet(launch, params);
}

// peer_reduce(places, rank, ranks, epoch, data, words): the same in memory of each rank, which the others write to. `places`
// has the addresses of all ranks' memory, as this rank maps it. cross_device_reduce_peers: the same.
static void meet_at_peers(struct gcr_sim_launch* launch, void** params) {
    uint32_t rank = PARAM(uint32_t, 1), ranks = PARAM(uint32_t, 2), epoch = PARAM(uint32_t, 3);
    uint32_t words = PARAM(uint32_t, 5);
    const uint64_t* places = launch->view(launch, PARAM(uint64_t, 0), ranks * sizeof *places, 0);
    uint64_t* data = launch->view(launch, PARAM(uint64_t, 4), words * 8, 1);
    uint32_t* own = NULL;
    for (uint32_t other = 0; places && data && other < ranks; other++) {
        uint32_t* flags = launch->view(launch, places[other], meeting_bytes(ranks, words), 1);
        if (!flags) return;
        tell(flags, rank, ranks, epoch, data, words);
        if (other == rank) own = flags;
    }
    if (own) hear(launch, own, ranks, epoch, data, words);
}
PARAMS(peer_reduce, 8, 4, 4, 4, 8, 4);
KERNEL(peer_reduce) {
    meet_at_peers(launch, params);
}
PARAMS(cross_device_reduce_peers, 8, 4, 4, 4, 8, 4);
KERNEL(cross_device_reduce_peers) {
    meet_at_peers(launch, params);
}

// cross_device_reduce_counted(places, rank, ranks, counter, data, words): the same, with the epoch in device memory, which
// each run counts up. So a graph that holds it can be launched again.
PARAMS(cross_device_reduce_counted, 8, 4, 4, 8, 8, 4);
KERNEL(cross_device_reduce_counted) {
    uint32_t* counter = launch->view(launch, PARAM(uint64_t, 3), 4, 1);
    if (!counter) return;
    uint32_t epoch = ++*counter;
    meet_at_peers(launch, (void*[]){params[0], params[1], params[2], &epoch, params[4], params[5]});
}

// ncclDevKernel_SendRecv(channel, sends, epoch, data, words): one end of a channel, memory that both ends map. The sender
// leaves its words there and waits until they are taken. Two flags, 64 bytes apart, then the words; epochs are 1, 2, 3 …
PARAMS(ncclDevKernel_SendRecv, 8, 4, 4, 8, 4);
KERNEL(ncclDevKernel_SendRecv) {
    uint32_t sends = PARAM(uint32_t, 1), epoch = PARAM(uint32_t, 2), words = PARAM(uint32_t, 4);
    uint32_t* flags = launch->view(launch, PARAM(uint64_t, 0), 2 * kFlagStride * 4 + words * 8, 1);
    uint64_t* data = launch->view(launch, PARAM(uint64_t, 3), words * 8, 1);
    if (!flags || !data) return;
    uint32_t *full = flags, *taken = flags + kFlagStride;
    void* there = flags + 2 * kFlagStride;
    if (!sends && !await(launch, full, epoch)) return;
    memcpy(sends ? there : data, sends ? data : there, words * 8);
    __atomic_store_n(sends ? full : taken, epoch, __ATOMIC_RELEASE);
    if (sends) await(launch, taken, epoch);
}

// cross_device_reduce_copied(place, flags, rank, ranks, epoch, data, words): the same sum where threads of the ranks copy.
// It leaves its words in its own place, and sets the flag `ready`; a thread of its process copies them to the places of the
// others and sets, for each, the flag `arrived`. `flags`: of this rank, in host memory: `ready`, then one for each rank.
PARAMS(cross_device_reduce_copied, 8, 8, 4, 4, 4, 8, 4);
KERNEL(cross_device_reduce_copied) {
    uint32_t rank = PARAM(uint32_t, 2), ranks = PARAM(uint32_t, 3), epoch = PARAM(uint32_t, 4);
    uint32_t words = PARAM(uint32_t, 6);
    uint32_t* place = launch->view(launch, PARAM(uint64_t, 0), meeting_bytes(ranks, words), 1);
    uint32_t* flags = launch->view(launch, PARAM(uint64_t, 1), (ranks + 1) * kFlagStride * 4, 1);
    uint64_t* data = launch->view(launch, PARAM(uint64_t, 5), words * 8, 1);
    if (!place || !flags || !data) return;
    tell(place, rank, ranks, epoch, data, words);
    __atomic_store_n(flags, epoch, __ATOMIC_RELEASE);
    for (uint32_t other = 0; other < ranks; other++)
        if (other != rank && !await(launch, flags + (1 + other) * kFlagStride, epoch)) return;
    sum_up(half_of(place, ranks, epoch, words), ranks, data, words);
}

// A device variable, and a kernel that reads a launch's shape: out[0..5] = grid, block
GCR_SIM_KERNEL const uint64_t answer__global = 8;
GCR_SIM_KERNEL uint64_t answer = 42;

PARAMS(shape, 8);
KERNEL(shape) {
    uint32_t* out = launch->view(launch, PARAM(uint64_t, 0), 24, 1);
    for (int i = 0; out && i < 3; i++) {
        out[i] = launch->grid[i];
        out[3 + i] = launch->block[i];
    }
}
