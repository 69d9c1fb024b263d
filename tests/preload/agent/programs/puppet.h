// SPDX-License-Identifier: Apache-2.0
//
// A program that does what it is told, one line at a time: "alloc a 4096" → "ok". Things are called by name, so that the
// same script says the same bare and preloaded, whatever the addresses are.
#ifndef GCR_TEST_PUPPET_H
#define GCR_TEST_PUPPET_H

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"

struct Memory {
    CUdeviceptr address;
    size_t size;
};

struct Puppet {
    std::mutex lock;  // the maps; not held across a driver call
    std::map<std::string, Memory> memory;
    std::map<std::string, CUmemGenericAllocationHandle> handles;
    std::map<std::string, CUstream> streams;
    std::map<std::string, CUcontext> contexts;
    std::map<std::string, void*> host;
    std::map<std::string, CUfunction> kernels;
    std::map<std::string, CUgraphExec> graphs;
    std::map<std::string, int> files;
};

extern Puppet puppet;

using Words = std::vector<std::string>;
using Command = std::string (*)(const Words&);

std::string say(CUresult result);  // "ok" or the number
uint64_t number(const std::string& word);
Memory memory_of(const std::string& name);
CUstream stream_of(const std::string& name);
CUresult launch(const std::string& kernel, CUstream stream, void** parameters);
std::string run_line(const std::string& line);

// splitmix64, as the kernel's: the pattern is checked here, by the host, from bytes that were copied out
inline uint64_t expected(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Every file of commands adds its own.
void add_memory_commands(std::map<std::string, Command>& commands);
void add_virtual_commands(std::map<std::string, Command>& commands);
void add_work_commands(std::map<std::string, Command>& commands);
void add_process_commands(std::map<std::string, Command>& commands);
void add_load_commands(std::map<std::string, Command>& commands);

#endif
