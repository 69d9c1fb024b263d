// SPDX-License-Identifier: Apache-2.0
//
// Crew: a job that does not end blocks no other, and its thread is used again when it did.
#include "core/crew.h"

#include "check.h"

namespace {

std::atomic<bool> door{false};
std::atomic<int> done{0};

void stuck_job() {
    while (!door) gcr::sleep_us(1000);
    done++;
}
void quick_job() {
    done++;
}

}  // namespace

int main() {
    static gcr::Crew crew;
    CHECK(!crew.available() && !crew.busy());
    CHECK(crew.begin(stuck_job));
    crew.wait(20);
    CHECK(crew.busy() && !crew.begin(quick_job));
    door = true;
    crew.wait(20000);
    CHECK(!crew.busy() && done == 1);
    for (int i = 0; i < 200; i++) {
        CHECK(crew.begin(quick_job));
        crew.wait(20000);
        CHECK(done == i + 2);
    }
}
