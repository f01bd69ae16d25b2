/* Products of up to 8 sequences with quantised matrices in tiles, by one block for each multiprocessor.

   A warp copies the codes and scales of the block's tiles into a ring in shared memory, in stages of 8 chunks, as fast
   as they are used; it begins before the kernel that makes x has ended. Two blocks fit on a multiprocessor: while the
   sums of one product are finished, the ring of the next one is filled. Two groups of eight warps take turns with the
   stages; each warp has a chunk of 64 columns, and keeps its part of a tile's sums until the batch of tiles is
   finished. Where tiles are few, two blocks of a cluster share the columns. */
#ifndef CARRY_OPS_CUDA_QUANTISED_RING_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_RING_HOPPER_CUH

#include "ops/cuda/quantised_hopper.cuh"

namespace quantised {

constexpr int RING_WARPS = 16, RING_THREADS = 32 * RING_WARPS, RING_ALL = RING_THREADS + 32;
constexpr int RING_CHUNKS = 8, RING_MOST = 16 /* stages */,
              RING_PARTS = 16 /* tiles of a batch times sequences, at most */;
constexpr int RING_FACTORS = 64 /* tiles whose factors are held */, RING_SEQUENCES = 8;

/* Sizes of a launch, and places in shared memory, in bytes. */
struct ring_plan {
    int units, slots;    /* tiles or pairs of tiles of all blocks; tiles of a unit */
    int cluster, chunks; /* blocks that share the columns; chunks of each, at most */
    int stages, stage_bytes;
    int batch, part_floats; /* tiles, and their sums */
    int pitch, x_at, sums_at, parts_at, squares_at, factors_at, other_at, ring_at, bytes;
};

template <class F> static __host__ __device__ constexpr int ring_code_bytes() {
    return ROWS * CHUNK * F::BITS / 8;
}

/* Scales of `chunks` chunks from a multiple of 8 on. */
template <class F> static __host__ __device__ __forceinline__ int ring_scale_bytes(int chunks, int group_shift) {
    return F::OF_SUMS ? ((chunks + (1 << group_shift) - 1) >> group_shift) * F::SCALE_WORDS * 32
                      : chunks * F::SCALE_WORDS * 32 * (F::GROUP == 16 ? 2 : 1);
}

static __device__ __forceinline__ unsigned shared_of(const void *at) {
    return (unsigned)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void barrier_init(uint64_t *at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_of(at)), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *at, unsigned parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_of(at)),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_of(at)) : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *at, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_of(at)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void copy_in(void *to, const void *from, unsigned bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_of(to)),
        "l"(from), "r"(bytes), "r"(shared_of(barrier))
        : "memory");
}

struct ring_barriers {
    uint64_t full[RING_MOST], empty[RING_MOST];
    uint64_t other[2]; /* of a batch each, used once: the other block may be two batches ahead */
};

/* Tile `slot` of unit `unit`. */
static __device__ __forceinline__ place_of ring_tile(const carry_tile_product &p, int unit, int slot) {
    int map = slot;
    for (int i = 1; p.output != CARRY_TILE_SWIGLU && i < p.count; i++) {
        map = unit >= p.maps[i].first_tile ? i : map;
    }
    const int own = p.output == CARRY_TILE_SWIGLU ? unit : unit - p.maps[map].first_tile;
    return place_of{p.maps[map].tiles + (size_t)own * p.tile_bytes, own * ROWS, p.maps[map].rows, p.maps[map].y_at};
}

