// SPDX-License-Identifier: Apache-2.0
//
// Our declarations of the CUDA driver's ABI against the vendor's own, where its header is installed.
#include <stddef.h>
#include <stdio.h>

#if __has_include(<cuda.h>)
// The vendor's names first, under other names; then ours. What has the same layout can be compared by size and offset.
#include <cuda.h>

#define SIZE(name) enum { vendor_size_##name = sizeof(name) };
#define OFFSET(name, field) enum { vendor_##name##_##field = offsetof(name, field) };
#include "abi_facts.def"
#undef SIZE
#undef OFFSET

int compare_with_ours(const size_t* vendor, size_t count);

int main(void) {
    static const size_t vendor[] = {
#define SIZE(name) vendor_size_##name,
#define OFFSET(name, field) vendor_##name##_##field,
#include "abi_facts.def"
#undef SIZE
#undef OFFSET
    };
    return compare_with_ours(vendor, sizeof vendor / sizeof *vendor);
}
#else
int main(void) {
    printf("no cuda.h: nothing to compare with\n");
    return 77;
}
#endif
