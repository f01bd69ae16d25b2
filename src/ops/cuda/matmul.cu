/* Batches of matrix products on the tensor cores of NVIDIA GPUs.

   A block of four warps computes one tile of c of 64 x 64 or 32 x 32, each warp a quarter, or four tiles of 16 x 16
   of four items, one per warp (panels.cuh). */
#include <string.h>

extern "C" {
#include "ops/cuda/cuda.h"
}

#include "device/cuda.h"
#include "ops/cuda/panels.cuh"

static const int SMALL = 64;      /* products with sides up to this, and sums */
static const int SMALL_SUM = 256; /* up to this length, use these kernels even if cuBLASLt is available */
extern "C" const char *const carry_cuda_ways[] = {"tensor_cores", "cublaslt", NULL};

/* How a launch divides the work, and which operands allow wide accesses. */
typedef struct grid_cut {
    int64_t row_tiles, column_tiles, tiles; /* tiles over all items */
    bool a_by_16, b_by_16, c_by_pair;
} grid_cut;

template <typename T, int TILE>
__global__ void __launch_bounds__(PANEL_THREADS, TILE == 64 ? 4 : 6)
    product_kernel(const __grid_constant__ carry_device_product p, const __grid_constant__ grid_cut g) {
    typedef typename T::stored E;
    typedef cut<T, TILE> C;
    __shared__ __align__(16) E panels[C::TILES][2][C::SIZE];
    int group = (int)threadIdx.x / C::GROUP;
    int thread = (int)threadIdx.x % C::GROUP;
    int lane = thread % 32;
    int warp_row = thread / 32 / C::SIDE * C::WARP;
    int warp_column = thread / 32 % C::SIDE * C::WARP;
    int a_stride = p.a_transposed ? C::ACROSS : C::ALONG;
    int b_stride = p.b_transposed ? C::ALONG : C::ACROSS;
    E *a = panels[group][0];
    E *b = panels[group][1];
    for (int64_t first = (int64_t)blockIdx.x * C::TILES; first < g.tiles; first += (int64_t)gridDim.x * C::TILES) {
        int64_t tile =
            first + group < g.tiles ? first + group : g.tiles - 1; /* a group without a tile repeats the last one */
        int64_t item = tile;
        int64_t row0 = 0;
        int64_t column0 = 0;
        if (g.row_tiles * g.column_tiles > 1) { /* avoids long divisions, which matter for small items */
            item = tile / (g.row_tiles * g.column_tiles);
            row0 = tile / g.column_tiles % g.row_tiles * TILE;
            column0 = tile % g.column_tiles * TILE;
        }
        const E *a_item = (const E *)p.a + item * p.a_next;
        const E *b_item = (const E *)p.b + item * p.b_next;
        float sum[C::WARP / 16][C::WARP / 8][4] = {};
        for (int64_t k0 = 0; k0 < p.k; k0 += depth<T>::PANEL) {
            load_operand<T, TILE>(a, a_item, p.a_row, p.a_transposed, row0, p.m, k0, p.k, g.a_by_16, thread);
            load_operand<T, TILE>(b, b_item, p.b_row, !p.b_transposed, column0, p.n, k0, p.k, g.b_by_16, thread);
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            int there = at_most(p.k - k0, depth<T>::PANEL);
            for (int k = 0; k < there; k += depth<T>::STEP) {
                step(T{}, sum, a + (p.a_transposed ? k * a_stride + warp_row : warp_row * a_stride + k), a_stride,
                     p.a_transposed, b + (p.b_transposed ? warp_column * b_stride + k : k * b_stride + warp_column),
                     b_stride, p.b_transposed, lane);
            }
            __syncthreads(); /* the panels will be overwritten */
        }
        if (first + group < g.tiles) {
            store<T>(p, sum, item * p.c_next, row0 + warp_row, column0 + warp_column, g.c_by_pair, lane);
        }
    }
}

static bool multiples(const void *data, int64_t row, int64_t next, size_t size, size_t of) {
    return (uintptr_t)data % of == 0 && row * (int64_t)size % (int64_t)of == 0 &&
           next * (int64_t)size % (int64_t)of == 0;
}

template <typename T, int TILE> static cudaError_t launch(const carry_device_product *p) {
    const size_t size = sizeof(typename T::stored);
    size_t c_pair = 2 * (p->c_type == CARRY_F32 ? sizeof(float) : size);
    grid_cut g = {};
    g.row_tiles = (p->m + TILE - 1) / TILE;
    g.column_tiles = (p->n + TILE - 1) / TILE;
    g.tiles = g.row_tiles * g.column_tiles * p->count;
    g.a_by_16 = multiples(p->a, p->a_row, p->a_next, size, 16);
    g.b_by_16 = multiples(p->b, p->b_row, p->b_next, size, 16);
    g.c_by_pair = !p->accumulate && multiples(p->c, p->c_row, p->c_next, c_pair / 2, c_pair);
    int64_t blocks = (g.tiles + cut<T, TILE>::TILES - 1) / cut<T, TILE>::TILES;
    product_kernel<T, TILE>
        <<<(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), PANEL_THREADS, 0, (cudaStream_t)p->stream>>>(*p, g);
    return cudaGetLastError();
}

static carry_status product_own(carry_ctx *ctx, const carry_device_product *p) {
    int ordinal = p->ordinal;
    int64_t side = p->m > p->n ? p->m : p->n;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cudaError_t error = with_type(p->type, [&](auto type) {
        typedef decltype(type) T;
        return side <= 16 ? launch<T, 16>(p) : side <= 32 ? launch<T, 32>(p) : launch<T, 64>(p);
    });
    CARRY_CUDA_TRY(error, "a kernel for products cannot be launched");
    return CARRY_OK;
}

static carry_status copy_base(carry_ctx *ctx, const carry_device_product *p) {
    const int ordinal = p->ordinal;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaMemcpyAsync(p->c, p->base, (size_t)(p->m * p->n) * carry_dtype_size(p->c_type),
                                   cudaMemcpyDeviceToDevice, (cudaStream_t)p->stream),
                   "what a product is added to cannot be copied");
    return CARRY_OK;
}

extern "C" const char *carry_cuda_product_choice(carry_ctx *ctx, const carry_device_product *p) {
    (void)ctx;
    bool more = p->bias != NULL || p->gelu;
    return p->k > 0 && (more || p->m > SMALL || p->n > SMALL || p->k > SMALL_SUM) ? carry_cuda_ways[1]
                                                                                  : carry_cuda_ways[0];
}

extern "C" carry_status carry_cuda_product(carry_ctx *ctx, const carry_device_product *p, const char *way) {
    bool done = false;
    const char *wanted = way != NULL ? way : carry_cuda_product_choice(ctx, p);
    if (p->count < 1 || p->m < 1 || p->n < 1) {
        return CARRY_OK;
    }
    if (strcmp(wanted, carry_cuda_ways[1]) == 0) {
        CARRY_TRY(carry_cuda_blaslt(ctx, p, &done));
    }
    if (!done && way != NULL && strcmp(way, carry_cuda_ways[0]) != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s is not available, or does not support this product", way);
    }
    if (!done && (p->bias != NULL || p->gelu)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "a product with a bias or GELU needs cuBLASLt, which is not available or does not support "
                          "[%lld, %lld] by [%lld, %lld]",
                          (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n);
    }
    if (!done && p->base != NULL && p->base != p->c) { /* Carry's own kernels add to c */
        CARRY_TRY(copy_base(ctx, p));
    }
    return done ? CARRY_OK : product_own(ctx, p);
}
