/* Converts planes to pictures, and pictures to planes and bytes; and the norm followed by SiLU, on NVIDIA GPUs. */
#include "ops/cuda/wide.cuh"

static __device__ __forceinline__ float mapped(float value, const carry_picture_map &map) {
    value = map.tanh3 ? 3.0f * tanhf(value / 3.0f) : map.scale * value + map.shift;
    if (!map.clamped) {
        return value;
    }
    return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f; /* NaN becomes 0 */
}

/* Height, width and channels without the frame, and the distance between planes. */
struct sizes {
    int64_t height, width, channels, next_plane;
};

static sizes sizes_of(const carry_tensor &picture, int64_t next_plane) {
    return sizes{picture.shape[0] - 2, picture.shape[1] - 2, picture.shape[2], next_plane};
}

static __device__ __forceinline__ int64_t pixel_at(const sizes &s, int64_t pixel) {
    return ((pixel / s.width + 1) * (s.width + 2) + pixel % s.width + 1) * s.channels;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    picture_read_kernel(row_of<T> picture, mixed planes, sizes s, carry_picture_map map) {
    const int64_t area = s.height * s.width, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < area * s.channels; i += step) {
        const int64_t pixel = i % area, c = i / area;
        picture.put(pixel_at(s, pixel) + c, mapped(planes[c * s.next_plane + pixel], map));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    picture_write_kernel(row_of<T> planes, mixed picture, sizes s, carry_picture_map map) {
    const int64_t area = s.height * s.width, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < area * s.channels; i += step) {
        const int64_t pixel = i % area, c = i / area;
        planes.put(c * s.next_plane + pixel, mapped(picture[pixel_at(s, pixel) + c], map));
    }
}

__global__ void __launch_bounds__(THREADS)
    picture_bytes_kernel(unsigned char *bytes, mixed picture, sizes s, carry_picture_map map) {
    const int64_t count = s.height * s.width * s.channels, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const float value = mapped(picture[pixel_at(s, i / s.channels) + i % s.channels], map);
        bytes[i] = (unsigned char)rintf(255.0f * value);
    }
}

extern "C" carry_status carry_cuda_picture_read(carry_ctx *ctx, carry_tensor picture, carry_tensor planes,
                                                carry_picture_map map) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, picture.device));
    const sizes s = sizes_of(picture, planes.stride[0]);
    with_type(picture.dtype, [&](auto type) {
        using T = decltype(type);
        picture_read_kernel<T><<<blocks_for(s.height * s.width * s.channels, THREADS), THREADS, 0, at.stream>>>(
            row<T>(picture), mixed_of(planes), s, map);
    });
    return launched(ctx, at, "picture_read cannot be launched");
}

extern "C" carry_status carry_cuda_picture_write(carry_ctx *ctx, carry_tensor planes, carry_tensor picture,
                                                 carry_picture_map map) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, picture.device));
    const sizes s = sizes_of(picture, planes.stride[0]);
    with_type(planes.dtype, [&](auto type) {
        using T = decltype(type);
        picture_write_kernel<T><<<blocks_for(s.height * s.width * s.channels, THREADS), THREADS, 0, at.stream>>>(
            row<T>(planes), mixed_of(picture), s, map);
    });
    return launched(ctx, at, "picture_write cannot be launched");
}

extern "C" carry_status carry_cuda_picture_bytes(carry_ctx *ctx, unsigned char *bytes, carry_tensor picture,
                                                 carry_picture_map map) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, picture.device));
    const sizes s = sizes_of(picture, 0);
    picture_bytes_kernel<<<blocks_for(s.height * s.width * s.channels, THREADS), THREADS, 0, at.stream>>>(
        bytes, mixed_of(picture), s, map);
    return launched(ctx, at, "picture_bytes cannot be launched");
}

