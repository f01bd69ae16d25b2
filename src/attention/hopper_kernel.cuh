/* Attention on Hopper GPUs: one block per multiprocessor, one warpgroup that copies and two that compute.

   The copying warpgroup is one thread that asks the copy engine for tiles of keys and values, STAGES ahead. Each of the
   others has 64 queries. While the tensor cores multiply this tile's probabilities with its values, the warpgroup takes
   the exponentials of the next tile's scores; and with TURNS the two warpgroups take turns at the tensor cores, so that
   one's exponentials run beside the other's products.

   Scores are kept times log2 e, so that an exponential is one instruction after one multiply-add, and the bias of a run
   is a part of that one's constant. The largest score that is subtracted may lag behind by 2^LAG: sums are then scaled
   hardly ever, and no probability leaves what bf16 and f32 hold. */
#ifndef CARRY_ATTENTION_HOPPER_KERNEL_CUH
#define CARRY_ATTENTION_HOPPER_KERNEL_CUH

#include "attention/hopper.cuh"
#include "attention/kernels.cuh"

struct hopper_job {
    CUtensorMap q, k, v;
    attention_job job;
};

/* D: elements of a head. N: keys of a tile. */
template <int D_, int N_, int STAGES_, bool TURNS_> struct hopper_shape {
    static constexpr int D = D_, N = N_, STAGES = STAGES_;
    static constexpr bool TURNS = TURNS_;
    static constexpr int GROUPS = 2, ROWS = 64 * GROUPS;
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int BANDS = D / 64;
    static constexpr int Q_BAND = ROWS * 128, KEY_BAND = N * 128; /* bytes */
    static constexpr int Q_BYTES = BANDS * Q_BAND, KEY_BYTES = BANDS * KEY_BAND;
    static constexpr int SHARED = 1024 + Q_BYTES + 2 * STAGES * KEY_BYTES; /* atoms start at multiples of 1024 */
};

namespace hopper {

constexpr int COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240; /* 128 * 24 + 256 * 240 is what a multiprocessor has */
constexpr float LAG = 8.0f;

/* Barriers: a tile is full, a tile is empty. */
template <int STAGES> struct barriers {
    uint64_t q_full, q_empty;
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* The place in a ring of stages, and the parity of its round. */
template <int STAGES> struct stage {
    int at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++at == STAGES) {
            at = 0;
            parity ^= 1;
        }
    }
};

template <typename Shape> struct places {
    uint32_t q, k, v; /* shared memory */
    uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;
    __device__ __forceinline__ uint32_t key(int at) const {
        return k + at * Shape::KEY_BYTES;
    }
    __device__ __forceinline__ uint32_t value(int at) const {
        return v + at * Shape::KEY_BYTES;
    }
};

/* Keys run one tile ahead of values, as they are wanted. */
template <typename Shape>
static __device__ __forceinline__ void copy_items(const hopper_job &h, const places<Shape> &p, int items) {
    stage<Shape::STAGES> key, value;
    int q_parity = 1;
    auto copy_key = [&](const attention_cursor &at, int head) {
        barrier_wait(p.k_empty + 8 * key.at, key.parity ^ 1);
        barrier_expect(p.k_full + 8 * key.at, Shape::KEY_BYTES);
        copy_tile(p.key(key.at), &h.k, at.row, head, p.k_full + 8 * key.at);
        key.next();
    };
    auto copy_value = [&](const attention_cursor &at, int head) {
        barrier_wait(p.v_empty + 8 * value.at, value.parity ^ 1);
        barrier_expect(p.v_full + 8 * value.at, Shape::KEY_BYTES);
        copy_tile(p.value(value.at), &h.v, at.row, head, p.v_full + 8 * value.at);
        value.next();
    };
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        attention_item item = item_of(h.job.cut, index);
        if (item.from == item.to) {
            continue;
        }
        attention_cursor at = cursor_at(h.job, item.from), before = at;
        copy_key(at, item.head);
        barrier_wait(p.q_empty, q_parity);
        q_parity ^= 1;
        barrier_expect(p.q_full, Shape::Q_BYTES);
        copy_tile(p.q, &h.q, item.row, item.head, p.q_full);
        for (int tile = item.from + 1; tile < item.to; tile++) {
            next_tile(h.job, &at, Shape::N);
            copy_key(at, item.head);
            copy_value(before, item.head);
            before = at;
        }
        copy_value(at, item.head);
    }
}

