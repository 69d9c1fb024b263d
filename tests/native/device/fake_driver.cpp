// SPDX-License-Identifier: Apache-2.0
#include "fake_driver.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "core/agent.h"
#include "core/lending.h"

namespace fake {

Driver plain, strict, keeping;
std::vector<uint64_t> released;
std::function<void()> on_released;
std::vector<uint8_t> asked_for;
std::function<void()> on_asked;

bool Driver::fails(const char* operation) {
    if (meanwhile.first == operation) std::exchange(meanwhile, {}).second();
    if (broken != operation) return false;
    if (broken_after-- > 0) return false;
    if (--broken_times <= 0) broken.clear();
    return true;
}

uint64_t Driver::used() const {
    uint64_t sum = 0;
    for (const auto& each : physical) sum += each.second.size;
    return sum;
}

unsigned char& Driver::at(uint64_t address) {
    auto found = mapped.upper_bound(address);
    CHECK(found != mapped.begin());
    --found;
    CHECK(address - found->first < found->second.size);
    return physical.at(handles.at(found->second.real)).bytes[found->second.offset + address - found->first];
}

namespace {

using gcr::device::Entered;
using gcr::device::Facts;
using gcr::device::Owner;
using gcr::device::Properties;
using gcr::device::Result;

struct Asked {
    int device;
    int exportable;
};

// An owner of these drivers is a device; a share of 1 GiB is not really backed.
template <Driver& driver, uint64_t kBase, bool kStrict, bool kKeeping = false>
struct Operations {
    static uint32_t count() { return driver.devices; }
    static bool uuid(int device, uint8_t out[16]) {
        memset(out, static_cast<int>(kBase >> 40) + device, 16);
        return true;
    }
    static Facts facts(int) {
        Facts facts{};
        facts.shareable = true;
        facts.granularity = driver.granularity;
        return facts;
    }
    static void enter(int, Entered*) { driver.entered++; }
    static void leave(const Entered&) { driver.entered--; }
    static Result synchronize(Owner*) {
        if (driver.fails("synchronize")) return kBroken;
        driver.synchronized++;
        return 0;
    }
    static uint32_t captures() { return driver.captures; }

    static Result reserve_at(uint64_t size, uint64_t wanted, uint64_t* address) {
        if (driver.wanted_by_others.count(wanted) != 0 && driver.others_stay-- > 0) return kNoRoom;
        CHECK(driver.reserved.emplace(wanted, size).second);
        *address = wanted;
        return 0;
    }
    static Result reserve(uint64_t size, uint64_t wanted, uint64_t* address) {
        if (driver.fails("reserve")) return kNoRoom;
        if (wanted != 0) return reserve_at(size, wanted, address);
        *address = kBase + driver.next_address;
        driver.next_address += size;
        driver.reserved[*address] = size;
        return 0;
    }
    static Result give_back(uint64_t address, uint64_t size) {
        auto found = driver.reserved.find(address);
        if (found == driver.reserved.end() || found->second != size) return kInvalid;
        driver.reserved.erase(found);
        for (uint64_t which : driver.kept[address])
            if (driver.keeps != Driver::kForGood) drop(which);
        driver.kept.erase(address);
        return 0;
    }

    static Properties plain_memory(int device) { return Properties::of(Asked{device, 0}); }
    static int device_of(const Properties& asked) { return asked.as<Asked>().device; }
    static bool exportable(const Properties& asked) { return asked.as<Asked>().exportable != 0; }
    static void describe(const Properties& asked, gcr::wire::HandleRecord* record) {
        record->asked_types = static_cast<uint32_t>(asked.as<Asked>().exportable);
    }
    static Result create(uint64_t size, const Properties&, uint64_t, bool export_too, uint64_t* real) {
        if (driver.fails("create")) return kBroken;
        if (export_too && !driver.may_export) return kInvalid;
        if (driver.used() + size > driver.room) return kNoRoom;
        *real = driver.next_real++;
        driver.physical.emplace(*real, Physical{size});
        driver.handles[*real] = *real;
        return 0;
    }
    static void drop(uint64_t which) {
        if (--driver.physical.at(which).references == 0) driver.physical.erase(which);
    }
    static Result release(uint64_t real) {
        auto found = driver.handles.find(real);
        if (found == driver.handles.end()) return kInvalid;
        for (const auto& each : driver.mapped) CHECK(each.second.real != real);  // unmapped first, always
        uint64_t which = found->second;
        driver.handles.erase(found);
        drop(which);
        return 0;
    }
    // A descriptor holds the physical memory for good: this driver does not hear that it was closed.
    static Result export_fd(uint64_t real, int* descriptor) {
        if (driver.fails("export_fd")) return kBroken;
        uint64_t which = driver.handles.at(real);
        *descriptor = memfd_create("physical", 0);
        CHECK(write(*descriptor, &which, sizeof which) == sizeof which);
        driver.physical.at(which).references++;
        return 0;
    }
    static Result import_fd(int descriptor, uint64_t* real) {
        if (driver.fails("import_fd")) return kBroken;
        uint64_t which = 0;
        if (pread(descriptor, &which, sizeof which, 0) != sizeof which) return kInvalid;
        *real = driver.next_real++;
        driver.handles[*real] = which;
        driver.physical.at(which).references++;
        return 0;
    }

