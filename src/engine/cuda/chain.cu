/* Launches the kernels of a decoding step; also has the smallest of them. */
#include "engine/cuda/chain_delta_parts.cuh"
#include "engine/cuda/chain_experts.cuh"
#include "engine/cuda/chain_launch.cuh"
#include "engine/cuda/chain_product.cuh"

#include "ops/cuda/quantised.cuh"

namespace chain {

/* Each block processes one sequence. */
static __global__ __launch_bounds__(THREADS) void embed(const __grid_constant__ carry_chain_embed e,
                                                        const __grid_constant__ carry_chain_lists lists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    let_next_begin();
    await_previous();
    const int b = blockIdx.x;
    const int64_t given = lists.ids[b], id = given >= 0 ? given : lists.last[lists.slots[b]];
    if (e.is_quantised) {
        const unsigned char *tile = (const unsigned char *)e.table + (size_t)(id / 16) * e.layout.tile_bytes;
        for (int i = threadIdx.x; i < e.width / 8; i += THREADS) {
            float values[8];
            quantised::decode_8_columns(values, e.layout, tile, (int)(id % 16), i * 8);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const size_t at = (size_t)b * e.width + i * 8 + j;
                const __nv_bfloat16 low = __float2bfloat16_rn(values[j]);
                ((__nv_bfloat16 *)e.low)[at] = low;
                e.h[at] = __bfloat162float(low);
            }
        }
        return;
    }
    for (int i = threadIdx.x; i < e.width / 2; i += THREADS) {
        const unsigned pair = ((const unsigned *)e.table)[(size_t)id * (e.width / 2) + i];
        ((unsigned *)e.low)[(size_t)b * (e.width / 2) + i] = pair;
        ((float2 *)e.h)[(size_t)b * (e.width / 2) + i] = make_float2(low_of(pair), high_of(pair));
    }
#endif
}

static __global__ __launch_bounds__(THREADS) void norm(const __grid_constant__ carry_chain_norm n) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ float squares[WARPS];
    const float *h = n.h + (size_t)blockIdx.x * n.width;
    float sum = 0.0f;
    let_next_begin();
    await_previous();
    for (int i = threadIdx.x; i < n.width; i += THREADS) {
        const float x = __ldcg(h + i);
        sum += x * x;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        squares[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += squares[w];
    }
    const float rate = rsqrtf(sum / (float)n.width + n.eps);
    for (int i = threadIdx.x; i < n.width; i += THREADS) {
        ((__nv_bfloat16 *)n.x)[(size_t)blockIdx.x * n.width + i] =
            __float2bfloat16_rn(__ldcg(h + i) * rate * (n.plus + __ldg(n.norm + i)));
    }
#endif
}

/* The kernels have code only for compute capability 9.0 and newer. In a build without that code they have no static
   shared memory, which shows that they cannot run. */
static bool works(int ordinal) {
    int major = 0;
    cudaFuncAttributes attributes;
    const bool is_there = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                          major >= 9 && cudaFuncGetAttributes(&attributes, delta<float>) == cudaSuccess &&
                          attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return is_there;
}

constexpr int PARTS_MOST = 32; /* key heads of all sequences whose states are divided into parts */

/* Products without a norm and without SwiGLU have few tiles, which would leave multiprocessors idle: the blocks of a
   cluster share the columns of a tile. A norm needs all columns in one block. */
template <int TILES>
static carry_status put_product(const launch_place &place, const carry_chain_product &p, int sequences) {
    const int each = p.output == CARRY_CHAIN_SWIGLU ? ROWS / 2 : ROWS, tiles = (p.rows + each - 1) / each;
    const bool together = p.norm == nullptr && p.output != CARRY_CHAIN_SWIGLU;
    return together ? put(place, product_together<TILES>, tiles * CLUSTER, sizeof(product_memory<TILES>), p, sequences)
                    : put(place, product<TILES>, tiles, sizeof(product_memory<TILES>), p, sequences);
}

