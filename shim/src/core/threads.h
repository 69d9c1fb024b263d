// SPDX-License-Identifier: Apache-2.0
//
// Threads by symbols that every glibc since 2.17 has, and that may be absent: before 2.34 they live in libpthread,
// which a program without threads does not load. Absent means inert, never a crash.
#ifndef GCR_CORE_THREADS_H
#define GCR_CORE_THREADS_H

namespace gcr {

// Starts a detached thread with every signal of the program's blocked and a small stack. False: no thread was started.
bool start_thread(void* (*body)(void*), void* argument);

// Calls `leave(value)` when this thread ends, however it ends, for the value set last; null: not at all.
bool at_thread_exit(void (*leave)(void*), void* value);

bool at_fork(void (*prepare)(), void (*parent)(), void (*child)());

}  // namespace gcr

#endif  // GCR_CORE_THREADS_H
