/* Device functions for emulated kernels: thread and block indices, barriers, warp shuffles, and the instructions that
   Carry's kernels use through inline assembly. */
#ifndef CARRY_EMULATE_H
#define CARRY_EMULATE_H

#include <functional>
#include <tuple>

extern "C" {
#include "carry/tensor.h"
}

namespace emulate {

struct config {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    config(dim3 grid_, dim3 block_, size_t shared_ = 0, cudaStream_t stream_ = NULL)
        : grid(grid_), block(block_), shared(shared_), stream(stream_) {
    }
};

/* runtime.cpp */
struct thread {
    dim3 index, block, block_size, grid_size;
};
extern thread *self;
void enqueue(const config &c, const char *name, std::function<void()> kernel);
void *dynamic_shared();
char *shared_base();
void wait_block();
void wait_grid();
bool wait_block_any(bool value);
/* Each lane gives 8 bytes and gets those of lane `from`, or its own if `from` has ended or is not in the mask. */
uint64_t exchange(unsigned mask, uint64_t value, int from);
unsigned ballot(unsigned mask, bool value);
int lane();
void wait_warp(unsigned mask);

template <typename F, typename... A>
static inline void launch(const config &c, const char *name, F kernel, A... values) {
    enqueue(c, name, [kernel, values...] { kernel(values...); });
}

template <typename V> static inline V exchange_any(unsigned mask, V value, int from) {
    static_assert(sizeof(V) <= sizeof(uint64_t), "one register or two");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, from);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void *pointer_of(unsigned address) {
    return shared_base() + (int32_t)address;
}

/* cp.async: done at once. */
static inline void copy_16(unsigned to, const void *from, int bytes = 16) {
    char piece[16] = {};
    memcpy(piece, from, (size_t)bytes);
    memcpy(pointer_of(to), piece, 16);
}

/* ldmatrix.x4: lane l gives the address of row l % 8 of block l / 8. It gets elements 2 (l % 4) and the next of row l /
   4 of each block; transposed: of column l / 4. */
void load_blocks(unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row, bool transposed);

/* movmatrix: a matrix of 8 x 8 elements; lane 4 g + t has elements 2t and 2t + 1 of row g. */
unsigned transpose_block(unsigned pair);

static inline void load_16(unsigned &x, unsigned &y, unsigned &z, unsigned &w, const void *from) {
    const uint4 v = *(const uint4 *)from;
    x = v.x;
    y = v.y;
    z = v.z;
    w = v.w;
}

/* mma.m16n8k16 of 16-bit elements and mma.m16n8k8 of tf32: d = a b + c. */
void multiply_16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], bool is_bf16);
void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4]);

