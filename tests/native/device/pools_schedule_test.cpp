// SPDX-License-Identifier: Apache-2.0
//
// Pools against vector clocks, in random schedules.
#include "pool_calls.h"

#include <map>
#include <random>
#include <vector>

namespace {

using namespace pool_calls;

// ThreadSanitizer finds nothing in what one thread does, and takes long to say so.
#ifdef __SANITIZE_THREAD__
constexpr unsigned kSchedules = 1;
#else
constexpr unsigned kSchedules = 8;
#endif

struct Freed {
    uint64_t stream;
    uint64_t position;
};

// Freed memory: ranges that do not overlap, by their beginning. A pool divides memory into units of 512 bytes.
class FreedRanges {
  public:
    void add(uint64_t begin, uint64_t end, const Freed& freed) { ranges_[begin] = {end, freed}; }

    void add(const FreedRanges& others) {
        for (const auto& [begin, range] : others.ranges_) add(begin, range.end, range.freed);
    }

    // Moves to `out` what lies between `begin` and `end`.
    void take(uint64_t begin, uint64_t end, FreedRanges* out) {
        cut(begin);
        cut(end);
        auto first = ranges_.lower_bound(begin), last = ranges_.lower_bound(end);
        out->ranges_.insert(first, last);
        ranges_.erase(first, last);
    }

    template <typename Check>
    void each(Check check) const {
        for (const auto& [begin, range] : ranges_) check(range.freed);
    }

  private:
    struct Range {
        uint64_t end;
        Freed freed;
    };

    void cut(uint64_t at) {
        auto after = ranges_.upper_bound(at);
        if (after == ranges_.begin()) return;
        auto& [begin, range] = *std::prev(after);
        if (begin == at || range.end <= at) return;
        ranges_[at] = range;
        range.end = at;
    }

    std::map<uint64_t, Range> ranges_;
};

struct Live {
    uint64_t size;
    uint64_t pool;
    FreedRanges before;  // the frees of its memory's earlier users
};

class Schedule {
  public:
    explicit Schedule(unsigned seed) : random_(seed) {
        plain.room = 96 * MiB;
        for (uint64_t i = 0; i < 4; i++) names_.push_back(stream(next_id_++, 100 + i, i == 3));
    }

    void run() {
        for (int i = 0; i < 3000; i++) step();
        for (const auto& [address, live] : std::map<uint64_t, Live>(live_)) give(address);
        plain.captures = 0;
        for (uint64_t key : {10, 11})
            if (plain_memory.pools.find(key) != nullptr) destroy(key);
        for (StreamName& name : names_)  // what only its thread could have recorded
            if (name.of_thread) gcr::device::settle_all_of(plain_memory, kContext), plain.events.clear();
        nothing_is_left();
        plain.room = 1ull << 40;
    }

  private:
    static uint64_t whole_units(uint64_t end) { return (end + 511) / 512 * 512; }

    uint64_t below(uint64_t limit) { return random_() % limit; }
    StreamName& any_stream() { return names_[below(names_.size())]; }

    void step() {
        plain.calling = 0;
        uint64_t what = below(100);
        if (what < 40) return take();
        if (what < 70 && !live_.empty()) return give(std::next(live_.begin(), below(live_.size()))->first);
        if (what < 73 && !live_.empty()) return give_at_once(std::next(live_.begin(), below(live_.size()))->first);
        if (what < 85) return advance();
        if (what < 90) return gcr::device::trim_to_thresholds(plain_memory);
        if (what < 93) return gcr::device::set_threshold(plain_memory, 10 + below(2), below(4) * 32 * MiB);
        if (what < 95 && plain_memory.pools.find(11) != nullptr)
            return gcr::device::trim_pool(plain_memory, pool(11), 0);
        if (what < 97) return replace_stream();
        if (what < 98) return destroy(11);
        plain.captures = below(2);
    }

    void take() {
        StreamName& in = any_stream();
        uint64_t key = 10 + below(2), size = below(4) == 0 ? 1 + below(40 * MiB) : 1 + below(100000), address = 0;
        if (allocate(pool(key), in, size, &address) != 0) return;
        live_[address] = {size, key, comes_after_everybody(address, size, in.id)};
        plain.streams[in.id].enqueued++;
    }

    FreedRanges comes_after_everybody(uint64_t address, uint64_t size, uint64_t id) {
        auto next = live_.lower_bound(address);
        CHECK(next == live_.end() || next->first >= address + size);
        CHECK(next == live_.begin() || std::prev(next)->first + std::prev(next)->second.size <= address);
        FreedRanges before;
        freed_.take(address, whole_units(address + size), &before);
        const fake::Stream& in = plain.streams.at(id);
        before.each([&](const Freed& freed) {
            auto after = in.after.find(freed.stream);
            bool ordered = after != in.after.end() && after->second >= freed.position;
            CHECK(freed.stream == id || ordered || plain.streams.at(freed.stream).done >= freed.position);
        });
        return before;
    }

    // Its own work is over; that of those before it need not be.
    void give_at_once(uint64_t address) {
        must_free_at_once(address);
        freed_.add(live_.at(address).before);
        live_.erase(address);
    }

    void give(uint64_t address) {
        const StreamName& in = any_stream();
        must_free(address, in);
        uint64_t size = live_.at(address).size;
        freed_.add(address, whole_units(address + size), {in.id, plain.streams[in.id].enqueued});
        live_.erase(address);
    }

    // As far as nothing it waits for is still to be done.
    void advance() {
        fake::Stream& some = plain.streams[any_stream().id];
        for (const auto& [other, position] : some.after)
            if (plain.streams.at(other).done < position) return;
        some.done += some.done < some.enqueued ? 1 + below(some.enqueued - some.done) : 0;
    }

    void replace_stream() {
        StreamName& old = names_[below(3)];
        destroy_stream(old);
        old = stream(next_id_++, old.handle);
    }

    std::mt19937_64 random_;
    std::vector<StreamName> names_;
    uint64_t next_id_ = 1000;
    std::map<uint64_t, Live> live_;
    FreedRanges freed_;
};

}  // namespace

int main() {
    for (unsigned seed = 1; seed <= kSchedules; seed++) Schedule(seed).run();
    return 0;
}
