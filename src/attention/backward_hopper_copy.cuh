/* The backward pass of attention on Hopper GPUs (backward_hopper.cuh): shapes, shared memory, and the two copying
   threads. One copies tiles of q and dO, the other moves tiles of dQ between shared and global memory. */
#ifndef CARRY_ATTENTION_BACKWARD_HOPPER_COPY_CUH
#define CARRY_ATTENTION_BACKWARD_HOPPER_COPY_CUH

#include "device/hopper.cuh"
#include "attention/backward_job.cuh"

struct backward_hopper_job {
    CUtensorMap q, k, v, d_o;
    backward_job job;
};

/* M: queries of a tile. */
template <int D_, int M_> struct backward_shape {
    static constexpr int D = D_, M = M_, KEYS = BACKWARD_KEYS, STAGES = 2;
    static constexpr int THREADS = 384, WARPS = 8; /* WARPS: warps of the computing warpgroups */
    static constexpr int BANDS = D / 64;
    static constexpr int KEY_BAND = KEYS * 128, KEY_BYTES = BANDS * KEY_BAND;
    static constexpr int ROW_BAND = M * 128, ROW_BYTES = BANDS * ROW_BAND;
    static constexpr int DS_BYTES = M / 64 * KEY_BAND; /* dS^T: bands of 64 queries */
    static constexpr int DQ_BYTES = M * D * (int)sizeof(float);
    static constexpr int SHARED = 1024 + 2 * KEY_BYTES + 2 * STAGES * ROW_BYTES + 2 * DS_BYTES + DQ_BYTES;
    static_assert(M * D == 8192, "each warpgroup has 64 x 64 of a tile of dQ");
};

