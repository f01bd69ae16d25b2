/* Diagonal transitions as small matrix products on the tensor cores, in registers (diagonal_matmul.cuh has the
   products).

   A warp takes UNITS units of 16 steps for its channels, with all loads in flight together. The warps of a block are
   arranged first along time, so that a block holds up to 256 steps, and then along channels. The last steps of the
   units form a scan of the same kind, 16 times shorter: they are exchanged in shared memory, after the one barrier for
   each 256 steps, and each warp finds the states that enter its units by one more product with a triangle. Every byte
   moves once.

   The radix determines how a unit is divided: one triangle of 16, two of 8, or four of 4, followed by a product that
   applies the ends of groups to those after them. Above the units the triangle is always one of 16, which is the size
   of the instruction. */
#include "scan/cuda/diagonal_matmul.cuh"

namespace {

using namespace triangles;

/* Shared memory of a block for each 16 channels. There are two sides, since the ends of the next steps are written
   while other warps still read. */
struct room {
    float ends[2][16 * ROW];
    float decays[2][SLOTS];
    float state[2][16];
};

/* Stores one float for each unit, in the fewest words. */
template <int UNITS> __device__ __forceinline__ void put(float *to, const float (&x)[UNITS]) {
    if (UNITS == 4) {
        *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1 % UNITS], x[2 % UNITS], x[3 % UNITS]);
    } else {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            to[u] = x[u];
        }
    }
}

