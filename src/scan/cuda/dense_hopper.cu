/* The first level of a dense cyclic reduction on Hopper GPUs: each visit of `radix` transitions of 128 x 128 is folded
   into one, P = A[r-1] ... A[0], and its value, y[e] = b[e] + A[e] y[e-1], for transitions in f16 or bf16 and values of
   one column.

   The product so far stays in registers, transposed. Two warpgroups hold 64 columns of P each as the sums of a
   product; rounded to 16 bits, these are the left operand of the next product: P'^T = P^T A^T. The right operand is
   A in its memory layout, with rows along k, in a ring in shared memory. A third warpgroup fills the ring and walks
   the values. So the products and the walk each read a transition from shared memory once, P is not written before
   the end, and the critical path of a visit has only products.

   An estimate: 128^3 multiply-adds take 1024 cycles of a multiprocessor's tensor cores, 0.56 us, and 64 products
   take 36 us, less than the 70 us in which 268 MB are read. Measured on an H200, 8192 transitions: 93 us. */
#include "scan/cuda/dense_hopper.cuh"

#include <cuda_runtime.h>

#include "device/hopper.cuh"
#include "scan/cuda/dense_device.cuh"
#include "scan/cuda/value.cuh"

namespace dense {

constexpr int SIDE = 128;
constexpr int STAGES = 5;
constexpr int STAGE_BYTES = SIDE * SIDE * 2;
constexpr int BAND_BYTES = STAGE_BYTES / 2; /* 64 columns: rows of 128 bytes, swizzled */
constexpr int GROUP = 128;                  /* threads of a warpgroup */
constexpr int ALL_THREADS = 3 * GROUP;
constexpr int OUT_ROW = SIDE + 8; /* elements in a row of the result's buffer in shared memory */
constexpr int WALK_BARRIER = 1;   /* among the third warpgroup */
constexpr int OUT_BARRIER = 2;    /* among the first two */
constexpr int AHEAD = 4;          /* values that a thread of the walk has in flight */

struct fold_shared {
    alignas(1024) unsigned char stage[STAGES][STAGE_BYTES];
    uint16_t out[SIDE * OUT_ROW];
    float state[2][SIDE];
    uint64_t full[STAGES], empty[STAGES];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define EIGHT(d, i)                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define PRODUCT(TYPE)                                                                                      \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                           \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                                      \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
    "%62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
#define OPERANDS                                                                                                   \
    : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)

/* d[64, 128] = (or +=) a b over 16 elements of k. a is in registers, and the rows of b lie along k. */
template <typename E>
__device__ __forceinline__ void product_along(float (&d)[64], const uint32_t *a, uint64_t b, int add);
template <>
__device__ __forceinline__ void product_along<__half>(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    asm volatile(PRODUCT("f16") OPERANDS);
}
template <>
__device__ __forceinline__ void product_along<__nv_bfloat16>(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    asm volatile(PRODUCT("bf16") OPERANDS);
}

template <typename E> __device__ __forceinline__ uint32_t pair(float x, float y);
template <> __device__ __forceinline__ uint32_t pair<__half>(float x, float y) {
    __half2 two = __floats2half2_rn(x, y);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}
template <> __device__ __forceinline__ uint32_t pair<__nv_bfloat16>(float x, float y) {
    __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}

template <typename E> __device__ __forceinline__ float2 floats(uint32_t bits);
template <> __device__ __forceinline__ float2 floats<__half>(uint32_t bits) {
    __half2 two;
    memcpy(&two, &bits, sizeof two);
    return __half22float2(two);
}
template <> __device__ __forceinline__ float2 floats<__nv_bfloat16>(uint32_t bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

/* The transposed product so far: left[4 kb + i] is register i of its 16 columns from 16 kb on. */
template <typename E> struct folding {
    uint32_t left[32];

    __device__ __forceinline__ void identity() {
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4; /* and row + 8 */
        int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int r = row + i % 2 * 8;
            int c = i / 4 * 16 + i / 2 % 2 * 8 + column;
            left[i] = pair<E>(r == c ? 1.0f : 0.0f, r == c + 1 ? 1.0f : 0.0f);
        }
    }
    __device__ __forceinline__ void multiply(uint32_t stage) {
        float d[64];
        hopper::products_begin();
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
            product_along<E>(d, left + 4 * kb, hopper::describe(stage + kb / 4 * BAND_BYTES + kb % 4 * 32, 16), kb > 0);
        }
        hopper::products_commit();
        hopper::products_wait<0>();
        hopper::keep_below(d);
#pragma unroll
        for (int kb = 0; kb < 8; kb++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { /* i: rows r and r + 8, then the same rows 8 columns further */
                left[4 * kb + i] =
                    pair<E>(d[8 * kb + 4 * (i / 2) + 2 * (i % 2)], d[8 * kb + 4 * (i / 2) + 2 * (i % 2) + 1]);
            }
        }
    }
    /* Stores the product row by row, through shared memory, since a thread holds parts of columns. */
    __device__ __forceinline__ void store(E *to, uint16_t *out) const {
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        int column = (int)threadIdx.x % 4 * 2;
        hopper::group_sync(OUT_BARRIER, 2 * GROUP); /* the previous contents have been read */
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int r = row + i % 2 * 8;
            int c = i / 4 * 16 + i / 2 % 2 * 8 + column;
            out[c * OUT_ROW + r] = (uint16_t)left[i];
            out[(c + 1) * OUT_ROW + r] = (uint16_t)(left[i] >> 16);
        }
        hopper::group_sync(OUT_BARRIER, 2 * GROUP);
        for (int i = threadIdx.x; i < SIDE * SIDE / 8; i += 2 * GROUP) {
            uint4 eight = *(const uint4 *)(out + i / 16 * OUT_ROW + i % 16 * 8);
            *(uint4 *)((uint16_t *)to + i * 8) = eight;
        }
    }
};

