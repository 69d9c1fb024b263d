// SPDX-License-Identifier: Apache-2.0
//
// A library without contents: its one dependency has them, and lookups through it lead there.
typedef int gcr_sim_nothing;
