/* Steps with a ring on Hopper GPUs, for K = V = 128 (ring.c has the formulas). Blocks are persistent. One warp starts
   TMA copies of states, as tiles of 32 rows, and of the tokens that wait in the ring, some units ahead; a unit is the
   state of one sequence and value head. GROUPS warpgroups take one unit after the other in turn. A thread has one
   column of the state, so the products with k and with q need no sum over threads.

   Only the step that fills the ring writes the state. It keeps the tiles of its unit until then. */
#ifndef CARRY_DELTA_PLAIN_RING_HOPPER_CUH
#define CARRY_DELTA_PLAIN_RING_HOPPER_CUH

#include "delta/cuda/device.cuh"
#include "delta/cuda/plain/ring_job.h"
#include "device/hopper.cuh"

namespace ring_hopper {

constexpr int MOST = CARRY_MAX_DELTA_RING;
constexpr int DIM = 128, ROWS = 32, TILES = DIM / ROWS, TILE_BYTES = ROWS * DIM * 4;
constexpr int WARPS = 4; /* of a group */
static_assert(MOST % WARPS == 0, "a warp weighs every fourth token");

/* The tokens of a unit's ring. Copies start at multiples of 16 bytes, so one decay a token may begin up to 3 floats
   after the start of `decay`. */
template <bool BY_KEY> struct alignas(16) ring_slot {
    float k[MOST][DIM], u[MOST][DIM];
    float decay[BY_KEY ? MOST * DIM : MOST + 4];
    int waiting; /* tokens */
};

/* Numbers of a unit that the warps of a group share. */
struct alignas(16) unit_numbers {
    float2 weights[DIM]; /* factors of a row of the state in the products with k and q */
    float2 fold[DIM];    /* the decay of a row, and k */
    float2 on[MOST];     /* products of a token of the ring with k and q */
};

template <bool BY_KEY, int GROUPS> struct memory {
    static constexpr int STAGES = BY_KEY ? 9 : GROUPS > 3 ? 8 : 10, SLOTS = GROUPS < 3 ? 3 : GROUPS;
    float state[STAGES][ROWS][DIM];
    ring_slot<BY_KEY> slots[SLOTS];
    unit_numbers numbers[GROUPS][2];
    uint64_t full[STAGES], empty[STAGES], slot_full[SLOTS], slot_empty[SLOTS];
};

/* The n-th use of COUNT stages or slots: which one, and the parity of its phase. */
template <int COUNT> struct turn {
    int at, parity;
    explicit __device__ __forceinline__ turn(int n) : at(n % COUNT), parity(n / COUNT % 2) {
    }
};

__device__ __forceinline__ int64_t unit_of(const carry_delta_job &job, int64_t index) {
    const int64_t item = index / job.value_heads;
    return (job.slots != nullptr ? job.slots[item] : item) * job.value_heads + index % job.value_heads;
}

/* Asks for the tiles of all units of the block. One warp. */
template <bool BY_KEY, int GROUPS>
__device__ __forceinline__ void copy_units(const carry_delta_ring_job &r, memory<BY_KEY, GROUPS> &m, int64_t units,
                                           int lane) {
    using namespace hopper;
    using shape = memory<BY_KEY, GROUPS>;
    int64_t unit = 0;
    int waiting = 0, tile = 0;
    for (int n = 0; blockIdx.x + (int64_t)n * gridDim.x < units; n++) {
        if (n % 32 == 0) { /* each lane reads the count of one of the next 32 units */
            const int64_t index = blockIdx.x + (int64_t)(n + lane) * gridDim.x;
            unit = index < units ? unit_of(r.job, index) : 0;
            waiting = index < units ? r.ring.counts[unit * CARRY_DELTA_RING_COUNTS] : 0;
        }
        const int64_t now = __shfl_sync(WARP, unit, n % 32);
        const int count = __shfl_sync(WARP, waiting, n % 32);
        if (lane == 0) {
            const turn<shape::SLOTS> slot(n);
            const uint32_t ready = shared_address(&m.slot_full[slot.at]);
            ring_slot<BY_KEY> &to = m.slots[slot.at];
            const int64_t first = now * r.ring.length, start = BY_KEY ? first * DIM : first / 4 * 4;
            const int rows = count * DIM * 4;
            const int decays = BY_KEY ? rows : count > 0 ? (int)(first - start + count + 3) / 4 * 16 : 0;
            barrier_wait(shared_address(&m.slot_empty[slot.at]), slot.parity ^ 1);
            to.waiting = count;
            barrier_expect(ready, 2 * rows + decays);
            if (count > 0) {
                copy_bytes(shared_address(to.k), r.ring.k + first * DIM, rows, ready);
                copy_bytes(shared_address(to.u), r.ring.u + first * DIM, rows, ready);
                copy_bytes(shared_address(to.decay), r.ring.decay + start, decays, ready);
            }
            for (int i = 0; i < TILES; i++, tile++) {
                const turn<shape::STAGES> stage(tile);
                const uint32_t full = shared_address(&m.full[stage.at]);
                barrier_wait(shared_address(&m.empty[stage.at]), stage.parity ^ 1);
                barrier_expect(full, TILE_BYTES);
                copy_bytes(shared_address(m.state[stage.at]), r.job.final_state + (now * TILES + i) * (ROWS * DIM),
                           TILE_BYTES, full);
            }
        }
        __syncwarp();
    }
}

/* The inputs of a unit's token, not yet converted to f32: they are loaded while the warpgroup works on its previous
   unit. Each lane has four channels of k and q, and each thread has one element of v. */
template <bool BY_KEY> struct token {
    int64_t item, head, unit;
    unsigned k[4], q[4], g[BY_KEY ? 4 : 1], beta, v;

    __device__ __forceinline__ void open(const carry_delta_job &job, int64_t index, int lane, int column) {
        head = index % job.value_heads;
        item = index / job.value_heads;
        unit = unit_of(job, index);
        const int64_t k_at = at_of(job.k, item, 0, head / job.group) + 4 * lane;
        const int64_t q_at = at_of(job.q, item, 0, head / job.group) + 4 * lane;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            k[i] = load_bits(job.k, k_at + i);
            q[i] = load_bits(job.q, q_at + i);
        }
#pragma unroll
        for (int i = 0; i < (BY_KEY ? 4 : 1); i++) {
            g[i] = job.gated ? load_bits(job.g, at_of(job.g, item, 0, head) + (BY_KEY ? 4 * lane + i : 0)) : 0;
        }
        beta = load_bits(job.beta, at_of(job.beta, item, 0, head));
        v = load_bits(job.v, at_of(job.v, item, 0, head) + column);
    }

