// SPDX-License-Identifier: Apache-2.0
//
// Binds calls of the C library to their first versions, so that a simulated driver loads with glibc 2.28.
//
// glibc 2.32 to 2.34 gave these functions a second version, which a newer machine's linker takes. The first is in every
// glibc for x86-64: here in libc, before 2.34 in libpthread and libdl, which the libraries therefore name as needed
// (old-libc.cmake). The compiler includes this file before each source.
#ifndef GCR_OLD_LIBC_H
#define GCR_OLD_LIBC_H

#include <sys/stat.h>

#if defined(__x86_64__) && defined(__GLIBC__)

#define GCR_FIRST(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
GCR_FIRST(dladdr);
GCR_FIRST(dlclose);
GCR_FIRST(dlopen);
GCR_FIRST(dlsym);
GCR_FIRST(pthread_create);
GCR_FIRST(pthread_detach);
GCR_FIRST(pthread_mutexattr_destroy);
GCR_FIRST(pthread_mutexattr_init);
GCR_FIRST(pthread_mutexattr_setpshared);
GCR_FIRST(pthread_once);
GCR_FIRST(pthread_sigmask);
#undef GCR_FIRST
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@GLIBC_2.3.3");
__asm__(".symver pthread_mutexattr_setrobust,pthread_mutexattr_setrobust@GLIBC_2.12");
__asm__(".symver pthread_mutex_consistent,pthread_mutex_consistent@GLIBC_2.12");

// stat and fstat had no symbols before 2.33: the headers called these two.
enum { GCR_STAT_VERSION = 1 };
int gcr_first_stat(int version, const char* path, struct stat* status);
int gcr_first_fstat(int version, int fd, struct stat* status);
__asm__(".symver gcr_first_stat,__xstat@GLIBC_2.2.5");
__asm__(".symver gcr_first_fstat,__fxstat@GLIBC_2.2.5");
#define stat(path, status) gcr_first_stat(GCR_STAT_VERSION, path, status)
#define fstat(fd, status) gcr_first_fstat(GCR_STAT_VERSION, fd, status)

#endif
#endif