/* Enumerates the transitions of this block's visits, one after the other. */
struct elements {
    const fold_job &job;
    int64_t task; /* visit, over all sequences */
    int64_t item, visit;
    int at; /* index of the element in the visit */

    __device__ explicit elements(const fold_job &j) : job(j), task(blockIdx.x), at(0) {
        enter();
    }
    __device__ void enter() {
        item = task / job.visits;
        visit = task - item * job.visits;
    }
    __device__ bool done() const {
        return task >= job.tasks;
    }
    __device__ bool is_last() const {
        return at + 1 == job.radix;
    }
    __device__ int64_t step() const {
        return visit * job.radix + at;
    }
    __device__ void next() {
        if (++at == job.radix) {
            at = 0;
            task += gridDim.x;
            enter();
        }
    }
};

/* Starts to copy a transition into a stage, if there is one left. It is one group of copies in both cases. */
__device__ __forceinline__ void bring(unsigned char *stage, elements &from) {
    if (!from.done()) {
        const unsigned char *matrix =
            (const unsigned char *)from.job.A.data + 2 * (from.item * from.job.A.item + from.step() * from.job.A.step);
        int thread = (int)threadIdx.x - 2 * GROUP;
        int piece = thread % 16; /* index of the 16-byte piece in a row */
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = thread / 16 + 8 * i; /* row % 8 is the same for all i */
            copy_async(stage + piece / 8 * BAND_BYTES + row * 128 + (piece % 8 ^ row % 8) * 16,
                       matrix + row * 2 * SIDE + piece * 16);
        }
        from.next();
    }
    copy_commit();
}

