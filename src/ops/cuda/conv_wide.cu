/* The convolution of conv.cu for widths up to 4 and channels in whole vectors, at the speed of memory.

   A thread has 4 channels, the elements of one access, and walks over a piece of a sequence's tokens. The three inputs
   before a token are in registers; the inputs of the next AHEAD tokens are in flight while the current ones are
   processed. Filters with fewer than four taps are padded with zeros in front.

   Backward, the gradient ds of the sum of token t is added to dx of tokens t - 3 to t, which finishes that of t - 3. So
   a piece also computes the ds of the three tokens after it. dw is summed in registers over the piece, then over the
   pieces of a block in order, into a row of the workspace. */
#include "ops/cuda/conv.cuh"
#include "ops/cuda/wide.cuh"

constexpr int TAPS = 4, PAST = TAPS - 1;
constexpr int LANES = 32;               /* threads of a block side by side along channels, backward */
constexpr int PIECES = 4;               /* pieces of tokens of a block, backward */
constexpr int FORWARD = LANES * PIECES; /* threads of a block */

/* Tokens fit 31 bits here. */
struct span {
    int begin, end;
    bool first;
};

template <typename T> static __device__ __forceinline__ span span_of(const conv_of<T> &a, int t) {
    const sequence s = sequence_of(a, t);
    return span{(int)s.begin, (int)s.end, s.first};
}

/* Loads the taps of channels c..c+V-1; four taps are one access. */
template <typename T, int V>
static __device__ __forceinline__ void load_taps(const conv_of<T> &a, float (&tap)[V][TAPS], int64_t c) {
    const int lack = TAPS - (int)a.width;
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (lack == 0 && a.w.type == CARRY_F32) {
            widen_all<type_f32, TAPS>(tap[v], ((const several<type_f32, TAPS> *)a.w.data)[c + v]);
        } else if (lack == 0 && a.w.type == CARRY_BF16) {
            widen_all<type_bf16, TAPS>(tap[v], ((const several<type_bf16, TAPS> *)a.w.data)[c + v]);
        } else {
#pragma unroll
            for (int i = 0; i < TAPS; i++) {
                tap[v][i] = i >= lack ? a.w[(c + v) * a.width + i - lack] : 0.0f;
            }
        }
    }
}

/* Loads the inputs before token t of batch row b: past[i] belongs to token t - PAST + i. */
template <typename T, int V>
static __device__ __forceinline__ void load_past(const conv_of<T> &a, float (&past)[PAST][V], const span &in, int b,
                                                 int t, int64_t c) {
#pragma unroll
    for (int i = 0; i < PAST; i++) {
        const int s = t - PAST + i;
        const int64_t row = s + a.width - 1; /* of before */
#pragma unroll
        for (int v = 0; v < V; v++) {
            past[i][v] = 0.0f;
        }
        if (s >= in.begin) {
            widen_packed<T, V>(past[i], load_packed<T, V>(a.x.data + (b * a.tokens + s) * a.x_row + c));
        } else if (in.first && a.before != NULL && s < 0 && row >= 0) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                past[i][v] = a.before[(b * (a.width - 1) + row) * a.channels + c + v];
            }
        }
    }
}

template <int V> static __device__ __forceinline__ void clear(float (&rows)[PAST][V]) {
#pragma unroll
    for (int i = 0; i < PAST; i++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            rows[i][v] = 0.0f;
        }
    }
}

/* Loads the vectors of tokens t..t+AHEAD-1 of a column of vectors. Past the last token it loads that one again. */
template <typename T, int V, int AHEAD>
static __device__ __forceinline__ void load_ahead(packed<T, V> (&to)[AHEAD], const typename T::stored *column, int t,
                                                  int tokens, unsigned channels) {
    if (t + AHEAD <= tokens) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            to[i] = load_packed<T, V>(column + ((unsigned)t + i) * channels);
        }
    } else {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const unsigned at = t + i < tokens ? (unsigned)(t + i) : (unsigned)tokens - 1;
            to[i] = load_packed<T, V>(column + at * channels);
        }
    }
}

template <int V> static __device__ __forceinline__ void move_past(float (&past)[PAST][V], const float (&next)[V]) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        past[0][v] = past[1][v];
        past[1][v] = past[2][v];
        past[2][v] = next[v];
    }
}

template <int V>
static __device__ __forceinline__ float sum_of(const float (&tap)[V][TAPS], const float (&past)[PAST][V], float x,
                                               int v) {
    return fmaf(tap[v][3], x, fmaf(tap[v][2], past[2][v], fmaf(tap[v][1], past[1][v], tap[v][0] * past[0][v])));
}

