// SPDX-License-Identifier: Apache-2.0
// Kernels whose signatures the tests state a second time.
struct Pair {
  float *p;
  int n;
};

extern "C" {
__global__ void axpy(const float *__restrict__ x, float *__restrict__ y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
__global__ void through_struct(Pair out, double scale, const double *in) {
  int i = threadIdx.x;
  if (i < out.n) out.p[i] = (float)(scale * in[i]);
}
__global__ void count(const unsigned *in, unsigned *total) { atomicAdd(total, in[threadIdx.x]); }
__global__ void indirect(float *const *rows, const int *row) { rows[*row][threadIdx.x] = 0; }
__global__ void keep(const float *p, const float **where) { *where = p; }
__global__ void nothing() {}
}

__device__ __noinline__ void put(float *p, float v) { *p = v; }
template <class T>
__global__ void fill(T *p, long n, T v) {
  if (threadIdx.x < n) put(p + threadIdx.x, v);
}
template __global__ void fill<float>(float *, long, float);
