// SPDX-License-Identifier: Apache-2.0
//
// Questions: each answer finds its question, a late one finds nothing, an abandoned one ends the wait.
#include "core/questions.h"

#include <thread>
#include <vector>

#include "check.h"

namespace {

void answers_find_their_questions() {
    gcr::Questions questions;
    std::atomic<uint64_t> asked[8] = {};
    std::vector<std::thread> threads;
    for (auto& slot : asked) {
        threads.emplace_back([&] {
            for (int i = 0; i < 200; i++) {
                gcr::Question question;
                questions.open(&question);
                slot = question.request;
                CHECK(questions.wait(&question, 20000));
            }
            slot = UINT64_MAX;
        });
    }
    for (bool open = true; open;) {
        open = false;
        for (auto& slot : asked) {
            uint64_t request = slot;
            if (request == UINT64_MAX) continue;
            open = true;
            questions.deliver(request);
        }
    }
    for (std::thread& thread : threads) thread.join();
}

void a_question_nobody_answers_ends() {
    gcr::Questions questions;
    gcr::Question question;
    questions.open(&question);
    CHECK(!questions.wait(&question, 30));
    questions.deliver(question.request);  // late: there is no such question any more
    CHECK(question.answered == 0);
}

void abandoned_is_over_at_once() {
    gcr::Questions questions;
    std::thread asking([&] {
        gcr::Question question;
        questions.open(&question);
        gcr::Deadline deadline(20000);
        questions.wait(&question, 20000);
        CHECK(!deadline.passed());
    });
    gcr::sleep_us(20000);
    questions.abandon();
    asking.join();
}

}  // namespace

int main() {
    answers_find_their_questions();
    a_question_nobody_answers_ends();
    abandoned_is_over_at_once();
}