/* s = q k^T of this warpgroup's 64 queries. */
template <typename Shape>
static __device__ __forceinline__ void scores(float (&s)[Shape::N / 2], uint32_t q, uint32_t k) {
#pragma unroll
    for (int i = 0; i < Shape::D / 16; i++) {
        int band = i / 4, along = i % 4 * 32;
        product_both(s, describe(q + band * Shape::Q_BAND + along, 0), describe(k + band * Shape::KEY_BAND + along, 0),
                     i > 0);
    }
}

/* o = or += p v */
template <typename Shape>
static __device__ __forceinline__ void weighted(float (&o)[Shape::D / 2], const uint32_t (&p)[Shape::N / 4], uint32_t v,
                                                bool add) {
#pragma unroll
    for (int i = 0; i < Shape::N / 16; i++) {
        product_right(o, p + 4 * i, describe(v + i * 2048, Shape::KEY_BAND), i > 0 || add);
    }
}

/* Columns past the run's end are not there. */
template <int COUNT> static __device__ __forceinline__ void mask(float (&s)[COUNT], int valid) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i / 4 * 8 + i % 2 + column >= valid) {
            s[i] = -INFINITY;
        }
    }
}

/* And their values are no numbers that anyone wrote: 0 times them need not be 0. Both warpgroups write the same. */
template <typename Shape> static __device__ __forceinline__ void clear_values(uint32_t v, int valid, int group) {
    int words = (Shape::N - valid) * 8; /* of 16 bytes */
    for (int i = (int)threadIdx.x % 128; i < Shape::BANDS * words; i += 128) {
        uint32_t to = v + (uint32_t)(i / words * Shape::KEY_BAND + valid * 128 + i % words * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    fence_async();
    group_sync(3 + group, 128);
}

/* The softmax of a thread's two rows so far. */
struct softmax_state {
    float largest[2], sum[2]; /* sums of this thread's columns alone */
};

/* Scores to exponentials; the factors are for the sums so far. Returns whether any row of the warp has another one
   than 1. */
template <int COUNT>
static __device__ __forceinline__ bool exponentials(float (&s)[COUNT], softmax_state &state, float (&factor)[2],
                                                    float scale, float bias) {
    float most[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 1; i < COUNT / 2; i++) {
        most[0] = fmaxf(most[0], s[i / 2 * 4 + i % 2]);
        most[1] = fmaxf(most[1], s[i / 2 * 4 + i % 2 + 2]);
    }
    bool grows = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        most[r] = fmaf(most[r], scale, bias);
        grows = grows || most[r] > state.largest[r] + LAG;
    }
    grows = __any_sync(0xffffffffu, grows);
    if (grows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float larger = fmaxf(state.largest[r], most[r]);
            factor[r] = exp2_fast(state.largest[r] - larger);
            state.largest[r] = larger;
            state.sum[r] *= factor[r];
        }
    }
    float shift[2] = {bias - state.largest[0], bias - state.largest[1]};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        s[i] = exp2_fast(fmaf(s[i], scale, shift[i / 2 % 2]));
    }
    float part[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        part[i / 2 % 2][i % 2] += s[i];
    }
    state.sum[0] += part[0][0] + part[0][1];
    state.sum[1] += part[1][0] + part[1][1];
    return grows;
}

template <int COUNT> static __device__ __forceinline__ void pack(uint32_t (&p)[COUNT / 2], const float (&s)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
}

