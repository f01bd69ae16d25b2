/* Diagonal transitions, time cut into segments that one block works on at once.

   A warp takes LONG neighbouring steps of its channels, all loads in flight together, and reduces them to one element
   (a, b); the segments' elements are combined through shared memory, by the method asked for; then each warp fills in its
   steps from the state that enters them, out of registers. Every byte moves once. Time beyond what a block holds at once
   goes tile after tile, the state carried from one to the next.

   The methods differ in how elements are combined, inside a segment and between segments:
     chunkwise      one after the other
     hillis_steele  by doubling
     blelloch       up a tree, then down with the operator itself
     cyclic         up a tree of pairs, then down filling in the even ones */
#include "scan/diagonal.cuh"

namespace {

constexpr int LANES = 32;

/* Steps of a segment, and segments of a block: what 64 registers a thread hold, so that two blocks of wide channels or
   one of single ones fill a multiprocessor. */
template <int V> constexpr int LONG_OF = V == 4 ? 4 : 8;
template <int V> constexpr int MOST_SEGMENTS = V == 1 ? 32 : 16;

/* A segment's element for one lane: a decay for its V channels, and V values. Laid out so that a warp's accesses meet
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
    /* element[later] = element[later] o element[earlier] */
    __device__ __forceinline__ void combine(int later, int earlier) const {
        float second = decay(later);
#pragma unroll
        for (int v = 0; v < V; v++) {
            value(later, v) = fmaf(second, value(earlier, v), value(later, v));
        }
        decay(later) = second * decay(earlier);
    }
};

/* After each of these element[s] is the combination of segments 0..s (inclusive prefixes). */
template <int V> static __device__ void prefix_chain(const exchange<V> &e, int segments) {
    if (threadIdx.y == 0) {
        for (int s = 1; s < segments; s++) {
            e.combine(s, s - 1);
        }
    }
    __syncthreads();
}

template <int V> static __device__ void prefix_doubling(const exchange<V> &e, int segments) {
    int s = (int)threadIdx.y;
    for (int distance = 1; distance < segments; distance *= 2) {
        float a = 1.0f;
        float b[V];
        bool moves = s >= distance;
        if (moves) {
            a = e.decay(s - distance);
#pragma unroll
            for (int v = 0; v < V; v++) {
                b[v] = e.value(s - distance, v);
            }
        }
        __syncthreads();
        if (moves) {
            float second = e.decay(s);
#pragma unroll
            for (int v = 0; v < V; v++) {
                e.value(s, v) = fmaf(second, b[v], e.value(s, v));
            }
            e.decay(s) = second * a;
        }
        __syncthreads();
    }
}

/* Up: element[i] covers 2^level segments; down: inclusive prefixes from the same tree. Any number of segments. The two
   methods share the way up; coming down blelloch combines whole elements (decays and values), cyclic only fills in
   values, since the prefix before an even one is a state already. Prefixes of decays are not needed by cyclic. */
template <int V, bool WITH_DECAYS> static __device__ void prefix_tree(const exchange<V> &e, int segments) {
    int s = (int)threadIdx.y;
    int width = 1;
    for (; width < segments; width *= 2) {
        if (s % (2 * width) == 2 * width - 1) {
            e.combine(s, s - width);
        }
        __syncthreads();
    }
    for (width /= 2; width >= 1; width /= 2) {
        if (s % (2 * width) == width - 1 && s >= 2 * width) {
            float second = e.decay(s);
#pragma unroll
            for (int v = 0; v < V; v++) {
                e.value(s, v) = fmaf(second, e.value(s - width, v), e.value(s, v));
            }
            if (WITH_DECAYS) {
                e.decay(s) = second * e.decay(s - width);
            }
        }
        __syncthreads();
    }
}

/* Reduces LONG elements to the last, in place, as a tree whose inner elements stay where the way down needs them. */
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

/* The states of LONG steps from the one that enters. */
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

/* The element of LONG steps without changing them: for the sequential form. */
template <int V, int LONG>
static __device__ __forceinline__ void total(float &decay, float (&value)[V], const float (&a)[LONG],
                                             const float (&b)[LONG][V]) {
    decay = a[0];
#pragma unroll
    for (int v = 0; v < V; v++) {
        value[v] = b[0][v];
    }
#pragma unroll
    for (int i = 1; i < LONG; i++) {
        decay *= a[i];
#pragma unroll
        for (int v = 0; v < V; v++) {
            value[v] = fmaf(a[i], value[v], b[i][v]);
        }
    }
}

