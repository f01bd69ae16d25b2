/* scan: the chunks of one sequence, one after the other.

   A working warpgroup holds the transposed state S [64 values x 128 keys] in registers, where it is both an
   accumulator and, rounded, the left operand of products. In the formulas below, Q and K are normalised and have tokens
   as rows; X, V, V', R, Y and dO have values as rows; left = e^(G[C]-G). It computes in this order

       X = S K^T;   R = beta (V - e^G X);   V' = R T^T;   S = e^G[C] S + (left V') K

   and puts the rounded state and R into shared memory. From them another warpgroup at the same time computes the
   outputs with tokens as rows, scale e^G Q S^T + W R^T, and stores them. One thread starts the copies of tiles, STAGES
   ahead. Each of the GROUPS working warpgroups has 64 values of one value head.

   For the backward pass the same kernel has two more kinds. KEEP stores the state that enters every chunk and V'
   instead of making outputs. BACK walks the chunks from the last to the first with the state's gradient dS:

       Y = (left (dS K^T)) T + dO W;   dS = e^G[C] dS + (scale e^G dO) Q - (beta e^G Y) K

   and stores the dS of the state that leaves every chunk, and beta Y, which is the gradient of v.

   If there are too few heads and sequences to fill the GPU, the segments of a sequence are walked at once. PAIR
   computes for each segment its map S -> M S + L: L is the final state from a zero initial state (in the first
   segment, from the given one), M the final state from the identity with v = 0. In the backward pass the map is dS
   -> M^T dS + c with the same M, and BACK_PAIR computes c in place of L. */
#ifndef CARRY_DELTA_CHUNK_SCAN_CUH
#define CARRY_DELTA_CHUNK_SCAN_CUH

#include "delta/cuda/chunk/output.cuh"
#include "delta/cuda/chunk/worker.cuh"

namespace DELTA_CHUNK {

/* Blocks from index `blocks` on belong to the second kind. In the backward pass, states and their gradients do not
   depend on each other, so both walks run at once. */
struct scan_launch {
    scan_args first, second;
    unsigned blocks;
};

/* True if the block has no work. */
template <typename Shape> static __device__ __forceinline__ bool idle(const scan_args &a, const scan_item &item) {
    const shape &s = a.s;
    return (a.r.each > 0 && item.chunks <= 0) || (Shape::KIND == BACK_PAIR && item.segment == 0 && !a.whole) ||
           (Shape::KIND == PAIR && item.band >= (item.map ? s.key_bands : s.bands)) ||
           (Shape::KIND == PAIR && !a.whole && (item.segment + 1 == s.segments || (item.map && item.segment == 0)));
}

template <typename Shape, typename Barriers>
static __device__ __forceinline__ scan_places<Shape> places_of(char *memory, Barriers &b) {
    using namespace hopper;
    scan_places<Shape> p;
    p.start = (shared_address(memory) + 1023u) & ~1023u;
    p.data = memory + (p.start - shared_address(memory));
    p.full = shared_address(b.full);
    p.empty = shared_address(b.empty);
    p.values = shared_address(b.values);
    p.state = shared_address(&b.state);
    p.state_read = shared_address(&b.state_read);
    p.bad = b.first_bad;
    return p;
}

template <typename Shape> static __device__ __forceinline__ void init_barriers(const scan_places<Shape> &p) {
    using namespace hopper;
    constexpr int READERS = Shape::KIND == FORWARD ? 4 * ARRIVING
                            : Shape::LOCAL         ? 0
                                                   : 1; /* number of readers of the rounded state and V' */
    for (int i = 0; i < Shape::STAGES; i++) {
        barrier_init(p.full + 8 * i, 1);
        barrier_init(p.empty + 8 * i, 4 * Shape::GROUPS * ARRIVING + READERS);
        barrier_init(p.values + 8 * i, 4 * Shape::GROUPS * ARRIVING);
    }
    barrier_init(p.state, 4 * Shape::GROUPS * ARRIVING);
    barrier_init(p.state_read, READERS > 0 ? READERS : 1);
    fence_async();
}

template <typename Shape>
static __device__ __forceinline__ void run_output(const scan_args &a, const scan_item &item,
                                                  const scan_places<Shape> &p, int warp, int lane) {
    if constexpr (Shape::KIND == FORWARD) {
        scan_output<Shape> me = {a, item, p, warp, lane};
        me.run();
    } else if (!Shape::LOCAL && warp == 0) {
        keep_chunks<Shape>(a, item, p, lane);
    }
}

template <typename Shape>
static __device__ __forceinline__ void run_worker(const scan_args &a, const scan_item &item,
                                                  const scan_places<Shape> &p, int group, int warp, int lane) {
    scan_worker<Shape> me = {a, item, p, group, warp, lane};
    me.run();
}

/* First and Second differ only in their kind. If they are the same type, there is only one kind. */
template <typename First, typename Second>
__global__ void __launch_bounds__(First::THREADS, 1) scan(const __grid_constant__ scan_launch l) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ scan_barriers<(First::STAGES > Second::STAGES ? First::STAGES : Second::STAGES)> b;
    bool second = First::KIND != Second::KIND && blockIdx.x >= l.blocks;
    scan_places<First> p = places_of<First>(memory, b);
    scan_places<Second> p2 = places_of<Second>(memory, b);
    scan_item item = second ? item_of<Second>(l.second.s, l.second.r, blockIdx.x - l.blocks)
                            : item_of<First>(l.first.s, l.first.r, blockIdx.x);
    if (second ? idle<Second>(l.second, item) : idle<First>(l.first, item)) {
        return;
    }
    if (second) {
        clear_triangles(p2, (int)threadIdx.x);
    } else {
        clear_triangles(p, (int)threadIdx.x);
    }
    if (threadIdx.x == 0) {
        if (second) {
            init_barriers(p2);
        } else {
            init_barriers(p);
        }
    }
    __syncthreads();
    int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
    if (group == First::GROUPS + 1) {
        registers_give<24>();
        if (threadIdx.x % 128 == 0) {
            if (second) {
                copy_chunks<Second>(l.second, item, p2);
            } else {
                copy_chunks<First>(l.first, item, p);
            }
        }
    } else if (group == First::GROUPS) {
        registers_give<First::OUT_REGISTERS>();
        if (second) {
            run_output<Second>(l.second, item, p2, warp, lane);
        } else {
            run_output<First>(l.first, item, p, warp, lane);
        }
    } else {
        registers_take<First::WORK_REGISTERS>();
        if (second) {
            run_worker<Second>(l.second, item, p2, group, warp, lane);
        } else {
            run_worker<First>(l.first, item, p, group, warp, lane);
        }
    }
#endif
}