template <int COUNT> static __device__ __forceinline__ void scale_rows(float (&o)[COUNT], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        o[i] *= factor[i / 2 % 2];
    }
}

/* Word j of lane t of four becomes word t of lane j. */
static __device__ __forceinline__ void transpose4(uint32_t (&w)[4]) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((i & step) == 0) {
                bool high = (lane & step) != 0;
                uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + step], step);
                w[i] = high ? other : w[i];
                w[i + step] = high ? w[i + step] : other;
            }
        }
    }
}

template <typename Shape>
static __device__ __forceinline__ void store_whole(const attention_job &job, const attention_item &item,
                                                   const float (&o)[Shape::D / 2], const softmax_state &state) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = item.row + ((int)threadIdx.x - 128) / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
        float over = state.sum[r] > 0.0f || state.sum[r] != state.sum[r] ? 1.0f / state.sum[r] : 0.0f;
        uint16_t *to = job.o + row * job.o_row + item.head * job.o_head;
#pragma unroll
        for (int g = 0; g < Shape::D / 32; g++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = 16 * g + 4 * i + 2 * r;
                w[i] = pack_bf16(o[at] * over, o[at + 1] * over);
            }
            transpose4(w);
            if (row < job.queries) {
                *(uint4 *)(to + 32 * g + 8 * lane) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        if (job.lse != NULL && lane == 0 && row < job.queries) {
            job.lse[item.head * job.lse_head + row * job.lse_row] =
                0.6931471805599453f * (state.largest[r] + log2f(state.sum[r]));
        }
    }
}

template <typename Shape>
static __device__ __forceinline__ void store_piece(const attention_job &job, const attention_item &item,
                                                   const float (&o)[Shape::D / 2], const softmax_state &state) {
    int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t row = (int64_t)item.piece * Shape::ROWS + ((int)threadIdx.x - 128) / 32 * 16 +
                      (int)threadIdx.x % 32 / 4 + 8 * r;
        float *to = job.cut.sums + row * Shape::D;
#pragma unroll
        for (int i = 0; i < Shape::D / 8; i++) {
            *(float2 *)(to + 8 * i + 2 * lane) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
        }
        if (lane == 0) {
            *(float2 *)(job.cut.weights + 2 * row) = make_float2(state.largest[r], state.sum[r]);
        }
    }
}