/* A warp has TILES x 16 channels, a lane 2 TILES adjacent ones. */
template <typename TA, typename TB, typename TH, int RADIX, int UNITS, int TILES> struct worker {
    static constexpr int V = 2 * TILES;
    static constexpr bool EXACT = sizeof(TB) == 2;
    static constexpr bool APART = UNITS == 1;
    carry_pack<V, TB> raw[UNITS][4];
    TA decay[UNITS][2];
    float y[UNITS][TILES][2][4];
    float cumulative[UNITS][4];

    /* The step within the units of the lane's i-th value in unit u, minus 2q. */
    static __device__ __forceinline__ constexpr int step_of(int u, int i) {
        return 16 * u + i % 2 + 8 * (i / 2);
    }
    /* Loads all units. a points to step g, b to step 2q. */
    __device__ __forceinline__ void load(const TA *a, int a_step, const TB *b, int b_step) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            decay[u][0] = a[(int64_t)(16 * u) * a_step];
            decay[u][1] = a[(int64_t)(16 * u + 8) * a_step];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                raw[u][i].load(b + (int64_t)step_of(u, i) * b_step);
            }
        }
    }
    /* The same if only `left` steps exist, or the channels do not. Missing steps change nothing: decay 1, value 0. */
    __device__ __forceinline__ void load_some(const TA *a, int a_step, const TB *b, int b_step, int left, bool inside) {
        auto [g, q] = place();
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            decay[u][0] = 16 * u + g < left ? a[(int64_t)(16 * u) * a_step] : carry_from_float<TA>(1.0f);
            decay[u][1] = 16 * u + 8 + g < left ? a[(int64_t)(16 * u + 8) * a_step] : carry_from_float<TA>(1.0f);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (step_of(u, i) + 2 * q < left && inside) {
                    raw[u][i].load(b + (int64_t)step_of(u, i) * b_step);
                } else {
                    const float zero[V] = {};
                    raw[u][i].pack(zero);
                }
            }
        }
    }
    /* Computes the prefixes inside the units. The decays of whole units go to `totals`. */
    __device__ __forceinline__ void multiply_units(float *totals) {
        float total[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float a[2] = {carry_to_float(decay[u][0]), carry_to_float(decay[u][1])};
            triangle<RADIX> l = triangle<RADIX>::of(a);
            total[u] = l.total;
            float x[4][V];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                cumulative[u][i] = l.cumulative[i];
                raw[u][i].expand(x[i]);
            }
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                values<EXACT> early(x[0][2 * m], x[0][2 * m + 1], x[1][2 * m], x[1][2 * m + 1]);
                values<EXACT> late(x[2][2 * m], x[2][2 * m + 1], x[3][2 * m], x[3][2 * m + 1]);
                sums<APART> first;
                sums<APART> across;
                sums<APART> second;
                first.add(early, l.early);
                if (RADIX == 16) {
                    (APART ? across : second).add(early, l.across);
                }
                second.add(late, l.late);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    y[u][m][0][i] = first.at(i);
                    y[u][m][1][i] = RADIX == 16 && APART ? across.at(i) + second.at(i) : second.at(i);
                }
                if (RADIX < 16) {
                    add_ends(l, y[u][m]);
                }
            }
        }
        if (threadIdx.x == 0) {
            put<UNITS>(totals, total);
        }
    }
    /* The second level for small triangles. The sums are already in the layout of a left operand, so they stay in
       place. */
    static __device__ __forceinline__ void add_ends(const triangle<RADIX> &l, float (&c)[2][4]) {
        values<false> early(c[0][0], c[0][2], c[0][1], c[0][3]);
        sums<APART> first;
        sums<APART> across;
        sums<APART> second;
        across.add(early, l.across_ends);
        if (RADIX == 4) {
            values<false> late(c[1][0], c[1][2], c[1][1], c[1][3]);
            first.add(early, l.early_ends);
            second.add(late, l.late_ends);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[0][i] += first.at(i);
            c[1][i] += across.at(i) + second.at(i);
        }
    }
    __device__ __forceinline__ void fill(int u, int m, const float (&before)[2]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[u][m][i / 4][i % 4] = fmaf(cumulative[u][2 * (i / 4) + i % 2], before[i / 2 % 2], y[u][m][i / 4][i % 4]);
        }
    }
    /* Stores the ends of the units, which the last of four lanes holds. */
    __device__ __forceinline__ void put_ends(room *rooms, int side, int turn) const {
        auto [g, q] = place();
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            float ends[2][UNITS];
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                ends[0][u] = y[u][m][1][1];
                ends[1][u] = y[u][m][1][3];
            }
            if (q == 3) {
                put<UNITS>(&rooms[m].ends[side][g * ROW + turn * UNITS], ends[0]);
                put<UNITS>(&rooms[m].ends[side][(g + 8) * ROW + turn * UNITS], ends[1]);
            }
        }
    }
    /* Turns prefixes into states. Returns true if an end, or the state that enters, is not finite: a product with zeros
       has then spread it to all of the lane's steps (redo). `before` of each unit has every end among its terms, so it
       is enough to test one. */
    __device__ __forceinline__ bool enter(const room *rooms, int side, int units, int turn,
                                          const float (&state)[TILES][2], bool has_state) {
        float zero = 0.0f;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            float before[UNITS][2];
            enter_units<UNITS>(before, rooms[m].ends[side], rooms[0].decays[side], units, turn * UNITS, state[m],
                               has_state);
            zero = fmaf(before[0][0], 0.0f, fmaf(before[0][1], 0.0f, zero));
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                fill(u, m, before[u]);
            }
        }
        return zero != 0.0f;
    }
    /* Computes the lane's states again by the recurrence itself, from the ends of the units before, which are right,
       and from b, which is not overwritten yet since only this warp stores these steps. a, b: as for load. */
    __device__ __forceinline__ void redo(const room *rooms, int side, int turn, const float (&state)[TILES][2],
                                         const TA *a, int a_step, const TB *b, int b_step, int left) {
        auto [g, q] = place();
        float x[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
            x[v] = state[v / 2][v % 2];
#pragma unroll 1
            for (int e = 0; e < turn * UNITS; e++) {
                x[v] = fmaf(rooms[0].decays[side][e], x[v], rooms[v / 2].ends[side][(g + 8 * (v % 2)) * ROW + e]);
            }
        }
        a -= (int64_t)g * a_step;
        b -= (int64_t)(2 * q) * b_step;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
#pragma unroll 1
            for (int j = 0; j < 16; j++) {
                if (16 * u + j < left) {
                    carry_pack<V, TB> packed;
                    float add[V];
                    packed.load(b + (int64_t)(16 * u + j) * b_step);
                    packed.expand(add);
                    float by = carry_to_float(a[(int64_t)(16 * u + j) * a_step]);
#pragma unroll
                    for (int v = 0; v < V; v++) {
                        x[v] = fmaf(by, x[v], add[v]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int v = 0; v < V; v++) {
                        float &to = y[u][v / 2][i / 2][2 * (v % 2) + i % 2];
                        to = j == step_of(0, i) + 2 * q ? x[v] : to;
                    }
                }
            }
        }
    }
    /* Stores the state that leaves the block's last warp. */
    __device__ __forceinline__ void put_state(room *rooms, int side) const {
        auto [g, q] = place();
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (q == 3) {
                rooms[m].state[side][g] = y[UNITS - 1][m][1][1];
                rooms[m].state[side][g + 8] = y[UNITS - 1][m][1][3];
            }
        }
    }
    __device__ __forceinline__ void store(TH *h, int h_step, int left, bool inside) const {
        int until = inside ? left - 2 * place().q : 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float out[V];
#pragma unroll
                for (int v = 0; v < V; v++) {
                    out[v] = y[u][v / 2][i / 2][2 * (v % 2) + i % 2];
                }
                if (step_of(u, i) < until) {
                    carry_pack<V, TH> packed;
                    packed.pack(out);
                    packed.store(h + (int64_t)step_of(u, i) * h_step);
                }
            }
        }
    }
};