namespace hopper {

/* Static shared memory. */
template <typename Shape> struct backward_shared {
    uint64_t k_full, v_full, sum_full, sum_empty; /* sum: the tile of dQ in shared memory */
    uint64_t q_full[Shape::STAGES], q_empty[Shape::STAGES], o_full[Shape::STAGES], o_empty[Shape::STAGES];
    alignas(16) float lse[Shape::STAGES][Shape::M];
    alignas(16) float mean[Shape::STAGES][Shape::M];
    unsigned char bad[Shape::KEYS]; /* keys that are not finite */
    int ticket;
};

template <typename Shape> struct backward_places {
    uint32_t k, v, q, d_o, ds, sum;
    uint32_t k_full, v_full, sum_full, sum_empty, q_full, q_empty, o_full, o_empty;
};

template <typename Shape>
static __device__ __forceinline__ backward_places<Shape> backward_open(const char *memory,
                                                                       backward_shared<Shape> &shared) {
    backward_places<Shape> p;
    p.k = (shared_address(memory) + 1023u) & ~1023u;
    p.v = p.k + Shape::KEY_BYTES;
    p.q = p.v + Shape::KEY_BYTES;
    p.d_o = p.q + Shape::STAGES * Shape::ROW_BYTES;
    p.ds = p.d_o + Shape::STAGES * Shape::ROW_BYTES;
    p.sum = p.ds + 2 * Shape::DS_BYTES;
    p.k_full = shared_address(&shared.k_full);
    p.v_full = shared_address(&shared.v_full);
    p.sum_full = shared_address(&shared.sum_full);
    p.sum_empty = shared_address(&shared.sum_empty);
    p.q_full = shared_address(shared.q_full);
    p.q_empty = shared_address(shared.q_empty);
    p.o_full = shared_address(shared.o_full);
    p.o_empty = shared_address(shared.o_empty);
    return p;
}

template <typename Shape>
static __device__ __forceinline__ void backward_barriers(const backward_places<Shape> &p, bool first_keys) {
    barrier_init(p.k_full, 1);
    barrier_init(p.v_full, 1);
    /* The block of the first keys reads sums; all other blocks write them. */
    barrier_init(p.sum_full, first_keys ? 1 : Shape::WARPS);
    barrier_init(p.sum_empty, first_keys ? Shape::WARPS : 1);
    for (int i = 0; i < Shape::STAGES; i++) {
        barrier_init(p.q_full + 8 * i, 1);
        barrier_init(p.o_full + 8 * i, 1);
        barrier_init(p.q_empty + 8 * i, Shape::WARPS);
        barrier_init(p.o_empty + 8 * i, Shape::WARPS);
    }
    fence_async();
}

/* Run by one thread: all copies of an item. */
template <typename Shape>
static __device__ __forceinline__ void backward_copy(const backward_hopper_job &maps, const backward_item &item,
                                                     const backward_places<Shape> &p, backward_shared<Shape> &shared) {
    const backward_job &job = maps.job;
    const backward_document &doc = job.document[item.document];
    const int key_row = doc.k_row + item.block * Shape::KEYS;
    barrier_expect(p.k_full, Shape::KEY_BYTES);
    copy_tile(p.k, &maps.k, key_row, item.head, p.k_full);
    int at = 0, parity = 1;
    bool values = false;
    for (int h = item.head * job.group; h < (item.head + 1) * job.group; h++) {
        const int64_t padded = (int64_t)h * job.padded + doc.padded;
        for (int m = item.from; m < item.to; m++) {
            const int row = doc.q_row + m * Shape::M;
            barrier_wait(p.q_empty + 8 * at, parity);
            barrier_expect(p.q_full + 8 * at, Shape::ROW_BYTES + Shape::M * 4);
            copy_tile(p.q + at * Shape::ROW_BYTES, &maps.q, row, h, p.q_full + 8 * at);
            copy_bytes(shared_address(shared.lse[at]), job.lse + padded + m * Shape::M, Shape::M * 4,
                       p.q_full + 8 * at);
            if (!values) {
                values = true;
                barrier_expect(p.v_full, Shape::KEY_BYTES);
                copy_tile(p.v, &maps.v, key_row, item.head, p.v_full);
            }
            barrier_wait(p.o_empty + 8 * at, parity);
            barrier_expect(p.o_full + 8 * at, Shape::ROW_BYTES + Shape::M * 4);
            copy_tile(p.d_o + at * Shape::ROW_BYTES, &maps.d_o, row, h, p.o_full + 8 * at);
            copy_bytes(shared_address(shared.mean[at]), job.mean + padded + m * Shape::M, Shape::M * 4,
                       p.o_full + 8 * at);
            if (++at == Shape::STAGES) {
                at = 0;
                parity ^= 1;
            }
        }
    }
}

static __device__ __forceinline__ int load_acquire(const int *from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(int *to, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* Makes writes to global memory by the copy engine and by ordinary stores visible to each other. */
static __device__ __forceinline__ void fence_async_global() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

static __device__ __forceinline__ void add_bytes(void *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void wait_for_parts(const int *done, int parts) {
    while (load_acquire(done) < parts) {
    }
    fence_async_global();
}

/* Run by one thread: moves tiles of dQ between shared and global memory. */
template <typename Shape>
static __device__ __forceinline__ void backward_sum(const backward_job &job, const backward_item &item,
                                                    const backward_places<Shape> &p) {
    const backward_document &doc = job.document[item.document];
    int parity = 0;
    for (int h = item.head * job.group; h < (item.head + 1) * job.group; h++) {
        for (int m = item.from; m < item.to; m++, parity ^= 1) {
            const int64_t tile = (int64_t)(doc.tile + m) * job.heads + h;
            float *sums = job.sums + tile * (Shape::DQ_BYTES / 4);
            /* Number of parts that are added before this one. */
            const int before = backward_last_block(doc, m, Shape::M) - item.block;
            if (item.block == 0) {
                if (before > 0) {
                    barrier_wait(p.sum_empty, parity ^ 1);
                    wait_for_parts(job.done + tile, before);
                    barrier_expect(p.sum_full, Shape::DQ_BYTES);
                    copy_bytes(p.sum, sums, Shape::DQ_BYTES, p.sum_full);
                } else {
                    parity ^= 1; /* no other part exists, so no sum is read */
                }
                continue;
            }
            barrier_wait(p.sum_full, parity);
            if (before == 0) {
                store_bytes(sums, p.sum, Shape::DQ_BYTES);
            } else {
                wait_for_parts(job.done + tile, before);
                add_bytes(sums, p.sum, Shape::DQ_BYTES);
            }
            stores_commit();
            stores_wait_read();
            barrier_arrive(p.sum_empty);
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            fence_async_global();
            store_release(job.done + tile, before + 1);
        }
    }
}

} // namespace hopper

#endif