/* One lane: everything that the block reads of the matrices, in order. */
template <class F>
static __device__ __forceinline__ void ring_fill(const carry_tile_product &p, const ring_plan &m, unsigned char *memory,
                                                 ring_barriers &b, int begin, int end, int first, int mine) {
    constexpr int CODES = ring_code_bytes<F>();
    int n = 0, slot = 0;
    for (int unit = begin; unit < end; unit++) {
        for (int of = 0; of < m.slots; of++, slot++) {
            const unsigned char *tile = ring_tile(p, unit, of).tile;
            for (int at = 0; at < mine; at += RING_CHUNKS, n++) {
                const int stage = n % m.stages, some = min(RING_CHUNKS, mine - at), chunk = first + at;
                const unsigned codes = some * CODES, scales = ring_scale_bytes<F>(some, p.group_shift);
                unsigned char *to = memory + m.ring_at + stage * m.stage_bytes;
                if (n >= m.stages) {
                    barrier_wait(&b.empty[stage], (n / m.stages - 1) & 1);
                }
                barrier_expect(&b.full[stage], codes + scales + (at == 0 ? 64 : 0));
                copy_in(to, tile + (size_t)chunk * CODES, codes, &b.full[stage]);
                copy_in(to + RING_CHUNKS * CODES, tile + p.scales_at + ring_scale_bytes<F>(chunk, p.group_shift),
                        scales, &b.full[stage]);
                if (at == 0) {
                    copy_in(memory + m.factors_at + slot % RING_FACTORS * 64, tile + p.factors_at, 64, &b.full[stage]);
                }
            }
        }
    }
}

/* x in f16, the sums of its chunks, and its squares, by warp. */
template <class F>
static __device__ __forceinline__ void ring_stage(const carry_tile_product &p, const ring_plan &m,
                                                  unsigned char *memory, int sequences, int first, int mine) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *sums = (float *)(memory + m.sums_at), *squares = (float *)(memory + m.squares_at);
    for (int s = 0; s < sequences; s++) {
        float square = 0.0f;
        for (int base = warp * 32; base < mine * 8; base += RING_THREADS) {
            const int at = base + lane;
            float x[8] = {}, sum = 0.0f;
            __half2 to[4];
            if (at < mine * 8) {
                take_x(x, p, s, first * CHUNK + at * 8, square);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float low = fminf(fmaxf(x[2 * i] * X_SCALE, -X_MOST), X_MOST);
                const float high = fminf(fmaxf(x[2 * i + 1] * X_SCALE, -X_MOST), X_MOST);
                to[i] = __floats2half2_rn(low, high);
                sum += __low2float(to[i]) + __high2float(to[i]);
            }
            if constexpr (F::OF_SUMS && F::MINIMUM) {
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                sum += __shfl_xor_sync(~0u, sum, 4);
                if (at < mine * 8 && lane % 8 == 0) {
                    sums[at / 8 * 8 + s] = sum;
                }
            }
            if (at < mine * 8) {
                *(uint4 *)(memory + m.x_at + s * m.pitch + at * 16) = *(const uint4 *)to;
            }
        }
        if (p.norm != nullptr) {
            for (int apart = 16; apart > 0; apart >>= 1) {
                square += __shfl_xor_sync(~0u, square, apart);
            }
            if (lane == 0) {
                squares[s * RING_WARPS + warp] = square;
            }
        }
    }
}

/* The chunk of a warp in a stage. */
template <class F>
static __device__ __forceinline__ void ring_chunk(float (&c)[1][4], const carry_tile_product &p, const ring_plan &m,
                                                  const unsigned char *memory, const unsigned char *stage, int k,
                                                  int chunk, int sequences, int lane) {
    const int g = lane / 4, t = lane % 4;
    piece<F> w;
#pragma unroll
    for (int u = 0; u < F::UNITS; u++) {
        w.codes[u] = *(const uint4 *)(stage + k * ring_code_bytes<F>() + u * 512 + lane * 16);
    }
    const unsigned *from = (const unsigned *)(stage + RING_CHUNKS * ring_code_bytes<F>());
    from += (F::OF_SUMS       ? (k >> p.group_shift) * 8 + g
             : F::GROUP == 32 ? k * 8 + g
                              : (k * 8 + g) * 2 + t / 2) *
            F::SCALE_WORDS;
#pragma unroll
    for (int i = 0; i < F::SCALE_WORDS; i++) {
        w.scales[i] = from[i];
    }
    uint4 x[1][2] = {};
    if (g < sequences) {
        const unsigned char *at = memory + m.x_at + g * m.pitch + chunk * 128 + t * 16;
        x[0][0] = *(const uint4 *)at;
        x[0][1] = *(const uint4 *)(at + 64);
    }
    add_chunk<F, 1>(c, w, x, (const float *)(memory + m.sums_at) + chunk * 8, t);
}

static __device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(RING_THREADS) : "memory");
}