/* The warps of a block form sets of 2^along_log2 warps. Each set has its own group of 16 * TILES channels; its warps
   take successive steps of them. groups: number of such groups of channels in a row. */
template <typename TA, typename TB, typename TH, int RADIX, int UNITS, int TILES>
__global__ void __launch_bounds__(UNITS == 4 ? 128 : 256, UNITS == 1   ? 1
                                                          : TILES == 1 ? 4
                                                                       : 3)
    matmul_kernel(const carry_diagonal d, int along_log2, unsigned groups) {
    using work = worker<TA, TB, TH, RADIX, UNITS, TILES>;
    extern __shared__ float4 shared[];
    auto [g, q] = place();
    int along = 1 << along_log2;
    int beside = (int)threadIdx.y >> along_log2;
    int turn = (int)threadIdx.y & (along - 1);
    room *rooms = reinterpret_cast<room *>(shared) + beside * TILES;
    unsigned group = blockIdx.x * (blockDim.y >> along_log2) + (unsigned)beside;
    int row = (int)(group / groups);
    int column = (int)(group - (unsigned)row * groups) * 16 * TILES + g * work::V;
    int channel = row * d.width + column;
    bool inside = column < d.width && channel < d.channels;
    row = row * d.width < d.channels ? row : 0; /* rows that do not exist use the decays of row 0 */
    channel = inside ? channel : 0;
    int64_t first = turn * UNITS * 16;
    int item = (int)blockIdx.y;
    const TA *a = static_cast<const TA *>(d.A.data) + item * d.A.item + (first + g) * d.A.step + row;
    const TB *b = static_cast<const TB *>(d.b.data) + item * d.b.item + (first + 2 * q) * d.b.step + channel;
    TH *h = static_cast<TH *>(d.h.data) + item * d.h.item + (first + 2 * q) * d.h.step + channel;
    bool has_state = d.h0.data != nullptr;
    float state[TILES][2] = {};
    if (has_state && inside) {
#pragma unroll
        for (int v = 0; v < work::V; v++) {
            state[v / 2][v % 2] = carry_load_any(d.h0.data, d.h0.type, item * d.h0.item + channel + v);
        }
    }
    int tile = along * UNITS * 16;
    for (int64_t done = 0, side = 0;; side ^= 1) {
        int64_t still = d.steps - done - first;
        int left = (int)(still < 16 * UNITS ? (still < 0 ? 0 : still) : 16 * UNITS);
        work w;
        if (left == 16 * UNITS && inside) {
            w.load(a, d.A.step, b, d.b.step);
        } else {
            w.load_some(a, d.A.step, b, d.b.step, left, inside);
        }
        w.multiply_units(rooms[0].decays[side] + turn * UNITS);
        w.put_ends(rooms, (int)side, turn);
        if (along == 1) {
            __syncwarp();
        } else {
            __syncthreads();
        }
        bool is_last = done + tile >= d.steps; /* the same for all threads */
#pragma unroll
        for (int m = 0; m < TILES && done > 0; m++) {
            state[m][0] = rooms[m].state[side][g];
            state[m][1] = rooms[m].state[side][g + 8];
        }
        bool spread = w.enter(rooms, (int)side, along * UNITS, turn, state, has_state);
        if (__builtin_expect(__any_sync(ALL, spread), 0)) {
            if (spread && inside) {
                w.redo(rooms, (int)side, turn, state, a, d.A.step, b, d.b.step, left);
            }
            __syncwarp(); /* h may be b: all threads read before any stores */
        }
        if (!is_last && turn == along - 1) {
            w.put_state(rooms, (int)side ^ 1);
        }
        w.store(h, d.h.step, left, inside);
        if (is_last) {
            break;
        }
        has_state = true;
        done += tile;
        a += (int64_t)tile * d.A.step;
        b += (int64_t)tile * d.b.step;
        h += (int64_t)tile * d.h.step;
    }
}

