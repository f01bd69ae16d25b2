/* The delta rule of the decoding kernel, with its convolutions, gates and norms. */
#ifndef CARRY_ENGINE_DECODE_DELTA_CUH
#define CARRY_ENGINE_DECODE_DELTA_CUH

#include "engine/cuda/decode_kernel.cuh"

namespace decode {

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(__expf(x));
}

static __device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}

/* The part of a convolution that comes from earlier tokens. */
static __device__ __forceinline__ float before_now(const float *w, const float *tail, int channels, int taps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 3; j++) { /* a loop over `taps` would wait for each load before the next */
        sum += j + 1 < taps ? __ldg(w + j) * tail[(size_t)j * channels] : 0.0f;
    }
    return sum;
}

/* The new inputs of a slice: a channel of q, one of k and one of v, and the two gates of the head. */
struct delta_inputs {
    float q, k, v, a, b;
};

static __device__ __forceinline__ delta_inputs await_inputs(const carry_decode_delta &d, const carry_decode_word *in,
                                                            int key, int value, int head, uint32_t tag) {
    const int column[5] = {d.q + key, d.k + key, d.v + value, d.a >= 0 ? d.a + head : d.q + key,
                           d.b >= 0 ? d.b + head : d.q + key};
    carry_decode_word w[5];
    bool is_there;
    do {
        is_there = true;
#pragma unroll
        for (int j = 0; j < 5; j++) {
            w[j] = look(in + column[j] / 2);
        }
#pragma unroll
        for (int j = 0; j < 5; j++) {
            is_there = is_there && w[j].tag == tag;
        }
    } while (!__all_sync(~0u, is_there));
    return {of_column(w[0].value, column[0]), of_column(w[1].value, column[1]), of_column(w[2].value, column[2]),
            of_column(w[3].value, column[3]), of_column(w[4].value, column[4])};
}

/* A team of TEAM warps processes SLICE columns of the state S of a value head, which has a row for each element of k
   and a column for each of v. S becomes S':

       S' = e^g S + k u^T,  u = beta (v - e^g S^T k),  o = S'^T q = e^g S^T q + (q^T k) u

   e^g is the decay. q, k and v have passed a convolution and SiLU; q and k are then normalised. A thread has four
   columns of every 32nd row, and a channel of q and of k. All data of earlier tokens is loaded before the wait for the
   new inputs. */
static __device__ __forceinline__ void delta_slice(const carry_decode_call &call, const carry_decode_delta &d,
                                                   const view &v, int tile, int op) {
    constexpr int SLICES = KEY / SLICE, LOADS = KEY * SLICE / 4 / (32 * TEAM);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / TEAM, t = threadIdx.x % (32 * TEAM);
    const int row = t / 4, four = 4 * (t % 4), past = d.taps - 1;
    const int column = tile % SLICES * SLICE, head = tile / SLICES % d.value_heads;
    const int b = tile / SLICES / d.value_heads, key = head / (d.value_heads / d.heads) * KEY + t;
    const int keys = d.heads * KEY, values = d.value_heads * KEY, value = head * KEY + column + t % SLICE;
    const int64_t place = call.turn->slot[b];
    float *S = d.state + (place * d.value_heads + head) * KEY * KEY + column + four;
    float4 s[LOADS];
    float part[3], last[3];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        s[j] = __ldcs((const float4 *)(S + (size_t)(row + 32 * j) * KEY));
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const int channels = j == 2 ? values : keys, at = j == 2 ? value : key;
        const float *w = (j == 0 ? d.wq : j == 1 ? d.wk : d.wv) + (size_t)at * d.taps;
        part[j] = before_now(w, d.tail[j] + place * past * channels + at, channels, d.taps);
        last[j] = __ldg(w + past);
    }
    const delta_inputs in = await_inputs(d, d.in + (size_t)b * d.in_stride, key, value, head, call.tag + d.from);
    const float q = silu(part[0] + last[0] * in.q);
    const float k = silu(part[1] + last[1] * in.k);
    const float x = silu(part[2] + last[2] * in.v);
    const float beta = d.b >= 0 ? d.beta_factor * sigmoid(in.b) : 1.0f;
    const float decay =
        d.a >= 0 ? __expf(-__expf(__ldg(d.A_log + head)) * softplus(in.a + __ldg(d.dt_bias + head))) : 1.0f;
    const float qq = warp_sum(q * q), kk = warp_sum(k * k);
    hopper::group_sync(2 + team, 32 * TEAM); /* until the shared memory of the previous slice has been read */
    if (lane == 0) {
        v.head->squares[warp][0] = qq;
        v.head->squares[warp][1] = kk;
    }
    if (t < SLICE) {
        v.head->values[team][t] = x;
    }
    hopper::group_sync(2 + team, 32 * TEAM);
    float squares[2] = {1e-6f, 1e-6f};