static __device__ __forceinline__ float ring_sum(const float *parts, int sequences, int slot, int s, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < RING_WARPS; w++) {
        sum += parts[((slot * RING_WARPS + w) * sequences + s) * ROWS + row];
    }
    return sum;
}

/* Sums of a batch of `count` tiles, the first of which is number `slot` of the block and in unit `unit`. */
static __device__ __forceinline__ void ring_finish(const carry_tile_product &p, const ring_plan &m,
                                                   unsigned char *memory, ring_barriers &b, const float *parts,
                                                   int sequences, int count, int slot, int unit, int batch, int rank) {
    const bool pairs = p.output == CARRY_TILE_SWIGLU;
    const int i = threadIdx.x, each = pairs ? 2 : 1, row = i % ROWS, s = i / ROWS % sequences;
    const int own = i / (ROWS * sequences) * each; /* tile of the batch */
    float *squares = (float *)(memory + m.squares_at);
    float *other = (float *)(memory + m.other_at) + batch % 2 * (2 * RING_PARTS * ROWS + RING_SEQUENCES);
    float sum = 0.0f, up = 0.0f, square = 0.0f;
    if (own < count) {
        sum = ring_sum(parts, sequences, own, s, row);
        up = pairs ? ring_sum(parts, sequences, own + 1, s, row) : 0.0f;
        for (int w = 0; p.norm != nullptr && w < RING_WARPS; w++) {
            square += squares[s * RING_WARPS + w];
        }
    }
    if (m.cluster == 2 && rank == 1) {
        float *to = cg::this_cluster().map_shared_rank(other, 0);
        if (own < count) {
            to[i] = sum;
            to[RING_PARTS * ROWS + i] = up;
            if (i < ROWS * sequences && row == 0) {
                to[2 * RING_PARTS * ROWS + s] = square;
            }
        }
        unsigned remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(shared_of(&b.other[batch])));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
        return;
    }
    if (m.cluster == 2) {
        barrier_wait(&b.other[batch], 0);
        if (own < count) {
            sum += other[i];
            up += other[RING_PARTS * ROWS + i];
            square += other[2 * RING_PARTS * ROWS + s];
        }
    }
    const place_of at = ring_tile(p, unit + own / m.slots, 0);
    if (own < count && at.row + row < at.rows) {
        const float *factors = (const float *)(memory + m.factors_at);
        const float rate = (p.norm != nullptr ? rsqrtf(square / (float)p.columns + p.eps) : 1.0f) * (1.0f / X_SCALE);
        sum *= rate * factors[(slot + own) % RING_FACTORS * ROWS + row];
        if (pairs) {
            sum = sum / (1.0f + __expf(-sum)) * (up * rate * factors[(slot + own + 1) % RING_FACTORS * ROWS + row]);
        }
        store(p, s, at.y_at + at.row + row, sum);
    }
}

template <class F>
static __device__ __forceinline__ void ring_consume(const carry_tile_product &p, const ring_plan &m,
                                                    unsigned char *memory, ring_barriers &b, int sequences, int begin,
                                                    int end, int mine, int rank) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / RING_CHUNKS, k = warp % RING_CHUNKS;
    const int g = lane / 4, t = lane % 4, all = (end - begin) * m.slots;
    for (int slot = 0, n = 0, batch = 0; slot < all; slot++) {
        float c[1][4] = {};
        for (int at = 0; at < mine; at += RING_CHUNKS, n++) {
            if (n % 2 != group) {
                continue;
            }
            const int stage = n % m.stages;
            barrier_wait(&b.full[stage], n / m.stages & 1);
            if (at + k < mine) {
                ring_chunk<F>(c, p, m, memory, memory + m.ring_at + stage * m.stage_bytes, k, at + k, sequences, lane);
            }
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(&b.empty[stage]);
            }
        }
        float *parts = (float *)(memory + m.parts_at) + batch % 2 * m.part_floats;
        float *to = parts + (slot % m.batch * RING_WARPS + warp) * sequences * ROWS;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (2 * t + e % 2 < sequences) {
                to[(2 * t + e % 2) * ROWS + g + e / 2 * 8] = c[0][e];
            }
        }
        if ((slot + 1) % m.batch == 0 || slot + 1 == all) {
            const int count = slot % m.batch + 1, start = slot + 1 - count;
            consumers_sync();
            ring_finish(p, m, memory, b, parts, sequences, count, start, begin + start / m.slots, batch, rank);
            batch++;
        }
    }
}