/* Launches with at most `most` warps along time, and `beside` such sets beside each other. */
template <typename TA, typename TB, typename TH, int RADIX, int UNITS, int TILES>
cudaError_t launch(const carry_diagonal &d, int most, int beside, cudaStream_t stream) {
    int along_log2 = 0;
    while (2 << along_log2 <= most && (int64_t)(16 * UNITS) << along_log2 < d.steps) {
        along_log2++;
    }
    int groups = (d.width + 16 * TILES - 1) / (16 * TILES);
    int64_t all = (int64_t)(d.channels / d.width) * groups;
    dim3 grid((unsigned)((all + beside - 1) / beside), (unsigned)d.items);
    dim3 threads(32, (unsigned)beside << along_log2);
    size_t bytes = (size_t)(beside * TILES) * sizeof(room);
    matmul_kernel<TA, TB, TH, RADIX, UNITS, TILES><<<grid, threads, bytes, stream>>>(d, along_log2, (unsigned)groups);
    return cudaGetLastError();
}

/* With few channels, up to four or eight warps are along time. With many, a block has four warps: two along time for
   16-bit values, else one, and the others beside them, which read the same decays if they are in the same row.
   docs/attempts/cuda.md lists what was tried. */
template <typename TA, typename TB, typename TH, int RADIX>
cudaError_t launch_form(const carry_diagonal &d, bool wide, cudaStream_t stream) {
    if (!wide) {
        return d.steps <= 128 ? launch<TA, TB, TH, RADIX, 1, 1>(d, 8, 1, stream)
                              : launch<TA, TB, TH, RADIX, 4, 1>(d, 4, 1, stream);
    }
    if constexpr (sizeof(TB) == 2) {
        return launch<TA, TB, TH, RADIX, 4, 2>(d, 2, 2, stream);
    } else {
        return launch<TA, TB, TH, RADIX, 4, 1>(d, 1, 4, stream);
    }
}

} // namespace

cudaError_t carry_diagonal_matmul(const carry_diagonal &d, int radix, bool wide, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
#define LAUNCH(V, TA, TB, TH)                                          \
    error = radix == 4   ? launch_form<TA, TB, TH, 4>(d, wide, stream) \
            : radix == 8 ? launch_form<TA, TB, TH, 8>(d, wide, stream) \
                         : launch_form<TA, TB, TH, 16>(d, wide, stream)
    CARRY_DIAGONAL_TYPES(d, 1, 1, LAUNCH);
#undef LAUNCH
    return error;
}
