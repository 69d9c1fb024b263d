// SPDX-License-Identifier: Apache-2.0
//
// CUDA's runtime, linked statically: kernels of the program's own, streams, events, pinned memory, plain and
// stream-ordered allocations. With more devices than one its kernels read each other's memory (peer access).
//
//   nvcc -cudart static -arch native -o runtime_victim runtime_victim.cu
//   runtime_victim [DEVICES [STEPS|hold]]
//
// Each lane has a device, a stream and an array. In every round of a step each lane mixes its array with that of the
// next lane, which lies on another device if there is one. Prints a sum a step, and at the end a digest of every word.
#include <cuda_runtime.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hold.h"

namespace {

constexpr int kLanes = 4, kRounds = 24, kWarm = 3;
constexpr size_t kWords = size_t{8} << 20;
constexpr size_t kScratchWords[] = {size_t{1} << 12, size_t{1} << 18, size_t{3} << 20};

struct Lane {
    int device;
    cudaStream_t stream;
    cudaEvent_t read, written;
    uint64_t *array, *next;  // what it holds, and what it makes of it
    unsigned long long *sum, *found;  // on the device; the same in pinned memory
};

void must(cudaError_t result, const char* call) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "runtime_victim: %s: %s\n", call, cudaGetErrorString(result));
    exit(1);
}

__global__ void fill(uint64_t* array, size_t words, uint64_t seed) {
    for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
        array[i] = (seed + i) * 0x9e3779b97f4a7c15u;
    }
}

__global__ void mix(uint64_t* out, const uint64_t* mine, const uint64_t* others, size_t words) {
    for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
        uint64_t word = mine[i] + others[words - 1 - i] * 31;
        out[i] = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9u;
    }
}

__global__ void add_up(unsigned long long* sum, const uint64_t* array, size_t words) {  // the order does not matter
    unsigned long long part = 0;
    for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
        part += array[i] * (i | 1);
    }
    atomicAdd(sum, part);
}

void use(int device) {
    must(cudaSetDevice(device), "cudaSetDevice");
}

void open_peers(int devices) {
    for (int device = 0; device < devices; device++) {
        use(device);
        for (int peer = 0; peer < devices; peer++) {
            if (peer != device) must(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
        }
    }
}

Lane open_lane(int number, int devices) {
    Lane lane{};
    lane.device = number % devices;
    use(lane.device);
    must(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaEventCreateWithFlags(&lane.read, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    must(cudaEventCreateWithFlags(&lane.written, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    must(cudaMalloc(&lane.array, kWords * 8), "cudaMalloc");
    must(cudaMalloc(&lane.next, kWords * 8), "cudaMalloc");
    must(cudaMalloc(&lane.sum, sizeof *lane.sum), "cudaMalloc");
    must(cudaHostAlloc(&lane.found, sizeof *lane.found, cudaHostAllocPortable), "cudaHostAlloc");
    fill<<<256, 256, 0, lane.stream>>>(lane.array, kWords, number + 1);
    must(cudaEventRecord(lane.written, lane.stream), "cudaEventRecord");
    return lane;
}

// Every lane reads its own array and its neighbour's, of the round before, and writes its other one.
void round_of(std::vector<Lane>& lanes) {
    for (size_t i = 0; i < lanes.size(); i++) {
        Lane &lane = lanes[i], &other = lanes[(i + 1) % lanes.size()];
        use(lane.device);
        must(cudaStreamWaitEvent(lane.stream, other.written, 0), "cudaStreamWaitEvent");
        mix<<<256, 256, 0, lane.stream>>>(lane.next, lane.array, other.array, kWords);
        must(cudaGetLastError(), "mix");
        must(cudaEventRecord(lane.read, lane.stream), "cudaEventRecord");
    }
    for (size_t i = 0; i < lanes.size(); i++) {
        Lane &lane = lanes[i], &reader = lanes[(i + lanes.size() - 1) % lanes.size()];
        use(lane.device);
        must(cudaStreamWaitEvent(lane.stream, reader.read, 0), "cudaStreamWaitEvent");
        must(cudaEventRecord(lane.written, lane.stream), "cudaEventRecord");
        std::swap(lane.array, lane.next);
    }
}

// A stream-ordered allocation for as long as a copy through it takes.
void through_scratch(Lane& lane, size_t words) {
    uint64_t* scratch;
    use(lane.device);
    must(cudaMallocAsync(&scratch, words * 8, lane.stream), "cudaMallocAsync");
    must(cudaMemcpyAsync(scratch, lane.array, words * 8, cudaMemcpyDeviceToDevice, lane.stream), "cudaMemcpyAsync");
    must(cudaMemcpyAsync(lane.array + words, scratch, words * 8, cudaMemcpyDeviceToDevice, lane.stream), "back");
    must(cudaFreeAsync(scratch, lane.stream), "cudaFreeAsync");
    must(cudaEventRecord(lane.written, lane.stream), "cudaEventRecord");
}

uint64_t step(std::vector<Lane>& lanes, unsigned number) {
    for (int round = 0; round < kRounds; round++) round_of(lanes);
    uint64_t all = 0;
    for (Lane& lane : lanes) {
        through_scratch(lane, kScratchWords[number % 3]);
        must(cudaMemsetAsync(lane.sum, 0, sizeof *lane.sum, lane.stream), "cudaMemsetAsync");
        add_up<<<256, 256, 0, lane.stream>>>(lane.sum, lane.array, kWords);
        must(cudaGetLastError(), "add_up");
        must(cudaMemcpyAsync(lane.found, lane.sum, sizeof *lane.sum, cudaMemcpyDeviceToHost, lane.stream), "sum");
    }
    for (Lane& lane : lanes) {
        must(cudaStreamSynchronize(lane.stream), "cudaStreamSynchronize");
        all = all * 31 + *lane.found;
    }
    return all;
}

uint64_t digest_of(const std::vector<Lane>& lanes) {
    std::vector<uint64_t> words(kWords);
    uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a, by words
    for (const Lane& lane : lanes) {
        must(cudaMemcpy(words.data(), lane.array, kWords * 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
        for (uint64_t word : words) digest = (digest ^ word) * 0x100000001b3u;
    }
    return digest;
}

}  // namespace

int main(int count, char** values) {
    int devices = count > 1 ? atoi(values[1]) : 1;
    const char* much = count > 2 ? values[2] : "20";
    bool hold = !strcmp(much, "hold");
    if (devices > 1) open_peers(devices);
    std::vector<Lane> lanes;
    for (int i = 0; i < kLanes; i++) lanes.push_back(open_lane(i, devices));
    unsigned warm = 0, done = 0;
    if (hold) {
        while (warm < kWarm) step(lanes, warm++);
        much = held();
    }
    bool endless = !strcmp(much, "on");
    for (unsigned most = strtoul(much, nullptr, 10); endless ? !over(0) : done < most; done++) {
        printf("step %u %016" PRIx64 "\n", done, step(lanes, warm + done));
        fflush(stdout);
    }
    printf("steps %u\ndigest %016" PRIx64 "\n", done, digest_of(lanes));
    return 0;
}
