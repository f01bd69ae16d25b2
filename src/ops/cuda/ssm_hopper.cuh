/* State space layers on Hopper GPUs, shared by the kernels, which are compiled for each 16-bit type: tiles, operands in
   registers, and copies. Heads of 64, states of 128, chunks of 64 tokens.

   A warpgroup has one [64, 64] or [64, 128] result at a time: its warps have 16 rows each, and thread `lane` of a warp
   has rows lane / 4 and lane / 4 + 8, and columns 2 (lane % 4) and the next one of every 8. Tiles in shared memory are
   swizzled as the copy engine writes them: bands of 64 columns, rows of 128 bytes. */
#ifndef CARRY_OPS_SSM_HOPPER_CUH
#define CARRY_OPS_SSM_HOPPER_CUH

#ifdef CARRY_INSTANCE_F16
#define HOPPER_ELEMENT "f16"
#endif

#include <cuda_bf16.h>

#include "device/hopper.cuh"
#include "device/tensor_map.cuh"
#include "ops/cuda/ssm.cuh"

namespace {

using namespace hopper;

constexpr int L = SSM_L, P = 64, N = 128;
constexpr int BAND = 64 * 128;   /* bytes of a band of 64 rows */
constexpr int STATE = 2 * BAND;  /* bytes of a state, B or C in 16 bits */
constexpr int VECTORS = 3 * 256; /* bytes of the sums and steps of a head's chunk */
constexpr int WORKERS = 256;     /* threads of two warpgroups */

/* Kernel arguments. xbc, dy: maps of [B, T, columns] with boxes of [64, 64]. */
struct hopper_job {
    CUtensorMap xbc, dy;
    ssm_job job;
};

#ifdef CARRY_INSTANCE_F16
__device__ __forceinline__ uint32_t pack(float low, float high) {
    return (uint32_t)__half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}
__device__ __forceinline__ float2 unpack(uint32_t pair) {
    return {__half2float(__ushort_as_half((unsigned short)(pair & 0xffffu))),
            __half2float(__ushort_as_half((unsigned short)(pair >> 16)))};
}
#else
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float2 unpack(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
#endif
__device__ __forceinline__ uint32_t scale(uint32_t pair, float low, float high) {
    const float2 x = unpack(pair);
    return pack(x.x * low, x.y * high);
}

__device__ __forceinline__ int lane_of() {
    return (int)threadIdx.x % 32;
}
/* The warp's number within its warpgroup. */
__device__ __forceinline__ int warp_of() {
    return (int)threadIdx.x / 32 % 4;
}
__device__ __forceinline__ int row_in(int r) {
    return 16 * warp_of() + lane_of() / 4 + 8 * r;
}
__device__ __forceinline__ int column_in() {
    return lane_of() % 4 * 2;
}

/* 2^x, zero if it is below the normal numbers. */
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float decay(float2 i, float2 j) {
    return power((i.x - j.x) + (i.y - j.y));
}
__device__ __forceinline__ float decay(float2 i) {
    return power(i.x + i.y);
}

/* The address of 16 bytes of a tile. */
__device__ __forceinline__ uint32_t piece_at(uint32_t tile, int row, int piece) {
    return tile + (uint32_t)(piece / 8 * BAND + row * 128 + (((piece ^ row) % 8) << 4));
}

/* Loads the 16 columns of block k of the thread's rows: the layout of a left operand, and of a result. */
__device__ __forceinline__ void load_rows(uint32_t (&x)[4], uint32_t tile, int k) {
    const uint32_t from = piece_at(tile, 16 * warp_of() + lane_of() % 16, 2 * k + lane_of() / 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from));
}
/* The same of the transposed tile: the thread's rows are columns of the tile, block k has 16 rows of it. */
__device__ __forceinline__ void load_columns(uint32_t (&x)[4], uint32_t tile, int k) {
    const int row = 16 * k + lane_of() / 16 * 8 + lane_of() % 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(piece_at(tile, row, 2 * warp_of() + lane_of() / 8 % 2)));
}
/* Stores a result of COLUMNS columns as a tile. */
template <int COLUMNS> __device__ __forceinline__ void store_tile(uint32_t tile, const float (&d)[COLUMNS / 2]) {
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++) {
        const uint32_t to = piece_at(tile, 16 * warp_of() + lane_of() % 16, 2 * k + lane_of() / 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(pack(d[8 * k], d[8 * k + 1])), "r"(pack(d[8 * k + 2], d[8 * k + 3])),
                     "r"(pack(d[8 * k + 4], d[8 * k + 5])), "r"(pack(d[8 * k + 6], d[8 * k + 7]))
                     : "memory");
    }
}