/* Processes CARRY_TILE_PRODUCT_ROWS sequences at a time. */
static carry_status put_tiles(const launch_place &place, const carry_tile_product &all, int sequences) {
    for (int first = 0; first < sequences; first += CARRY_TILE_PRODUCT_ROWS) {
        carry_tile_product p = all;
        p.x = (const __nv_bfloat16 *)all.x + first * all.x_stride;
        p.y = (__nv_bfloat16 *)all.y + first * all.y_stride;
        p.h = all.h != nullptr ? all.h + first * all.y_stride : nullptr;
        CARRY_TRY(carry_cuda_tile_product(place.ctx, place.ordinal, place.stream, &p,
                                          min(sequences - first, CARRY_TILE_PRODUCT_ROWS), place.overlaps));
    }
    return CARRY_OK;
}

/* A few sequences have too few heads for all multiprocessors: four blocks share a head, one or two heads a cluster. */
template <typename S>
static carry_status put_delta(const launch_place &place, const carry_chain_delta &d, const carry_chain_lists &lists) {
    const int heads = lists.sequences * d.heads;
    if (heads > PARTS_MOST) {
        return put(place, delta<S>, heads, 0, d, lists);
    }
    return d.value_heads / d.heads % 2 == 0 ? put_of(place, delta_parts<2, S>, heads * QUARTERS * 2, KEY, 0, d, lists)
                                            : put_of(place, delta_parts<1, S>, heads * QUARTERS, KEY, 0, d, lists);
}

/* With several sequences there are more blocks than fit at once: a block then has more rows, so that the input of a
   sequence is loaded by fewer blocks. */
static carry_status put_experts(const launch_place &place, const carry_chain_experts &e, int sequences, bool is_up) {
    if (e.is_quantised) {
        return put_tile_experts(place, e, sequences, is_up);
    }
    const int each = (sequences > 1 ? 4 : 2) * WARPS;
    const int tiles = is_up ? e.chosen * ((e.width + each - 1) / each) + (e.shared_width + each - 1) / each
                            : (e.columns + each - 1) / each;
    const int input = is_up ? e.columns : e.chosen * e.width + e.shared_width;
    return put(place, is_up ? experts_up : experts_down, sequences * tiles, (size_t)input * sizeof(float), e, each);
}

static carry_status launch(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_chain_op *op,
                           const carry_chain_lists *lists, bool overlaps) {
    const launch_place place = {ctx, ordinal, stream, overlaps};
    const int sequences = lists->sequences;
    const carry_chain_attend &a = op->as.attend;
    switch (op->kind) {
    case CARRY_CHAIN_EMBED:
        return put(place, embed, sequences, 0, op->as.embed, *lists);
    case CARRY_CHAIN_TILES:
        return put_tiles(place, op->as.tiles, sequences);
    case CARRY_CHAIN_NORM:
        return put(place, norm, sequences, 0, op->as.norm);
    case CARRY_CHAIN_DELTA:
        return op->as.delta.is_bf16 ? put_delta<__nv_bfloat16>(place, op->as.delta, *lists)
                                    : put_delta<float>(place, op->as.delta, *lists);
    case CARRY_CHAIN_ATTEND:
        return put_attend(place, a, *lists);
    case CARRY_CHAIN_EXPERTS_UP:
    case CARRY_CHAIN_EXPERTS_DOWN:
        return put_experts(place, op->as.experts, sequences, op->kind == CARRY_CHAIN_EXPERTS_UP);
    case CARRY_CHAIN_COMBINE:
        return put_combine(place, a, *lists);
    default:
        return sequences <= TILE       ? put_product<1>(place, op->as.product, sequences)
               : sequences <= 2 * TILE ? put_product<2>(place, op->as.product, sequences)
                                       : put_product<4>(place, op->as.product, sequences);
    }
}

} // namespace chain

extern "C" const carry_chain_device carry_chain_cuda = {"cuda", chain::works, chain::launch};