/* One token forward. */
template <typename T, int ACTIVATION, int V>
static __device__ __forceinline__ void step(const conv_of<T> &a, typename T::stored *to, const packed<T, V> &from,
                                            const float (&tap)[V][TAPS], float (&past)[PAST][V]) {
    float x[V], y[V];
    widen_packed<T, V>(x, from);
#pragma unroll
    for (int v = 0; v < V; v++) {
        y[v] = activate_quick<T, ACTIVATION>(sum_of<V>(tap, past, x[v], v), a.activation);
    }
    store_all<T, V>(to, y);
    move_past<V>(past, x);
}

/* RESIDENT: blocks per multiprocessor, which limits the registers of a thread. */
template <typename T, int ACTIVATION, int V, int AHEAD, int RESIDENT>
__global__ void __launch_bounds__(FORWARD, RESIDENT) conv_wide_kernel(conv_of<T> a, unsigned vectors, int each) {
    const unsigned thread = blockIdx.x * FORWARD + threadIdx.x;
    const unsigned channels = (unsigned)a.channels, x_row = (unsigned)a.x_row;
    const int tokens = (int)a.tokens, pieces = (tokens + each - 1) / each;
    const int64_t c = (int64_t)(thread % vectors) * V;
    const int b = (int)(thread / vectors) / pieces;
    const int first = (int)(thread / vectors) % pieces * each;
    const int last = first + each < tokens ? first + each : tokens;
    float tap[V][TAPS], past[PAST][V];
    packed<T, V> now[AHEAD], next[AHEAD];
    if (b >= a.batch) {
        return;
    }
    const typename T::stored *from = a.x.data + b * a.tokens * a.x_row + c;
    typename T::stored *to = a.y.data + b * a.tokens * a.channels + c;
    load_ahead<T, V, AHEAD>(now, from, first, tokens, x_row);
    load_taps<T, V>(a, tap, c);
    span in = span_of(a, first);
    load_past<T, V>(a, past, in, b, first, c);
    for (int t0 = first; t0 < last; t0 += AHEAD) {
        if (t0 + AHEAD < last) {
            load_ahead<T, V, AHEAD>(next, from, t0 + AHEAD, tokens, x_row);
        }
        if (t0 + AHEAD <= last && t0 + AHEAD <= in.end) { /* no end of the piece or sequence within AHEAD tokens */
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                step<T, ACTIVATION, V>(a, to + ((unsigned)t0 + i) * channels, now[i], tap, past);
            }
        } else {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (t0 + i < last) {
                    if (t0 + i >= in.end) {
                        in = span_of(a, t0 + i);
                        clear<V>(past);
                    }
                    step<T, ACTIVATION, V>(a, to + ((unsigned)t0 + i) * channels, now[i], tap, past);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            now[i] = next[i];
        }
    }
}

/* Writes dx of token s; for s < 0, dbefore of the row that many tokens before the first. */
template <typename T, int V>
static __device__ __forceinline__ void put(const conv_of<T> &a, int b, int s, int64_t c, const float (&value)[V]) {
    if (s >= 0) {
        if (a.dx.here()) {
            store_all<T, V>(a.dx.data + (b * a.tokens + s) * a.dx_row + c, value);
        }
    } else if (a.dbefore != NULL && s + a.width - 1 >= 0) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            a.dbefore[(b * (a.width - 1) + s + a.width - 1) * a.channels + c + v] = value[v];
        }
    }
}

/* Writes dx of the three tokens before t. They are final, since t begins a new sequence. Only tokens from `from` on and
   below `last` belong to this piece. */
template <typename T, int V>
static __device__ __forceinline__ void finish(const conv_of<T> &a, float (&open)[PAST][V], int b, int t, int64_t c,
                                              int from, int last) {
#pragma unroll
    for (int i = 0; i < PAST; i++) {
        if (t - PAST + i >= from && t - PAST + i < last) {
            put<T, V>(a, b, t - PAST + i, c, open[i]);
        }
    }
    clear<V>(open);
}

/* The backward pass of one token t. Adds its contribution to the dx of tokens t - PAST to t. `dx` receives that of
   token t - PAST, which this step finishes. On entry, open[i] is the unfinished dx of token t - PAST + i, and on return
   that of token t - PAST + i + 1. counts: the token contributes to dw; exists: it is not past the last token. */
