// SPDX-License-Identifier: Apache-2.0
//
// The part of DCMI, Ascend's management library, that counting a device's memory takes; declared by ourselves after
// the vendor's documentation. backends/ascend/gcr_ascend/acl.toml lists the same calls.
#ifndef GCR_SIM_DCMI_H
#define GCR_SIM_DCMI_H

enum {
    DCMI_OK = 0,
    DCMI_ERR_CODE_INVALID_PARAMETER = -8001,
    DCMI_ERR_CODE_INNER_ERR = -8005,
    DCMI_ERR_CODE_INVALID_DEVICE_ID = -8007,
    DCMI_ERR_CODE_NOT_REDAY = -8012,  // so spelt
};

enum { DCMI_MAX_PROCESSES = 32 };  // dcmi_get_device_resource_info writes no more
enum { DCMI_VDIE = 1 };

typedef int dcmi_die_type;

struct dcmi_chip_info {
    unsigned char chip_type[32];
    unsigned char chip_name[32];
    unsigned char chip_ver[32];
    unsigned int aicore_cnt;
};

struct dcmi_hbm_info {
    unsigned long long memory_size;  // MB
    unsigned int freq;
    unsigned long long memory_usage;  // MB
    int temp;
    unsigned int bandwith_util_rate;
};

struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;  // bytes
};

struct dcmi_die_id {
    unsigned int soc_die[5];
};

int dcmi_init(void);
int dcmi_get_driver_version(char* driver_ver, unsigned int len);
int dcmi_get_card_list(int* card_num, int* card_list, int list_len);
int dcmi_get_device_id_in_card(int card_id, int* device_id_max, int* mcu_id, int* cpu_id);
int dcmi_get_device_logic_id(int* device_logic_id, int card_id, int device_id);
int dcmi_get_card_id_device_id_from_logicid(int* card_id, int* device_id, unsigned int device_logic_id);
int dcmi_get_device_chip_info(int card_id, int device_id, struct dcmi_chip_info* chip_info);
int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info* hbm_info);
int dcmi_get_device_die_v2(int card_id, int device_id, dcmi_die_type input_type, struct dcmi_die_id* die_id);
int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info* proc_info, int* proc_num);

#endif
