/* Diagonal transitions, with time divided into segments that one block processes in parallel.

   A warp takes LONG adjacent steps of its channels, with all loads in flight together, and reduces them to one
   element (a, b). The elements of the segments are combined through shared memory by the chosen method. Then each
   warp fills in its steps, which are still in registers, from the state that enters them. Every byte moves once. If
   a block cannot hold all of time at once, it goes tile by tile and carries the state from one to the next.

   The methods differ in how elements are combined. Inside a segment, chunkwise combines them one after the other, and
   the other methods as a tree. Between segments:
     chunkwise      one after the other
     hillis_steele  by doubling
     blelloch       up a tree, then down with whole elements (decays and values)
     cyclic         up the same tree, then down with values only
   With one channel for each thread, blelloch and cyclic both use tree_over. */
#include "scan/cuda/diagonal.cuh"

namespace {

constexpr int LANES = 32;

/* The steps of a segment, and the segments of a block. Wide channels use at most 64 registers for each thread, so that
   two blocks fit on a multiprocessor. Single channels are for problems too small to fill the GPU, where fewer, longer
   segments have less to exchange (16 steps: 2.36 us for 256 steps where 8 took 2.90). */
template <int V> constexpr int LONG_OF = V == 1 ? 16 : 4;
template <int V> constexpr int MOST_SEGMENTS = 16;

/* A segment's element for one lane: one decay for its V channels, and V values. In this layout a warp's accesses use
   every bank once. */
template <int V> struct exchange {
    float *a; /* [segments][LANES] */
    float *b; /* [segments][V][LANES] */

    __device__ __forceinline__ float &decay(int segment) const {
        return a[segment * LANES + (int)threadIdx.x];
    }
    __device__ __forceinline__ float &value(int segment, int v) const {
        return b[(segment * V + v) * LANES + (int)threadIdx.x];
    }
    __device__ __forceinline__ void put(int segment, float a_value, const float (&b_value)[V]) const {
        decay(segment) = a_value;
#pragma unroll
        for (int v = 0; v < V; v++) {
            value(segment, v) = b_value[v];
        }
    }
};

/* The functions below set element[s] to the combination of segments 0..s, an inclusive prefix. Since segment 0 includes
   the state that enters the tile, the value of each prefix is the state at the end of segment s. */
/* Each round writes one half of the exchange and reads the other, so that one barrier for each round is enough. Returns
   the half that was written last. */
template <int V>
static __device__ exchange<V> prefix_doubling(exchange<V> here, exchange<V> there, float a, float (&b)[V],
                                              int segments) {
    int s = (int)threadIdx.y;
    for (int distance = 1; distance < segments; distance *= 2) {
        if (s >= distance) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[v] = fmaf(a, here.value(s - distance, v), b[v]);
            }
            a *= here.decay(s - distance);
        }
        there.put(s, a, b);
        __syncthreads();
        exchange<V> last = here;
        here = there;
        there = last;
    }
    return here;
}

/* The tree of blelloch and cyclic, for any number of segments. Up: at each `width`, element s with s + 1 a multiple of
   2 width absorbs element s - width, and then covers 2 width segments. Down: element s with s + 1 an odd multiple of
   `width` (3 or more) absorbs element s - width, which is already a prefix, and becomes a prefix too. On the way down
   blelloch combines whole elements (decays and values). cyclic combines only the values, which is enough since every
   prefix is a state. A warp keeps its own element in registers. */
template <int V, bool WITH_DECAYS>
static __device__ void prefix_tree(const exchange<V> &e, float a, float (&b)[V], int segments) {
    int s = (int)threadIdx.y;
    int width = 1;
    for (; width < segments; width *= 2) {
        if ((s & (2 * width - 1)) == 2 * width - 1) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[v] = fmaf(a, e.value(s - width, v), b[v]);
            }
            a *= e.decay(s - width);
            e.put(s, a, b);
        }
        __syncthreads();
    }
    for (width /= 4; width >= 1; width /= 2) { /* the top has one element, with nothing before it */
        if ((s & (2 * width - 1)) == width - 1 && s >= 2 * width) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[v] = fmaf(a, e.value(s - width, v), b[v]);
                e.value(s, v) = b[v];
            }
            if (WITH_DECAYS) {
                a *= e.decay(s - width);
                e.decay(s) = a;
            }
        }
        __syncthreads();
    }
}

