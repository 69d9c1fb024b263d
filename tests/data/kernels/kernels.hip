// SPDX-License-Identifier: Apache-2.0
// Kernels whose signatures the tests state a second time. No header of HIP is needed.
#define __global__ __attribute__((global))
#ifndef __HIP_DEVICE_COMPILE__
struct dim3 {
  unsigned x, y, z;
};
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
#endif
struct Pair {
  float *p;
  int n;
};

static __attribute__((device)) int thread() { return __builtin_amdgcn_workitem_id_x(); }

extern "C" {
__global__ void axpy(const float *__restrict__ x, float *__restrict__ y, float a, int n) {
  if (thread() < n) y[thread()] = a * x[thread()] + y[thread()];
}
__global__ void through_struct(Pair out, double scale, const double *in) {
  if (thread() < out.n) out.p[thread()] = (float)(scale * in[thread()]);
}
__global__ void fill(float *__restrict__ p, float v) { p[thread()] = v; }
__global__ void sum(float *__restrict__ declared_without_const, float *__restrict__ out) {
  __atomic_fetch_add(out, declared_without_const[thread()], __ATOMIC_RELAXED);
}
__global__ void nothing() {}
}