/* sum += M S for 16 rows of values. The rows of S are keys. */
static __device__ __forceinline__ void add_product(float (&sum)[16], const float *M, int by_sum,
                                                   const float (&S)[D][16 + 4], int keys) {
#pragma unroll 32 /* many loads of M in flight: their latency bounds the walk over segments */
    for (int c = 0; c < keys; c++) {
        float m = M[c * by_sum];
        const float4 *s = (const float4 *)S[c];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float4 x = s[r];
            sum[4 * r] += m * x.x;
            sum[4 * r + 1] += m * x.y;
            sum[4 * r + 2] += m * x.z;
            sum[4 * r + 3] += m * x.w;
        }
    }
}

/* States that arrived after the pairs were computed, for the first segment (backward: the last): [sequences, heads,
   keys, values]. NULL: they were known before. */
struct arrived_states {
    const float *states;
    bool backward;
    int state_heads, values;
};

/* A thread of fix_up has one key, and a quarter of the keys of M that are summed over. */
constexpr int FIX_PARTS = 4, FIX_THREADS = FIX_PARTS * D, FIX_KEYS = D / FIX_PARTS, FIX_ROWS = 16;

/* A thread's elements of L and, with `map`, of M of a segment, loaded before they are needed. M[key][c] is stored at
   [c][key]. */
struct fix_operands {
    float M[FIX_KEYS], L[FIX_ROWS / FIX_PARTS];

    __device__ __forceinline__ void load(const float *pair, int row, int key, int part, bool backward, bool map) {
        const float *from = pair + PART_M * D * D;
        const float *own = pair + (backward ? PART_C : PART_L) * D * D + (row + FIX_ROWS / FIX_PARTS * part) * D + key;
#pragma unroll
        for (int r = 0; r < FIX_ROWS / FIX_PARTS; r++) {
            L[r] = own[r * D];
        }
        if (!map) {
            return;
        }
        if (backward) {
            const float4 *columns = (const float4 *)(from + key * D + FIX_KEYS * part);
#pragma unroll
            for (int c = 0; c < FIX_KEYS / 4; c++) {
                float4 x = columns[c];
                M[4 * c] = x.x;
                M[4 * c + 1] = x.y;
                M[4 * c + 2] = x.z;
                M[4 * c + 3] = x.w;
            }
        } else {
#pragma unroll
            for (int c = 0; c < FIX_KEYS; c++) {
                M[c] = from[(FIX_KEYS * part + c) * D + key];
            }
        }
    }
};

/* Computes the state that enters every segment and stores it over the L of the segment before: S' = M S + L, segment
   after segment. Blocks with z = 1 compute dS' = M^T dS + c from the last segment on. Each block has 16 rows of
   values. */
