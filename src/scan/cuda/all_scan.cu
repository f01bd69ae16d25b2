/* The arithmetic of All-Scan on a GPU: f32 products in tiles of shared memory, copies and conversions. A state of 16
   heads of 128 x 128 is only 1 MiB, so each launch handles all heads. Sums are f32, in the order of k. */
#include <cuda_bf16.h>
#include <string.h>

#include "device/cuda.h"

extern "C" {
#include "core/context.h"
#include "scan/all_scan/all_scan.h"
}

namespace {

constexpr int THREADS = 256;
/* The size of a tile; a thread has 4 sums. DEPTH covers all of a head's K at once, since other ranks wait for this
   product and the latency of its loads bounds it. */
constexpr int ROWS = 32, COLUMNS = 32, DEPTH = 128;

struct view {
    float *data;
    ptrdiff_t head, row;
};

/* c = factor * scale[h] * (a b) + base. a is m x k, packed, or k x m if transposed. */
struct product {
    int64_t m, n, k;
    const float *a;
    int64_t a_head;
    bool a_transposed;
    view b, base, c;    /* base.data NULL: zero */
    const float *scale; /* NULL: 1 */
    float factor;
};

__global__ __launch_bounds__(THREADS) void multiply(product p) {
    __shared__ float a[DEPTH][ROWS + 1], b[DEPTH][COLUMNS];
    const int64_t head = blockIdx.z, row0 = (int64_t)blockIdx.y * ROWS, column0 = (int64_t)blockIdx.x * COLUMNS;
    const float *A = p.a + head * p.a_head;
    const float *B = p.b.data + head * p.b.head;
    const int column = threadIdx.x % COLUMNS, row = threadIdx.x / COLUMNS; /* rows row, row + 8, ... */
    float sum[4] = {0, 0, 0, 0};
    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
#pragma unroll
        for (int j = 0; j < ROWS * DEPTH / THREADS; j++) { /* adjacent threads read adjacent elements */
            const int i = j * THREADS + (int)threadIdx.x;
            const int at_row = p.a_transposed ? i % ROWS : i / DEPTH, at_k = p.a_transposed ? i / ROWS : i % DEPTH;
            const int64_t r = row0 + at_row, k = k0 + at_k;
            const bool inside = r < p.m && k < p.k;
            a[at_k][at_row] = inside ? A[p.a_transposed ? k * p.m + r : r * p.k + k] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS * DEPTH / THREADS; j++) {
            const int i = j * THREADS + (int)threadIdx.x;
            const int64_t k = k0 + i / COLUMNS, c = column0 + i % COLUMNS;
            b[i / COLUMNS][i % COLUMNS] = k < p.k && c < p.n ? B[k * p.b.row + c] : 0.0f;
        }
        __syncthreads();
        const int deep = p.k - k0 < DEPTH ? (int)(p.k - k0) : DEPTH;
#pragma unroll 8
        for (int k = 0; k < deep; k++) {
            const float right = b[k][column];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] = fmaf(a[k][row + 8 * i], right, sum[i]);
            }
        }
        __syncthreads();
    }
    const float by = p.scale != NULL ? p.factor * p.scale[head] : p.factor;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t r = row0 + row + 8 * i, c = column0 + column;
        if (r < p.m && c < p.n) {
            const float base = p.base.data != NULL ? p.base.data[head * p.base.head + r * p.base.row + c] : 0.0f;
            p.c.data[head * p.c.head + r * p.c.row + c] = fmaf(by, sum[i], base);
        }
    }
}

/* out = M * S + L, where M is one number for each row of a head (diagonal) or for each head (gamma). A head has `key`
   rows. */
__global__ void scale_add(view out, const float *M, int64_t a_row, int64_t a_head, view S, view L, int64_t key,
                          int64_t columns, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t column = i % columns, row = i / columns % key, head = i / columns / key;
        out.data[head * out.head + row * out.row + column] =
            fmaf(M[head * a_head + row * a_row], S.data[head * S.head + row * S.row + column],
                 L.data[head * L.head + row * L.row + column]);
    }
}

__global__ void multiply_maps(float *out, const float *second, const float *first, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        out[i] = second[i] * first[i];
    }
}

__global__ void add_diagonal(float *M, const float *gamma, int64_t key, int64_t heads) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < heads * key) {
        M[i / key * key * key + i % key * (key + 1)] += gamma[i / key];
    }
}

