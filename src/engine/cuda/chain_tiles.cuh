/* Loads of keys and values for attention in a decoding step: from the cache, and those of the new token from shared
   memory. */
#ifndef CARRY_ENGINE_CHAIN_TILES_CUH
#define CARRY_ENGINE_CHAIN_TILES_CUH

#include "engine/cuda/chain_items.cuh"

namespace chain {

/* Keys and values of the next tiles of a warp. first: the first token of the first; later tiles are ATTEND_WARPS tiles
   apart. page: of each tile. */
template <int D, bool F8> struct tile_loader {
    using shape = tile_shape<D, F8>;
    static constexpr int APART = ATTEND_WARPS * TOKENS, AT_ONCE = APART * shape::TILES;
    const carry_chain_attend &a;
    const attend_item &item;
    int page[shape::TILES];

    /* Pages of the tiles from `first` on; those past the end keep their page. */
    __device__ __forceinline__ void find(int first) {
#pragma unroll
        for (int j = 0; j < shape::TILES; j++) {
            if (first + j * APART < item.end) {
                page[j] = __ldg(item.pages + (first + j * APART) / CARRY_PAGE_TOKENS);
            }
        }
    }
    /* The number of a token's head in the cache. A tile is in one page, so tokens that do not exist have rows too. */
    __device__ __forceinline__ uint32_t head_of(int j, int first, int token) const {
        const uint32_t row = (uint32_t)(page[j] * CARRY_PAGE_TOKENS + first % CARRY_PAGE_TOKENS + token);
        return row * (uint32_t)a.key_heads + (uint32_t)item.head;
    }
    static __device__ __forceinline__ uint4 load(const unsigned char *from) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from));
        return v;
    }
    __device__ __forceinline__ void load_keys(tile_keys<D, F8> &k, int j, int first) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t head = head_of(j, first, g + 8 * half);
            const unsigned char *from = (const unsigned char *)a.keys + (uint64_t)head * shape::ROW + t * 16;
#pragma unroll
            for (int i = 0; i < shape::KEY_LOADS; i++) {
                k.of[half][i] = load(from + i * 64);
            }
            if constexpr (F8) {
                k.scale[half] = __ldcg(a.key_scales + head);
            }
        }
    }
    __device__ __forceinline__ void load_values(tile_values<D, F8> &v, int j, int first) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const unsigned char *from =
                (const unsigned char *)a.values + (uint64_t)head_of(j, first, value_token(n, t)) * shape::ROW + g * 16;
#pragma unroll
            for (int i = 0; i < shape::VALUE_LOADS; i++) {
                v.of[n][i] = load(from + i * 128);
            }
        }
        if constexpr (F8) {
            v.scale[0] = __ldcg(a.value_scales + head_of(j, first, g));
            v.scale[1] = __ldcg(a.value_scales + head_of(j, first, g + 8));
        }
    }
};

/* Gives the tokens of a tile from number `old` on the new token's key and value. */
template <int D, bool F8>
static __device__ __forceinline__ void put_newest(tile_keys<D, F8> &k, tile_values<D, F8> &v,
                                                  const attend_memory<D, F8> &m, int old) {
    using shape = tile_shape<D, F8>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (g + 8 * half >= old) {
#pragma unroll
            for (int i = 0; i < shape::KEY_LOADS; i++) {
                k.of[half][i] = *(const uint4 *)(m.newest[0] + t * 16 + i * 64);
            }
            k.scale[half] = F8 ? m.newest_scale[0] : 0;
            v.scale[half] = F8 ? m.newest_scale[1] : 0;
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (value_token(n, t) >= old) {
#pragma unroll
            for (int i = 0; i < shape::VALUE_LOADS; i++) {
                v.of[n][i] = *(const uint4 *)(m.newest[1] + g * 16 + i * 128);
            }
        }
    }
}

} // namespace chain

#endif