template <int V, typename TB, typename TH, carry_cuda_method METHOD>
__global__ void __launch_bounds__(LANES *MOST_SEGMENTS<V>, V == 1 ? 1 : 2) segments_kernel(const carry_diagonal d) {
    constexpr int LONG = LONG_OF<V>;
    constexpr bool TREE = METHOD != CARRY_CUDA_CHUNKWISE;
    extern __shared__ float shared[];
    int segments = (int)blockDim.y;
    int segment = (int)threadIdx.y;
    exchange<V> e = {shared, shared + segments * LANES};
    int channel = (int)(blockIdx.x * LANES + threadIdx.x) * V;
    int item = (int)blockIdx.y;
    bool inside = channel < d.channels;
    int64_t a_at = item * d.A.item + (inside ? channel / d.width : 0);
    int64_t b_at = item * d.b.item + channel;
    int64_t h_at = item * d.h.item + channel;
    float state[V] = {};
    if (inside) {
        carry_initial<V>(state, d, item, channel);
    }
    for (int64_t tile = 0; tile < d.steps; tile += (int64_t)segments * LONG) {
        int64_t first = tile + segment * LONG;
        carry_channels<V, TB, TH> raw[LONG];
        carry_bits decays[LONG];
        float a[LONG];
        float b[LONG][V];
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            if (inside && first + i < d.steps) {
                decays[i].load(d.A, a_at + (first + i) * d.A.step);
                raw[i].load(d.b, b_at + (first + i) * d.b.step);
            }
        }
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            bool real = inside && first + i < d.steps;
            a[i] = real ? decays[i].value(d.A.type) : 1.0f;
            if (real) {
                raw[i].expand(b[i], d.b);
            } else {
#pragma unroll
                for (int v = 0; v < V; v++) {
                    b[i][v] = 0.0f;
                }
            }
        }
        if (TREE) {
            reduce<V, LONG>(a, b);
            e.decay(segment) = a[LONG - 1];
#pragma unroll
            for (int v = 0; v < V; v++) {
                e.value(segment, v) = b[LONG - 1][v];
            }
        } else {
            float decay;
            float value[V];
            total<V, LONG>(decay, value, a, b);
            e.decay(segment) = decay;
#pragma unroll
            for (int v = 0; v < V; v++) {
                e.value(segment, v) = value[v];
            }
        }
        /* The state that enters the tile joins the first segment, so that prefixes are states. */
        if (segment == 0) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                e.value(0, v) = fmaf(e.decay(0), state[v], e.value(0, v));
            }
        }
        __syncthreads();
        if (METHOD == CARRY_CUDA_CHUNKWISE) {
            prefix_chain<V>(e, segments);
        } else if (METHOD == CARRY_CUDA_HILLIS_STEELE) {
            prefix_doubling<V>(e, segments);
        } else {
            prefix_tree<V, METHOD == CARRY_CUDA_BLELLOCH>(e, segments);
        }
        float before[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
            before[v] = segment == 0 ? state[v] : e.value(segment - 1, v);
            state[v] = e.value(segments - 1, v);
        }
        fill<V, LONG, TREE>(a, b, before);
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            if (inside && first + i < d.steps) {
                carry_channels<V, TB, TH>::store(d.h, h_at + (first + i) * d.h.step, b[i]);
            }
        }
        __syncthreads(); /* the next tile writes the elements again */
    }
}

template <int V, typename TB, typename TH> static void launch(const carry_diagonal &d, carry_cuda_method method,
                                                              int segments, cudaStream_t stream) {
    dim3 grid((unsigned)((d.channels / V + LANES - 1) / LANES), (unsigned)d.items);
    segments = segments < MOST_SEGMENTS<V> ? segments : MOST_SEGMENTS<V>;
    dim3 block(LANES, (unsigned)segments);
    size_t shared = (size_t)segments * LANES * (1 + V) * sizeof(float);
    switch (method) {
    case CARRY_CUDA_HILLIS_STEELE:
        segments_kernel<V, TB, TH, CARRY_CUDA_HILLIS_STEELE><<<grid, block, shared, stream>>>(d);
        break;
    case CARRY_CUDA_BLELLOCH:
        segments_kernel<V, TB, TH, CARRY_CUDA_BLELLOCH><<<grid, block, shared, stream>>>(d);
        break;
    case CARRY_CUDA_CYCLIC:
        segments_kernel<V, TB, TH, CARRY_CUDA_CYCLIC><<<grid, block, shared, stream>>>(d);
        break;
    default:
        segments_kernel<V, TB, TH, CARRY_CUDA_CHUNKWISE><<<grid, block, shared, stream>>>(d);
        break;
    }
}

} // namespace

cudaError_t carry_diagonal_segments(const carry_diagonal &d, bool wide, carry_cuda_method method, int segments,
                                    cudaStream_t stream) {
#define LAUNCH(V, TB, TH) launch<V, TB, TH>(d, method, segments, stream)
    CARRY_DIAGONAL_TYPES(d, wide, 4, LAUNCH);
#undef LAUNCH
    return cudaGetLastError();
}
