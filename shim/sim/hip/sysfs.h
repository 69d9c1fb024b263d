// SPDX-License-Identifier: Apache-2.0
#ifndef GCR_SIM_HIP_SYSFS_H
#define GCR_SIM_HIP_SYSFS_H

#include "base.h"

bool front_sysfs_start(void);    // once, when the machine is open; false: its folder cannot be written
void front_sysfs_rest(void);      // CRIU is about to save this process: no thread holds anything of the machine
void front_sysfs_restored(void);  // CRIU has brought this process back: the kernel shows it again
void front_sysfs_update(void);   // after calls; cheap when this process's memory has not changed. Without sim_lock

#endif