static inline unsigned bits_of(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float float_of(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
/* Rounded to nearest, ties away from zero. */
static inline unsigned tf32_of(float value) {
    const unsigned bits = bits_of(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
static inline unsigned pack_bf16(float low, float high) {
    return carry_bf16_from_f32(low) | (unsigned)carry_bf16_from_f32(high) << 16;
}

} // namespace emulate

#define threadIdx (emulate::self->index)
#define blockIdx (emulate::self->block)
#define blockDim (emulate::self->block_size)
#define gridDim (emulate::self->grid_size)

static inline void __syncthreads() {
    emulate::wait_block();
}
static inline int __syncthreads_or(int value) {
    return emulate::wait_block_any(value != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulate::wait_warp(mask);
}
template <typename V> static inline V __shfl_sync(unsigned mask, V value, int from, int width = 32) {
    const int lane = emulate::lane();
    return emulate::exchange_any(mask, value, lane / width * width + (from & (width - 1)));
}
template <typename V> static inline V __shfl_xor_sync(unsigned mask, V value, int step, int width = 32) {
    const int lane = emulate::lane(), from = lane ^ step;
    return emulate::exchange_any(mask, value, from / width <= lane / width ? from : lane);
}
template <typename V> static inline V __shfl_up_sync(unsigned mask, V value, unsigned step, int width = 32) {
    const int lane = emulate::lane(), from = lane - (int)step;
    return emulate::exchange_any(mask, value, from >= lane / width * width ? from : lane);
}
template <typename V> static inline V __shfl_down_sync(unsigned mask, V value, unsigned step, int width = 32) {
    const int lane = emulate::lane(), from = lane + (int)step;
    return emulate::exchange_any(mask, value, from / width == lane / width ? from : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int value) {
    return emulate::ballot(mask, value != 0);
}
static inline int __any_sync(unsigned mask, int value) {
    return emulate::ballot(mask, value != 0) != 0;
}
static inline int __all_sync(unsigned mask, int value) {
    return emulate::ballot(mask, value == 0) == 0;
}
static inline int __ffs(int value) {
    return __builtin_ffs(value);
}
static inline int __popc(unsigned value) {
    return __builtin_popcount(value);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned to = 0;
    for (int i = 0; i < 4; i++) {
        to |= (unsigned)(bytes >> 8 * (select >> 4 * i & 7u) & 0xffu) << 8 * i;
    }
    return to;
}
static inline int __clz(int value) {
    return value == 0 ? 32 : __builtin_clz((unsigned)value);
}
static inline float __uint_as_float(unsigned bits) {
    return emulate::float_of(bits);
}
static inline unsigned __float_as_uint(float value) {
    return emulate::bits_of(value);
}
static inline float __int_as_float(int bits) {
    return emulate::float_of((unsigned)bits);
}
static inline int __float_as_int(float value) {
    return (int)emulate::bits_of(value);
}
template <typename V> static inline V __ldg(const V *from) {
    return *from;
}
template <typename V> static inline V __ldcg(const V *from) {
    return *from;
}
template <typename V> static inline void __stcg(V *to, V value) {
    *to = value;
}
static inline void __nanosleep(unsigned) {
}
static inline void __threadfence() {
}
static inline void __threadfence_block() {
}
static inline void __threadfence_system() {
}
template <typename V> static inline V atomicAdd(V *to, V value) {
    const V before = *to;
    *to = before + value;
    return before;
}
template <typename V> static inline V atomicMin(V *to, V value) {
    const V before = *to;
    *to = value < before ? value : before;
    return before;
}

template <typename V> static inline V atomicMax(V *to, V value) {
    const V before = *to;
    *to = value > before ? value : before;
    return before;
}
static inline void sincospif(float x, float *sine, float *cosine) {
    *sine = (float)sin(3.14159265358979323846 * (double)x);
    *cosine = (float)cos(3.14159265358979323846 * (double)x);
}
#define __expf(x) expf(x) /* the C library has a function of this name */
template <typename V> static inline V __ldcs(const V *from) {
    return *from;
}
template <typename V> static inline void __stcs(V *to, V value) {
    *to = value;
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline size_t __cvta_generic_to_shared(const void *pointer) {
    return (size_t)(uint32_t)((const char *)pointer - emulate::shared_base());
}
template <typename V> static inline V min(V a, V b) {
    return b < a ? b : a;
}
template <typename V> static inline V max(V a, V b) {
    return a < b ? b : a;
}

template <typename F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, F *) {
    *attributes = {};
    return cudaSuccess;
}

template <typename F> static inline cudaError_t cudaFuncSetAttribute(F *, cudaFuncAttribute, int) {
    return cudaSuccess;
}
template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *, int, size_t) {
    *blocks = 1;
    return cudaSuccess;
}
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), const A &...arguments) {
    emulate::launch(emulate::config(c->gridDim_, c->blockDim_, c->dynamicSmemBytes, c->stream), "a kernel", kernel,
                    (P)arguments...);
    return cudaSuccess;
}
template <typename... P, size_t... I>
static inline void launch_with(const emulate::config &c, void (*kernel)(P...), void **arguments,
                               std::index_sequence<I...>) {
    emulate::launch(c, "a cooperative kernel", kernel, *(std::remove_cv_t<P> *)arguments[I]...);
}
/* Blocks run one after another and cannot wait for each other: the grid has one block, whatever size was asked for. */
template <typename... P>
static inline cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P...), dim3, dim3 block, void **arguments,
                                                      size_t shared, cudaStream_t stream) {
    launch_with(emulate::config(1, block, shared, stream), kernel, arguments, std::index_sequence_for<P...>{});
    return cudaSuccess;
}

#endif