template <typename T, int ACTIVATION, int V>
static __device__ __forceinline__ void step_back(const conv_of<T> &a, float (&dx)[V], float (&sum)[V][TAPS],
                                                 const packed<T, V> &x_from, const packed<T, V> &d_from,
                                                 const float (&tap)[V][TAPS], float (&past)[PAST][V],
                                                 float (&open)[PAST][V], bool counts, bool exists) {
    float x[V], dy[V];
    widen_packed<T, V>(x, x_from);
    widen_packed<T, V>(dy, d_from);
#pragma unroll
    for (int v = 0; v < V; v++) {
        float ds = activate_back_quick<T, ACTIVATION>(dy[v], sum_of<V>(tap, past, x[v], v), a.activation);
        ds = exists ? ds : 0.0f;
        if (counts) {
            sum[v][0] = fmaf(ds, past[0][v], sum[v][0]);
            sum[v][1] = fmaf(ds, past[1][v], sum[v][1]);
            sum[v][2] = fmaf(ds, past[2][v], sum[v][2]);
            sum[v][3] = fmaf(ds, x[v], sum[v][3]);
        }
        dx[v] = fmaf(tap[v][0], ds, open[0][v]);
        open[0][v] = fmaf(tap[v][1], ds, open[1][v]);
        open[1][v] = fmaf(tap[v][2], ds, open[2][v]);
        open[2][v] = tap[v][3] * ds;
    }
    move_past<V>(past, x);
}

/* A piece of tokens. */
template <typename T, int ACTIVATION, int V, int AHEAD>
static __device__ __forceinline__ void walk_back(const conv_of<T> &a, float (&sum)[V][TAPS], int b, int first, int last,
                                                 int64_t c) {
    const int tokens = (int)a.tokens;
    const unsigned channels = (unsigned)a.channels, x_row = (unsigned)a.x_row, dx_row = (unsigned)a.dx_row;
    float tap[V][TAPS], past[PAST][V], open[PAST][V], dx[V];
    packed<T, V> x_now[AHEAD], x_next[AHEAD], d_now[AHEAD], d_next[AHEAD];
    const typename T::stored *x_from = a.x.data + b * a.tokens * a.x_row + c;
    const typename T::stored *d_from = a.dy.data + b * a.tokens * a.channels + c;
    typename T::stored *to = a.dx.data + b * a.tokens * a.dx_row + c;
    load_ahead<T, V, AHEAD>(x_now, x_from, first, tokens, x_row);
    load_ahead<T, V, AHEAD>(d_now, d_from, first, tokens, channels);
    load_taps<T, V>(a, tap, c);
    span in = span_of(a, first);
    load_past<T, V>(a, past, in, b, first, c);
    clear<V>(open);
    int from = first == 0 ? -PAST : first; /* the first token of this piece whose dx is not finished */
    if (first == 0 && !in.first) {
        finish<T, V>(a, open, b, 0, c, from, last);
        from = 0;
    }
    for (int t0 = first; t0 < last + PAST; t0 += AHEAD) {
        if (t0 + AHEAD < last + PAST) {
            load_ahead<T, V, AHEAD>(x_next, x_from, t0 + AHEAD, tokens, x_row);
            load_ahead<T, V, AHEAD>(d_next, d_from, t0 + AHEAD, tokens, channels);
        }
        const int oldest = t0 - PAST;
        if (oldest >= 0 && oldest >= from && t0 + AHEAD <= last && t0 + AHEAD <= in.end && a.dx.here()) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) { /* no end of the piece or sequence within AHEAD tokens */
                step_back<T, ACTIVATION, V>(a, dx, sum, x_now[i], d_now[i], tap, past, open, true, true);
                store_all<T, V>(to + (unsigned)(oldest + i) * dx_row, dx);
            }
        } else {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int t = t0 + i;
                if (t < tokens && t >= in.end) {
                    finish<T, V>(a, open, b, t, c, from, last);
                    from = t;
                    in = span_of(a, t);
                    clear<V>(past);
                }
                step_back<T, ACTIVATION, V>(a, dx, sum, x_now[i], d_now[i], tap, past, open, t < last, t < tokens);
                if (t - PAST >= from && t - PAST < last) {
                    put<T, V>(a, b, t - PAST, c, dx);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            x_now[i] = x_next[i];
            d_now[i] = d_next[i];
        }
    }
}

template <typename T, int ACTIVATION, int V, int AHEAD, int RESIDENT>
__global__ void __launch_bounds__(LANES *PIECES, RESIDENT)
    conv_wide_backward_kernel(conv_of<T> a, int vectors, int each) {
    __shared__ float sums[PIECES][LANES * V * TAPS];
    const int tokens = (int)a.tokens;
    const int blocks = (tokens + each * PIECES - 1) / (each * PIECES);
    const int vector = (int)blockIdx.y * LANES + (int)threadIdx.x;
    const int b = (int)blockIdx.x / blocks;
    const int first = ((int)blockIdx.x % blocks * PIECES + (int)threadIdx.y) * each;
    float sum[V][TAPS] = {};
    if (vector < vectors && first < tokens) {
        walk_back<T, ACTIVATION, V, AHEAD>(a, sum, b, first, first + each < tokens ? first + each : tokens,
                                           (int64_t)vector * V);
    }
    if (a.partial == NULL) {
        return;
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            sums[threadIdx.y][(threadIdx.x * V + v) * TAPS + i] = sum[v][i];
        }
    }
    __syncthreads();
    const int lack = TAPS - (int)a.width;
    const int64_t c0 = (int64_t)blockIdx.y * LANES * V;
    float *to = a.partial + (int64_t)blockIdx.x * a.channels * a.width;
    for (int i = (int)(threadIdx.y * LANES + threadIdx.x); i < LANES * V * TAPS; i += LANES * PIECES) {
        const int64_t c = c0 + i / TAPS;
        float total = sums[0][i];
#pragma unroll
        for (int p = 1; p < PIECES; p++) {
            total += sums[p][i];
        }
        if (c < a.channels && i % TAPS >= lack) {
            to[c * a.width + i % TAPS - lack] = total;
        }
    }
}

