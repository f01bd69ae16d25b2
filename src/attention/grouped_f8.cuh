/* A step of generation over pages of 8-bit keys and values (ops/f8.h): grouped_kernel.cuh, with tiles that arrive as
   codes and become bf16, with their scales, in shared memory. That is exact, since scales are powers of two. The next
   tile's codes are copied while one tile is computed; memory is read once, in 8 bits. */
#ifndef CARRY_ATTENTION_GROUPED_F8_CUH
#define CARRY_ATTENTION_GROUPED_F8_CUH

#include "attention/grouped_kernel.cuh"
#include "ops/cuda/f8.cuh"

namespace {

/* Queries; a tile of keys and of values in bf16; codes of two tiles of each; scales of one tile of each. */
template <int D> constexpr int CODE_BYTES = COLUMNS *D;
constexpr int SCALE_BYTES = 2 * COLUMNS;
template <int D> constexpr int SHARED_BYTES_F8 = QUERY_BYTES<D> + 2 * TILE_BYTES<D> + 4 * CODE_BYTES<D> + SCALE_BYTES;

/* The row of the pool of a tile's first key. */
__device__ __forceinline__ int64_t pool_row(const grouped_job &job, int first) {
    return (int64_t)job.pages[first / COLUMNS] * COLUMNS;
}

template <int D>
__device__ __forceinline__ void copy_codes(uint32_t to, const uint8_t *codes, const grouped_job &job, int head,
                                           int first) {
    constexpr int EACH = D / 16;
    const int64_t base = pool_row(job, first);
    for (int i = (int)threadIdx.x; i < COLUMNS * EACH; i += 32 * WARPS) {
        const int row = i / EACH, piece = i % EACH;
        const bool is_there = first + row < job.keys;
        const uint8_t *from = codes + ((base + (is_there ? row : 0)) * job.key_heads + head) * D + 16 * piece;
        copy_16(to + (uint32_t)(row * D + 16 * piece), (const uint16_t *)from, is_there);
    }
}

/* The scale that a thread brings to shared memory: of a key for the first COLUMNS threads, of a value for the next. */
__device__ __forceinline__ uint8_t scale_here(const grouped_job &job, int head, int first) {
    const int row = (int)threadIdx.x % COLUMNS;
    if ((int)threadIdx.x >= SCALE_BYTES || first + row >= job.keys) {
        return 127; /* 2^0: the codes are zeros */
    }
    const uint8_t *scales = (int)threadIdx.x < COLUMNS ? job.key_scales : job.value_scales;
    return scales[(pool_row(job, first) + row) * job.key_heads + head];
}

template <int D>
__device__ __forceinline__ void widen_tile(unsigned char *tile, const unsigned char *codes, const uint8_t *scales) {
    constexpr int EACH = D / 8;
    for (int i = (int)threadIdx.x; i < COLUMNS * EACH; i += 32 * WARPS) {
        const int row = i / EACH, piece = i % EACH;
        const uint2 eight = *(const uint2 *)(codes + row * D + 8 * piece);
        const float scale = carry_f8_scale(scales[row]);
        const float4 a = f8_four(eight.x), b = f8_four(eight.y);
        *(uint4 *)(tile + place<D>(0, row, piece)) =
            make_uint4(pack_bf16(a.x * scale, a.y * scale), pack_bf16(a.z * scale, a.w * scale),
                       pack_bf16(b.x * scale, b.y * scale), pack_bf16(b.z * scale, b.w * scale));
    }
}

template <int D>
__device__ __forceinline__ void compute_f8(const grouped_job &job, const grouped_item &item, uint32_t shared,
                                           unsigned char *memory, float (&o)[D / 2], softmax_state &state) {
    const int warp = (int)threadIdx.x / 32, row = item.row + 16 * warp + (int)threadIdx.x % 32 / 4;
    const bool is_idle = item.row + 16 * warp >= job.rows;
    const int most[2] = {last_key(job, row), last_key(job, row + 8)};
    const int least[2] = {first_key(job, row), first_key(job, row + 8)};
    const int all_from = first_key(job, item.row + ROWS - 1), all_to = last_key(job, item.row);
    constexpr uint32_t KEYS = QUERY_BYTES<D>, VALUES = KEYS + TILE_BYTES<D>, CODES = VALUES + TILE_BYTES<D>;
    constexpr uint32_t SCALES = CODES + 4 * CODE_BYTES<D>;
    uint8_t *scales = memory + SCALES;
    auto codes_of = [&](int tile) { return CODES + (uint32_t)((tile - item.from) % 2 * 2 * CODE_BYTES<D>); };
    auto copy = [&](int tile) {
        copy_codes<D>(shared + codes_of(tile), job.key_codes, job, item.head, tile * COLUMNS);
        copy_codes<D>(shared + codes_of(tile) + CODE_BYTES<D>, job.value_codes, job, item.head, tile * COLUMNS);
    };
    copy_queries<D>(shared, job, item);
    copy(item.from);
    uint8_t scale = scale_here(job, item.head, item.from * COLUMNS);
    asm volatile("cp.async.commit_group;");
    for (int tile = item.from; tile < item.to; tile++) {
        const int first = tile * COLUMNS;
        if ((int)threadIdx.x < SCALE_BYTES) {
            scales[threadIdx.x] = scale;
        }
        if (tile + 1 < item.to) {
            copy(tile + 1);
            scale = scale_here(job, item.head, first + COLUMNS); /* arrives while this tile is computed */
        }
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        widen_tile<D>(memory + KEYS, memory + codes_of(tile), scales);
        widen_tile<D>(memory + VALUES, memory + codes_of(tile) + CODE_BYTES<D>, scales + COLUMNS);
        __syncthreads();
        if (!is_idle) {
            float s[COLUMNS / 2], factor[2];
            uint32_t w[COLUMNS / 4];
            scores<D>(s, shared, shared + KEYS, warp);
            if (first < all_from || first + COLUMNS - 1 > all_to) {
                hide(s, least, most, first);
            }
            if (exponentials(s, state, factor, job.scale, 0.0f)) {
                scale_rows(o, factor);
            }
            pack<COLUMNS / 2>(w, s);
            weighted<D>(o, w, shared + VALUES);
        }
        __syncthreads(); /* before the next tile overwrites this one */
    }
    add_columns(state);
}

template <int D>
__global__ void __launch_bounds__(32 * WARPS, 1) attention_grouped_f8(const __grid_constant__ grouped_job given) {
    const grouped_job job = job_here<true>(given);
    extern __shared__ uint4 memory[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const grouped_item item = item_of(job, (int)blockIdx.x);
    float o[D / 2] = {};
    softmax_state state = {{NOTHING, NOTHING}, {0.0f, 0.0f}};
    if (item.from < item.to) {
        compute_f8<D>(job, item, shared, (unsigned char *)memory, o, state);
    }
    store_item<D>(job, item, o, state);
}

} // namespace

#endif
