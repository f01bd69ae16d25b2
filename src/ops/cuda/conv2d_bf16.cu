/* Convolutions of bf16 pictures on the tensor cores of NVIDIA GPUs, as one product: rows are output pixels, columns
   output channels, and the sum goes over inputs, pixels of a window and channels. No matrix of windows is built: a
   tile of 128 pixels by 32 channels of one pixel of the window is copied into shared memory directly from the
   picture, whose frame of zeros is the padding. Two tiles are being copied while a third is multiplied.

   A block of 8 warps computes 128 pixels by COLUMNS channels, a warp 32 by COLUMNS / 2. */
#include "ops/cuda/conv2d.cuh"

static const int PIXELS = 128, DEPTH = 32, STAGES = 3;
static const int PIECES = DEPTH / 8; /* pieces of 16 bytes in a row of a tile */

static __device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

/* The offset of piece `piece` of a row. Eight rows that are read together are in different banks. */
static __device__ __forceinline__ int swizzled(int row, int piece) {
    return row * DEPTH + ((piece ^ (row >> 1)) & (PIECES - 1)) * 8;
}

static __device__ __forceinline__ void copy_piece(uint16_t *to, const uint16_t *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0));
}

/* Copies eight elements at any address, of which `left` exist; the others are zero. */
static __device__ __forceinline__ void copy_elements(uint16_t *to, const uint16_t *from, int left) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
        to[e] = e < left ? from[e] : (uint16_t)0;
    }
}

static __device__ __forceinline__ void load_fragments(unsigned (&f)[4], const uint16_t *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(shared_address(at)));
}

static __device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The position of the next tile: an input, a pixel of its window, and some of its channels. */
struct walk {
    int input, pixel, channel, place; /* place: index of the pixel's first channel in a row of the weights */
    __device__ __forceinline__ void next(const conv2d_job &job) {
        channel += DEPTH;
        if (channel >= job.channels[input]) {
            channel = 0;
            place += job.channels[input];
            if (++pixel == job.window.side * job.window.side) {
                pixel = 0;
                input++;
            }
        }
    }
};

template <int COLUMNS, bool BY_16> struct tiles { uint16_t a[STAGES][PIXELS * DEPTH], b[STAGES][COLUMNS * DEPTH]; };

/* Loads this thread's pieces of a tile: in every 64th row, one of the row's PIECES. origin: for each of these rows, the
   input pixel at which the window of its output pixel starts; negative past the last pixel. */
template <int COLUMNS, bool BY_16>
static __device__ __forceinline__ void load_tile(uint16_t *a, uint16_t *b, const conv2d_job &job, const walk &at,
                                                 const uint16_t *w, int first, const int (&origin)[2]) {
    const int piece = threadIdx.x % PIECES, row0 = threadIdx.x / PIECES;
    const int channels = job.channels[at.input], channel = at.channel + piece * 8;
    const int shift = at.pixel / job.window.side * job.x_width + at.pixel % job.window.side;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = row0 + 64 * i;
        const int left = origin[i] >= 0 ? channels - channel : 0;
        const uint16_t *from = job.from[at.input];
        from += left > 0 ? (int64_t)(origin[i] + shift) * channels + channel : 0;
        if (BY_16) {
            copy_piece(a + swizzled(r, piece), from, left > 0);
        } else {
            copy_elements(a + swizzled(r, piece), from, left);
        }
    }