    __device__ __forceinline__ float decay(const carry_delta_job &job, int i) const {
        const float gate = job.gated ? value_of(job.g, g[BY_KEY ? i : 0]) : 0.0f;
        return expf(BY_KEY || !job.gated ? gate : gate_of(job, gate, head));
    }
};

/* A warpgroup's work for one unit. */
template <bool BY_KEY, int GROUPS> struct worker {
    using shape = memory<BY_KEY, GROUPS>;
    const carry_delta_ring_job &r;
    shape &m;
    int group, warp, lane, column;
    float k[4], q[4], decay[4], base[4]; /* of the lane's channels; base: the decay of the state up to this token */
    float k_norm, kq;

    /* Weighs the tokens of the ring by their decays, and multiplies them by k and q. A warp multiplies every fourth
       token. Returns true if this token fills the ring. */
    __device__ __forceinline__ bool weigh(const token<BY_KEY> &now, ring_slot<BY_KEY> &ring, unit_numbers &to) {
        const carry_delta_job &job = r.job;
        float kk = 0.0f, qq = 0.0f, on_k[MOST / WARPS], on_q[MOST / WARPS];
        kq = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            k[i] = value_of(job.k, now.k[i]);
            q[i] = value_of(job.q, now.q[i]);
            base[i] = decay[i] = BY_KEY || i == 0 ? now.decay(job, i) : decay[0];
            kk = fmaf(k[i], k[i], kk);
            qq = fmaf(q[i], q[i], qq);
            kq = fmaf(k[i], q[i], kq);
        }
        const int waiting = ring.waiting;
        const bool fills = waiting + 1 >= r.ring.length;
        const float *decays = ring.decay + (BY_KEY ? 4 * lane : now.unit * r.ring.length % 4);
#pragma unroll
        for (int i = MOST / WARPS - 1; i >= 0; i--) {
            on_k[i] = on_q[i] = 0.0f;
#pragma unroll
            for (int other = WARPS - 1; other >= 0; other--) {
                const int j = WARPS * i + other;
                if (j < waiting) {
                    if (other == warp) {
                        multiply(ring.k[j], on_k[i], on_q[i], fills);
                    }
                    fade(decays, j);
                }
            }
        }
        k_norm = job.l2norm ? 1.0f / sqrtf(over_warp(kk) + 1e-6f) : 1.0f;
        const float q_norm = job.l2norm ? 1.0f / sqrtf(over_warp(qq) + 1e-6f) : 1.0f;
        kq = over_warp(kq) * k_norm * q_norm;
#pragma unroll
        for (int i = 0; i < MOST / WARPS; i++) {
            on_k[i] = over_warp(on_k[i]) * k_norm;
            on_q[i] = over_warp(on_q[i]) * q_norm;
            if (lane == 0) {
                to.on[WARPS * i + warp] = {on_k[i], on_q[i]};
            }
        }
        if (lane / 8 == warp) { /* all warps have the same numbers */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                k[i] *= k_norm;
                to.weights[4 * lane + i] = {base[i] * k[i], base[i] * q[i] * q_norm};
                to.fold[4 * lane + i] = {base[i], k[i]};
            }
        }
        return fills;
    }

    /* Multiplies a key of the ring, times its decay, by k and q. `keep`: also stores it. */
    __device__ __forceinline__ void multiply(float (&key)[DIM], float &on_k, float &on_q, bool keep) const {
        float4 x = *reinterpret_cast<const float4 *>(&key[4 * lane]);
        x = make_float4(x.x * base[0], x.y * base[1], x.z * base[2], x.w * base[3]);
        on_k = fmaf(x.x, k[0], fmaf(x.y, k[1], fmaf(x.z, k[2], x.w * k[3])));
        on_q = fmaf(x.x, q[0], fmaf(x.y, q[1], fmaf(x.z, q[2], x.w * q[3])));
        if (keep) {
            *reinterpret_cast<float4 *>(&key[4 * lane]) = x;
        }
    }

    __device__ __forceinline__ void fade(const float *decays, int j) {
        if constexpr (BY_KEY) {
            const float4 d = *reinterpret_cast<const float4 *>(decays + j * DIM);
            base[0] *= d.x;
            base[1] *= d.y;
            base[2] *= d.z;
            base[3] *= d.w;
        } else {
            const float d = decays[j];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                base[i] *= d;
            }
        }
    }

    __device__ __forceinline__ void release(uint64_t *barrier) const {
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(hopper::shared_address(barrier));
        }
    }

    /* Products of the thread's column with k and q. The tiles are released unless they are needed again. */
    __device__ __forceinline__ float2 look(const unit_numbers &numbers, int n, bool keep) const {
        float seen[2] = {0.0f, 0.0f}, out[2] = {0.0f, 0.0f};
        for (int t = 0; t < TILES; t++) {
            const turn<shape::STAGES> stage(TILES * n + t);
            const float(&S)[ROWS][DIM] = m.state[stage.at];
            const float4 *weights = reinterpret_cast<const float4 *>(&numbers.weights[ROWS * t]);
            hopper::barrier_wait(hopper::shared_address(&m.full[stage.at]), stage.parity);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) {
                const float4 w = weights[i];
                const float a = S[2 * i][column], b = S[2 * i + 1][column];
                seen[0] = fmaf(a, w.x, seen[0]);
                out[0] = fmaf(a, w.y, out[0]);
                seen[1] = fmaf(b, w.z, seen[1]);
                out[1] = fmaf(b, w.w, out[1]);
            }
            if (!keep) {
                release(&m.empty[stage.at]);
            }
        }
        return {seen[0] + seen[1], out[0] + out[1]};
    }

    /* Adds the tokens of the ring and this one to the thread's column. */
    __device__ __forceinline__ void write_column(const unit_numbers &numbers, const ring_slot<BY_KEY> &ring,
                                                 const token<BY_KEY> &now, float own, int n) const {
        const int waiting = ring.waiting;
        float u[MOST];
#pragma unroll
        for (int j = 0; j < MOST; j++) {
            u[j] = j < waiting ? ring.u[j][column] : 0.0f;
        }
        float *state = r.job.final_state + now.unit * (DIM * DIM) + column;
        for (int t = 0; t < TILES; t++) {
            const turn<shape::STAGES> stage(TILES * n + t);
            const float(&S)[ROWS][DIM] = m.state[stage.at];
#pragma unroll 2
            for (int i = 0; i < ROWS; i += 4) {
                const int row = ROWS * t + i;
                float sum[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float2 by = numbers.fold[row + c];
                    sum[c] = fmaf(S[i + c][column], by.x, by.y * own);
                }
#pragma unroll
                for (int j = 0; j < MOST; j++) {
                    if (j < waiting) {
                        const float4 key = *reinterpret_cast<const float4 *>(&ring.k[j][row]);
                        sum[0] = fmaf(key.x, u[j], sum[0]);
                        sum[1] = fmaf(key.y, u[j], sum[1]);
                        sum[2] = fmaf(key.z, u[j], sum[2]);
                        sum[3] = fmaf(key.w, u[j], sum[3]);
                    }
                }
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    state[(row + c) * DIM] = sum[c];
                }
            }
            release(&m.empty[stage.at]);
        }
    }

    /* Adds this token to the ring. k is normalised in the lanes that write it. */
    __device__ __forceinline__ void append(const token<BY_KEY> &now, int waiting, float own) const {
        const int64_t at = now.unit * r.ring.length + waiting;
        r.ring.u[at * DIM + column] = own;
        if (lane / 8 == warp) {
            *reinterpret_cast<float4 *>(r.ring.k + at * DIM + 4 * lane) = make_float4(k[0], k[1], k[2], k[3]);
            if (BY_KEY) {
                *reinterpret_cast<float4 *>(r.ring.decay + at * DIM + 4 * lane) =
                    make_float4(decay[0], decay[1], decay[2], decay[3]);
            }
        }
        if (!BY_KEY && column == 0) {
            r.ring.decay[at] = decay[0];
        }
    }

    __device__ __forceinline__ void run(const token<BY_KEY> &now, int n) {
        const carry_delta_job &job = r.job;
        const turn<shape::SLOTS> slot(n);
        ring_slot<BY_KEY> &ring = m.slots[slot.at];
        unit_numbers &numbers = m.numbers[group][n / GROUPS % 2];
        hopper::barrier_wait(hopper::shared_address(&m.slot_full[slot.at]), slot.parity);
        const bool fills = weigh(now, ring, numbers);
        const int waiting = ring.waiting;
        hopper::group_sync(1 + group, 32 * WARPS);
        float2 sums = look(numbers, n, fills);
#pragma unroll
        for (int j = 0; j < MOST; j++) {
            if (j < waiting) {
                const float u = ring.u[j][column];
                const float2 on = numbers.on[j];
                sums.x = fmaf(on.x, u, sums.x);
                sums.y = fmaf(on.y, u, sums.y);
            }
        }
        const float own = beta_of(job, value_of(job.beta, now.beta)) * (value_of(job.v, now.v) - sums.x);
        if (fills) {
            write_column(numbers, ring, now, own, n);
            hopper::fence_async(); /* keys in the slot were overwritten */
        } else {
            append(now, waiting, own);
        }
        release(&m.slot_empty[slot.at]);
        carry_store_any(job.o.data, job.o.dtype, at_of(job.o, now.item, 0, now.head) + column,
                        job.scale * fmaf(kq, own, sums.y));
        if (column < CARRY_DELTA_RING_COUNTS) {
            r.ring.counts[now.unit * CARRY_DELTA_RING_COUNTS + column] = fills ? 0 : waiting + 1;
        }
    }
};

