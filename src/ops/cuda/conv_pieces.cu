/* The convolution of pieces of several sequences on NVIDIA GPUs (ops/pool.h): for up to TOGETHER pieces, one launch
   computes all convolutions of a layer (maps), and a second launch stores the last inputs of each piece (tails). Sums
   are computed in the same order as in conv_wide.cu.

   A thread handles 4 channels, which it loads with one instruction, and up to EACH tokens of a piece. The three inputs
   before a token are in registers, and the inputs of AHEAD tokens are loaded at once. A filter with fewer than four
   taps is padded with zeros in front. */
#include "ops/cuda/nn.cuh"
#include "ops/cuda/wide.cuh"

extern "C" {
#include "ops/pool.h"
}

constexpr int TAPS = 4, PAST = TAPS - 1, V = 4, AHEAD = 8;
constexpr int EACH = 32;      /* tokens of a thread */
constexpr int LANES = 128;    /* threads of a block */
constexpr int TOGETHER = 128; /* pieces of a launch; their list is a kernel argument */

template <typename T> struct pieces_map {
    row_of<T> y, x;
    mixed w;
    float *tails;
    int64_t x_row;
    unsigned vectors; /* channels / V */
    int activation;
};

struct piece {
    int begin, end, slot;
    int block; /* number of blocks of EACH tokens up to the end of the piece */
};

template <typename T> struct pieces_job {
    pieces_map<T> map[CARRY_CONV_STEP_MAPS];
    int maps, width, count;
    piece list[TOGETHER];
};

/* Returns the index of the map with this vector of channels, or job.maps past the last one. *vector becomes its index
   in the map. */
template <typename T> static __device__ __forceinline__ int map_of(const pieces_job<T> &job, unsigned *vector) {
    int which = 0;
    while (which < job.maps && *vector >= job.map[which].vectors) {
        *vector -= job.map[which++].vectors;
    }
    return which;
}

template <typename T>
static __device__ __forceinline__ void load_taps(const pieces_map<T> &map, float (&tap)[V][TAPS], int64_t c,
                                                 int width) {
    const int lack = TAPS - width;
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            tap[v][i] = i >= lack ? map.w[(c + v) * width + i - lack] : 0.0f;
        }
    }
}

/* Input of token s of a piece; s may be before its first token, and is then in the tail. */
template <typename T>
static __device__ __forceinline__ void load_input(const pieces_map<T> &map, float (&to)[V], const piece &p, int s,
                                                  int64_t c, int width) {
    const int64_t row = (int64_t)p.slot * (width - 1) + s - p.begin + width - 1;
#pragma unroll
    for (int v = 0; v < V; v++) {
        to[v] = 0.0f;
    }
    if (s >= p.begin) {
        widen_packed<T, V>(to, load_packed<T, V>(map.x.data + s * map.x_row + c));
    } else if (s - p.begin + width - 1 >= 0) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            to[v] = map.tails[row * (map.vectors * V) + c + v];
        }
    }
}

template <typename T>
static __device__ __forceinline__ void take_token(const pieces_map<T> &map, typename T::stored *to,
                                                  const packed<T, V> &from, const float (&tap)[V][TAPS],
                                                  float (&past)[PAST][V]) {
    float x[V], y[V];
    widen_packed<T, V>(x, from);
#pragma unroll
    for (int v = 0; v < V; v++) {
        const float sum =
            fmaf(tap[v][3], x[v], fmaf(tap[v][2], past[2][v], fmaf(tap[v][1], past[1][v], tap[v][0] * past[0][v])));
        y[v] = map.activation == CARRY_SILU ? activate_quick<T, CARRY_SILU>(sum, CARRY_SILU)
                                            : activate_one(sum, map.activation);
        past[0][v] = past[1][v];
        past[1][v] = past[2][v];
        past[2][v] = x[v];
    }
    store_all<T, V>(to, y);
}

