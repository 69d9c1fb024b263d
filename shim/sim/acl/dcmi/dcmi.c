// SPDX-License-Identifier: Apache-2.0
//
// DCMI over the simulated machine: what it takes to list devices, their memory, and its users. A card has one device.
#include "dcmi.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fault.h"
#include "machine.h"

#define DCMI_API __attribute__((visibility("default")))
#define MB(bytes) ((bytes) >> 20)

static atomic_bool initialised;

DCMI_API int dcmi_init(void) {
    if (sim_machine_open() != SIM_OK) return DCMI_ERR_CODE_INNER_ERR;
    atomic_store(&initialised, true);
    return DCMI_OK;
}

static int begin(const char* function) {
    if (!atomic_load(&initialised)) return DCMI_ERR_CODE_NOT_REDAY;
    sim_result injected = sim_fault(function);
    return injected ? -(int)(injected - SIM_VENDOR_BASE) : DCMI_OK;  // DCMI's numbers are negative
}

#define BEGIN()                   \
    int begun_ = begin(__func__); \
    if (begun_) return begun_
#define REQUIRE(condition) \
    if (!(condition)) return DCMI_ERR_CODE_INVALID_PARAMETER
#define DEVICE(card, device)                                                              \
    BEGIN();                                                                              \
    if ((card) < 0 || (unsigned)(card) >= sim_machine_config()->devices || (device) != 0) \
    return DCMI_ERR_CODE_INVALID_DEVICE_ID

DCMI_API int dcmi_get_driver_version(char* text, unsigned int room) {
    BEGIN();
    static const char version[] = "25.5.0-simulated";
    REQUIRE(text && room >= sizeof version);
    memcpy(text, version, sizeof version);
    return DCMI_OK;
}

DCMI_API int dcmi_get_card_list(int* count, int* cards, int room) {
    BEGIN();
    int devices = (int)sim_machine_config()->devices;
    REQUIRE(count && cards && room >= devices);
    for (int i = 0; i < devices; i++) cards[i] = i;
    *count = devices;
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_id_in_card(int card, int* devices, int* mcu, int* cpu) {
    DEVICE(card, 0);
    REQUIRE(devices && mcu && cpu);
    *devices = 1;
    *mcu = *cpu = -1;  // has none
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_logic_id(int* logical, int card, int device) {
    DEVICE(card, device);
    REQUIRE(logical);
    *logical = card;
    return DCMI_OK;
}

DCMI_API int dcmi_get_card_id_device_id_from_logicid(int* card, int* device, unsigned int logical) {
    DEVICE((int)logical, 0);
    REQUIRE(card && device);
    *card = (int)logical;
    *device = 0;
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_chip_info(int card, int device, struct dcmi_chip_info* out) {
    DEVICE(card, device);
    REQUIRE(out);
    *out = (struct dcmi_chip_info){.chip_type = "Ascend", .chip_name = "910B SIMULATED", .chip_ver = "V1"};
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_hbm_info(int card, int device, struct dcmi_hbm_info* out) {
    DEVICE(card, device);
    REQUIRE(out);
    uint64_t used = sim_machine_used((unsigned)card);
    *out = (struct dcmi_hbm_info){.memory_size = MB(sim_machine_config()->memory),
                                  .memory_usage = MB(used + (1 << 20) - 1)};  // a started MB is used
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_die_v2(int card, int device, dcmi_die_type type, struct dcmi_die_id* out) {
    DEVICE(card, device);
    REQUIRE(out && type == DCMI_VDIE);
    *out = (struct dcmi_die_id){{0}};
    sim_machine_uuid((unsigned)card, (uint8_t*)out->soc_die);
    return DCMI_OK;
}

DCMI_API int dcmi_get_device_resource_info(int card, int device, struct dcmi_proc_mem_info* out, int* count) {
    DEVICE(card, device);
    REQUIRE(out && count);
    struct sim_holder holders[DCMI_MAX_PROCESSES];
    size_t all = sim_machine_holders((unsigned)card, holders, DCMI_MAX_PROCESSES);
    *count = all < DCMI_MAX_PROCESSES ? (int)all : DCMI_MAX_PROCESSES;
    for (int i = 0; i < *count; i++) out[i] = (struct dcmi_proc_mem_info){holders[i].pid, holders[i].bytes};
    return DCMI_OK;
}