/* GROUP threads, a warp or a part of one, have a row and hold it in registers, VECS vectors each. */
template <typename T, int GROUP, int VECS>
__global__ void __launch_bounds__(THREADS)
    norm_silu_kernel(row_of<T> y, row_of<T> x, mixed w, int64_t rows, int n, float eps) {
    const int64_t step = (int64_t)gridDim.x * (THREADS / GROUP);
    const int lane = threadIdx.x % GROUP;
    float weights[VECS][ONCE];
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        const int at = (lane + k * GROUP) * ONCE;
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            weights[k][j] = at < n ? w[at + j] : 0.0f;
        }
    }
    const int64_t warp_first = ((int64_t)blockIdx.x * THREADS + threadIdx.x / 32 * 32) / GROUP;
    for (int64_t base = warp_first; base < rows; base += step) { /* all threads of a warp stay in the loop together */
        const int64_t own = base + threadIdx.x % 32 / GROUP;
        const int64_t at_row = (own < rows ? own : base) * n;
        packed<T, ONCE> in[VECS];
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            const int at = (lane + k * GROUP) * ONCE;
            if (at < n) {
                in[k] = load_packed<T, ONCE>(x.data + at_row + at);
            } else {
                in[k] = packed<T, ONCE>{};
            }
#pragma unroll
            for (int j = 0; j < ONCE; j++) {
                const float value = element_of<T, ONCE>(in[k], j);
                squares = fmaf(value, value, squares);
            }
        }
#pragma unroll
        for (int s = GROUP / 2; s > 0; s /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, s);
        }
        const float scale = 1.0f / sqrtf(squares / (float)n + eps);
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            const int at = (lane + k * GROUP) * ONCE;
            float out[ONCE];
#pragma unroll
            for (int j = 0; j < ONCE; j++) {
                const float value = element_of<T, ONCE>(in[k], j) * scale * weights[k][j];
                out[j] = value * quick<T>::sigmoid(value);
            }
            if (own < rows && at < n) {
                store_all<T, ONCE>(y.data + at_row + at, out);
            }
        }
    }
}

/* Rows of any length: one warp each, read twice. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    norm_silu_any_kernel(row_of<T> y, row_of<T> x, mixed w, int64_t rows, int64_t n, float eps) {
    const int lane = threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < rows; r += step) {
        float squares = 0.0f;
        for (int64_t i = lane; i < n; i += 32) {
            squares = fmaf(x.get(r * n + i), x.get(r * n + i), squares);
        }
        const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)n + eps);
        for (int64_t i = lane; i < n; i += 32) {
            y.put(r * n + i, silu_of(x.get(r * n + i) * scale * w[i]));
        }
    }
}

template <typename T, int GROUP, int VECS>
static void launch_norm_silu(const carry_tensor &y, const carry_tensor &x, const carry_tensor &w, float eps,
                             cudaStream_t stream) {
    const int64_t blocks = (x.shape[0] + THREADS / GROUP - 1) / (THREADS / GROUP);
    norm_silu_kernel<T, GROUP, VECS><<<(unsigned)(blocks < 2112 ? blocks : 2112), THREADS, 0, stream>>>(
        row<T>(y), row<T>(x), mixed_of(w), x.shape[0], (int)x.shape[1], eps);
}

extern "C" carry_status carry_cuda_rms_norm_silu(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w,
                                                 float eps) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t rows = x.shape[0], n = x.shape[1];
    if (rows == 0 || n == 0) {
        return CARRY_OK;
    }
    const bool wide = n % ONCE == 0 && n <= 1024 && is_aligned(x.data) && is_aligned(y.data);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        if (!wide) {
            norm_silu_any_kernel<T><<<blocks_for(rows, THREADS / 32), THREADS, 0, at.stream>>>(
                row<T>(y), row<T>(x), mixed_of(w), rows, n, eps);
        } else if (n <= 64) {
            launch_norm_silu<T, 8, 1>(y, x, w, eps, at.stream);
        } else if (n <= 128) {
            launch_norm_silu<T, 16, 1>(y, x, w, eps, at.stream);
        } else if (n <= 256) {
            launch_norm_silu<T, 32, 1>(y, x, w, eps, at.stream);
        } else if (n <= 512) {
            launch_norm_silu<T, 32, 2>(y, x, w, eps, at.stream);
        } else {
            launch_norm_silu<T, 32, 4>(y, x, w, eps, at.stream);
        }
    });
    return launched(ctx, at, "rms_norm_silu cannot be launched");
}
