#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the binaries beside it: README.md says from what. CLANG is a folder with clang, lld and clang-offload-bundler.
set -eu
: "${CLANG:?}"
cd "$(dirname "$0")"
plain='--compress-mode=none'
two='-gencode arch=compute_75,code=sm_75 -gencode arch=compute_90,code=[sm_90,compute_90]'

ptxas -arch=sm_90 large.ptx -o large.cubin
nvcc -cubin -arch=sm_100 kernels.cu -o sm_100.cubin
nvcc -cubin -rdc=true -arch=sm_90 relocatable.cu -o relocatable.cubin
nvcc -ptx -arch=compute_90 kernels.cu -o compute_90.ptx
nvcc -ptx -arch=compute_100 kernels.cu -o compute_100.ptx
nvcc -fatbin $plain $two kernels.cu -o plain.fatbin
nvcc -fatbin --compress-mode=size $two kernels.cu -o zstd.fatbin
nvcc -fatbin --compress-mode=speed -Xfatbin -compress-all $two kernels.cu -o lz4.fatbin
nvcc -shared -Xcompiler -fPIC,-s -cudart none --compress-mode=size $two kernels.cu -o libcuda_kernels.so.1

hip="$CLANG/clang -x hip -nogpuinc -nogpulib -O2 --offload-arch=gfx942"
$hip --cuda-device-only --no-gpu-bundle-output kernels.hip -o gfx942.co
$hip --cuda-device-only --no-gpu-bundle-output -O0 kernels.hip -o gfx942_O0.co
$hip --cuda-device-only --gpu-bundle-output --offload-arch=gfx90a kernels.hip -o plain.hipfb
$hip --cuda-device-only --gpu-bundle-output --offload-arch=gfx90a --offload-compress kernels.hip -o zstd.hipfb
$hip --offload-arch=gfx90a --offload-compress -fPIC -c kernels.hip -o kernels.o
"$CLANG/ld.lld" -shared -s kernels.o -o libhip_kernels.so.1
rm kernels.o
