/* Convolutions of bf16 pictures with instructions of Hopper GPUs.

   A thread block computes a patch of output pixels, 16 wide and 8 or 16 high, for COLUMNS output channels. One thread
   issues copies by the tensor copy engine. Two warpgroups multiply, half of the patch each, from shared memory, and
   keep their sums in registers.

   For each input, column of the window and group of channels, the copies are one of input pixels and one of weights for
   each row of the window. The input pixels are those of the patch shifted by the column of the window, with the further
   rows that the window covers. In shared memory, the next row of the window is then an offset of 16 pixels, so for a
   3 x 3 window a picture is copied three times instead of nine. The picture's frame of zeros is the padding. A patch
   may extend beyond the frame: pixels there are read as zeros, and their results are not written.

   Channels are in bands of 64 or 32 (rows of 128 or 64 bytes in shared memory, swizzled by the copy engine); a group of
   channels is BANDS bands. */
#ifndef CARRY_OPS_CONV2D_HOPPER_CUH
#define CARRY_OPS_CONV2D_HOPPER_CUH

#include "ops/cuda/conv2d.cuh"

#include "device/hopper.cuh"

namespace conv2d_hopper {

using namespace hopper;

constexpr int PATCH_WIDTH = 16;
constexpr int MULTIPLY = 256; /* threads that multiply: two warpgroups; the threads after them copy */
constexpr int HEADER = 1024;  /* bytes: barriers, before the tiles */

struct maps {
    CUtensorMap from[CONV2D_INPUTS], w;
    conv2d_job job;
    int patches_x, column_tiles;
};

/* BLOCKS: blocks of 64 pixels per warpgroup. PATCHES, WEIGHTS: how many patches and tiles of weights shared memory
   holds. RESIDENT: thread blocks per multiprocessor. */
template <int COLUMNS_, int BLOCKS_, int BAND_, int BANDS_, int PATCHES_, int WEIGHTS_, int RESIDENT_> struct shape {
    static constexpr int COLUMNS = COLUMNS_, BLOCKS = BLOCKS_, BAND = BAND_, BANDS = BANDS_;
    static constexpr int PATCHES = PATCHES_, WEIGHTS = WEIGHTS_, RESIDENT = RESIDENT_;
    static constexpr int HEIGHT = 8 * BLOCKS;
    /* If sums need many registers, a whole warpgroup copies, and gives its registers to the others. */
    static constexpr int THREADS = MULTIPLY + (RESIDENT == 1 ? 128 : 32);
    static constexpr int ROW = BAND * 2;                                         /* bytes */
    static constexpr int PATCH_BYTES = (HEIGHT + 2) * PATCH_WIDTH * ROW * BANDS; /* at most */
    static constexpr int WEIGHT_BAND = COLUMNS * ROW, WEIGHT_BYTES = WEIGHT_BAND * BANDS;
    static constexpr int WEIGHT_ROOM = (WEIGHT_BYTES + 1023) / 1024 * 1024;
    static constexpr int SHARED = HEADER + 1024 + PATCHES * PATCH_BYTES + WEIGHTS * WEIGHT_ROOM; /* 1024 to align */
};

/* A ring of tiles in shared memory: the index of the next one, and the parity of its barriers. */
template <int COUNT> struct turn {
    int at, parity;
    __device__ __forceinline__ void next() {
        if (++at == COUNT) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* Addresses in shared memory. Barriers of patches come first, then those of weights; each has a full and an empty
   barrier. */
template <typename S> struct layout {
    uint32_t base;
    __device__ __forceinline__ uint32_t patch_full(int i) const {
        return base + 8 * i;
    }
    __device__ __forceinline__ uint32_t patch_empty(int i) const {
        return base + 8 * (S::PATCHES + i);
    }
    __device__ __forceinline__ uint32_t weight_full(int i) const {
        return base + 8 * (2 * S::PATCHES + i);
    }
    __device__ __forceinline__ uint32_t weight_empty(int i) const {
        return base + 8 * (2 * S::PATCHES + S::WEIGHTS + i);
    }
    __device__ __forceinline__ uint32_t patch(int i) const {
        return base + HEADER + i * S::PATCH_BYTES;
    }
    __device__ __forceinline__ uint32_t weight(int i) const {
        return base + HEADER + S::PATCHES * S::PATCH_BYTES + i * S::WEIGHT_ROOM;
    }
};

static __device__ __forceinline__ void copy_patch(uint32_t to, const CUtensorMap *map, int x, int y, int band,
                                                  uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(0), "r"(x), "r"(y), "r"(band), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void copy_weights(uint32_t to, const CUtensorMap *map, int row, int band,
                                                    uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(band), "r"(barrier)
                 : "memory");
}

/* The descriptor of an operand whose rows, of ROW bytes, run along k and are swizzled. */
template <int ROW> static __device__ __forceinline__ uint64_t operand(uint32_t address) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(8 * ROW >> 4) << 32 |
           (uint64_t)(ROW == 128 ? 1 : 2) << 62;
}

/* Patches that a block needs. */
template <typename S> static __device__ __forceinline__ int patches_of(const conv2d_job &job) {
    int patches = 0;
    for (int i = 0; i < job.inputs; i++) {
        patches += job.channels[i] / (S::BAND * S::BANDS) * job.window.side;
    }
    return patches;
}

/* Run by one thread: copies all operands of this block's products. */
template <typename S>
static __device__ __forceinline__ void bring(const maps &m, const layout<S> &l, int x, int y, int row) {
    const conv2d_job &job = m.job;
    const int side = job.window.side;
    const int patch_bytes = (S::HEIGHT + side - 1) * PATCH_WIDTH * S::ROW * S::BANDS;
    turn<S::PATCHES> patch = {0, 1};
    turn<S::WEIGHTS> weight = {0, 1};
    int before = 0; /* bands of the earlier inputs in a row of the weights */
    for (int input = 0; input < job.inputs; input++) {
        const int bands = job.channels[input] / S::BAND;
        for (int column = 0; column < side; column++) {
            for (int band = 0; band < bands; band += S::BANDS) {
                barrier_wait(l.patch_empty(patch.at), patch.parity);
                barrier_expect(l.patch_full(patch.at), patch_bytes);
                copy_patch(l.patch(patch.at), &m.from[input], x + column, y, band, l.patch_full(patch.at));
                patch.next();
                for (int r = 0; r < side; r++) {
                    barrier_wait(l.weight_empty(weight.at), weight.parity);
                    barrier_expect(l.weight_full(weight.at), S::WEIGHT_BYTES);
                    copy_weights(l.weight(weight.at), &m.w, row, before + (r * side + column) * bands + band,
                                 l.weight_full(weight.at));
                    weight.next();
                }
            }
        }
        before += side * side * bands;
    }
}

template <typename S>
static __device__ __forceinline__ void multiply(float (&sum)[S::BLOCKS][S::COLUMNS / 2], const conv2d_job &job,
                                                const layout<S> &l, int group) {
    const int side = job.window.side, patches = patches_of<S>(job);
    const int patch_band = (S::HEIGHT + side - 1) * PATCH_WIDTH * S::ROW;
    turn<S::PATCHES> patch = {0, 0};
    turn<S::WEIGHTS> weight = {0, 0};
    int last_patch = -1, last_weight = -1;            /* patch and weights of products that have not completed */
    for (int i = 0, r = 0; i < patches * side; i++) { /* one loop: with nested ones ptxas would wait for each product */
        if (r == 0) {
            barrier_wait(l.patch_full(patch.at), patch.parity);
        }
        const uint32_t a = l.patch(patch.at) + (group * S::BLOCKS * 64 + r * PATCH_WIDTH) * S::ROW;
        const uint32_t b = l.weight(weight.at);
        barrier_wait(l.weight_full(weight.at), weight.parity);
        products_begin();
#pragma unroll
        for (int band = 0; band < S::BANDS; band++) {
#pragma unroll
            for (int k = 0; k < S::BAND / 16; k++) {
#pragma unroll
                for (int block = 0; block < S::BLOCKS; block++) {
                    product_both(sum[block], operand<S::ROW>(a + band * patch_band + block * 64 * S::ROW + k * 32),
                                 operand<S::ROW>(b + band * S::WEIGHT_BAND + k * 32), band + k > 0 || i > 0);
                }
            }
        }
        products_commit();
        products_wait<1>(); /* earlier products are complete */
        if (threadIdx.x % 128 == 0) {
            if (last_weight >= 0) {
                barrier_arrive(l.weight_empty(last_weight));
            }
            if (last_patch >= 0) {
                barrier_arrive(l.patch_empty(last_patch));
            }
        }
        last_weight = weight.at;
        last_patch = r + 1 == side ? patch.at : -1;
        weight.next();
        if (++r == side) {
            r = 0;
            patch.next();
        }
    }
    products_wait<0>();
}

static __device__ __forceinline__ float finished(const conv2d_job &job, float value, float bias, uint32_t add) {
    value += bias + __uint_as_float(add);
    return job.relu && value < 0.0f ? 0.0f : value;
}

/* Writes two neighbouring channels of one pixel. */
static __device__ __forceinline__ void put_pair(const conv2d_job &job, int64_t at, float low, float high, float2 bias) {
    const uint32_t add = job.add != NULL ? *(const uint32_t *)(job.add + at) : 0;
    low = finished(job, low, bias.x, add << 16);
    high = finished(job, high, bias.y, add & 0xffff0000u);
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    *(uint32_t *)(job.y + at) = both;
}

template <typename S>
static __device__ __forceinline__ void write(const maps &m, const float (&sum)[S::BLOCKS][S::COLUMNS / 2], int x, int y,
                                             int first, int phase, int group) {
    const conv2d_job &job = m.job;
    const int factor = job.window.phases == 4 ? 2 : 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int block = 0; block < S::BLOCKS; block++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pixel = (group * S::BLOCKS + block) * 64 + warp * 16 + half * 8 + lane / 4;
            const int at_x = x + pixel % PATCH_WIDTH, at_y = y + pixel / PATCH_WIDTH;
            if (at_x >= job.width || at_y >= job.height) {
                continue;
            }
            const int64_t line = (int64_t)at_y * factor + phase / 2 + 1;
            const int64_t at =
                (line * (job.width * factor + 2) + at_x * factor + phase % 2 + 1) * job.out + first + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::COLUMNS / 8; n++) {
                const int c = first + n * 8 + lane % 4 * 2;
                const float low = sum[block][n * 4 + half * 2], high = sum[block][n * 4 + half * 2 + 1];
                if (job.out % 2 == 0 && c < job.out) {
                    put_pair(job, at + n * 8, low, high,
                             job.bias != NULL ? *(const float2 *)(job.bias + c) : make_float2(0.0f, 0.0f));
                } else if (job.out % 2 != 0) {
                    for (int e = 0; e < 2 && c + e < job.out; e++) {
                        const int64_t to = at + n * 8 + e;
                        const uint32_t add = job.add != NULL ? (uint32_t)job.add[to] << 16 : 0;
                        job.y[to] = type_bf16::narrow(
                            finished(job, e == 0 ? low : high, job.bias != NULL ? job.bias[c + e] : 0.0f, add));
                    }
                }
            }
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::RESIDENT) conv2d_hopper_kernel(const __grid_constant__ maps m) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char shared[];
    const layout<S> l = {(shared_address(shared) + 1023) & ~1023u};
    const int tile = (int)blockIdx.x % m.column_tiles, patch = (int)blockIdx.x / m.column_tiles;
    const int phase = (int)blockIdx.z, first = tile * S::COLUMNS;
    const int x = patch % m.patches_x * PATCH_WIDTH, y = patch / m.patches_x * S::HEIGHT;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::PATCHES; i++) {
            barrier_init(l.patch_full(i), 1);
            barrier_init(l.patch_empty(i), 2);
        }
        for (int i = 0; i < S::WEIGHTS; i++) {
            barrier_init(l.weight_full(i), 1);
            barrier_init(l.weight_empty(i), 2);
        }
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLY) {
        if constexpr (S::RESIDENT == 1) {
            registers_give<24>();
        }
        if (threadIdx.x == MULTIPLY) {
            const conv2d_window &w = m.job.window;
            bring<S>(m, l, x + w.start + phase % 2, y + w.start + phase / 2, phase * m.job.out + first);
        }
    } else {
        if constexpr (S::RESIDENT == 1) {
            registers_take<240>();
        }
        const int group = (int)threadIdx.x / 128;
        float sum[S::BLOCKS][S::COLUMNS / 2];
        multiply<S>(sum, m.job, l, group);
#pragma unroll
        for (int block = 0; block < S::BLOCKS; block++) {
            keep_below(sum[block]);
        }
        write<S>(m, sum, x, y, first, phase, group);
    }
