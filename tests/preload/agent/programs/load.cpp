// SPDX-License-Identifier: Apache-2.0
//
// Load: threads that allocate, fill, check and free without a pause. Every block is checked from the host before it is
// freed; the first wrong word is remembered. A block's seed is its own, so bytes of another block are wrong, too.
#include <stdlib.h>

#include <atomic>
#include <thread>

#include "puppet.h"

namespace {

std::atomic<bool> stop{false};
std::atomic<uint64_t> rounds{0}, next_seed{1};
std::mutex wrong_lock;
std::string wrong;
std::vector<std::thread> workers;

struct Block {
    CUdeviceptr address;
    uint64_t words;
    uint64_t seed;
    uint64_t added;
};

void report(const std::string& what) {
    std::lock_guard<std::mutex> guard(wrong_lock);
    if (wrong.empty()) wrong = what;
}

bool good(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) report(std::string(call) + " " + std::to_string(result));
    return result == CUDA_SUCCESS;
}

bool make(Block* block, uint64_t bytes, CUstream stream) {
    *block = {0, bytes / 8, next_seed++, 0};
    if (!good(cuMemAlloc_v2(&block->address, bytes), "alloc")) return false;
    void* parameters[] = {&block->address, &block->words, &block->seed};
    return good(launch("fill", stream, parameters), "fill");
}

void change(Block* block, CUstream stream) {
    uint64_t one = 1;
    void* parameters[] = {&block->address, &block->words, &one};
    if (good(launch("add", stream, parameters), "add")) block->added++;
}

bool right(const Block& block, CUstream stream) {
    std::vector<uint64_t> host(block.words);
    if (!good(cuMemcpyDtoHAsync_v2(host.data(), block.address, block.words * 8, stream), "copy")) return false;
    if (!good(cuStreamSynchronize(stream), "sync")) return false;
    for (uint64_t i = 0; i < block.words; i++) {
        if (host[i] == expected(block.seed, i) + block.added) continue;
        report("word " + std::to_string(i) + " of " + std::to_string(block.words) + " is wrong");
        return false;
    }
    return true;
}

void work(CUcontext context, unsigned int seed, uint64_t largest) {
    cuCtxSetCurrent(context);
    CUstream stream = nullptr;
    if (!good(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream")) return;
    std::vector<Block> blocks;
    while (!stop) {
        unsigned int dice = rand_r(&seed);
        if (blocks.size() < 6 || dice % 3 == 0) {
            Block block;
            uint64_t bytes = dice % 4 == 0 ? largest : 8 + dice % 20000 / 8 * 8;
            if (!make(&block, bytes, stream)) return;
            blocks.push_back(block);
        }
        change(&blocks[dice % blocks.size()], stream);
        if (blocks.size() > 10 || dice % 5 == 0) {
            size_t which = dice % blocks.size();
            if (!right(blocks[which], stream) || !good(cuMemFree_v2(blocks[which].address), "free")) return;
            blocks.erase(blocks.begin() + static_cast<long>(which));
        }
        rounds++;
    }
    for (Block& block : blocks)
        if (right(block, stream)) good(cuMemFree_v2(block.address), "free");
    cuStreamDestroy_v2(stream);
}

std::string begin(const Words& words) {  // load THREADS [LARGEST]
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    uint64_t largest = words.size() > 2 ? number(words[2]) : 2 << 20;
    stop = false;
    for (unsigned int i = 0; i < number(words[1]); i++) workers.emplace_back(work, context, i + 1, largest);
    return "ok";
}

std::string finish(const Words&) {  // endload
    stop = true;
    for (std::thread& worker : workers) worker.join();
    workers.clear();
    return wrong.empty() ? "right" : wrong;
}

std::string count(const Words&) {
    return std::to_string(rounds.load());
}

// race THREADS ROUNDS: an address is given to one thread at a time, or two of them would find it in their hands at once
std::string race(const Words& words) {
    static std::mutex owners_lock;
    static std::map<CUdeviceptr, int> owners;
    std::atomic<int> clashes{0};
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    std::vector<std::thread> racers;
    for (int id = 1; id <= static_cast<int>(number(words[1])); id++) {
        racers.emplace_back([&, id] {
            cuCtxSetCurrent(context);
            for (uint64_t i = 0; i < number(words[2]); i++) {
                CUdeviceptr address = 0;
                size_t bytes = i % 2 == 0 ? 4096 : 2 << 20, size = 0;
                if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS) continue;
                {
                    std::lock_guard<std::mutex> guard(owners_lock);
                    if (owners[address] != 0) clashes++;
                    owners[address] = id;
                }
                if (cuMemGetAddressRange_v2(nullptr, &size, address) != CUDA_SUCCESS || size != bytes) clashes++;
                {
                    std::lock_guard<std::mutex> guard(owners_lock);
                    owners[address] = 0;
                }
                if (cuMemFree_v2(address) != CUDA_SUCCESS) clashes++;
            }
        });
    }
    for (std::thread& racer : racers) racer.join();
    return clashes == 0 ? "no clash" : std::to_string(clashes.load()) + " clashes";
}

}  // namespace

void add_load_commands(std::map<std::string, Command>& commands) {
    commands["load"] = begin;
    commands["endload"] = finish;
    commands["rounds"] = count;
    commands["race"] = race;
}
