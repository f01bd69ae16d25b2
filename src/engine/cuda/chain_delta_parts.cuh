/* The delta rule for one token of few sequences: four blocks share the columns of a value head's state, so that enough
   multiprocessors read it. Sums have the order of chain_delta.cuh, and results have the same bits. */
#ifndef CARRY_ENGINE_CHAIN_DELTA_PARTS_CUH
#define CARRY_ENGINE_CHAIN_DELTA_PARTS_CUH

#include <cooperative_groups.h>

#include "device/clusters.cuh"
#include "engine/cuda/chain_delta.cuh"

namespace chain {

constexpr int QUARTERS = 4, COLUMNS = KEY / QUARTERS, CLASSES = WARPS; /* rows of a class are added by one thread */

struct delta_part_memory {
    float q[KEY], k[KEY], u[COLUMNS];
    float sums[CLASSES][2][COLUMNS];
    float squares[KEY / 32][3];
    float shares[2][QUARTERS]; /* of the squares of a result, in turns */
};

static __device__ __forceinline__ float quarter_sum(const delta_part_memory &m, int which) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < KEY / 32; w++) {
        sum += m.squares[w][which];
    }
    return sum;
}

template <typename S> static __device__ __forceinline__ void load_part(float2 (&s)[KEY / CLASSES], const S *state) {
#pragma unroll
    for (int j = 0; j < KEY / CLASSES; j++) {
        s[j] = load_two(state + (size_t)(CLASSES * j) * KEY);
    }
}

/* A cluster handles a key head of a sequence, and TOGETHER of its value heads at a time. The first warp of each block
   also handles the block's columns of v and of the result. */
template <int TOGETHER, typename S>
static __global__ CARRY_CLUSTER(QUARTERS *TOGETHER)
    __launch_bounds__(KEY) void delta_parts(const __grid_constant__ carry_chain_delta d,
                                            const __grid_constant__ carry_chain_lists lists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ delta_part_memory m;
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const int rank = (int)blockIdx.x % (QUARTERS * TOGETHER), group = (int)blockIdx.x / (QUARTERS * TOGETHER);
    const int quarter = rank % QUARTERS, which = rank / QUARTERS;
    const int b = group / d.heads, key_head = group % d.heads, ratio = d.value_heads / d.heads;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, own = t / (COLUMNS / 2), column = t % (COLUMNS / 2) * 2;
    const int64_t slot = lists.slots[b];
    const int keys = d.heads * KEY, values = d.value_heads * KEY;
    S *state = (S *)d.state + ((slot * d.value_heads + key_head * ratio + which) * KEY + own) * KEY +
               quarter * COLUMNS + column;
    float2 s[KEY / CLASSES];
    load_part(s, state);
    const channel first = channel_of(d.wq, d.tail[0], slot, keys, d.taps, key_head * KEY + t);
    const channel second = channel_of(d.wk, d.tail[1], slot, keys, d.taps, key_head * KEY + t);
    channel third = first;
    if (warp == 0) {
        third =
            channel_of(d.wv, d.tail[2], slot, values, d.taps, (key_head * ratio + which) * KEY + quarter * COLUMNS + t);
    }
    let_next_begin();
    cluster.sync(); /* all blocks have the previous inputs of q and k, which the first one replaces */
    await_previous();
    const __nv_bfloat16 *in = (const __nv_bfloat16 *)d.in + (size_t)b * d.in_stride;
    const float q = convolve(first, load_bf16(in, d.q + key_head * KEY + t), rank == 0);
    const float k = convolve(second, load_bf16(in, d.k + key_head * KEY + t), rank == 0);
    const float qq = warp_sum(q * q), kk = warp_sum(k * k), both = warp_sum(q * k);
    if (lane == 0) {
        m.squares[warp][0] = qq;
        m.squares[warp][1] = kk;
        m.squares[warp][2] = both;
    }
    __syncthreads();
    const float q_rate = rsqrtf(quarter_sum(m, 0) + 1e-6f) * d.scale, k_rate = rsqrtf(quarter_sum(m, 1) + 1e-6f);
    const float qk = quarter_sum(m, 2) * q_rate * k_rate;
    m.q[t] = q * q_rate;
    m.k[t] = k * k_rate;
    __syncthreads();
    for (int i = which, turn = 0; i < ratio; i += TOGETHER, turn ^= 1) {
        const int head = key_head * ratio + i, at = head * KEY + quarter * COLUMNS + lane;
        float v = 0.0f, z = 0.0f;
        if (i != which) {
            load_part(s, state);
        }
        if (warp == 0) {
            if (i != which) {
                third = channel_of(d.wv, d.tail[2], slot, values, d.taps, at);
            }
            v = convolve(third, load_bf16(in, d.v + at), true);
            z = load_bf16(in, d.z + at);
        }
        const float beta = d.beta_factor * sigmoid(load_bf16(in, d.b + head));
        const float decay =
            __expf(-__expf(__ldg(d.A_log + head)) * softplus(load_bf16(in, d.a + head) + __ldg(d.dt_bias + head)));
        float2 a = {}, c = {};
#pragma unroll
        for (int j = 0; j < KEY / CLASSES; j++) {
            const float kj = m.k[own + CLASSES * j], qj = m.q[own + CLASSES * j];
            a.x += kj * s[j].x, a.y += kj * s[j].y;
            c.x += qj * s[j].x, c.y += qj * s[j].y;
        }
        *(float2 *)&m.sums[own][0][column] = a;
        *(float2 *)&m.sums[own][1][column] = c;
        __syncthreads();
        float o = 0.0f;
        if (warp == 0) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < CLASSES; w++) {
                sum += m.sums[w][0][lane];
                o += m.sums[w][1][lane];
            }
            const float u = beta * (v - decay * sum);
            m.u[lane] = u;
            o = decay * o + qk * u;
            const float squares = warp_sum(o * o);
            if (lane < QUARTERS) {
                *cluster.map_shared_rank(&m.shares[turn][quarter], (unsigned)(which * QUARTERS + lane)) = squares;
            }
        }
        __syncthreads();
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); /* before the stores, which take longer */
        const float2 u = *(const float2 *)&m.u[column];
#pragma unroll
        for (int j = 0; j < KEY / CLASSES; j++) {
            const float kj = m.k[own + CLASSES * j];
            store_two(state + (size_t)(CLASSES * j) * KEY,
                      make_float2(decay * s[j].x + kj * u.x, decay * s[j].y + kj * u.y));
        }
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        if (warp == 0) {
            float squares = 0.0f;
#pragma unroll
            for (int w = 0; w < QUARTERS; w++) {
                squares += m.shares[turn][w];
            }
            const float rate = rsqrtf(squares / (float)KEY + d.eps);
            ((__nv_bfloat16 *)d.y)[(size_t)b * values + at] =
                __float2bfloat16_rn(o * rate * __ldg(d.norm + quarter * COLUMNS + lane) * silu(z));
        }
        state += (size_t)TOGETHER * KEY * KEY;
        __syncthreads(); /* before shared memory is reused */
    }
#endif
}

} // namespace chain

#endif
