/* Diagonal transitions by decoupled look-back. Time is divided into tiles. A block takes the next free tile, reduces
   it, publishes its element, finds the state that enters it from the tiles before, publishes the state that leaves
   it, and fills in its steps. This is one pass over memory, and all blocks that the GPU holds are busy for any
   length of the sequence.

   If the tile before has no state yet, a block goes back over published elements until it finds a state, and then
   applies the elements forwards from there. The state that a tile publishes is computed by the same operations, so
   the result does not depend on timing: it is the same in every run. */
#include "scan/cuda/diagonal.cuh"

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

/* Values exchanged by the segments of a tile: elements, then final states. */
template <int V> struct segment_elements {
    float a[SEGMENTS][LANES];
    float b[SEGMENTS][V][LANES];
};

/* A tile's published result: decay, value and state of every lane. */
template <int V> struct tile_record {
    static constexpr int WORDS = (1 + 2 * V) * LANES;
    float *words;

    __device__ tile_record(const carry_diagonal &d, int64_t number) : words(d.totals + number * WORDS) {
    }
    __device__ __forceinline__ float *decay() const {
        return words + threadIdx.x;
    }
    __device__ __forceinline__ float *value(int v) const {
        return words + (1 + v) * LANES + threadIdx.x;
    }
    __device__ __forceinline__ float *state(int v) const {
        return words + (1 + V + v) * LANES + threadIdx.x;
    }
};

/* Turns the segments' elements into prefixes of the tile. Run by the first warp, like all functions below. */
template <int V> __device__ __forceinline__ void combine_segments(segment_elements<V> &s) {
    int lane = (int)threadIdx.x;
    for (int i = 1; i < SEGMENTS; i++) {
        float second = s.a[i][lane];
        s.a[i][lane] = second * s.a[i - 1][lane];
#pragma unroll
        for (int v = 0; v < V; v++) {
            s.b[i][v][lane] = fmaf(second, s.b[i - 1][v][lane], s.b[i][v][lane]);
        }
    }
}

/* Computes the state that enters tile `tile` > 0 of the strip whose first record is `first`: the nearest published
   state before it, with the elements of the tiles between applied to it. */
template <int V>
__device__ __forceinline__ void look_back(float (&entering)[V], const carry_diagonal &d, const unsigned *flags,
                                          int64_t first, int tile) {
    int from = tile - 1;
    if (threadIdx.x == 0) {
        for (;;) {
            unsigned flag = read_flag(&flags[first + from]);
            if (flag == STATE) {
                break;
            }
            if (flag == ELEMENT && from > 0 && tile - from < MOST_BACK) {
                from--;
            } else {
                __nanosleep(20);
            }
        }
    }
    from = __shfl_sync(0xffffffffu, from, 0);
    tile_record<V> there(d, first + from);
#pragma unroll
    for (int v = 0; v < V; v++) {
        entering[v] = __ldcg(there.state(v));
    }
    for (int k = from + 1; k < tile; k++) {
        tile_record<V> between(d, first + k);
        float second = __ldcg(between.decay());
#pragma unroll
        for (int v = 0; v < V; v++) {
            entering[v] = fmaf(second, entering[v], __ldcg(between.value(v)));
        }
    }
}

/* Publishes the tile's element, finds the state that enters the tile, and publishes the state that leaves it. The
   segments' prefixes become the states that leave the segments. */
template <int V>
__device__ __forceinline__ void publish(float (&entering)[V], segment_elements<V> &s, const carry_diagonal &d,
                                        unsigned *flags, int64_t first, int tile) {
    int lane = (int)threadIdx.x;
    tile_record<V> mine(d, first + tile);
    float decay = s.a[SEGMENTS - 1][lane];
    float value[V];
    *mine.decay() = decay;
#pragma unroll
    for (int v = 0; v < V; v++) {
        value[v] = s.b[SEGMENTS - 1][v][lane];
        *mine.value(v) = value[v];
    }
    __syncwarp();
    if (tile > 0) {
        if (lane == 0) {
            write_flag(&flags[first + tile], ELEMENT);
        }
        look_back<V>(entering, d, flags, first, tile);
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        *mine.state(v) = fmaf(decay, entering[v], value[v]);
    }
    __syncwarp();
    if (lane == 0) {
        write_flag(&flags[first + tile], STATE);
    }
    for (int i = 0; i < SEGMENTS; i++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            s.b[i][v][lane] = fmaf(s.a[i][lane], entering[v], s.b[i][v][lane]);
        }
    }
}

/* Tiles of a strip (a block of channels of one sequence) are taken in order, so earlier tiles are done or in progress,
   and the wait for them ends. */
template <int V, typename TA, typename TB, typename TH>
__global__ void __launch_bounds__(LANES *SEGMENTS) lookback_kernel(const carry_diagonal d) {
    __shared__ segment_elements<V> s;
    __shared__ unsigned taken;
    int segment = (int)threadIdx.y;
    int lane = (int)threadIdx.x;
    int strips = d.channel_blocks * d.items;
    if (segment == 0 && lane == 0) {
        taken = atomicAdd(d.flags, 1u); /* counts over all strips: all strips of one tile of time, then the next tile */
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
    float state[V];
    raw.expand(a, b);
    carry_total<V, LONG>(decay, state, a, b);
    s.a[segment][lane] = decay;
#pragma unroll
    for (int v = 0; v < V; v++) {
        s.b[segment][v][lane] = state[v];
    }
    __syncthreads();
    float entering[V] = {};
    if (segment == 0) {
        if (tile == 0 && inside) {
            carry_initial<V>(entering, d, item, channel);
        }
        combine_segments<V>(s);
        publish<V>(entering, s, d, d.flags + 1, (int64_t)strip * d.tiles, tile);
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; v++) {
        state[v] = segment == 0 ? entering[v] : s.b[segment > 0 ? segment - 1 : 0][v][lane];
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