/* Exchanges words between the four lanes of a row: lane i gets word i of each. */
__device__ __forceinline__ void transpose(uint32_t (&w)[4]) {
    const int lane = lane_of() % 4;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((i & step) == 0) {
                const bool high = (lane & step) != 0;
                const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + step], step);
                w[i] = high ? other : w[i];
                w[i + step] = high ? w[i + step] : other;
            }
        }
    }
}
/* 32 columns of half r of a result as 16 bytes for each lane: columns 32 g + 8 (lane % 4). */
template <int COLUMNS> __device__ __forceinline__ uint4 row_piece(const float (&d)[COLUMNS / 2], int g, int r) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = pack(d[16 * g + 4 * i + 2 * r], d[16 * g + 4 * i + 2 * r + 1]);
    }
    transpose(w);
    return make_uint4(w[0], w[1], w[2], w[3]);
}
/* Stores rows of a result to a tensor whose rows are `stride` apart; rows from `count` on are left out. */
template <int COLUMNS>
__device__ __forceinline__ void store_rows(const float (&d)[COLUMNS / 2], uint16_t *to, int64_t stride, int64_t count) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int g = 0; g < COLUMNS / 32; g++) {
            const uint4 piece = row_piece<COLUMNS>(d, g, r);
            if (row_in(r) < count) {
                *(uint4 *)(to + row_in(r) * stride + 32 * g + lane_of() % 4 * 8) = piece;
            }
        }
    }
}

/* d = or += a b^T over 64 WIDTH_BANDS elements, both tiles with rows along them. */
template <int BANDS> __device__ __forceinline__ void multiply_along(float (&d)[32], uint32_t a, uint32_t b) {
#pragma unroll
    for (int k = 0; k < 4 * BANDS; k++) {
        const uint32_t at = (uint32_t)(k / 4 * BAND + k % 4 * 32);
        product_both(d, describe(a + at, 0), describe(b + at, 0), k > 0);
    }
}
/* d += a b: a of 64 columns in registers, b a tile of 64 rows. */
template <int HALF>
__device__ __forceinline__ void multiply_add(float (&d)[HALF], const uint32_t (&a)[16], uint32_t b) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        product_right(d, a + 4 * k, describe(b + k * 2048, BAND), 1);
    }
}

/* Copies a box of 64 tokens and 64 columns. Tokens after the end of the row are zeros. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int64_t column, int64_t token,
                                         int64_t row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"((int)column), "r"((int)token), "r"((int)row), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void copy_wide(uint32_t to, const CUtensorMap *map, int64_t column, int64_t token,
                                          int64_t row, uint32_t barrier) {
    copy_box(to, map, column, token, row, barrier);
    copy_box(to + BAND, map, column + 64, token, row, barrier);
}
/* Copies sums (512 bytes) and steps (256 bytes) of an item. */
__device__ __forceinline__ void copy_vectors(uint32_t to, const ssm_job &job, int64_t item, uint32_t barrier) {
    copy_bytes(to, job.at.sum + item * 2 * L, 2 * L * 4, barrier);
    copy_bytes(to + 2 * L * 4, job.at.step + item * L, L * 4, barrier);
}