/* Reduces LONG elements to the last, in place, as a tree. The inner elements stay where the way down needs them. */
template <int V, int LONG> static __device__ __forceinline__ void reduce(float (&a)[LONG], float (&b)[LONG][V]) {
#pragma unroll
    for (int width = 1; width < LONG; width *= 2) {
#pragma unroll
        for (int i = 2 * width - 1; i < LONG; i += 2 * width) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[i][v] = fmaf(a[i], b[i - width][v], b[i][v]);
            }
            a[i] *= a[i - width];
        }
    }
}

/* Computes the states of LONG steps from the state that enters. */
template <int V, int LONG, bool TREE>
static __device__ __forceinline__ void fill(float (&a)[LONG], float (&b)[LONG][V], const float (&state)[V]) {
    if (TREE) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            b[LONG - 1][v] = fmaf(a[LONG - 1], state[v], b[LONG - 1][v]);
        }
#pragma unroll
        for (int width = LONG / 2; width >= 1; width /= 2) {
#pragma unroll
            for (int i = width - 1; i < LONG; i += 2 * width) {
#pragma unroll
                for (int v = 0; v < V; v++) {
                    float before = i < width ? state[v] : b[i < width ? 0 : i - width][v];
                    b[i][v] = fmaf(a[i], before, b[i][v]);
                }
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < LONG; i++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[i][v] = fmaf(a[i], i == 0 ? state[v] : b[i == 0 ? 0 : i - 1][v], b[i][v]);
            }
        }
    }
}

/* Computes the state that enters a segment, and the state that leaves the tile, by a tree in registers. Every warp
   reads all elements and needs no further barrier. For single channels, which leave enough registers. */
static __device__ __forceinline__ void tree_over(float (&before)[1], float (&state)[1], const exchange<1> &e,
                                                 int segment, int segments) {
    constexpr int MOST = MOST_SEGMENTS<1>;
    float a[MOST];
    float b[MOST][1];
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        a[s] = s < segments ? e.decay(s) : 1.0f;
        b[s][0] = s < segments ? e.value(s, 0) : 0.0f;
    }
    reduce<1, MOST>(a, b);
    fill<1, MOST, true>(a, b, state);
    before[0] = state[0];
#pragma unroll
    for (int s = 1; s < MOST; s++) {
        before[0] = s == segment ? b[s - 1][0] : before[0];
    }
    state[0] = b[MOST - 1][0];
}

/* Computes the state that enters a segment, and the state that leaves the tile, by a walk over the segments' elements,
   whose loads do not depend on each other. */
