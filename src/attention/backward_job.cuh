/* Shared by the kernels of the backward pass of causal attention: a job, its division into items, and the kernel
   that prepares it.

   A job has one or more documents of one packed call. Queries of a document do not see keys of others. */
#ifndef CARRY_ATTENTION_BACKWARD_JOB_CUH
#define CARRY_ATTENTION_BACKWARD_JOB_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/rows.cuh"
#include "attention/tensor_cores.cuh"

#define BACKWARD_KEYS 128     /* keys of a block */
#define BACKWARD_DOCUMENTS 64 /* most documents of a launch */

struct backward_rows { /* [rows, heads, D]; strides in elements */
    uint16_t *data;
    int64_t row, head;
};

struct backward_document {
    int q_row, k_row;  /* its first row in q and in k */
    int queries, keys; /* query t sees keys up to keys - queries + t */
    int padded;        /* its first row in the prepared lse and mean */
    int tile;          /* its first tile of queries */
    int item;          /* its first item */
};

struct backward_job {
    backward_rows q_rows, k_rows, v_rows, d_o_rows, o, dq, dk, dv;
    const float *lse_in; /* [heads, queries] for each document, one after the other */
    float *lse, *mean;   /* [heads, padded]: lse in base 2, infinite in rows that see no key; mean = dO.O */
    float *sums;         /* [tiles, heads]: partial tiles of dQ, in the layout of the threads */
    int *done;           /* [tiles, heads]: number of parts in the sum */
    int *ticket;
    int queries, keys;           /* rows of q and of k */
    int heads, key_heads, group; /* group: query heads for each key head */
    int padded, tiles, items, documents;
    float scale, scale_log2;
    bool adds; /* add to dk and dv; otherwise they are overwritten */
    backward_document document[BACKWARD_DOCUMENTS];
};

struct backward_item {
    int document, head; /* head of k */
    int block;          /* index of the block of keys */
    int from, to;       /* tiles of queries that see some of its keys */
};

/* Items of a document are ordered by head, then from the last block of keys to the first. */
static __device__ __forceinline__ backward_item backward_item_of(const backward_job &job, int index, int rows) {
    backward_item item = {0, 0, 0, 0, 0};
    while (item.document + 1 < job.documents && job.document[item.document + 1].item <= index) {
        item.document++;
    }
    const backward_document &doc = job.document[item.document];
    const int blocks = (doc.keys + BACKWARD_KEYS - 1) / BACKWARD_KEYS;
    const int first = (index - doc.item) % blocks;
    item.head = (index - doc.item) / blocks;
    item.block = blocks - 1 - first;
    item.from = max(item.block * BACKWARD_KEYS - (doc.keys - doc.queries), 0) / rows;
    item.to = (doc.queries + rows - 1) / rows;
    return item;
}

/* The last block of keys that tile m of queries sees. */
static __device__ __forceinline__ int backward_last_block(const backward_document &doc, int m, int rows) {
    return min(doc.keys - doc.queries + m * rows + rows - 1, doc.keys - 1) / BACKWARD_KEYS;
}

/* Operations on 16-bit types, two in a word. */
struct backward_bf16 {
    static constexpr uint32_t EXPONENT = 0x7f80;
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        return pack_bf16(low, high);
    }
    static __device__ __forceinline__ void multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
        ::multiply(d, a, b0, b1);
    }
    static __device__ __forceinline__ float low(uint32_t w) {
        return __uint_as_float(w << 16);
    }
    static __device__ __forceinline__ float high(uint32_t w) {
        return __uint_as_float(w & 0xffff0000u);
    }
};

struct backward_f16 {
    static constexpr uint32_t EXPONENT = 0x7c00;
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 packed = __floats2half2_rn(low, high);
        return *(const uint32_t *)&packed;
    }
    static __device__ __forceinline__ void multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ float low(uint32_t w) {
        return __half2float(__ushort_as_half((unsigned short)w));
    }
    static __device__ __forceinline__ float high(uint32_t w) {
        return __half2float(__ushort_as_half((unsigned short)(w >> 16)));
    }
};

/* True if one of the two numbers is infinite or NaN. */
template <typename T> static __device__ __forceinline__ bool is_odd(uint32_t pair) {
    constexpr uint32_t ONES = T::EXPONENT;
    return (pair & ONES) == ONES || (pair >> 16 & ONES) == ONES;
}

#define BACKWARD_PREPARE_ROWS 16 /* rows of a thread block */

/* Prepares lse and mean of all rows, and clears the counters. D / 8 threads for each row of a head. */
template <typename T, int D>
__global__ void __launch_bounds__(256) attention_backward_prepare(const __grid_constant__ backward_job job, int rows) {
    constexpr int LANES = D / 8;
    const int parts = rows / BACKWARD_PREPARE_ROWS;
    const int tile = (int)blockIdx.x / parts, part = (int)blockIdx.x % parts;
    int document = 0;
    while (document + 1 < job.documents && job.document[document + 1].tile <= tile) {
        document++;
    }
    const backward_document &doc = job.document[document];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *job.ticket = 0;
    }
    for (int h = (int)threadIdx.x; part == 0 && h < job.heads; h += (int)blockDim.x) {
        job.done[(int64_t)tile * job.heads + h] = 0;
    }
    const int lane = (int)threadIdx.x % LANES;
#pragma unroll 4
    for (int i = (int)threadIdx.x / LANES; i < BACKWARD_PREPARE_ROWS * job.heads; i += 256 / LANES) {
        const int h = i % job.heads;
        const int t = (tile - doc.tile) * rows + part * BACKWARD_PREPARE_ROWS + i / job.heads;
        const int64_t to = (int64_t)h * job.padded + doc.padded + t;
        float sum = 0.0f;
        if (t < doc.queries) {
            const int64_t row = doc.q_row + t;
            const uint4 a = *(const uint4 *)(job.o.data + row * job.o.row + h * job.o.head + 8 * lane);
            const uint4 b =
                *(const uint4 *)(job.d_o_rows.data + row * job.d_o_rows.row + h * job.d_o_rows.head + 8 * lane);
            const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum = fmaf(T::low(x[j]), T::low(y[j]), sum);
                sum = fmaf(T::high(x[j]), T::high(y[j]), sum);
            }
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step, LANES);
        }
        if (lane == 0) {
            float lse = INFINITY;
            if (t < doc.queries) {
                lse = job.lse_in[(int64_t)job.heads * doc.q_row + (int64_t)h * doc.queries + t];
                lse = lse == -INFINITY ? INFINITY : lse * 1.4426950408889634f;
            }
            job.mean[to] = sum;
            job.lse[to] = lse;
        }
    }
}

#endif
