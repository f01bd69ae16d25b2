/* The delta rule for one token, with its convolutions, gates and norms: a block processes one key head of a sequence,
   and its value heads one after the other. */
#ifndef CARRY_ENGINE_CHAIN_DELTA_CUH
#define CARRY_ENGINE_CHAIN_DELTA_CUH

#include "engine/cuda/chain_kernel.cuh"

namespace chain {

constexpr int STATE_LOADS = KEY / WARPS; /* number of rows of a state of which a thread holds four columns */

struct delta_memory {
    float q[KEY], k[KEY], u[KEY];
    float sums[WARPS][2][KEY];
    float squares[WARPS][3];
};

/* A channel of a convolution: its previous inputs and its weights. */
struct channel {
    float past[3], w[4];
    float *tail;
    int channels, taps;
};

static __device__ __forceinline__ channel channel_of(const float *w, float *tail, int64_t slot, int channels, int taps,
                                                     int at) {
    channel c;
    c.tail = tail + slot * (taps - 1) * channels + at;
    c.channels = channels;
    c.taps = taps;
#pragma unroll
    for (int j = 0; j < 4; j++) { /* from the end: the newest input has the last weight */
        c.w[3 - j] = j < taps ? __ldg(w + (size_t)at * taps + taps - 1 - j) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        c.past[2 - j] = j < taps - 1 ? c.tail[(size_t)(taps - 2 - j) * channels] : 0.0f;
    }
    return c;
}

/* Computes the output for the new input; if `stores`, stores that input with the previous ones. */
static __device__ __forceinline__ float convolve(const channel &c, float x, bool stores = true) {
    const float sum = c.w[0] * c.past[0] + c.w[1] * c.past[1] + c.w[2] * c.past[2] + c.w[3] * x;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const int at = c.taps - 2 - j; /* the row that past[2 - j] came from */
        if (stores && at >= 0) {
            c.tail[(size_t)at * c.channels] = j == 0 ? x : c.past[3 - j];
        }
    }
    return silu(sum);
}

/* The sum over the threads of one half of the block. */
static __device__ __forceinline__ float half_sum(const delta_memory &m, int which, int half) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS / 2; w++) {
        sum += m.squares[half * (WARPS / 2) + w][which];
    }
    return sum;
}

template <typename S> static __device__ __forceinline__ void load_state(float4 (&s)[STATE_LOADS], const S *state) {
#pragma unroll
    for (int j = 0; j < STATE_LOADS; j++) {
        s[j] = load_four(state + (size_t)(WARPS * j) * KEY);
    }
}

/* Brings the state of a later value head into the L2 cache: a lane asks for a line of each row of its warp. */
template <typename S> static __device__ __forceinline__ void prefetch_state(const S *state) {
    if (threadIdx.x % (32 / sizeof(S)) == 0) {
#pragma unroll
        for (int j = 0; j < STATE_LOADS; j++) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(state + (size_t)(WARPS * j) * KEY));
        }
    }
}

/* The state S of a value head, with a row for each element of k and a column for each of v, becomes S':

       S' = e^g S + k u^T,  u = beta (v - e^g S^T k),  o = S'^T q = e^g S^T q + (q^T k) u

   e^g is the decay. The first half of the threads have one channel of q and of k each, the second half one channel of v
   and of the result o. */
