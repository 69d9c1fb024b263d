// SPDX-License-Identifier: Apache-2.0
#include "core/looking.h"

#include "core/coverage.h"
#include "core/gate.h"
#include "core/identity.h"

namespace gcr {

using namespace replies;

namespace {

uint32_t collect_uncovered(wire::UncoveredRecord* records) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < wire::kReasonCount; i++) {
        Reason reason = static_cast<Reason>(i);
        Uncovered found = uncovered(reason);
        if (found.count == 0) continue;
        records[count++] = {i, static_cast<uint32_t>(refuse_for(reason)), found.bytes, found.count};
    }
    return count;
}

}  // namespace

Outcome on_status() {
    static Array<wire::DeviceRecord> devices;
    wire::UncoveredRecord lacking[wire::kReasonCount];
    wire::StatusRecord status{};
    devices.clear();
    session.vendors.status(&status, &devices);
    status.phase = session.phase.load(std::memory_order_relaxed);
    status.flags = session_flags();
    status.transaction = session.transaction.load();
    status.generation = session.generation;
    status.devices = static_cast<uint32_t>(devices.size());
    status.uncovered = collect_uncovered(lacking);
    status.captures = session.vendors.captures();
    status.in_flight = calls_in_flight();
    status.gated_calls = gated_calls();
    iovec parts[] = {{&status, sizeof status},
                     {devices.data(), devices.size() * sizeof devices[0]},
                     {lacking, status.uncovered * sizeof lacking[0]}};
    send_reply(parts, 3);
    return kAnswered;
}

Outcome on_mappings() {
    static MappingPage page;
    const auto& wanted = asked<wire::ExportRequest>();
    page.limit = wanted.limit < MappingPage::kLimit ? wanted.limit : MappingPage::kLimit;
    session.vendors.mappings_after(wanted.after_id, &page);
    wire::ExportReply head{
        session.transaction.load(), page.cursor, page.count, page.more, sizeof(wire::MappingRecord), 0};
    iovec parts[] = {{&head, sizeof head}, {page.records, page.count * sizeof page.records[0]}};
    send_reply(parts, 2);
    return kAnswered;
}

Outcome on_shared() {
    static SharedPage page;
    const auto& wanted = asked<wire::ExportRequest>();
    const Identity* own = identity();
    if (own == nullptr) return refuse(wire::kNoMemory, "the kernel gave no random bytes");
    page.limit = wanted.limit < SharedPage::kLimit ? wanted.limit : SharedPage::kLimit;
    session.vendors.list_shared(wanted.after_id, &page);
    wire::SharedReply head{
        session.transaction.load(), own->process, page.passed, page.count, page.more, sizeof(wire::SharedRecord), 0};
    iovec parts[] = {{&head, sizeof head}, {page.records, page.count * sizeof page.records[0]}};
    send_reply(parts, 2);
    return kAnswered;
}

}  // namespace gcr
