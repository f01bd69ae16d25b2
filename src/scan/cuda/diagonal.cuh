/* Shared by the kernels for diagonal transitions.

   A channel is one of the n*w recurrences h = a h + b of a sequence; the w channels of a row share their decays. A
   thread has V adjacent channels of one row, or one channel if V does not divide w. The grid has channels along x
   and sequences along y. */
#ifndef CARRY_SCAN_DIAGONAL_CUH
#define CARRY_SCAN_DIAGONAL_CUH

#include "scan/cuda/cuda_types.cuh"

/* An array over (sequence, step) on the device. Strides over steps are at most CARRY_MOST_STEP elements, so that small
   multiples of them fit 32 bits. With 64-bit strides, address arithmetic would be half of the instructions of a small
   scan. */
struct carry_lane_array {
    void *data;
    int64_t item;
    int step;
    carry_dtype type;
};

#define CARRY_MOST_STEP (1 << 26)

struct carry_diagonal {
    carry_lane_array A, b, h, h0; /* h0.data NULL: zero */
    int64_t steps;
    int channels, width; /* n*w, w */
    int width_log2;      /* -1: w is not a power of two */
    int items;
    int tiles;     /* number of tiles over time, for kernels that divide it */
    float *totals; /* look-back: for each tile, block of channels and sequence */
    unsigned *flags;
    int channel_blocks;
};

/* The row of a channel. If w is a power of two, a shift replaces the division, which would be a tenth of the
   instructions of a small scan. */
static __device__ __forceinline__ int carry_row(const carry_diagonal &d, int channel) {
    return d.width_log2 >= 0 ? channel >> d.width_log2 : channel / d.width;
}

/* Loads the state that enters, for V channels. */
template <int V>
static __device__ __forceinline__ void carry_initial(float (&state)[V], const carry_diagonal &d, int item,
                                                     int channel) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        state[v] = 0.0f;
    }
    if (d.h0.data != nullptr) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            state[v] = carry_load_any(d.h0.data, d.h0.type, item * d.h0.item + channel + v);
        }
    }
}

/* LONG adjacent steps of V channels in storage format. They are converted to floats only when needed, since a
   conversion right after its load would wait for it. Steps past the end change nothing: decay 1, value 0. */
template <int V, int LONG, typename TA, typename TB> struct carry_segment {
    TA decay[LONG];
    carry_pack<V, TB> value[LONG];

    __device__ __forceinline__ void load(const TA *a, int a_step, const TB *b, int b_step) {
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            decay[i] = a[i * a_step];
            value[i].load(b + i * b_step);
        }
    }
    __device__ __forceinline__ void load_some(const TA *a, int a_step, const TB *b, int b_step, int64_t count) {
        const float zero[V] = {};
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            if (i < count) {
                decay[i] = a[i * a_step];
                value[i].load(b + i * b_step);
            } else {
                decay[i] = carry_from_float<TA>(1.0f);
                value[i].pack(zero);
            }
        }
    }
    __device__ __forceinline__ void expand(float (&a)[LONG], float (&b)[LONG][V]) const {
#pragma unroll
        for (int i = 0; i < LONG; i++) {
            a[i] = carry_to_float(decay[i]);
            value[i].expand(b[i]);
        }
    }
};

/* The combined element of LONG steps: the product of their decays, and their result from zero. */
template <int V, int LONG>
static __device__ __forceinline__ void carry_total(float &decay, float (&value)[V], const float (&a)[LONG],
                                                   const float (&b)[LONG][V]) {
    decay = a[0];
#pragma unroll
    for (int v = 0; v < V; v++) {
        value[v] = b[0][v];
    }
#pragma unroll
    for (int i = 1; i < LONG; i++) {
        decay *= a[i];
#pragma unroll
        for (int v = 0; v < V; v++) {
            value[v] = fmaf(a[i], value[v], b[i][v]);
        }
    }
}

/* Stores LONG steps of the result, of which the first `count` exist. */
template <int V, int LONG, typename TH>
static __device__ __forceinline__ void carry_store_steps(TH *h, int h_step, const float (&x)[LONG][V], int64_t count) {
#pragma unroll
    for (int i = 0; i < LONG; i++) {
        if (i < count) {
            carry_pack<V, TH> packed;
            packed.pack(x[i]);
            packed.store(h + i * h_step);
        }
    }
}

/* diagonal_*.cu: launch functions. wide: several channels for each thread, else one. */
cudaError_t carry_diagonal_sequential(const carry_diagonal &d, bool wide, cudaStream_t stream);
cudaError_t carry_diagonal_segments(const carry_diagonal &d, bool wide, carry_cuda_method method, cudaStream_t stream);
cudaError_t carry_diagonal_lookback(const carry_diagonal &d, bool wide, cudaStream_t stream);
cudaError_t carry_diagonal_matmul(const carry_diagonal &d, int radix, bool wide, cudaStream_t stream);

/* Steps of a tile of the look-back. */
#define CARRY_LOOKBACK_STEPS 128

/* Calls body(V, TA, TB, TH) with the types of the arrays: the seven combinations that a scan or the scan of a gradient
   can have. V32 and V16 are the channels of a thread if b has 32 or 16 bits. */
#define CARRY_DIAGONAL_TYPES(d, V32, V16, body)                            \
    do {                                                                   \
        if ((d).b.type == CARRY_F32 && (d).A.type == CARRY_F32) {          \
            body(V32, float, float, float);                                \
        } else if ((d).b.type == CARRY_F32 && (d).A.type == CARRY_BF16) {  \
            body(V32, __nv_bfloat16, float, float);                        \
        } else if ((d).b.type == CARRY_F32) {                              \
            body(V32, __half, float, float);                               \
        } else if ((d).b.type == CARRY_BF16 && (d).h.type == CARRY_BF16) { \
            body(V16, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16);        \
        } else if ((d).b.type == CARRY_BF16) {                             \
            body(V16, __nv_bfloat16, __nv_bfloat16, float);                \
        } else if ((d).h.type == CARRY_F16) {                              \
            body(V16, __half, __half, __half);                             \
        } else {                                                           \
            body(V16, __half, __half, float);                              \
        }                                                                  \
    } while (0)

#endif