/* Computes one row of A[e] y[e-1]. One thread for each row. */
template <typename E> __device__ __forceinline__ float row_times(const unsigned char *stage, const float *x) {
    int row = (int)threadIdx.x - 2 * GROUP;
    float sum[4] = {};
#pragma unroll
    for (int piece = 0; piece < 16; piece++) {
        uint4 bits = *(const uint4 *)(stage + piece / 8 * BAND_BYTES + row * 128 + (piece % 8 ^ row % 8) * 16);
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = floats<E>(words[i]);
            float2 at = *(const float2 *)(x + piece * 8 + 2 * i);
            sum[i] = fmaf(two.x, at.x, fmaf(two.y, at.y, sum[i]));
        }
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The third warpgroup: fills the ring and computes the values. */
template <typename E> __device__ __forceinline__ void walk(const fold_job &job, fold_shared &s) {
    int row = (int)threadIdx.x - 2 * GROUP;
    elements coming(job);
    elements values(job);
    elements here(job);
    for (int i = 0; i < STAGES - 1; i++) {
        bring(s.stage[i], coming);
    }
    float added[AHEAD];
    auto fetch = [&](float &to) {
        if (!values.done()) {
            to =
                carry_value::load(job.b.data, job.b.dtype, values.item * job.b.item + values.step() * job.b.step + row);
            values.next();
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        fetch(added[i]);
    }
    int stage = 0;
    int emptied = STAGES - 1; /* the next stage to fill */
    int emptied_parity = 1;   /* phase of its barrier */
    for (int64_t i = 0; !here.done(); i++) {
        copy_wait_for<STAGES - 2>();
        hopper::fence_async();
        hopper::barrier_arrive(hopper::shared_address(&s.full[stage]));
        hopper::group_sync(WALK_BARRIER, GROUP); /* all pieces have arrived, and the last state is written */
        float value = added[0];
        if (here.at > 0) {
            value += row_times<E>(s.stage[stage], s.state[(i + 1) % 2]);
        }
        s.state[i % 2][row] = value;
        if (here.is_last()) {
            int64_t end = here.step();
            ((float *)job.values.data)[here.item * job.values.item + end * job.values.step + row] = value;
        }
#pragma unroll
        for (int j = 0; j + 1 < AHEAD; j++) {
            added[j] = added[j + 1];
        }
        fetch(added[AHEAD - 1]);
        /* Refills the stage before this one: the products have released it, and after the barrier above the walk has,
           too. */
        hopper::barrier_wait(hopper::shared_address(&s.empty[emptied]), emptied_parity);
        bring(s.stage[emptied], coming);
        emptied = emptied + 1 < STAGES ? emptied + 1 : 0;
        emptied_parity ^= emptied == 0 ? 1 : 0;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        here.next();
    }
    copy_wait_for<0>();
}

/* The first two warpgroups compute the products. */
template <typename E> __device__ __forceinline__ void multiply(const fold_job &job, fold_shared &s) {
    folding<E> product;
    int stage = 0;
    int parity = 0;
    for (elements here(job); !here.done(); here.next()) {
        if (here.at == 0) {
            product.identity();
        }
        hopper::barrier_wait(hopper::shared_address(&s.full[stage]), parity);
        product.multiply(hopper::shared_address(s.stage[stage]));
        if (threadIdx.x % 32 == 0) {
            hopper::barrier_arrive(hopper::shared_address(&s.empty[stage]));
        }
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        parity ^= stage == 0 ? 1 : 0;
        if (here.is_last()) {
            product.store((E *)job.made.data + here.item * job.made.item + here.visit * job.made.step, s.out);
        }
    }
}

#endif

template <typename E>
__global__ void __launch_bounds__(ALL_THREADS, 1) dense_fold(const __grid_constant__ fold_job job) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char raw[];
    fold_shared &s = *(fold_shared *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            hopper::barrier_init(hopper::shared_address(&s.full[i]), GROUP);
            hopper::barrier_init(hopper::shared_address(&s.empty[i]), 2 * GROUP / 32);
        }
        hopper::fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= 2 * GROUP) {
        walk<E>(job, s);
    } else {
        multiply<E>(job, s);
    }
#endif
}

/* Returns true if the GPU and the build support fold(). The kernel is empty except in code for sm_90a, which a build
   may not have; an empty kernel uses few registers. */
bool fold_works(int device) {
    int major = 0;
    int minor = 0;
    cudaFuncAttributes made = {};
    bool works = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
                 major == 9 && minor == 0 && cudaFuncGetAttributes(&made, dense_fold<__half>) == cudaSuccess &&
                 made.numRegs > 64;
    (void)cudaGetLastError();
    return works;
}

cudaError_t fold(const fold_job &job, int dtype, int blocks, cudaStream_t stream) {
    auto kernel = dtype == F16 ? dense_fold<__half> : dense_fold<__nv_bfloat16>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(fold_shared));
    if (error == cudaSuccess) {
        kernel<<<blocks, ALL_THREADS, sizeof(fold_shared), stream>>>(job);
        error = cudaGetLastError();
    }
    return error;
}

} // namespace dense
