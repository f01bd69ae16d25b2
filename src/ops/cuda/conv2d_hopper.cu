/* Convolutions of bf16 pictures by the instructions of Hopper GPUs.

   A block makes a patch of output pixels, 16 wide and 8 or 16 high, by COLUMNS output channels. One thread tells the copy
   engine what to bring: for an input, a pixel of the window and some of the channels, the patch of the picture that is
   shifted by that pixel, a tile as it lies in memory, and the weights that belong to it. Two warpgroups multiply, half of
   the patch each, from shared memory, and keep their sums in registers. The frame of zeros is the padding, and what a
   patch has outside of the picture comes as zeros and is not written.

   Channels come in bands of 64 or 32 (rows of 128 or 64 bytes in shared memory, swizzled by the copy engine); a stage
   of the pipeline holds BANDS of them. */
#include "ops/cuda/conv2d.cuh"

#include "device/hopper.cuh"

namespace {

using namespace hopper;

constexpr int PATCH_WIDTH = 16;
constexpr int MULTIPLY = 256; /* threads that multiply: two warpgroups; those after them copy */
constexpr int HEADER = 1024;       /* bytes: barriers, before the tiles */

struct maps {
    CUtensorMap from[CONV2D_INPUTS], w;
    conv2d_job job;
    int patches_x, column_tiles;
};

/* BLOCKS: of 64 pixels that a warpgroup has. RESIDENT: blocks of threads that share a multiprocessor. */
template <int COLUMNS_, int BLOCKS_, int BAND_, int BANDS_, int STAGES_, int RESIDENT_> struct shape {
    static constexpr int COLUMNS = COLUMNS_, BLOCKS = BLOCKS_, BAND = BAND_, BANDS = BANDS_, STAGES = STAGES_;
    static constexpr int RESIDENT = RESIDENT_, HEIGHT = 8 * BLOCKS, PIXELS = 128 * BLOCKS;
    /* Where sums need many registers, a warpgroup copies, and gives its registers to the others. */
    static constexpr int THREADS = MULTIPLY + (RESIDENT == 1 ? 128 : 32);
    static constexpr int ROW = BAND * 2; /* bytes */
    static constexpr int A_BAND = PIXELS * ROW, B_BAND = COLUMNS * ROW;
    static constexpr int A_BYTES = A_BAND * BANDS, B_BYTES = B_BAND * BANDS;
    static constexpr int STAGE = A_BYTES + (B_BYTES + 1023) / 1024 * 1024;
    static constexpr int SHARED = HEADER + 1024 + STAGES * STAGE; /* 1024 to align */
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

/* Rows along k, of ROW bytes, swizzled. */
template <int ROW> static __device__ __forceinline__ uint64_t operand(uint32_t address) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(8 * ROW >> 4) << 32 |
           (uint64_t)(ROW == 128 ? 1 : 2) << 62;
}

template <typename S> static __device__ __forceinline__ int steps_of(const conv2d_job &job) {
    int steps = 0;
    for (int i = 0; i < job.inputs; i++) {
        steps += job.channels[i] / (S::BAND * S::BANDS) * job.window.side * job.window.side;
    }
    return steps;
}

/* One thread: all that the products of this block need. */
template <typename S>
static __device__ __forceinline__ void bring(const maps &m, uint32_t full, uint32_t empty, uint32_t tiles, int x, int y,
                                             int row) {
    const conv2d_job &job = m.job;
    int stage = 0, parity = 1, place = 0; /* place: bands before, in a row of the weights */
    for (int input = 0; input < job.inputs; input++) {
        const int bands = job.channels[input] / S::BAND;
        for (int pixel = 0; pixel < job.window.side * job.window.side; pixel++) {
            for (int band = 0; band < bands; band += S::BANDS, place += S::BANDS) {
                const uint32_t to = tiles + stage * S::STAGE;
                barrier_wait(empty + 8 * stage, parity);
                barrier_expect(full + 8 * stage, S::A_BYTES + S::B_BYTES);
                copy_patch(to, &m.from[input], x + pixel % job.window.side, y + pixel / job.window.side, band,
                           full + 8 * stage);
                copy_weights(to + S::A_BYTES, &m.w, row, place, full + 8 * stage);
                if (++stage == S::STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }
}

template <typename S>
static __device__ __forceinline__ void multiply(float (&sum)[S::BLOCKS][S::COLUMNS / 2], int steps, uint32_t full,
                                                uint32_t empty, uint32_t tiles, int group) {
    int stage = 0, parity = 0, before = 0;
    for (int i = 0; i < steps; i++) {
        const uint32_t a = tiles + stage * S::STAGE + group * S::BLOCKS * 64 * S::ROW;
        const uint32_t b = tiles + stage * S::STAGE + S::A_BYTES;
        barrier_wait(full + 8 * stage, parity);
        products_begin();
#pragma unroll
        for (int band = 0; band < S::BANDS; band++) {
#pragma unroll
            for (int k = 0; k < S::BAND / 16; k++) {
#pragma unroll
                for (int block = 0; block < S::BLOCKS; block++) {
                    product_both(sum[block], operand<S::ROW>(a + band * S::A_BAND + block * 64 * S::ROW + k * 32),
                                 operand<S::ROW>(b + band * S::B_BAND + k * 32), 1);
                }
            }
        }
        products_commit();
        products_wait<1>(); /* those of the stage before are over */
        if (i > 0 && threadIdx.x % 128 == 0) {
            barrier_arrive(empty + 8 * before);
        }
        before = stage;
        if (++stage == S::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    products_wait<0>();
}

static __device__ __forceinline__ float finished(const conv2d_job &job, float value, float bias, uint32_t add) {
    value += bias + __uint_as_float(add);
    return job.relu && value < 0.0f ? 0.0f : value;
}

/* Two neighbouring channels of one pixel. */
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
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t full = base, empty = base + 8 * S::STAGES, tiles = base + HEADER;
    const int tile = (int)blockIdx.x % m.column_tiles, patch = (int)blockIdx.x / m.column_tiles;
    const int phase = (int)blockIdx.z, first = tile * S::COLUMNS;
    const int x = patch % m.patches_x * PATCH_WIDTH, y = patch / m.patches_x * S::HEIGHT;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, 2);
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
            bring<S>(m, full, empty, tiles, x + w.start + phase % 2, y + w.start + phase / 2,
                     phase * m.job.out + first);
        }
    } else {
        if constexpr (S::RESIDENT == 1) {
            registers_take<240>();
        }
        const int group = (int)threadIdx.x / 128;
        float sum[S::BLOCKS][S::COLUMNS / 2] = {};
        multiply<S>(sum, steps_of<S>(m.job), full, empty, tiles, group);
#pragma unroll
        for (int block = 0; block < S::BLOCKS; block++) {
            keep_below(sum[block]);
        }
        write<S>(m, sum, x, y, first, phase, group);
    }
#endif
}

typedef decltype(&cuTensorMapEncodeTiled) encoder;

/* The driver's, which is asked for at run time so that a machine without one can load the library. */
encoder find_encoder() {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return (encoder)found;
}

carry_status encode_map(carry_ctx *ctx, CUtensorMap *map, const void *data, int rank, const cuuint64_t *sizes,
                        const cuuint64_t *strides, const cuuint32_t *box, int ordinal) {
    static const encoder encode = find_encoder();
    const cuuint32_t every[] = {1, 1, 1, 1};
    const CUresult result =
        encode == NULL ? CUDA_ERROR_NOT_SUPPORTED
                       : encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)data, sizes, strides,
                                box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                sizes[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: no tensor map of a picture (the driver's error %d)",
                          ordinal, (int)result);
    }
    return CARRY_OK;
}

template <typename S> carry_status launch(carry_ctx *ctx, const conv2d_job &job, const place &at) {
    maps m = {};
    m.job = job;
    m.patches_x = (job.width + PATCH_WIDTH - 1) / PATCH_WIDTH;
    m.column_tiles = (job.out + S::COLUMNS - 1) / S::COLUMNS;
    for (int i = 0; i < job.inputs; i++) {
        const cuuint64_t c = (cuuint64_t)job.channels[i], width = (cuuint64_t)job.x_width;
        const cuuint64_t sizes[] = {S::BAND, width, (cuuint64_t)job.x_height, c / S::BAND};
        const cuuint64_t strides[] = {c * 2, width * c * 2, S::ROW};
        const cuuint32_t box[] = {S::BAND, PATCH_WIDTH, S::HEIGHT, S::BANDS};
        CARRY_TRY(encode_map(ctx, &m.from[i], job.from[i], 4, sizes, strides, box, at.ordinal));
    }
    const cuuint64_t sizes[] = {S::BAND, (cuuint64_t)job.out * job.window.phases, (cuuint64_t)job.depth / S::BAND};
    const cuuint64_t strides[] = {(cuuint64_t)job.depth * 2, S::ROW};
    const cuuint32_t box[] = {S::BAND, S::COLUMNS, S::BANDS};
    CARRY_TRY(encode_map(ctx, &m.w, job.w, 3, sizes, strides, box, at.ordinal));
    auto kernel = conv2d_hopper_kernel<S>;
    const int ordinal = at.ordinal;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED),
                   "no shared memory for conv2d");
    const unsigned patches = (unsigned)(m.patches_x * ((job.height + S::HEIGHT - 1) / S::HEIGHT));
    kernel<<<dim3(patches * (unsigned)m.column_tiles, 1, (unsigned)job.window.phases), S::THREADS, S::SHARED,
             at.stream>>>(m);
    return launched(ctx, at, "conv2d cannot be launched");
}

bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0;
    /* The kernels are empty but in code for sm_90a, which a build may be without: then they need few registers. */
    is = is && cudaFuncGetAttributes(&attributes, conv2d_hopper_kernel<shape<192, 2, 64, 1, 4, 1>>) == cudaSuccess &&
         attributes.numRegs > 64;
    (void)cudaGetLastError();
    return is;
}

/* 0: no GPU for this. */
int units_of(int ordinal) {
    int found = 0;
    (void)cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, ordinal);
    return works(ordinal) ? found : 0;
}

/* Blocks that a shape makes of a job, in rounds of the whole GPU, and the time that one takes: the least wins. */
template <typename S> double cost(const conv2d_job &job, int units, double rate) {
    const double patches = ceil((double)job.width / PATCH_WIDTH) * ceil((double)job.height / S::HEIGHT);
    const double blocks = patches * ceil((double)job.out / S::COLUMNS) * job.window.phases;
    return ceil(blocks / (units * S::RESIDENT)) * S::RESIDENT * S::PIXELS * S::COLUMNS / rate;
}

} // namespace

carry_status carry_conv2d_hopper(carry_ctx *ctx, const conv2d_job &job, const place &at, bool *done) {
    static const int units = units_of(at.ordinal); /* GPUs of one process are taken to be alike */
    bool by_64 = true, by_96 = true, by_32 = true;
    for (int i = 0; i < job.inputs; i++) {
        by_64 = by_64 && job.channels[i] % 64 == 0 && (uintptr_t)job.from[i] % 16 == 0;
        by_96 = by_96 && job.channels[i] % 96 == 0 && (uintptr_t)job.from[i] % 16 == 0;
        by_32 = by_32 && job.channels[i] % 32 == 0 && (uintptr_t)job.from[i] % 16 == 0;
    }
    const bool aligned = (uintptr_t)job.w % 16 == 0 && (uintptr_t)job.y % 4 == 0 && (uintptr_t)job.add % 4 == 0 &&
                         (uintptr_t)job.bias % 8 == 0;
    *done = units > 0 && job.window.step == 1 && aligned && (by_64 || by_32);
    if (!*done) {
        return CARRY_OK;
    }
    if (job.out <= 8) {
        return by_64   ? launch<shape<8, 2, 64, 1, 3, 2>>(ctx, job, at)
               : by_96 ? launch<shape<8, 2, 32, 3, 2, 2>>(ctx, job, at)
                       : launch<shape<8, 2, 32, 1, 4, 2>>(ctx, job, at);
    }
    if (!by_64) {
        return by_96 ? launch<shape<96, 2, 32, 3, 3, 1>>(ctx, job, at) : launch<shape<64, 1, 32, 1, 4, 2>>(ctx, job, at);
    }
    if (job.out <= 64) {
        return launch<shape<64, 1, 64, 1, 4, 2>>(ctx, job, at);
    }
    if (job.out <= 96) {
        return launch<shape<96, 2, 64, 1, 4, 1>>(ctx, job, at);
    }
    const double wide = cost<shape<192, 2, 64, 1, 4, 1>>(job, units, 1.0);
    const double flat = cost<shape<192, 1, 64, 1, 4, 1>>(job, units, 0.85);
    const double narrow = cost<shape<128, 1, 64, 1, 3, 2>>(job, units, 0.75);
    if (wide <= flat && wide <= narrow) {
        return launch<shape<192, 2, 64, 1, 4, 1>>(ctx, job, at);
    }
    return flat <= narrow ? launch<shape<192, 1, 64, 1, 4, 1>>(ctx, job, at)
                          : launch<shape<128, 1, 64, 1, 3, 2>>(ctx, job, at);
}