__device__ float widened(float x) {
    return x;
}

__device__ float widened(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

__device__ void narrow_to(float *to, float x) {
    *to = x;
}

__device__ void narrow_to(__nv_bfloat16 *to, float x) {
    *to = __float2bfloat16(x);
}

/* Copies elements between views with heads and rows. If from is NULL, writes zeros. */
template <typename To, typename From>
__global__ void move(To *to, ptrdiff_t to_head, ptrdiff_t to_row, const From *from, ptrdiff_t from_head,
                     ptrdiff_t from_row, int64_t rows, int64_t columns, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t column = i % columns, row = i / columns % rows, head = i / columns / rows;
        const float x = from != NULL ? widened(from[head * from_head + row * from_row + column]) : 0.0f;
        narrow_to(to + head * to_head + row * to_row + column, x);
    }
}

/* A walk over positions. A block has WALKED columns of a head and keeps their state in shared memory. Its threads
   divide the rows and columns among themselves. M is read from global memory, each row by the threads of that row. */
constexpr int WALKED = 8, STEPS = 256;

struct steps {
    float *states;
    const float *L, *M;
    int64_t heads, key, value;
    int first, count;
    bool transposed, diagonal;
    unsigned char role[STEPS];
};

__global__ __launch_bounds__(THREADS) void walk_steps(const __grid_constant__ steps w) {
    extern __shared__ float memory[];
    const int column = threadIdx.x % WALKED;
    const int64_t head = blockIdx.y, at = (int64_t)blockIdx.x * WALKED + column, state = w.heads * w.key * w.value;
    const int64_t map = w.diagonal ? w.key : w.key * w.key;
    float *S = memory, *next = memory + w.key * WALKED;
    for (int64_t r = threadIdx.x / WALKED; r < w.key; r += THREADS / WALKED) {
        const float *before = w.states + (w.first - 1) * state + (head * w.key + r) * w.value;
        S[r * WALKED + column] = w.first > 0 && at < w.value ? before[at] : 0.0f;
    }
    __syncthreads();
    for (int q = 0; q < w.count; q++) {
        const int role = w.role[q];
        const float *M = w.M + ((w.first + q) * w.heads + head) * map;
        for (int64_t r = threadIdx.x / WALKED; r < w.key; r += THREADS / WALKED) {
            const int64_t place = (w.first + q) * state + (head * w.key + r) * w.value + at;
            float sum = role != CARRY_ALL_SCAN_PASS && at < w.value ? w.L[place] : 0.0f;
            if (role == CARRY_ALL_SCAN_PASS || (role == CARRY_ALL_SCAN_MAP && w.diagonal)) {
                sum = fmaf(role == CARRY_ALL_SCAN_PASS ? 1.0f : M[r], S[r * WALKED + column], sum);
            } else if (role == CARRY_ALL_SCAN_MAP && w.first + q > 0) {
                for (int64_t k = 0; k < w.key; k++) {
                    sum = fmaf(w.transposed ? M[k * w.key + r] : M[r * w.key + k], S[k * WALKED + column], sum);
                }
            }
            next[r * WALKED + column] = sum;
            if (at < w.value) {
                w.states[place] = sum;
            }
        }
        __syncthreads();
        float *swap = S;
        S = next;
        next = swap;
    }
}

view view_of(carry_all_scan_view v) {
    return view{v.data, v.head, v.row};
}

cudaStream_t stream_of(const carry_all_scan_plan *plan) {
    return (cudaStream_t)plan->stream;
}

unsigned blocks_for(int64_t count) {
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks < 4096 ? blocks : 4096);
}

/* prepare is called before the first launch of a function, finish after its last. */
void prepare(carry_all_scan_plan *plan) {
    int ordinal = 0;
    (void)carry_backend_of(plan->device, &ordinal);
    if (cudaSetDevice(ordinal) != cudaSuccess && plan->broken == CARRY_OK) {
        plan->broken = carry_cuda_failed(plan->ctx, cudaGetLastError(), "it cannot be used", ordinal);
    }
}