template <bool BY_KEY, int GROUPS>
__global__ void __launch_bounds__(128 * GROUPS + 32, 1)
    delta_step_ring_copies(const __grid_constant__ carry_delta_ring_job r, int64_t units) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ float4 start[];
    using shape = memory<BY_KEY, GROUPS>;
    shape &m = *reinterpret_cast<shape *>(start);
    const int thread = (int)threadIdx.x, group = thread / 128;
    if (thread < shape::STAGES) {
        hopper::barrier_init(hopper::shared_address(&m.full[thread]), 1);
        hopper::barrier_init(hopper::shared_address(&m.empty[thread]), WARPS);
    }
    if (thread < shape::SLOTS) {
        hopper::barrier_init(hopper::shared_address(&m.slot_full[thread]), 1);
        hopper::barrier_init(hopper::shared_address(&m.slot_empty[thread]), WARPS);
    }
    hopper::fence_async();
    __syncthreads();
    if (group == GROUPS) {
        copy_units<BY_KEY, GROUPS>(r, m, units, thread % 32);
        return;
    }
    worker<BY_KEY, GROUPS> w = {r, m, group, thread / 32 % WARPS, thread % 32, thread % 128};
    token<BY_KEY> now;
    int64_t index = blockIdx.x + (int64_t)group * gridDim.x;
    if (index < units) {
        now.open(r.job, index, w.lane, w.column);
    }
    for (int n = group; index < units; n += GROUPS) {
        token<BY_KEY> next = now;
        index += (int64_t)GROUPS * gridDim.x;
        if (index < units) {
            next.open(r.job, index, w.lane, w.column);
        }
        w.run(now, n);
        now = next;
    }
#endif
}

template <bool BY_KEY, int GROUPS>
cudaError_t launch(const carry_delta_ring_job &r, int multiprocessors, cudaStream_t stream) {
    auto kernel = delta_step_ring_copies<BY_KEY, GROUPS>;
    const int bytes = (int)sizeof(memory<BY_KEY, GROUPS>);
    const int64_t units = r.job.sequences * r.job.value_heads;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess || units == 0) {
        return error;
    }
    kernel<<<(unsigned)(units < multiprocessors ? units : multiprocessors), 128 * GROUPS + 32, bytes, stream>>>(r,
                                                                                                                units);
    return cudaGetLastError();
}

} // namespace ring_hopper

#endif