template <int V>
static __device__ __forceinline__ void walk_over(float (&before)[V], float (&state)[V], const exchange<V> &e,
                                                 int segment, int segments) {
    float at[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        at[v] = before[v] = state[v];
    }
#pragma unroll 8
    for (int s = 0; s < segments; s++) {
        float decay = e.decay(s);
#pragma unroll
        for (int v = 0; v < V; v++) {
            at[v] = fmaf(decay, at[v], e.value(s, v));
            before[v] = s + 1 == segment ? at[v] : before[v];
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        state[v] = at[v];
    }
}

template <int V, typename TA, typename TB, typename TH, carry_cuda_method METHOD>
__global__ void __launch_bounds__(LANES *MOST_SEGMENTS<V>, V == 1 ? 1 : 2) segments_kernel(const carry_diagonal d) {
    constexpr int LONG = LONG_OF<V>;
    constexpr bool TREE = METHOD != CARRY_CUDA_CHUNKWISE;
    /* Each warp computes the tree alone: 7 barriers less (docs/attempts/cuda.md). */
    constexpr bool ALONE = V == 1 && (METHOD == CARRY_CUDA_BLELLOCH || METHOD == CARRY_CUDA_CYCLIC);
    extern __shared__ float shared[];
    int segments = (int)blockDim.y;
    int segment = (int)threadIdx.y;
    exchange<V> e = {shared, shared + segments * LANES};
    int channel = (int)(blockIdx.x * LANES + threadIdx.x) * V;
    int item = (int)blockIdx.y;
    bool inside = channel < d.channels;
    int64_t first = segment * LONG;
    const TA *a_at = static_cast<const TA *>(d.A.data) + item * d.A.item + first * d.A.step;
    const TB *b_at = static_cast<const TB *>(d.b.data) + item * d.b.item + first * d.b.step + channel;
    TH *h_at = static_cast<TH *>(d.h.data) + item * d.h.item + first * d.h.step + channel;
    a_at += inside ? carry_row(d, channel) : 0;
    float state[V] = {};
    if (inside) {
        carry_initial<V>(state, d, item, channel);
    }
    int tile = segments * LONG;
    for (int64_t left = d.steps - first;; left -= tile) { /* left: steps from here on */
        carry_segment<V, LONG, TA, TB> raw;
        float a[LONG];
        float b[LONG][V];
        if (inside && left >= LONG) {
            raw.load(a_at, d.A.step, b_at, d.b.step);
        } else {
            raw.load_some(a_at, d.A.step, b_at, d.b.step, inside ? left : 0);
        }
        raw.expand(a, b);
        float decay;
        float value[V];
        if (TREE) {
            reduce<V, LONG>(a, b);
            decay = a[LONG - 1];
#pragma unroll
            for (int v = 0; v < V; v++) {
                value[v] = b[LONG - 1][v];
            }
            if (segment == 0 && !ALONE) {
#pragma unroll
                for (int v = 0; v < V; v++) {
                    value[v] = fmaf(decay, state[v], value[v]);
                }
            }
        } else {
            carry_total<V, LONG>(decay, value, a, b);
        }
        e.put(segment, decay, value);
        __syncthreads();
        float before[V];
        if (METHOD == CARRY_CUDA_CHUNKWISE) {
            walk_over<V>(before, state, e, segment, segments);
        } else if constexpr (ALONE) {
            tree_over(before, state, e, segment, segments);
        } else {
            exchange<V> done = e;
            if (METHOD == CARRY_CUDA_HILLIS_STEELE) {
                float *half = shared + segments * LANES * (1 + V);
                done = prefix_doubling<V>(e, {half, half + segments * LANES}, decay, value, segments);
            } else {
                prefix_tree<V, METHOD == CARRY_CUDA_BLELLOCH>(e, decay, value, segments);
            }
#pragma unroll
            for (int v = 0; v < V; v++) {
                before[v] = segment == 0 ? state[v] : done.value(segment - 1, v);
                state[v] = done.value(segments - 1, v);
            }
        }
        fill<V, LONG, TREE>(a, b, before);
        if (inside) {
            carry_store_steps<V, LONG, TH>(h_at, d.h.step, b, left);
        }
        if (left - tile + first <= 0) { /* the same for every thread of the block */
            break;
        }
        a_at += (int64_t)tile * d.A.step;
        b_at += (int64_t)tile * d.b.step;
        h_at += (int64_t)tile * d.h.step;
        __syncthreads(); /* the next tile overwrites the elements */
    }
}

template <int V, typename TA, typename TB, typename TH>
static void launch(const carry_diagonal &d, carry_cuda_method method, cudaStream_t stream) {
    int segments = 1;
    while (segments < MOST_SEGMENTS<V> && (int64_t)segments * LONG_OF<V> < d.steps) {
        segments *= 2;
    }
    dim3 grid((unsigned)((d.channels / V + LANES - 1) / LANES), (unsigned)d.items);
    dim3 block(LANES, (unsigned)segments);
    size_t shared = (size_t)segments * LANES * (1 + V) * sizeof(float);
    shared *= method == CARRY_CUDA_HILLIS_STEELE ? 2 : 1;
    switch (method) {
    case CARRY_CUDA_HILLIS_STEELE:
        segments_kernel<V, TA, TB, TH, CARRY_CUDA_HILLIS_STEELE><<<grid, block, shared, stream>>>(d);
        break;
    case CARRY_CUDA_BLELLOCH:
        segments_kernel<V, TA, TB, TH, CARRY_CUDA_BLELLOCH><<<grid, block, shared, stream>>>(d);
        break;
    case CARRY_CUDA_CYCLIC:
        segments_kernel<V, TA, TB, TH, CARRY_CUDA_CYCLIC><<<grid, block, shared, stream>>>(d);
        break;
    default:
        segments_kernel<V, TA, TB, TH, CARRY_CUDA_CHUNKWISE><<<grid, block, shared, stream>>>(d);
        break;
    }
}

} // namespace

cudaError_t carry_diagonal_segments(const carry_diagonal &d, bool wide, carry_cuda_method method, cudaStream_t stream) {
#define LAUNCH(V, TA, TB, TH) launch<V, TA, TB, TH>(d, method, stream)
    if (wide) {
        CARRY_DIAGONAL_TYPES(d, 4, 4, LAUNCH);
    } else {
        CARRY_DIAGONAL_TYPES(d, 1, 1, LAUNCH);
    }
#undef LAUNCH
    return cudaGetLastError();
}