void finish(carry_all_scan_plan *plan, const char *what) {
    int ordinal = 0;
    const cudaError_t error = cudaGetLastError();
    (void)carry_backend_of(plan->device, &ordinal);
    if (error != cudaSuccess && plan->broken == CARRY_OK) {
        plan->broken = carry_cuda_failed(plan->ctx, error, what, ordinal);
    }
}

void launch(const carry_all_scan_plan *plan, const product &p, int64_t heads) {
    const int64_t most = 65535; /* limit of a grid's z */
    for (int64_t first = 0; first < heads; first += most) {
        product part = p;
        const int64_t some = heads - first < most ? heads - first : most;
        part.a += first * p.a_head;
        part.b.data += first * p.b.head;
        part.c.data += first * p.c.head;
        part.base.data = p.base.data != NULL ? p.base.data + first * p.base.head : NULL;
        part.scale = p.scale != NULL ? p.scale + first : NULL;
        const dim3 grid((unsigned)((p.n + COLUMNS - 1) / COLUMNS), (unsigned)((p.m + ROWS - 1) / ROWS), (unsigned)some);
        multiply<<<grid, THREADS, 0, stream_of(plan)>>>(part);
    }
}

/* gamma (I - W^T Y) S + L = (gamma S + L) + W^T (-gamma Y S). */
void apply_factors(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                   carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const float *W = p->transposed ? map->Y : map->W, *Y = p->transposed ? map->W : map->Y;
    const view beside = {plan->scratch, p->rows * columns, columns};
    product first = {};
    first.m = p->rows;
    first.n = columns;
    first.k = p->key;
    first.a = Y;
    first.a_head = p->rows * p->key;
    first.b = view_of(S);
    first.c = beside;
    first.scale = map->gamma;
    first.factor = -1.0f;
    launch(plan, first, heads);
    const int64_t count = heads * p->key * columns;
    scale_add<<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(view_of(out), map->gamma, 0, 1, view_of(S),
                                                                  view_of(L), p->key, columns, count);
    product second = {};
    second.m = p->key;
    second.n = columns;
    second.k = p->rows;
    second.a = W;
    second.a_head = p->rows * p->key;
    second.a_transposed = true;
    second.b = beside;
    second.base = view_of(out);
    second.c = view_of(out);
    second.factor = 1.0f;
    launch(plan, second, heads);
}

void apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map, carry_all_scan_view S,
           carry_all_scan_view L, int64_t heads, int64_t columns) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    prepare(plan);
    if (map->kind == CARRY_ALL_SCAN_DIAGONAL) {
        const int64_t count = heads * p->key * columns;
        scale_add<<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(view_of(out), map->M, 1, p->key, view_of(S),
                                                                      view_of(L), p->key, columns, count);
    } else if (map->kind == CARRY_ALL_SCAN_FACTORS) {
        apply_factors(plan, out, map, S, L, heads, columns);
    } else {
        product dense = {};
        dense.m = dense.k = p->key;
        dense.n = columns;
        dense.a = map->M;
        dense.a_head = p->key * p->key;
        dense.a_transposed = p->transposed;
        dense.b = view_of(S);
        dense.base = view_of(L);
        dense.c = view_of(out);
        dense.factor = 1.0f;
        launch(plan, dense, heads);
    }
    finish(plan, "a product of All-Scan cannot be started");
}

/* Stored maps that are transposed are multiplied in reverse order: M2^T M1^T = (M1 M2)^T. */
void compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first, int64_t heads) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    prepare(plan);
    if (p->kind == CARRY_ALL_SCAN_DIAGONAL) {
        multiply_maps<<<blocks_for(heads * p->key), THREADS, 0, stream_of(plan)>>>(out, second, first, heads * p->key);
    } else {
        product maps = {};
        maps.m = maps.n = maps.k = p->key;
        maps.a = p->transposed ? first : second;
        maps.a_head = p->key * p->key;
        maps.b = view{(float *)(p->transposed ? second : first), p->key * p->key, p->key};
        maps.c = view{out, p->key * p->key, p->key};
        maps.factor = 1.0f;
        launch(plan, maps, heads);
    }
    finish(plan, "a product of maps cannot be started");
}