/* blockIdx.y: the block of tokens over all pieces. */
template <typename T>
__global__ void __launch_bounds__(LANES) conv_pieces_kernel(const __grid_constant__ pieces_job<T> job) {
    unsigned vector = blockIdx.x * LANES + threadIdx.x;
    const int which = map_of(job, &vector);
    int at = 0;
    if (which == job.maps) {
        return;
    }
    while ((int)blockIdx.y >= job.list[at].block) {
        at++;
    }
    const pieces_map<T> &map = job.map[which];
    const piece p = job.list[at];
    const int first = p.begin + ((int)blockIdx.y - (at > 0 ? job.list[at - 1].block : 0)) * EACH;
    const int last = first + EACH < p.end ? first + EACH : p.end;
    const int64_t c = (int64_t)vector * V, channels = (int64_t)map.vectors * V;
    float tap[V][TAPS], past[PAST][V];
    load_taps<T>(map, tap, c, job.width);
#pragma unroll
    for (int i = 0; i < PAST; i++) {
        load_input<T>(map, past[i], p, first - PAST + i, c, job.width);
    }
    for (int t0 = first; t0 < last; t0 += AHEAD) {
        packed<T, V> now[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) { /* past the last token, that one again */
            now[i] = load_packed<T, V>(map.x.data + (t0 + i < last ? t0 + i : last - 1) * map.x_row + c);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (t0 + i < last) {
                take_token<T>(map, map.y.data + (t0 + i) * channels + c, now[i], tap, past);
            }
        }
    }
}

/* Stores the inputs that a token after the piece would see. They are moved in ascending order, since the earliest may
   be in the old tail, whose rows are overwritten in that order. blockIdx.y: the piece. */
template <typename T>
__global__ void __launch_bounds__(LANES) keep_pieces_kernel(const __grid_constant__ pieces_job<T> job) {
    unsigned vector = blockIdx.x * LANES + threadIdx.x;
    const int which = map_of(job, &vector);
    if (which == job.maps) {
        return;
    }
    const pieces_map<T> &map = job.map[which];
    const piece &p = job.list[blockIdx.y];
    const int64_t c = (int64_t)vector * V, channels = (int64_t)map.vectors * V;
    for (int k = 0; k < job.width - 1; k++) {
        float seen[V];
        load_input<T>(map, seen, p, p.end - (job.width - 1) + k, c, job.width);
        float *to = map.tails + ((int64_t)p.slot * (job.width - 1) + k) * channels + c;
#pragma unroll
        for (int v = 0; v < V; v++) {
            to[v] = seen[v];
        }
    }
}

static bool is_wide(const carry_conv_pieces_args *args) {
    const int64_t rows = args->map[0].x.shape[0];
    bool is = args->map[0].w.shape[args->map[0].w.rank - 1] <= TAPS && rows < (1 << 20);
    for (int i = 0; i < args->maps; i++) {
        const carry_conv_step_map &map = args->map[i];
        is =
            is && map.x.shape[1] % ONCE == 0 && map.x.shape[1] < (1 << 24) && has_rows(map.x) && is_aligned(map.y.data);
    }
    return is;
}

template <typename T> static void launch(pieces_job<T> &job, const carry_conv_pieces_args *args, cudaStream_t stream) {
    unsigned vectors = 0;
    for (int i = 0; i < job.maps; i++) {
        vectors += job.map[i].vectors;
    }
    for (int64_t i = 0; i < args->pieces; i += TOGETHER) {
        int blocks = 0;
        job.count = (int)(args->pieces - i < TOGETHER ? args->pieces - i : TOGETHER);
        for (int j = 0; j < job.count; j++) {
            const int begin = (int)args->starts[i + j], end = (int)args->starts[i + j + 1];
            blocks += (end - begin + EACH - 1) / EACH;
            job.list[j] = {begin, end, (int)args->slots[i + j], blocks};
        }
        const unsigned wide = (vectors + LANES - 1) / LANES;
        conv_pieces_kernel<T><<<dim3(wide, (unsigned)blocks), LANES, 0, stream>>>(job);
        if (job.width > 1) {
            keep_pieces_kernel<T><<<dim3(wide, (unsigned)job.count), LANES, 0, stream>>>(job);
        }
    }
}

extern "C" carry_status carry_cuda_conv_pieces(carry_ctx *ctx, const carry_conv_pieces_args *args) {
    place at = {};
    const carry_conv_step_map &first = args->map[0];
    if (!is_wide(args)) {
        return carry_conv_each_piece(ctx, args);
    }
    CARRY_TRY(open_place(ctx, &at, first.x.device));
    with_type(first.x.dtype, [&](auto type) {
        using T = decltype(type);
        pieces_job<T> job = {};
        job.maps = args->maps;
        job.width = (int)first.w.shape[first.w.rank - 1];
        for (int i = 0; i < args->maps; i++) {
            const carry_conv_step_map &map = args->map[i];
            job.map[i] = {row<T>(map.y),           row<T>(map.x),   mixed_of(map.w),
                          (float *)map.tails.data, row_step(map.x), (unsigned)(map.x.shape[1] / V),
                          (int)map.activation};
        }
        launch<T>(job, args, at.stream);
    });
    return launched(ctx, at, "conv_pieces cannot be launched");
}
