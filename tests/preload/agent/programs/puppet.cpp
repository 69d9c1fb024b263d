// SPDX-License-Identifier: Apache-2.0
#include "puppet.h"

#include <stdio.h>
#include <stdlib.h>

#include <iostream>
#include <sstream>
#include <thread>

Puppet puppet;

namespace {

std::map<std::string, Command> commands;
std::map<std::string, std::thread> by_name;
std::map<std::string, std::string> answers;
std::mutex answers_lock;

Words split(const std::string& line) {
    std::istringstream stream(line);
    Words words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

std::string rest_of(const Words& words, size_t first) {
    std::string line;
    for (size_t i = first; i < words.size(); i++) line += words[i] + " ";
    return line;
}

// thread NAME COMMAND…: in a thread of its own, which takes the current context along
std::string start_thread(const Words& words) {
    std::string name = words[1], line = rest_of(words, 2);
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    {
        std::lock_guard<std::mutex> guard(answers_lock);
        answers.erase(name);
    }
    if (by_name[name].joinable()) by_name[name].join();
    by_name[name] = std::thread([=] {
        cuCtxSetCurrent(context);
        std::string answer = run_line(line);
        std::lock_guard<std::mutex> guard(answers_lock);
        answers[name] = answer;
    });
    return "ok";
}

// done NAME: what the thread's command said, or "running"
std::string look_at_thread(const Words& words) {
    {
        std::lock_guard<std::mutex> guard(answers_lock);
        if (answers.count(words[1]) == 0) return "running";
    }
    if (by_name[words[1]].joinable()) by_name[words[1]].join();
    return answers[words[1]];
}

std::string repeat(const Words& words) {
    std::string last = "ok", line = rest_of(words, 2);
    for (uint64_t i = 0; i < number(words[1]); i++) last = run_line(line);
    return last;
}

void add_commands() {
    commands["thread"] = start_thread;
    commands["done"] = look_at_thread;
    commands["repeat"] = repeat;
    add_memory_commands(commands);
    add_virtual_commands(commands);
    add_work_commands(commands);
    add_process_commands(commands);
    add_load_commands(commands);
}

}  // namespace

std::string say(CUresult result) {
    return result == CUDA_SUCCESS ? "ok" : std::to_string(result);
}

uint64_t number(const std::string& word) {
    return strtoull(word.c_str(), nullptr, 0);
}

Memory memory_of(const std::string& name) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    return puppet.memory.count(name) == 0 ? Memory{0, 0} : puppet.memory[name];
}

CUstream stream_of(const std::string& name) {
    std::lock_guard<std::mutex> guard(puppet.lock);
    return puppet.streams.count(name) == 0 ? nullptr : puppet.streams[name];
}

CUresult launch(const std::string& kernel, CUstream stream, void** parameters) {
    return cuLaunchKernel(puppet.kernels[kernel], 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

std::string run_line(const std::string& line) {
    Words words = split(line);
    if (words.empty() || commands.count(words[0]) == 0) return "what?";
    return commands[words[0]](words);
}

int main() {
    add_commands();
    for (std::string line; std::getline(std::cin, line);) {
        if (line == "quit") return 0;
        std::cout << run_line(line) << std::endl;
    }
    _Exit(0);  // told to go while threads of ours may be parked
}