/* Barriers of STAGES stages: `full` counts bytes, `empty` the warps of the workers. */
template <int STAGES> struct stage_barriers {
    uint64_t full[STAGES], empty[STAGES];
    __device__ __forceinline__ void init() {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&full[i]), 1);
            barrier_init(shared_address(&empty[i]), WORKERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ __forceinline__ uint32_t wait_full(int64_t i) {
        const int stage = (int)(i % STAGES);
        barrier_wait(shared_address(&full[stage]), (int)(i / STAGES % 2));
        return (uint32_t)stage;
    }
    /* The barrier of the stage that copy i fills, when it is free. */
    __device__ __forceinline__ uint32_t wait_empty(int64_t i, int bytes) {
        const int stage = (int)(i % STAGES);
        barrier_wait(shared_address(&empty[stage]), (int)((i / STAGES + 1) % 2));
        barrier_expect(shared_address(&full[stage]), bytes);
        return shared_address(&full[stage]);
    }
    /* Called by all threads of a warp, when they no longer read stage i. */
    __device__ __forceinline__ void release(int64_t i) {
        __syncwarp();
        if (lane_of() == 0) {
            barrier_arrive(shared_address(&empty[i % STAGES]));
        }
    }
};

__device__ __forceinline__ uint32_t dynamic_memory() {
    extern __shared__ char memory[];
    return (shared_address(memory) + 1023u) & ~1023u;
}
/* Vectors in shared memory, from an address there. */
__device__ __forceinline__ float2 sum_at(uint32_t vectors, int i) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(vectors + (uint32_t)i * 8) : "memory");
    return v;
}
__device__ __forceinline__ float4 sums_at(uint32_t vectors, int i) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(vectors + (uint32_t)i * 8)
                 : "memory");
    return v;
}
__device__ __forceinline__ float step_at(uint32_t vectors, int i) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(vectors + 2 * L * 4 + (uint32_t)i * 4) : "memory");
    return v;
}

/* Factors of a token: zero if it does not see the state before the chunk, or is not seen by the chunk's last token. */
__device__ __forceinline__ float fade_of(const ssm_job &job, uint32_t vectors, int64_t first, int i) {
    return ssm_first_seen(job, first + i, first) < 0 ? decay(sum_at(vectors, i)) : 0.0f;
}
__device__ __forceinline__ float left_of(const ssm_job &job, uint32_t vectors, int64_t first, int i) {
    return i >= ssm_first_seen(job, first + L - 1, first) ? decay(sum_at(vectors, L - 1), sum_at(vectors, i)) : 0.0f;
}

static inline carry_status make_map(carry_ctx *ctx, CUtensorMap *map, const ssm_job &job, const void *data,
                                    int64_t columns, int ordinal) {
    carry_map_encoder encoder = NULL;
    CARRY_TRY(carry_map_find_encoder(ctx, &encoder, ordinal));
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)job.T, (cuuint64_t)job.B};
    const cuuint64_t strides[] = {(cuuint64_t)columns * 2, (cuuint64_t)(columns * job.T) * 2};
    const cuuint32_t box[] = {64, L, 1}, every[] = {1, 1, 1};
#ifdef CARRY_INSTANCE_F16
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
#else
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
#endif
    const CUresult result =
        encoder(map, type, 3, (void *)data, sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? CARRY_OK
                                  : carry_fail(ctx, CARRY_EDEVICE,
                                               "CUDA device %d: no tensor map of a state space layer (the driver's "
                                               "error %d)",
                                               ordinal, (int)result);
}

/* Kernels are empty in code for other architectures than sm_90a, and then need no shared memory of their own. */
template <typename KERNEL> bool is_compiled(KERNEL *kernel, int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    const bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess &&
                    major == 9 && minor == 0 && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
                    attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return is;
}

} // namespace

#endif