static __global__ void __launch_bounds__(FIX_THREADS)
    fix_up(float *pairs, int parts, int segments, int value_heads, int keys, arrived_states arrived) {
    constexpr int EACH = FIX_ROWS / FIX_PARTS; /* rows of a thread's results */
    __shared__ float S[D][FIX_ROWS + 4];       /* [key][row] */
    __shared__ float sums[FIX_PARTS][FIX_ROWS][D];
    int head = (int)blockIdx.y % value_heads, sequence = (int)blockIdx.y / value_heads;
    int key = (int)threadIdx.x % D, part = (int)threadIdx.x / D, row = (int)blockIdx.x * FIX_ROWS;
    bool backward = blockIdx.z == 1, late = arrived.states != nullptr && arrived.backward == backward;
    if (late && key < keys) {
        const float *from =
            arrived.states + (((int64_t)sequence * arrived.state_heads + head) * keys + key) * arrived.values;
#pragma unroll
        for (int r = EACH * part; r < EACH * (part + 1); r++) {
            S[key][r] = from[row + r];
        }
    }
    auto pair_of = [&](int i) {
        int segment = backward ? segments - 1 - i : i;
        return pairs + (((int64_t)(sequence * segments + segment) * value_heads + head) * parts) * D * D;
    };
    fix_operands now;
    now.load(pair_of(0), row, key, part, backward, late);
    __syncthreads();
    for (int i = 0; i + 1 < segments; i++) {
        bool adds = i > 0 || late;
        fix_operands next = now;
        if (i + 2 < segments) {
            next.load(pair_of(i + 1), row, key, part, backward, true);
        }
        float sum[FIX_ROWS] = {};
        if (adds && FIX_KEYS * part < keys) {
#pragma unroll
            for (int c = 0; c < FIX_KEYS; c++) {
                const float4 *s = (const float4 *)S[FIX_KEYS * part + c];
#pragma unroll
                for (int r = 0; r < FIX_ROWS / 4; r++) {
                    float4 x = s[r];
                    sum[4 * r] += now.M[c] * x.x;
                    sum[4 * r + 1] += now.M[c] * x.y;
                    sum[4 * r + 2] += now.M[c] * x.z;
                    sum[4 * r + 3] += now.M[c] * x.w;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < FIX_ROWS; r++) {
            sums[part][r][key] = sum[r];
        }
        __syncthreads();
        float *L = pair_of(i) + (backward ? PART_C : PART_L) * D * D + (row + EACH * part) * D + key;
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            float all = now.L[r];
#pragma unroll
            for (int other = 0; other < FIX_PARTS; other++) {
                all += sums[other][EACH * part + r][key];
            }
            S[key][EACH * part + r] = all;
            if (adds) {
                L[r * D] = all;
            }
        }
        now = next;
        __syncthreads();
    }
}

/* Joins the pairs of the segments into the pair of the whole sequence: L is [sequences, heads, keys, values], M has
   keys in place of values. Blocks with z = 0 compute L (backward: c), the others M if it is wanted. The rest is as in
   fix_up. */
static __global__ void __launch_bounds__(128) join(const float *pairs, int parts, int segments, int value_heads,
                                                   int keys, int values, float *L, float *M, bool backward) {
    __shared__ float S[D][16 + 4];
    int head = (int)blockIdx.y % value_heads, sequence = (int)blockIdx.y / value_heads, key = (int)threadIdx.x;
    int row = (int)blockIdx.x * 16, rows = blockIdx.z == 1 ? keys : values;
    bool map = blockIdx.z == 1;
    int by_key = backward ? D : 1, by_sum = backward ? 1 : D;
    float sum[16];
    if (row >= rows) {
        return;
    }
    for (int i = 0; i < segments; i++) {
        int segment = backward ? segments - 1 - i : i;
        const float *pair = pairs + (((int64_t)(sequence * segments + segment) * value_heads + head) * parts) * D * D;
        const float *own = pair + (backward ? PART_C : map && i == 0 ? PART_M : PART_L) * D * D;
#pragma unroll
        for (int r = 0; r < 16; r++) {
            sum[r] = map && i > 0 ? 0.0f : own[(row + r) * D + key];
        }
        if (i > 0) {
            add_product(sum, pair + PART_M * D * D + key * by_key, by_sum, S, keys);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 16; r++) {
            S[key][r] = sum[r];
        }
        __syncthreads();
    }
    if (key < keys) {
        float *to = (map ? M : L) + (((int64_t)sequence * value_heads + head) * keys + key) * rows + row;
#pragma unroll
        for (int r = 0; r < 16; r++) {
            to[r] = sum[r];
        }
    }
}

} // namespace DELTA_CHUNK

#endif