#pragma unroll
    for (int j = 0; j < TEAM; j++) {
        squares[0] += v.head->squares[team * TEAM + j][0];
        squares[1] += v.head->squares[team * TEAM + j][1];
    }
    float *mine = v.head->keys[team];
    mine[t] = q * rsqrtf(squares[0]) * d.scale;
    mine[KEY + t] = k * rsqrtf(squares[1]);
    hopper::group_sync(2 + team, 32 * TEAM);
    float sums[9] = {};
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const float a = mine[row + 32 * j], c = mine[KEY + row + 32 * j];
        s[j] = make_float4(s[j].x * decay, s[j].y * decay, s[j].z * decay, s[j].w * decay);
        sums[0] += c * s[j].x, sums[1] += c * s[j].y, sums[2] += c * s[j].z, sums[3] += c * s[j].w;
        sums[4] += a * s[j].x, sums[5] += a * s[j].y, sums[6] += a * s[j].z, sums[7] += a * s[j].w;
        sums[8] += a * c;
    }
#pragma unroll
    for (int j = 0; j < 9; j++) {
#pragma unroll
        for (int apart = 4; apart < 32; apart <<= 1) {
            sums[j] += __shfl_xor_sync(~0u, sums[j], apart);
        }
        if (lane < 4) {
            v.head->sums[(warp * 4 + lane) * 9 + j] = sums[j];
        }
    }
    hopper::group_sync(2 + team, 32 * TEAM);
#pragma unroll
    for (int j = 0; j < 9; j++) {
        sums[j] = 0.0f;
#pragma unroll
        for (int w = 0; w < TEAM; w++) {
            sums[j] += v.head->sums[((team * TEAM + w) * 4 + lane % 4) * 9 + j];
        }
    }
    float u[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[j] = beta * (v.head->values[team][four + j] - sums[j]);
    }
    if (row == 0) {
        carry_decode_word *o = d.o + (((size_t)b * d.value_heads + head) * KEY + column + four) / 2;
        tell_four(o, sums[4] + sums[8] * u[0], sums[5] + sums[8] * u[1], sums[6] + sums[8] * u[2],
                  sums[7] + sums[8] * u[3], call.tag + op);
    }
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const float c = mine[KEY + row + 32 * j];
        __stcs((float4 *)(S + (size_t)(row + 32 * j) * KEY),
               make_float4(s[j].x + c * u[0], s[j].y + c * u[1], s[j].z + c * u[2], s[j].w + c * u[3]));
    }
}

static __device__ __forceinline__ void run_delta(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                 const view &v) {
    constexpr int TEAMS = WARPS / TEAM;
    for (int tile = first_tile(op) + (int)(threadIdx.x / (32 * TEAM) * gridDim.x); tile < op.tiles;
         tile += TEAMS * (int)gridDim.x) {
        delta_slice(call, op.as.delta, v, tile, i);
    }
}

} // namespace decode

#endif