    static Result map(uint64_t address, uint64_t size, uint64_t offset, uint64_t real) {
        if (driver.fails("map")) return kBroken;
        for (const auto& each : driver.mapped)
            if (each.first < address + size && address < each.first + each.second.size) return kInvalid;
        driver.mapped[address] = {size, offset, real, 0, 0};
        auto reservation = driver.reserved.upper_bound(address);
        CHECK(reservation != driver.reserved.begin());
        --reservation;
        CHECK(address - reservation->first <= reservation->second - size);
        if (kKeeping && driver.keeps != Driver::kNothing) {
            driver.kept[reservation->first].push_back(driver.handles.at(real));
            driver.physical.at(driver.handles.at(real)).references++;
        }
        return 0;
    }
    // A strict one, as ACL, looks at the address alone: one mapping is done, and that is called success.
    static uint64_t reach(uint64_t address, uint64_t size) {
        auto found = driver.mapped.find(address);
        return kStrict && found != driver.mapped.end() ? found->second.size : size;
    }
    static Result unmap(uint64_t address, uint64_t size) {
        if (driver.fails("unmap")) return kBroken;
        driver.unmapped_sizes.push_back(size);
        auto end = driver.mapped.lower_bound(address + reach(address, size));
        driver.mapped.erase(driver.mapped.lower_bound(address), end);
        return 0;
    }
    static Result set_access(uint64_t address, uint64_t size, uint32_t read, uint32_t write) {
        if (read == 0 && write == 0) return 0;
        if (driver.fails("set_access")) return kBroken;
        for (auto& each : driver.mapped) {
            if (each.first < address || each.first >= address + reach(address, size)) continue;
            each.second.read |= read | write;
            each.second.write |= write;
        }
        return 0;
    }
    static Result drop_access(uint64_t address, uint64_t size, uint32_t devices) {
        for (auto& each : driver.mapped) {
            if (each.first < address || each.first >= address + size) continue;
            each.second.read &= ~devices;
            each.second.write &= ~devices;
        }
        return 0;
    }
    static Result copy_to_host(void* host, uint64_t address, uint64_t size) {
        memcpy(host, &driver.at(address), size);
        return 0;
    }
    static Result copy_within(uint64_t to, uint64_t from, uint64_t size) {
        memcpy(&driver.at(to), &driver.at(from), size);
        return 0;
    }
    static Result copy_to_device(uint64_t address, const void* host, uint64_t size) {
        memcpy(&driver.at(address), host, size);
        return 0;
    }

    // A stream that is no more must not be named, and one that captures must not be asked or recorded.
    static const Stream& named(const gcr::device::StreamName& name) {
        const Stream& stream = driver.streams.at(name.id);
        CHECK(stream.alive && !stream.captures && (!name.of_thread || name.id == driver.calling));
        return stream;
    }
    static bool capturing(const gcr::device::StreamName& name) { return driver.streams.at(name.id).captures; }
    static bool idle(const gcr::device::StreamName& name) {
        driver.fails("idle");
        CHECK(driver.captures == 0);
        return named(name).done == named(name).enqueued;
    }
    static bool mark(const gcr::device::StreamName& name, uint64_t* event) {
        const Stream& stream = named(name);
        if (driver.fails("mark")) return false;
        if (*event == 0) *event = driver.next_event++;
        driver.events[*event] = {name.id, stream.enqueued, stream.after};
        return true;
    }
    static bool passed(const gcr::device::StreamName&, uint64_t event) {
        driver.fails("passed");
        CHECK(driver.captures == 0);
        const Event& recorded = driver.events.at(event);
        return driver.streams.at(recorded.stream).done >= recorded.position;
    }
    static bool follow(const gcr::device::StreamName& name, const gcr::device::StreamName&, uint64_t event) {
        driver.fails("follow");
        named(name);
        const Event& recorded = driver.events.at(event);
        driver.streams.at(name.id).enqueued++;  // the wait
        Clock& after = driver.streams.at(name.id).after;
        for (const auto& [stream, position] : recorded.after)
            if (after[stream] < position) after[stream] = position;
        if (after[recorded.stream] < recorded.position) after[recorded.stream] = recorded.position;
        return true;
    }
    static void forget_event(const gcr::device::StreamName&, uint64_t event) { CHECK(driver.events.erase(event) == 1); }

