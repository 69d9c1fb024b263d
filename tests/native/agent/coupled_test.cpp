// SPDX-License-Identifier: Apache-2.0
//
// Coupled kernels: known by name, told apart by kernel and stream, counted by launch from many threads at once.
#include "core/coupled.h"

#include <string.h>

#include <thread>
#include <vector>

#include "check.h"
#include "core/gate.h"

namespace {

using gcr::Call;
namespace coupled = gcr::coupled;

constexpr uint64_t kReduce = 0x1000;
constexpr uint64_t kGather = 0x2000;
constexpr uint64_t kPlain = 0x3000;
const char* const kReduceName = "_Z29ncclDevKernel_AllReduce_Sum_f32_RING_LL";

// The sanitizer has the gate's fence at every call, which then looks closer in any case.
bool looks([[maybe_unused]] gcr::Look wanted) {
#if defined(__SANITIZE_THREAD__)
    wanted = gcr::kLookCloser;
#endif
    return gcr::thread_slot->look.load() == wanted;
}

uint64_t busy_stream = 0;
bool is_idle(uint64_t stream) {
    return stream != busy_stream;
}

uint32_t list_busy(gcr::wire::IncompleteRecord* found, uint64_t stream, bool forget = false) {
    busy_stream = stream;
    return coupled::list(found, 8, is_idle, forget);
}

void names_tell_which_are_coupled() {
    for (const char* name : {kReduceName, "ncclSymkDevKernel_AllGather", "_ZN4vllm25cross_device_reduce_1stageIfLi2EEE",
                             "nvshmemi_transfer", "multimem_all_reduce_kernel"})
        CHECK(coupled::is_coupled_name(name));
    for (const char* name : {"add", "ampere_sgemm_128x64_nn", ""}) CHECK(!coupled::is_coupled_name(name));
}

void a_process_without_any_is_not_watched() {
    coupled::learn(kPlain, "add");
    std::thread([] {
        gcr::GateEntry first;  // from here on its slot knows
    }).join();
    gcr::GateEntry in_flight;
    CHECK(looks(gcr::kGo));
    CHECK(coupled::signature_of({kPlain, 1}) == 0);
}

void a_signature_is_of_kernel_and_stream() {
    coupled::learn(kReduce, kReduceName);
    coupled::learn(kGather, "ncclDevKernel_AllGather");
    uint64_t first = coupled::signature_of({kReduce, 0x10}), second = coupled::signature_of({kReduce, 0x20});
    CHECK(first != 0 && second != 0 && first != second);
    CHECK(coupled::signature_of({kGather, 0x10}) != first);
    CHECK(coupled::signature_of({kReduce, 0x10}) == first);
    CHECK(coupled::signature_of({kPlain, 0x10}) == 0 && coupled::signature_of({}) == 0);
}

void another_handle_of_a_kernel_is_the_same() {
    coupled::learn_same(0x4000, kReduce);
    coupled::learn_same(0x5000, kPlain);
    CHECK(coupled::signature_of({0x4000, 0x10}) == coupled::signature_of({kReduce, 0x10}));
    CHECK(coupled::signature_of({0x5000, 0x10}) == 0);
}

void a_handle_that_comes_again_for_another_kernel_is_that_one() {
    coupled::learn(0x6000, kReduceName);
    CHECK(coupled::signature_of({0x6000, 0x10}) != 0);
    coupled::learn(0x6000, "add");
    CHECK(coupled::signature_of({0x6000, 0x10}) == 0);
}

coupled::Content content_of(uint64_t one, const char* name, uint64_t other) {
    coupled::Content content;
    content.add(one, name);
    content.add(kPlain, "add");
    content.add(other, nullptr);
    return content;
}

void a_graph_is_known_by_the_coupled_kernels_it_holds() {
    CHECK(coupled::any());
    coupled::learn_graph(0x7000, content_of(kReduce, nullptr, kGather));
    coupled::learn_graph(0x7100, content_of(kGather, nullptr, kReduce));
    coupled::learn_graph(0x7200, content_of(0x9999, kReduceName, kGather));  // a handle that was never looked up
    coupled::learn_graph(0x7300, content_of(kReduce, nullptr, kReduce));
    coupled::learn_graph(0x7400, content_of(kPlain, "add", 0));
    uint64_t both = coupled::signature_of({0x7000, 0x10});
    CHECK(both != 0 && both != coupled::signature_of({kReduce, 0x10}));
    CHECK(coupled::signature_of({0x7100, 0x10}) == both && coupled::signature_of({0x7200, 0x10}) == both);
    CHECK(coupled::signature_of({0x7300, 0x10}) != both && coupled::signature_of({0x7400, 0x10}) == 0);
}

void graphs_that_are_gone_leave_room() {
    coupled::Content content = content_of(kReduce, nullptr, kGather);
    for (uint64_t graph = 0x200000; graph < 0x200000 + 5000 * 16; graph += 16) {
        coupled::learn_graph(graph, content);
        CHECK(coupled::signature_of({graph, 0x10}) == coupled::signature_of({0x7000, 0x10}));
        coupled::learn_graph(graph, {});
        CHECK(coupled::signature_of({graph, 0x10}) == 0);
    }
}

// By the gate, in a process that is watched.
void launches_are_counted(uint64_t stream) {
    Call call{kReduce, stream};
    CHECK(looks(gcr::kWatch));
    uint32_t before = coupled::launched(coupled::signature_of(call));
    for (int i = 0; i < 3; i++) gcr::GateEntry in_flight([&] { return call; }, true);
    gcr::GateEntry local([] { return Call{kPlain, 0x10}; }, true);
    CHECK(coupled::launched(coupled::signature_of(call)) == before + 3);
    CHECK(coupled::launched(0) == 0);
}

void those_on_busy_streams_are_listed_until_the_stream_was_idle() {
    gcr::wire::IncompleteRecord found[8];
    CHECK(list_busy(found, 0x10) == 1);
    CHECK(found[0].signature == coupled::signature_of({kReduce, 0x10}) && found[0].launched == 3);
    CHECK(found[0].stream == 0x10 && strstr(found[0].kernel, "ncclDevKernel_AllReduce") != nullptr);
    CHECK(list_busy(found, 0x99) == 0);
    CHECK(list_busy(found, 0x10) == 1);  // a look alone forgets nothing
    CHECK(list_busy(found, 0x99, true) == 0);
    CHECK(list_busy(found, 0x10) == 0);
    coupled::note({kReduce, 0x10}, 7);
    CHECK(list_busy(found, 0x10) == 1 && found[0].launched == 4);
}

void threads_count_together() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([i] {
            for (int n = 0; n < 200000; n++) coupled::note({kGather, 0x100}, static_cast<uint32_t>(i));
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(coupled::launched(coupled::signature_of({kGather, 0x100})) == 800000);
    CHECK(coupled::maker_of(coupled::signature_of({kGather, 0x100})) == gcr::wire::kSeveralThreads);
}

void a_child_knows_none() {
    coupled::reset_after_fork();
    CHECK(coupled::signature_of({kReduce, 0x10}) == 0);
    coupled::learn(kReduce, kReduceName);
    coupled::note({kReduce, 0x10}, 7);
    CHECK(coupled::launched(coupled::signature_of({kReduce, 0x10})) == 1);
    CHECK(coupled::maker_of(coupled::signature_of({kReduce, 0x10})) == 7);
    gcr::wire::MadeRecord made[8];
    CHECK(coupled::list_made(made, 8) >= 1);
    coupled::note({kReduce, 0x10}, 7);
    CHECK(coupled::maker_of(coupled::signature_of({kReduce, 0x10})) == 7);
    coupled::note({kReduce, 0x10}, 8);
    CHECK(coupled::maker_of(coupled::signature_of({kReduce, 0x10})) == gcr::wire::kSeveralThreads);
    CHECK(coupled::maker_of(coupled::signature_of({kReduce, 0x999})) == gcr::wire::kSeveralThreads);
}

void more_than_there_is_room_for_are_local() {
    for (uint64_t i = 0; i < 3000; i++) {
        char name[64];
        snprintf(name, sizeof name, "ncclDevKernel_%d", static_cast<int>(i));
        coupled::learn(0x100000 + i * 16, name);
    }
    CHECK(coupled::signature_of({0x100000, 0x10}) != 0);
    CHECK(coupled::signature_of({0x100000 + 300 * 16, 0x10}) == 0);
    CHECK(coupled::signature_of({0x100000 + 2999 * 16, 0x10}) == 0);
    coupled::note({0x100000 + 2999 * 16, 0x10}, 7);
}

}  // namespace

int main() {
    gcr::prepare_gate();
    names_tell_which_are_coupled();
    a_process_without_any_is_not_watched();
    a_signature_is_of_kernel_and_stream();
    another_handle_of_a_kernel_is_the_same();
    a_handle_that_comes_again_for_another_kernel_is_that_one();
    a_graph_is_known_by_the_coupled_kernels_it_holds();
    graphs_that_are_gone_leave_room();
    launches_are_counted(0x10);
    those_on_busy_streams_are_listed_until_the_stream_was_idle();
    threads_count_together();
    a_child_knows_none();
    more_than_there_is_room_for_are_local();
    puts("coupled: all good");
    return 0;
}