/* Channels of a thread: with 8 there are too few threads and too many registers. */
constexpr int V = 4;
/* Tokens of a piece, least and most; and blocks that are enough, 2.5 per multiprocessor. */
constexpr int LEAST = 32, MOST = 128, ENOUGH = 330;

/* Backward, a piece also computes three tokens of the next piece, so pieces are as long as possible while there are
   enough of them. */
static int64_t piece_of(const carry_tensor &x) {
    int64_t each = MOST;
    while (each > LEAST && x.shape[0] * ((x.shape[1] + each - 1) / each) * (x.shape[2] / V) < ENOUGH * FORWARD) {
        each /= 2;
    }
    return each;
}

static bool is_wide(const carry_tensor &x, const carry_tensor &w) {
    const int64_t threads = x.shape[0] * ((x.shape[1] + LEAST - 1) / LEAST) * (x.shape[2] / V);
    return w.shape[w.rank - 1] <= TAPS && x.shape[2] % ONCE == 0 && has_rows(x) && is_aligned(w.data) &&
           x.shape[1] < (1 << 30) && x.shape[1] * x.shape[2] < (1 << 30) && threads < (1 << 30);
}

bool conv_wide(const carry_conv_args *args, cudaStream_t stream) {
    const carry_tensor &x = args->x;
    if (!is_wide(x, args->w) || !is_aligned(args->y.data)) {
        return false;
    }
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        conv_of<T> a = common<T>(x, args->w, args->before, args->cu_seqlens, args->activation);
        a.y = row<T>(args->y);
        constexpr int AHEAD = sizeof(typename T::stored) == 2 ? 8 : 4;
        const int64_t vectors = a.channels / V, each = piece_of(x);
        const int64_t threads = a.batch * ((a.tokens + each - 1) / each) * vectors;
        const unsigned blocks = (unsigned)((threads + FORWARD - 1) / FORWARD);
        if (a.activation == CARRY_SILU) {
            conv_wide_kernel<T, CARRY_SILU, V, AHEAD, 5>
                <<<blocks, FORWARD, 0, stream>>>(a, (unsigned)vectors, (int)each);
        } else {
            conv_wide_kernel<T, -1, V, AHEAD, 4><<<blocks, FORWARD, 0, stream>>>(a, (unsigned)vectors, (int)each);
        }
    });
    return true;
}

bool conv_wide_backward(const carry_conv_backward_args *args, void *workspace, int64_t *blocks, cudaStream_t stream) {
    const carry_tensor &x = args->x;
    if (!is_wide(x, args->w) || !has_rows(args->dx) || !is_aligned(args->dy.data)) {
        return false;
    }
    /* The workspace has no more rows. */
    const int64_t share = (carry_token_block(x.shape[1]) + PIECES - 1) / PIECES;
    const int64_t piece = piece_of(x), each = share > piece ? share : piece;
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        conv_of<T> a = common<T>(x, args->w, args->before, args->cu_seqlens, args->activation);
        a.dx = row<T>(args->dx);
        a.dx_row = row_step(args->dx);
        a.dy = row<T>(args->dy);
        a.dbefore = (float *)args->dbefore.data;
        a.partial = args->dw.data != NULL ? (float *)workspace : NULL;
        constexpr int AHEAD = 4;
        const int vectors = (int)(a.channels / V);
        *blocks = a.batch * ((a.tokens + each * PIECES - 1) / (each * PIECES));
        const dim3 grid((unsigned)*blocks, (unsigned)(vectors + LANES - 1) / LANES), block(LANES, PIECES);
        if (a.activation == CARRY_SILU) {
            conv_wide_backward_kernel<T, CARRY_SILU, V, AHEAD, 4><<<grid, block, 0, stream>>>(a, vectors, (int)each);
        } else {
            conv_wide_backward_kernel<T, -1, V, AHEAD, 4><<<grid, block, 0, stream>>>(a, vectors, (int)each);
        }
    });
    return true;
}
