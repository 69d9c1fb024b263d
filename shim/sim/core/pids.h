// SPDX-License-Identifier: Apache-2.0
//
// Names of processes that are the same in every namespace of pids: a container's processes use the machine, too.
#ifndef GCR_SIM_PIDS_H
#define GCR_SIM_PIDS_H

enum { SIM_PID_BITS = 22, SIM_SPACE_BITS = 10 };

int sim_own_pid(int pid);        // what the process that we call so is called in its own namespace
unsigned sim_space_of(int pid);  // SIM_SPACE_BITS of that namespace's number
int sim_pid_here(unsigned space, int own);  // how we call such a process; 0 where it is not to be seen

#endif
