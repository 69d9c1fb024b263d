# SPDX-License-Identifier: Apache-2.0
#
# For a vendor that gcr does not know: include() this file, then
#
#   gcr_add_shim(acme_shim VENDOR <folder> <sources>)    a shim. <folder> holds vendor/vendor.h and vendor/hooks.def
#   gcr_add_simulated_driver(acme_sim libacme.so EXPORTS <map> <sources>)
#                                                        a simulated driver: <sources> are a front over gcr's machine
#   gcr_add_simulated_kernels(acme_kernels)              the kernels of gcr's own tests, as kernels.so
#
# Languages C, CXX and ASM must be enabled. docs/writing-a-backend.md says what each file is for.
cmake_minimum_required(VERSION 3.22)
get_filename_component(GCR_SDK "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

function(gcr_add_shim target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "VENDOR" "")
    file(GLOB sources "${GCR_SDK}/src/core/*.cpp" "${GCR_SDK}/src/device/*.cpp" "${GCR_SDK}/src/interpose/*.cpp"
        "${GCR_SDK}/src/interpose/*.S" "${GCR_SDK}/sdk/hooks/*.cpp")
    set(map "${GCR_SDK}/src/hooks/exports.map")
    add_library(${target} SHARED ${sources} "${GCR_SDK}/src/hooks/slots.cpp" "${GCR_SDK}/src/hooks/unclassified.cpp"
        ${arg_UNPARSED_ARGUMENTS})
    set_target_properties(${target} PROPERTIES
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS ON POSITION_INDEPENDENT_CODE ON
        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON INTERPROCEDURAL_OPTIMIZATION OFF
        LINK_DEPENDS "${map}")
    # sdk/ first: its hooks/indices.h stands in for that of gcr's own shim
    target_include_directories(${target} PRIVATE "${arg_VENDOR}" "${GCR_SDK}/sdk" "${GCR_SDK}/src" "${GCR_SDK}/include")
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti -fno-threadsafe-statics -ftls-model=initial-exec
        -O2 -g -Wall -Wextra -Wshadow>)
    # A guest in another program's process: it needs libc and nothing else, and exports the driver's names alone.
    target_link_options(${target} PRIVATE "-Wl,--version-script=${map}" -Wl,--exclude-libs,ALL -nodefaultlibs
        -Wl,--no-undefined -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
    target_link_libraries(${target} PRIVATE c)
endfunction()

function(gcr_add_simulated_driver target output)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "EXPORTS" "")
    find_package(Threads REQUIRED)
    file(GLOB core "${GCR_SDK}/sim/core/*.c")
    add_library(${target} SHARED ${core} ${arg_UNPARSED_ARGUMENTS})
    target_compile_features(${target} PRIVATE c_std_11)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_compile_options(${target} PRIVATE -fvisibility=hidden -fPIC -Wall -Wextra -Wno-unused-parameter)
    target_include_directories(${target} PRIVATE "${GCR_SDK}/sim/core" "${GCR_SDK}/sim/include")
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    # -Bsymbolic: a driver that calls its own exports must find itself, not a library that interposes it.
    target_link_options(${target} PRIVATE -Wl,-Bsymbolic -Wl,--no-undefined "-Wl,--version-script=${arg_EXPORTS}")
    set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${output} LINK_DEPENDS "${arg_EXPORTS}")
endfunction()

function(gcr_add_simulated_kernels target)
    file(GLOB sources "${GCR_SDK}/sim/kernels/*.c")
    add_library(${target} SHARED ${sources})
    target_include_directories(${target} PRIVATE "${GCR_SDK}/sim/include")
    target_compile_options(${target} PRIVATE -fvisibility=hidden -fPIC -O2)
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME kernels)
endfunction()