#endif
}

/* conv2d_hopper.cu */
carry_status encode_map(carry_ctx *ctx, CUtensorMap *map, const void *data, int rank, const cuuint64_t *sizes,
                        const cuuint64_t *strides, const cuuint32_t *box, int ordinal);

/* conv2d_hopper_tiles.cu, for the shapes below. */
template <typename S> carry_status launch(carry_ctx *ctx, const conv2d_job &job, const place &at);

/* Estimated time of a job in this shape: blocks per multiprocessor times the work of one block. */
template <typename S> double cost(const conv2d_job &job, int units, double rate) {
    const double patches = ceil((double)job.width / PATCH_WIDTH) * ceil((double)job.height / S::HEIGHT);
    const double blocks = patches * ceil((double)job.out / S::COLUMNS) * job.window.phases;
    return ceil(blocks / units) * S::BLOCKS * S::COLUMNS / rate;
}

/* Each shape is compiled in its own source file (cmake/instances.cmake), since ptxas takes seconds for one. 192
   columns with 256 pixels instead of 128 measured 505 TFLOP/s instead of 625 (240 x 416, 3 x 192 to 192). */
typedef shape<192, 1, 64, 1, 3, 6, 1> flat_192;
typedef shape<128, 1, 64, 1, 2, 4, 2> flat_128;
typedef shape<96, 2, 64, 1, 2, 8, 1> wide_96;
typedef shape<96, 2, 32, 3, 2, 6, 1> wide_96_of_96;
typedef shape<64, 1, 64, 1, 3, 6, 2> flat_64;
typedef shape<64, 1, 32, 1, 4, 6, 2> flat_64_of_32;
typedef shape<8, 2, 64, 1, 2, 8, 2> wide_8;
typedef shape<8, 1, 32, 3, 3, 6, 2> flat_8_of_96;
typedef shape<8, 2, 32, 1, 4, 8, 2> wide_8_of_32;

template <typename S> bool works(int ordinal); /* conv2d_hopper_tiles.cu: this GPU and this build have the kernels */

} // namespace conv2d_hopper

#endif