template <typename S>
static __global__ __launch_bounds__(THREADS, 2) void delta(const __grid_constant__ carry_chain_delta d,
                                                           const __grid_constant__ carry_chain_lists lists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ delta_memory m;
    const int b = (int)blockIdx.x / d.heads, key_head = (int)blockIdx.x % d.heads, ratio = d.value_heads / d.heads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = threadIdx.x % KEY;
    const bool has_key = threadIdx.x < KEY;
    const int64_t slot = lists.slots[b];
    S *state = (S *)d.state + ((slot * d.value_heads + key_head * ratio) * KEY + warp) * KEY + 4 * lane;
    float4 s[STATE_LOADS];
    load_state(s, state);
    const int keys = d.heads * KEY, values = d.value_heads * KEY;
    channel first, second;
    if (has_key) {
        first = channel_of(d.wq, d.tail[0], slot, keys, d.taps, key_head * KEY + t);
        second = channel_of(d.wk, d.tail[1], slot, keys, d.taps, key_head * KEY + t);
    } else {
        first = second = channel_of(d.wv, d.tail[2], slot, values, d.taps, key_head * ratio * KEY + t);
    }
    for (int i = 1; i < ratio; i++) {
        prefetch_state(state + (size_t)i * KEY * KEY);
    }
    let_next_begin();
    await_previous();
    const __nv_bfloat16 *in = (const __nv_bfloat16 *)d.in + (size_t)b * d.in_stride;
    float q = 0.0f, k = 0.0f;
    if (has_key) {
        q = convolve(first, load_bf16(in, d.q + key_head * KEY + t));
        k = convolve(second, load_bf16(in, d.k + key_head * KEY + t));
    }
    const float qq = warp_sum(q * q), kk = warp_sum(k * k), both = warp_sum(q * k);
    if (lane == 0) {
        m.squares[warp][0] = qq;
        m.squares[warp][1] = kk;
        m.squares[warp][2] = both;
    }
    __syncthreads();
    const float q_rate = rsqrtf(half_sum(m, 0, 0) + 1e-6f) * d.scale, k_rate = rsqrtf(half_sum(m, 1, 0) + 1e-6f);
    const float qk = half_sum(m, 2, 0) * q_rate * k_rate;
    if (has_key) {
        m.q[t] = q * q_rate;
        m.k[t] = k * k_rate;
    }
    __syncthreads();
    for (int i = 0; i < ratio; i++) {
        const int head = key_head * ratio + i;
        float v = 0.0f, z = 0.0f;
        if (i > 0) {
            load_state(s, state);
            if (!has_key) {
                first = channel_of(d.wv, d.tail[2], slot, values, d.taps, head * KEY + t);
            }
        }
        if (!has_key) {
            v = convolve(first, load_bf16(in, d.v + head * KEY + t));
            z = load_bf16(in, d.z + head * KEY + t);
        }
        const float beta = d.beta_factor * sigmoid(load_bf16(in, d.b + head));
        const float decay =
            __expf(-__expf(__ldg(d.A_log + head)) * softplus(load_bf16(in, d.a + head) + __ldg(d.dt_bias + head)));
        float4 a = {}, c = {};
#pragma unroll
        for (int j = 0; j < STATE_LOADS; j++) {
            const float kj = m.k[warp + WARPS * j], qj = m.q[warp + WARPS * j];
            a.x += kj * s[j].x, a.y += kj * s[j].y, a.z += kj * s[j].z, a.w += kj * s[j].w;
            c.x += qj * s[j].x, c.y += qj * s[j].y, c.z += qj * s[j].z, c.w += qj * s[j].w;
        }
        *(float4 *)&m.sums[warp][0][4 * lane] = a;
        *(float4 *)&m.sums[warp][1][4 * lane] = c;
        __syncthreads();
        float o = 0.0f;
        if (!has_key) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += m.sums[w][0][t];
                o += m.sums[w][1][t];
            }
            const float u = beta * (v - decay * sum);
            m.u[t] = u;
            o = decay * o + qk * u;
            const float squares = warp_sum(o * o);
            if (lane == 0) {
                m.squares[warp][0] = squares;
            }
        }
        __syncthreads();
        const float4 u = *(const float4 *)&m.u[4 * lane];
#pragma unroll
        for (int j = 0; j < STATE_LOADS; j++) {
            const float kj = m.k[warp + WARPS * j];
            store_four(state + (size_t)(WARPS * j) * KEY,
                       make_float4(decay * s[j].x + kj * u.x, decay * s[j].y + kj * u.y, decay * s[j].z + kj * u.z,
                                   decay * s[j].w + kj * u.w));
        }
        if (!has_key) {
            const float rate = rsqrtf(half_sum(m, 0, 1) / (float)KEY + d.eps);
            ((__nv_bfloat16 *)d.y)[((size_t)b * d.value_heads + head) * KEY + t] =
                __float2bfloat16_rn(o * rate * __ldg(d.norm + t) * silu(z));
        }
        state += (size_t)KEY * KEY;
        __syncthreads(); /* before shared memory is reused */
    }
#endif
}

} // namespace chain

#endif