void densify(carry_all_scan_plan *plan, float *out, const carry_all_scan_map *map, int64_t heads) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    product dense = {};
    prepare(plan);
    dense.m = dense.n = p->key;
    dense.k = p->rows;
    dense.a = map->W;
    dense.a_head = p->rows * p->key;
    dense.a_transposed = true;
    dense.b = view{(float *)map->Y, p->rows * p->key, p->key};
    dense.c = view{out, p->key * p->key, p->key};
    dense.scale = map->gamma;
    dense.factor = -1.0f;
    launch(plan, dense, heads);
    add_diagonal<<<blocks_for(heads * p->key), THREADS, 0, stream_of(plan)>>>(out, map->gamma, p->key, heads);
    finish(plan, "a map cannot be made");
}

void copy(carry_all_scan_plan *plan, carry_all_scan_view to, carry_all_scan_view from, int64_t heads, int64_t rows,
          int64_t columns) {
    const int64_t count = heads * rows * columns;
    prepare(plan);
    if (to.data != from.data) {
        move<float, float><<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(
            to.data, to.head, to.row, from.data, from.head, from.row, rows, columns, count);
    }
    finish(plan, "a state cannot be copied");
}

void pack(carry_all_scan_plan *plan, void *wire, carry_all_scan_view from, int64_t heads, int64_t rows,
          int64_t columns) {
    const int64_t count = heads * rows * columns;
    prepare(plan);
    if (plan->shape.problem.wire == CARRY_F32) {
        move<float, float><<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(
            (float *)wire, rows * columns, columns, from.data, from.head, from.row, rows, columns, count);
    } else {
        move<__nv_bfloat16, float><<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(
            (__nv_bfloat16 *)wire, rows * columns, columns, from.data, from.head, from.row, rows, columns, count);
    }
    finish(plan, "a state cannot be packed");
}

void unpack(carry_all_scan_plan *plan, carry_all_scan_view to, const void *wire, int64_t heads, int64_t rows,
            int64_t columns) {
    const int64_t count = heads * rows * columns;
    prepare(plan);
    if (plan->shape.problem.wire == CARRY_F32) {
        move<float, float><<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(
            to.data, to.head, to.row, (const float *)wire, rows * columns, columns, rows, columns, count);
    } else {
        move<float, __nv_bfloat16><<<blocks_for(count), THREADS, 0, stream_of(plan)>>>(
            to.data, to.head, to.row, (const __nv_bfloat16 *)wire, rows * columns, columns, rows, columns, count);
    }
    finish(plan, "a state cannot be unpacked");
}

void walk(carry_all_scan_plan *plan, const carry_all_scan_walk *w) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t room = 2 * p->key * WALKED * (int64_t)sizeof(float);
    prepare(plan);
    /* The roles of at most STEPS positions fit into the launch parameters. */
    for (int first = 0; first < w->count; first += STEPS) {
        steps s = {};
        s.states = w->states;
        s.L = w->L;
        s.M = w->M;
        s.heads = w->heads;
        s.key = p->key;
        s.value = p->value;
        s.first = first;
        s.count = w->count - first < STEPS ? w->count - first : STEPS;
        s.transposed = p->transposed;
        s.diagonal = p->kind == CARRY_ALL_SCAN_DIAGONAL;
        memcpy(s.role, w->role + first, (size_t)s.count);
        const dim3 grid((unsigned)((p->value + WALKED - 1) / WALKED), (unsigned)w->heads);
        walk_steps<<<grid, THREADS, (size_t)room, stream_of(plan)>>>(s);
    }
    finish(plan, "a walk over positions cannot be started");
}

void clear(carry_all_scan_plan *plan, void *bytes, size_t count) {
    prepare(plan);
    (void)cudaMemsetAsync(bytes, 0, count, stream_of(plan));
    finish(plan, "a message cannot be cleared");
}

} // namespace

extern "C" carry_status carry_all_scan_stream_new(carry_ctx *ctx, carry_stream **stream, int device) {
    cudaStream_t made;
    int ordinal = 0, least = 0, most = 0;
    (void)carry_backend_of(device, &ordinal);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &most), "it does not tell its streams' priorities");
    CARRY_CUDA_TRY(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, most), "a stream cannot be made");
    *stream = (carry_stream *)made;
    return CARRY_OK;
}

extern "C" const carry_all_scan_arith carry_all_scan_on_gpu = {
    .apply = apply,
    .compose = compose,
    .densify = densify,
    .copy = copy,
    .pack = pack,
    .unpack = unpack,
    .walk = walk,
    .clear = clear,
};