template <class F>
static __global__ __launch_bounds__(RING_ALL, 2) void ring(const __grid_constant__ carry_tile_product p,
                                                           const __grid_constant__ ring_plan m, int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char ring_memory[];
    unsigned char *memory = ring_memory;
    __shared__ ring_barriers b;
    const int rank = m.cluster == 2 ? (int)blockIdx.x % 2 : 0, block = (int)blockIdx.x / m.cluster;
    const int blocks = (int)gridDim.x / m.cluster;
    const int begin = (int)((int64_t)m.units * block / blocks), end = (int)((int64_t)m.units * (block + 1) / blocks);
    const int first = rank * m.chunks, mine = min(m.chunks, p.chunks - first);
    if (threadIdx.x == 0) {
        for (int i = 0; i < m.stages; i++) {
            barrier_init(&b.full[i], 1);
            barrier_init(&b.empty[i], RING_CHUNKS);
        }
        barrier_init(&b.other[0], RING_THREADS);
        barrier_init(&b.other[1], RING_THREADS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    let_next_begin();
    if (m.cluster == 2) {
        cg::this_cluster().sync();
    } else {
        __syncthreads();
    }
    if (threadIdx.x >= RING_THREADS) {
        if (threadIdx.x == RING_THREADS) {
            ring_fill<F>(p, m, memory, b, begin, end, first, mine);
        }
        return;
    }
    await_previous();
    ring_stage<F>(p, m, memory, sequences, first, mine);
    consumers_sync();
    ring_consume<F>(p, m, memory, b, sequences, begin, end, mine, rank);
#endif
}

/* False: these sizes are for the other kernel. */
template <class F>
static bool ring_plan_for(ring_plan *made, const carry_tile_product &p, int sequences, int units_of_gpu, int cluster) {
    constexpr int MOST = 112 * 1024, WORST = 40 * 1024; /* two blocks on a multiprocessor; x of one */
    ring_plan m = {};
    m.slots = p.output == CARRY_TILE_SWIGLU ? 2 : 1;
    m.units = p.tiles;
    m.cluster = cluster;
    m.chunks = cluster == 1 ? p.chunks : (p.chunks / 2 + RING_CHUNKS - 1) / RING_CHUNKS * RING_CHUNKS;
    m.batch = sequences < 4 ? RING_PARTS / 2 / sequences / 2 * 2 : 2;
    m.part_floats = m.batch * sequences * RING_WARPS * ROWS;
    m.pitch = m.chunks * CHUNK * 2 + 64;
    m.x_at = 0;
    m.sums_at = (m.pitch * sequences + 15) / 16 * 16;
    m.parts_at = m.sums_at + (F::OF_SUMS && F::MINIMUM ? m.chunks * 32 : 0);
    m.squares_at = m.parts_at + 2 * m.part_floats * 4;
    m.factors_at = m.squares_at + RING_SEQUENCES * RING_WARPS * 4;
    m.other_at = m.factors_at + RING_FACTORS * 64;
    m.ring_at = (m.other_at + (cluster == 2 ? 2 * (2 * RING_PARTS * ROWS + RING_SEQUENCES) * 4 : 0) + 127) / 128 * 128;
    m.stage_bytes = RING_CHUNKS * ring_code_bytes<F>() + ring_scale_bytes<F>(RING_CHUNKS, p.group_shift);
    m.stage_bytes = (m.stage_bytes + 127) / 128 * 128;
    m.stages = (MOST - m.ring_at) / m.stage_bytes;
    m.stages = (m.stages < RING_MOST ? m.stages : RING_MOST) / 2 * 2; /* a stage is always of the same group of warps */
    m.bytes = m.ring_at + m.stages * m.stage_bytes;
    const int blocks = units_of_gpu / cluster, most = (m.units + blocks - 1) / blocks * m.slots;
    *made = m;
    return sequences <= RING_SEQUENCES && m.pitch * sequences <= WORST && m.stages >= 4 && m.chunks > 0 &&
           p.chunks > m.chunks * (cluster - 1) && (cluster == 1 || (most + m.batch - 1) / m.batch <= 2);
}

} // namespace quantised

#endif