/* One of the computing warpgroups, `group` 0 or 1. Barrier 1 + group says that it is this one's turn. */
template <typename Shape>
static __device__ __forceinline__ void compute_items(const hopper_job &h, const places<Shape> &p, int items,
                                                     int group) {
    constexpr int N = Shape::N;
    const attention_job &job = h.job;
    stage<Shape::STAGES> key, value;
    int q_parity = 0;
    uint32_t q = p.q + group * 64 * 128;
    bool speaks = threadIdx.x % 32 == 0; /* for its warp */
    if (Shape::TURNS && group == 1) {
        group_arrive(1, 256);
    }
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        attention_item item = item_of(job.cut, index);
        float o[Shape::D / 2] = {};
        softmax_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        if (item.from < item.to) {
            float s[N / 2];
            uint32_t w[N / 4];
            float factor[2];
            attention_cursor at = cursor_at(job, item.from);
            barrier_wait(p.q_full, q_parity);
            q_parity ^= 1;
            barrier_wait(p.k_full + 8 * key.at, key.parity);
            products_begin();
            scores<Shape>(s, q, p.key(key.at));
            products_commit();
            products_wait<0>();
            if (speaks) {
                barrier_arrive(p.k_empty + 8 * key.at);
            }
            key.next();
            int valid = at.left;
            if (valid < N) {
                mask(s, valid);
            }
            (void)exponentials(s, state, factor, job.scale, job.run[at.run].bias);
            pack<N / 2>(w, s);
            for (int tile = item.from + 1; tile < item.to; tile++) {
                barrier_wait(p.k_full + 8 * key.at, key.parity);
                if (Shape::TURNS) {
                    group_sync(1 + group, 256);
                }
                products_begin();
                scores<Shape>(s, q, p.key(key.at));
                products_commit();
                barrier_wait(p.v_full + 8 * value.at, value.parity);
                if (valid < N) {
                    clear_values<Shape>(p.value(value.at), valid, group);
                }
                products_begin();
                weighted<Shape>(o, w, p.value(value.at), tile > item.from + 1);
                products_commit();
                if (Shape::TURNS) {
                    group_arrive(2 - group, 256);
                }
                next_tile(job, &at, N);
                valid = at.left;
                products_wait<1>();
                if (speaks) {
                    barrier_arrive(p.k_empty + 8 * key.at);
                }
                key.next();
                if (valid < N) {
                    mask(s, valid);
                }
                bool grew = exponentials(s, state, factor, job.scale, job.run[at.run].bias);
                products_wait<0>();
                if (speaks) {
                    barrier_arrive(p.v_empty + 8 * value.at);
                }
                value.next();
                if (grew) {
                    scale_rows(o, factor);
                }
                pack<N / 2>(w, s);
            }
            if (speaks) {
                barrier_arrive(p.q_empty);
            }
            barrier_wait(p.v_full + 8 * value.at, value.parity);
            if (valid < N) {
                clear_values<Shape>(p.value(value.at), valid, group);
            }
            products_begin();
            weighted<Shape>(o, w, p.value(value.at), item.to - item.from > 1);
            products_commit();
#pragma unroll
            for (int r = 0; r < 2; r++) {
                state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 1);
                state.sum[r] += __shfl_xor_sync(0xffffffffu, state.sum[r], 2);
            }
            products_wait<0>();
            if (speaks) {
                barrier_arrive(p.v_empty + 8 * value.at);
            }
            value.next();
        }
        if (item.piece < 0) {
            store_whole<Shape>(job, item, o, state);
        } else {
            store_piece<Shape>(job, item, o, state);
        }
    }
}

} // namespace hopper

template <typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1) attention_hopper(const __grid_constant__ hopper_job h) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    constexpr int STAGES = Shape::STAGES;
    extern __shared__ char memory[];
    __shared__ barriers<STAGES> b; /* hopper.cu tells by this static memory that the kernel is not empty */
    places<Shape> p;
    p.q = (shared_address(memory) + 1023u) & ~1023u;
    p.k = p.q + Shape::Q_BYTES;
    p.v = p.k + STAGES * Shape::KEY_BYTES;
    p.q_full = shared_address(&b.q_full);
    p.q_empty = shared_address(&b.q_empty);
    p.k_full = shared_address(b.k_full);
    p.k_empty = shared_address(b.k_empty);
    p.v_full = shared_address(b.v_full);
    p.v_empty = shared_address(b.v_empty);
    if (threadIdx.x == 0) {
        constexpr int WARPS = 4 * Shape::GROUPS;
        barrier_init(p.q_full, 1);
        barrier_init(p.q_empty, WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(p.k_full + 8 * i, 1);
            barrier_init(p.v_full + 8 * i, 1);
            barrier_init(p.k_empty + 8 * i, WARPS);
            barrier_init(p.v_empty + 8 * i, WARPS);
        }
        fence_async();
    }
    __syncthreads();
    int items = h.job.cut.whole + h.job.cut.rest * h.job.cut.pieces;
    int group = (int)threadIdx.x / 128;
    if (group == 0) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0) {
            prefetch_map(&h.q);
            prefetch_map(&h.k);
            prefetch_map(&h.v);
            copy_items<Shape>(h, p, items);
        }
    } else {
        registers_take<COMPUTE_REGISTERS>();
        compute_items<Shape>(h, p, items, group - 1);
    }
#endif
}

#endif