#pragma unroll
    for (int i = 0; i < (COLUMNS + 63) / 64; i++) {
        const int r = row0 + 64 * i;
        const int left = first + r < job.out ? channels - channel : 0;
        const uint16_t *from = w + (left > 0 ? (int64_t)(first + r) * job.depth + at.place + channel : 0);
        if (COLUMNS < 64 && r >= COLUMNS) {
            break;
        }
        if (BY_16) {
            copy_piece(b + swizzled(r, piece), from, left > 0);
        } else {
            copy_elements(b + swizzled(r, piece), from, left);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int COLUMNS>
static __device__ __forceinline__ void multiply_tile(float (&sum)[2][COLUMNS / 16][4], const uint16_t *a,
                                                     const uint16_t *b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % 4 * 32 + lane % 16, column = warp / 4 * (COLUMNS / 2) + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        unsigned x[2][4];
        load_fragments(x[0], a + swizzled(row, 2 * k + lane / 16));
        load_fragments(x[1], a + swizzled(row + 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n += 2) {
            unsigned y[4]; /* two blocks of 8 channels by 16 of k */
            load_fragments(y, b + swizzled(column + n * 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply_add(sum[m][n], x[m], y[0], y[1]);
                multiply_add(sum[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

static __device__ __forceinline__ void put(const conv2d_job &job, int64_t at, int c, float value) {
    value += (job.bias != NULL ? job.bias[c] : 0.0f) + (job.add != NULL ? type_bf16::widen(job.add[at + c]) : 0.0f);
    job.y[at + c] = type_bf16::narrow(job.relu && value < 0.0f ? 0.0f : value);
}

template <int COLUMNS, bool BY_16> __global__ void __launch_bounds__(THREADS) conv2d_bf16_kernel(conv2d_job job) {
    __shared__ __align__(128) tiles<COLUMNS, BY_16> t;
    const int phase = blockIdx.z, down = phase / 2, side = phase % 2; /* of a doubled picture */
    const int first = blockIdx.y * COLUMNS, count = job.height * job.width;
    const int begin = (int)blockIdx.x * PIXELS;
    const uint16_t *w = job.w + (int64_t)phase * job.out * job.depth;
    int origin[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int pixel = begin + (int)threadIdx.x / PIECES + 64 * i;
        origin[i] = pixel >= count ? -1
                                   : (pixel / job.width * job.window.step + job.window.start + down) * job.x_width +
                                         pixel % job.width * job.window.step + job.window.start + side;
    }
    int steps = 0;
    for (int i = 0; i < job.inputs; i++) {
        steps += (job.channels[i] + DEPTH - 1) / DEPTH * job.window.side * job.window.side;
    }
    walk next = {};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) {
            load_tile<COLUMNS, BY_16>(t.a[i], t.b[i], job, next, w, first, origin);
            next.next(job);
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }
    float sum[2][COLUMNS / 16][4] = {};
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int to = (i + STAGES - 1) % STAGES;
        if (i + STAGES - 1 < steps) {
            load_tile<COLUMNS, BY_16>(t.a[to], t.b[to], job, next, w, first, origin);
            next.next(job);
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        multiply_tile<COLUMNS>(sum, t.a[i % STAGES], t.b[i % STAGES]);
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, factor = job.window.phases == 4 ? 2 : 1;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const int pixel = begin + warp % 4 * 32 + m * 8 + lane / 4;
        if (pixel < count) {
            const int64_t y = (int64_t)(pixel / job.width) * factor + down + 1;
            const int64_t at = (y * (job.width * factor + 2) + pixel % job.width * factor + side + 1) * job.out;
#pragma unroll
            for (int n = 0; n < COLUMNS / 16; n++) {
                const int c = first + warp / 4 * (COLUMNS / 2) + n * 8 + lane % 4 * 2;
                for (int e = 0; e < 2 && c + e < job.out; e++) {
                    put(job, at, c + e, sum[m / 2][n][m % 2 * 2 + e]);
                }
            }
        }
    }
}

template <int COLUMNS> static void launch(const conv2d_job &job, dim3 grid, bool by_16, cudaStream_t stream) {
    if (by_16) {
        conv2d_bf16_kernel<COLUMNS, true><<<grid, THREADS, 0, stream>>>(job);
    } else {
        conv2d_bf16_kernel<COLUMNS, false><<<grid, THREADS, 0, stream>>>(job);
    }
}

carry_status carry_conv2d_bf16(carry_ctx *ctx, const conv2d_job &job, const place &at) {
    bool by_16 = (uintptr_t)job.w % 16 == 0 && job.depth % 8 == 0;
    for (int i = 0; i < job.inputs; i++) {
        by_16 = by_16 && job.channels[i] % 8 == 0 && (uintptr_t)job.from[i] % 16 == 0;
    }
    const int64_t blocks = ((int64_t)job.height * job.width + PIXELS - 1) / PIXELS;
    const int columns = job.out > 64 ? 128 : job.out > 32 ? 64 : 32;
    const dim3 grid((unsigned)blocks, (unsigned)((job.out + columns - 1) / columns), (unsigned)job.window.phases);
    if (columns == 128) {
        launch<128>(job, grid, by_16, at.stream);
    } else if (columns == 64) {
        launch<64>(job, grid, by_16, at.stream);
    } else {
        launch<32>(job, grid, by_16, at.stream);
    }
    return launched(ctx, at, "conv2d cannot be launched");
}
