/* Diagonal transitions by decoupled look-back: time is cut into tiles, a block takes the next tile that is free, reduces
   it, publishes its element, finds the state that enters it from the tiles before, publishes the state that leaves it, and
   fills in its steps. One pass over memory, and as many blocks at work as the GPU holds however long the sequence.

   A block that finds no state before it yet goes back over published elements until it meets a state, and then applies
   the elements forwards from there. Since the state that a tile publishes is computed by that very application, the
   result does not depend on who was faster: it is the same in every run. */
#include "scan/diagonal.cuh"

namespace {

constexpr int LANES = 32;
constexpr int LONG = 8;
constexpr int SEGMENTS = CARRY_LOOKBACK_STEPS / LONG;
constexpr int MOST_BACK = 64;

enum : unsigned { EMPTY = 0, ELEMENT = 1, STATE = 2 };

__device__ __forceinline__ unsigned read_flag(const unsigned *flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ __forceinline__ void write_flag(unsigned *flag, unsigned value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/* The number of the next tile of this strip (a block of channels of one sequence): tiles are taken in order, so those
   before ours are done or under way, and waiting for them ends. */
template <int V, typename TA, typename TB, typename TH>
__global__ void __launch_bounds__(LANES *SEGMENTS) lookback_kernel(const carry_diagonal d) {
    __shared__ float shared_a[SEGMENTS][LANES];
    __shared__ float shared_b[SEGMENTS][V][LANES];
    __shared__ unsigned taken;
    __shared__ int from; /* the tile whose state is there */
    int segment = (int)threadIdx.y;
    int lane = (int)threadIdx.x;
    int strips = d.channel_blocks * d.items;
    unsigned *counter = d.flags;
    unsigned *flags = d.flags + 1;
    if (segment == 0 && lane == 0) {
        taken = atomicAdd(counter, 1u); /* over all strips at once: strip after strip within one tile of time */
    }
    __syncthreads();
    int tile = (int)(taken / (unsigned)strips);
    int strip = (int)(taken % (unsigned)strips);
    int item = strip / d.channel_blocks;
    int channel = (strip % d.channel_blocks * LANES + lane) * V;
    bool inside = channel < d.channels;
    int64_t first = ((int64_t)tile * SEGMENTS + segment) * LONG;
    int64_t left = inside ? d.steps - first : 0;
    carry_segment<V, LONG, TA, TB> raw;
    const TA *a_at =
        static_cast<const TA *>(d.A.data) + item * d.A.item + first * d.A.step + (inside ? carry_row(d, channel) : 0);
    const TB *b_at = static_cast<const TB *>(d.b.data) + item * d.b.item + first * d.b.step + channel;
    if (left >= LONG) {
        raw.load(a_at, d.A.step, b_at, d.b.step);
    } else {
        raw.load_some(a_at, d.A.step, b_at, d.b.step, left);
    }
    float a[LONG];
    float b[LONG][V];
    float decay;
    float value[V];
    raw.expand(a, b);
    carry_total<V, LONG>(decay, value, a, b);
    shared_a[segment][lane] = decay;
#pragma unroll
    for (int v = 0; v < V; v++) {
        shared_b[segment][v][lane] = value[v];
    }
    __syncthreads();
    /* The tile's element, and what enters each segment relative to the tile's start: by the first warp. */
    int64_t record = (int64_t)strip * d.tiles + tile;
    constexpr int WORDS = (1 + 2 * V) * LANES; /* decay, value, state */
    float *mine = d.totals + record * WORDS;
    float entering[V] = {};
    if (segment == 0) {
        for (int s = 1; s < SEGMENTS; s++) {
            float second = shared_a[s][lane];
            shared_a[s][lane] = second * shared_a[s - 1][lane];
#pragma unroll
            for (int v = 0; v < V; v++) {
                shared_b[s][v][lane] = fmaf(second, shared_b[s - 1][v][lane], shared_b[s][v][lane]);
            }
        }
        decay = shared_a[SEGMENTS - 1][lane];
        mine[lane] = decay;
#pragma unroll
        for (int v = 0; v < V; v++) {
            value[v] = shared_b[SEGMENTS - 1][v][lane];
            mine[(1 + v) * LANES + lane] = value[v];
        }
        __syncwarp();
        if (lane == 0 && tile > 0) {
            write_flag(&flags[record], ELEMENT);
        }
        if (tile == 0) {
            if (inside) {
                carry_initial<V>(entering, d, item, channel);
            }
        } else {
            if (lane == 0) {
                int at = tile - 1;
                for (;;) {
                    unsigned flag = read_flag(&flags[record - tile + at]);
                    if (flag == STATE) {
                        break;
                    }
                    if (flag == ELEMENT && at > 0 && tile - at < MOST_BACK) {
                        at--;
                    } else {
                        __nanosleep(20);
                    }
                }
                from = at;
            }
            __syncwarp();
            const float *other = d.totals + (record - tile + from) * WORDS;
#pragma unroll
            for (int v = 0; v < V; v++) {
                entering[v] = __ldcg(&other[(1 + V + v) * LANES + lane]);
            }
            for (int k = from + 1; k < tile; k++) {
                other = d.totals + (record - tile + k) * WORDS;
                float second = __ldcg(&other[lane]);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    entering[v] = fmaf(second, entering[v], __ldcg(&other[(1 + v) * LANES + lane]));
                }
            }
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            mine[(1 + V + v) * LANES + lane] = fmaf(decay, entering[v], value[v]);
        }
        __syncwarp();
        if (lane == 0) {
            write_flag(&flags[record], STATE);
        }
        /* What enters segment s + 1 is prefix s applied to what enters the tile. */
        for (int s = 0; s < SEGMENTS; s++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                shared_b[s][v][lane] = fmaf(shared_a[s][lane], entering[v], shared_b[s][v][lane]);
            }
        }
    }
    __syncthreads();
    float state[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        state[v] = segment == 0 ? entering[v] : shared_b[segment > 0 ? segment - 1 : 0][v][lane];
    }
#pragma unroll
    for (int i = 0; i < LONG; i++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            b[i][v] = state[v] = fmaf(a[i], state[v], b[i][v]);
        }
    }
    TH *h_at = static_cast<TH *>(d.h.data) + item * d.h.item + first * d.h.step + channel;
    carry_store_steps<V, LONG, TH>(h_at, d.h.step, b, left);
}

} // namespace

cudaError_t carry_diagonal_lookback(const carry_diagonal &d, bool wide, cudaStream_t stream) {
    size_t strips = (size_t)d.channel_blocks * (size_t)d.items;
    cudaError_t error = cudaMemsetAsync(d.flags, 0, (1 + strips * (size_t)d.tiles) * sizeof *d.flags, stream);
    if (error != cudaSuccess) {
        return error;
    }
    dim3 block(LANES, SEGMENTS);
    unsigned grid = (unsigned)(strips * (size_t)d.tiles);
#define LAUNCH(V, TA, TB, TH) lookback_kernel<V, TA, TB, TH><<<grid, block, 0, stream>>>(d)
    if (wide) {
        CARRY_DIAGONAL_TYPES(d, 4, 4, LAUNCH);
    } else {
        CARRY_DIAGONAL_TYPES(d, 1, 1, LAUNCH);
    }
#undef LAUNCH
    return cudaGetLastError();
}