    static uint64_t used_bytes() {
        uint64_t of_others = 0;
        if (!driver.others_use.empty()) {
            of_others = driver.others_use.front();
            driver.others_use.erase(driver.others_use.begin());
        }
        return driver.used() + of_others;
    }

    static constexpr gcr::device::DeviceOps table(gcr::wire::Vendor vendor) {
        return {vendor,
                {"unmap", "set_access", "export_fd", "import_fd"},
                kStrict ? gcr::device::kOneMappingACall : 0u,
                kNoRoom,
                kInvalid,
                kInvalid,
                count,
                uuid,
                facts,
                enter,
                leave,
                synchronize,
                captures,
                reserve,
                give_back,
                plain_memory,
                device_of,
                exportable,
                describe,
                create,
                release,
                export_fd,
                import_fd,
                map,
                unmap,
                set_access,
                drop_access,
                copy_to_host,
                copy_to_device,
                capturing,
                idle,
                mark,
                passed,
                follow,
                forget_event,
                kKeeping ? used_bytes : nullptr,
                kStrict ? copy_within : nullptr};
    }

    // ---- and as a vendor, for the agent
    static bool simulated() { return true; }
    static void enter_thread() {}
    static uint32_t contexts() { return 1; }
    static gcr::Failure synchronize_all() { return {}; }
    static uint32_t stuck(gcr::wire::StuckRecord* records, uint32_t limit) {
        if (limit == 0) return 0;
        records[0] = {kBase, 0, 1, 0};
        return 1;
    }
    static void each_lock(void (gcr::Lock::*)()) {}
    static void reset_after_fork() {}
};

using Plain = Operations<plain, 1ull << 40, false>;
using Strict = Operations<strict, 2ull << 40, true>;
using Keeping = Operations<keeping, 0x7ea000000000, false, true>;  // mapped over: no memory there, not even sanitizers'
constexpr gcr::device::DeviceOps kPlain = Plain::table(gcr::wire::kNvidia);
constexpr gcr::device::DeviceOps kStrict = Strict::table(gcr::wire::kAscend);
constexpr gcr::device::DeviceOps kKeeping = Keeping::table(gcr::wire::kAmd);

template <typename Vendor>
constexpr gcr::VendorOps vendor_of(gcr::device::State* memory) {
    return {memory,        Vendor::simulated, Vendor::enter_thread,    Vendor::contexts, Vendor::synchronize_all,
            Vendor::stuck, Vendor::each_lock, Vendor::reset_after_fork};
}

}  // namespace

gcr::device::State plain_memory(kPlain), strict_memory(kStrict), keeping_memory(kKeeping);
const gcr::VendorOps plain_vendor = vendor_of<Plain>(&plain_memory);
const gcr::VendorOps strict_vendor = vendor_of<Strict>(&strict_memory);
const gcr::VendorOps keeping_vendor = vendor_of<Keeping>(&keeping_memory);

}  // namespace fake

namespace gcr {

void tell_released(uint64_t id) {
    fake::released.push_back(id);
    if (fake::on_released) fake::on_released();
}

bool ask_to_let_go(const uint8_t uuid[16]) {
    fake::asked_for.assign(uuid, uuid + 16);
    if (!fake::on_asked) return false;
    fake::on_asked();
    return true;
}

int ask_for_descriptor(uint64_t) {
    return -1;
}

bool begin_blob(Blob*, uint32_t) {
    return false;
}

bool is_blob(const Blob&, uint32_t) {
    return false;
}

bool is_own(const Blob&) {
    return false;
}

bool borrow(const Blob&, Lent*, int*) {
    return false;
}

void return_loan(const Blob&) {}

}  // namespace gcr
