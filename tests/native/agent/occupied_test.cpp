// SPDX-License-Identifier: Apache-2.0
//
// Occupied: what the daemon's page says now, of the device that is asked for; nothing where there is no such page. What a
// daemon that is gone said counts for a while, whatever the next one says.
#include "core/occupied.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "check.h"

namespace {

using gcr::Occupied;
using Record = gcr::wire::OccupiedRecord;
constexpr size_t kBytes = gcr::wire::kOccupiedDevices * sizeof(Record);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// As the daemon has it.
struct Page {
    explicit Page(size_t bytes = kBytes, int seals = kSeals) {
        file = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0);
        if (bytes >= kBytes)
            rows = static_cast<Record*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
        CHECK(fcntl(file, F_ADD_SEALS, seals) == 0);
    }
    ~Page() {
        if (rows != nullptr) munmap(rows, kBytes);
        close(file);
    }
    void say(int row, uint8_t device, uint32_t occupied) {
        rows[row].uuid[0] = device;
        __atomic_store_n(&rows[row].occupied, occupied, __ATOMIC_RELEASE);
    }
    int file;
    Record* rows = nullptr;
};

uint32_t orphaned_ms(Occupied& occupied, uint8_t device) {
    uint8_t uuid[16] = {device};
    return occupied.orphaned_ms(uuid);
}

bool found(Occupied& occupied, uint8_t device) {
    uint8_t uuid[16] = {device};
    Record record;
    bool is = occupied.find(uuid, &record);
    if (is) CHECK(memcmp(record.uuid, uuid, sizeof uuid) == 0);
    return is;
}

void it_says_what_the_page_says_now() {
    Occupied occupied;
    CHECK(!found(occupied, 1));
    Page page;
    occupied.adopt(page.file);
    CHECK(!found(occupied, 0) && !found(occupied, 1));
    page.say(0, 1, 1);
    page.say(gcr::wire::kOccupiedDevices - 1, 2, 1);
    CHECK(found(occupied, 1) && found(occupied, 2) && !found(occupied, 0) && !found(occupied, 3));
    page.say(0, 1, 0);
    CHECK(!found(occupied, 1) && found(occupied, 2));
    Page next;
    occupied.adopt(next.file);
    CHECK(!found(occupied, 2));
    page.say(0, 1, 1);
    CHECK(!found(occupied, 1));  // the next daemon's is looked at
}

void no_page_says_nothing() {
    Occupied occupied;
    Page good, small(kBytes - 1), unsealed(kBytes, F_SEAL_GROW);
    good.say(0, 1, 1);
    unsealed.say(0, 1, 1);
    const int others[] = {-1, 1 << 20, small.file, unsealed.file};
    for (int other : others) {
        occupied.adopt(good.file);
        CHECK(found(occupied, 1));
        occupied.adopt(other);
        CHECK(!found(occupied, 1));
    }
}

void what_a_daemon_left_is_over_soon() {
    Occupied occupied;
    Page page;
    page.say(0, 1, 1);
    occupied.adopt(page.file);
    CHECK(orphaned_ms(occupied, 1) == 0);
    occupied.lose(200);
    uint32_t left = orphaned_ms(occupied, 1);
    CHECK(!found(occupied, 1) && left > 0 && left <= 200 && orphaned_ms(occupied, 2) == 0);
    gcr::sleep_us(210000);
    CHECK(orphaned_ms(occupied, 1) == 0);
    occupied.adopt(page.file);
    CHECK(found(occupied, 1) && orphaned_ms(occupied, 1) == 0);
    page.say(0, 1, 0);
    occupied.lose(60000);
    CHECK(orphaned_ms(occupied, 1) == 0);  // nothing was occupied: nothing is waited for
}

void the_next_daemon_does_not_make_it_free() {
    Occupied occupied;
    Page first, second, third;
    first.say(0, 1, 1);
    occupied.adopt(first.file);
    occupied.lose(60000);
    occupied.adopt(second.file);
    CHECK(!found(occupied, 1) && orphaned_ms(occupied, 1) > 0);
    second.say(0, 2, 1);
    CHECK(found(occupied, 2) && orphaned_ms(occupied, 2) == 0);
    occupied.lose(60000);
    occupied.adopt(third.file);
    CHECK(orphaned_ms(occupied, 1) > 0 && orphaned_ms(occupied, 2) > 0 && orphaned_ms(occupied, 3) == 0);
    occupied.lose(1);  // with nothing of its own it shortens no other's
    CHECK(orphaned_ms(occupied, 1) > 1000);
}

// A device is kept once, however many daemons die, so there is a place for another one.
void many_daemons_leave_no_more_than_there_are_devices() {
    Occupied occupied;
    Page page;
    page.say(0, 1, 1);
    for (int turn = 0; turn < gcr::wire::kOccupiedDevices; turn++) {
        occupied.adopt(page.file);
        occupied.lose(60000);
    }
    page.say(0, 2, 1);
    occupied.adopt(page.file);
    occupied.lose(60000);
    CHECK(orphaned_ms(occupied, 1) > 0 && orphaned_ms(occupied, 2) > 0);
}

// One daemon said that it has memory on device 2, and is gone; the next one says the same of device 1.
void hear_of_two_daemons(Occupied* occupied, Page* page) {
    page->say(0, 2, 1);
    occupied->adopt(page->file);
    occupied->lose(60000);
    page->say(0, 1, 1);
    occupied->adopt(page->file);
}

void what_is_forgotten_is_over_at_once() {
    Occupied occupied;
    Page page;
    hear_of_two_daemons(&occupied, &page);
    occupied.forget();
    CHECK(!found(occupied, 1) && orphaned_ms(occupied, 1) == 0 && orphaned_ms(occupied, 2) == 0);
    occupied.lose(60000);
    CHECK(orphaned_ms(occupied, 1) == 0 && orphaned_ms(occupied, 2) == 0);
}

void a_child_was_told_nothing() {
    Occupied occupied;
    Page page;
    hear_of_two_daemons(&occupied, &page);
    pid_t child = fork();
    if (child == 0) {
        occupied.reset_after_fork();
        _exit(found(occupied, 1) || orphaned_ms(occupied, 2) > 0 ? 1 : 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(found(occupied, 1) && orphaned_ms(occupied, 2) > 0);
}

// Who reads never meets a page that is gone.
void pages_change_under_readers() {
    Occupied occupied;
    Page first, second;
    first.say(0, 1, 1);
    second.say(3, 1, 1);
    std::atomic<bool> over{false};
    std::atomic<uint32_t> seen{0};
    std::thread readers[2];
    for (std::thread& reader : readers)
        reader = std::thread([&] {
            while (!over)
                if (found(occupied, 1)) seen++;
        });
    for (int turn = 0; turn < 2000 || seen == 0; turn++) {
        occupied.adopt(turn % 2 == 0 ? first.file : second.file);
        if (turn % 7 == 0) occupied.lose(turn % 2);
    }
    over = true;
    for (std::thread& reader : readers) reader.join();
}

}  // namespace

int main() {
    it_says_what_the_page_says_now();
    no_page_says_nothing();
    what_a_daemon_left_is_over_soon();
    the_next_daemon_does_not_make_it_free();
    many_daemons_leave_no_more_than_there_are_devices();
    what_is_forgotten_is_over_at_once();
    a_child_was_told_nothing();
    pages_change_under_readers();
}
