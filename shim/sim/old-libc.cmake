# SPDX-License-Identifier: Apache-2.0
#
# Makes a library load with glibc 2.28 whatever glibc it was built with: see include/gcr_old_libc.h.
set(GCR_OLD_LIBC_HEADER "${CMAKE_CURRENT_LIST_DIR}/include/gcr_old_libc.h")

# For what is compiled into the target.
function(gcr_compile_for_old_libc target)
    if(NOT GCR_SANITIZE)  # a sanitizer's own functions have no version
        target_compile_options(${target} PRIVATE -include "${GCR_OLD_LIBC_HEADER}")
    endif()
endfunction()

# Where threads and dlopen are before glibc 2.34; newer ones keep both files, empty.
function(gcr_link_for_old_libc target)
    if(GCR_SANITIZE)
        target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    else()
        target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2
            -Wl,--pop-state)
    endif()
endfunction()
