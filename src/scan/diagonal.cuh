/* What the kernels for diagonal transitions share.

   A channel is one of the n*w recurrences h = a h + b of a sequence; a row's w channels share their decays. A thread
   carries V neighbouring channels of one row (16 bytes of b), or one channel where w does not divide (V = 1, types known
   at run time). Blocks lie along channels (x) and sequences (y). */
#ifndef CARRY_SCAN_DIAGONAL_CUH
#define CARRY_SCAN_DIAGONAL_CUH

#include "scan/cuda_types.cuh"

/* An array over (sequence, step) on the device. */
struct carry_lane_array {
    void *data;
    int64_t item, step;
    carry_dtype type;
};

struct carry_diagonal {
    carry_lane_array A, b, h, h0; /* h0.data NULL: zero */
    int64_t steps;
    int channels, width; /* n*w, w */
    int items;
    int tiles;           /* over time, of those kernels that cut it */
    float *totals;       /* look-back: per tile, block of channels and sequence */
    unsigned *flags;
    int channel_blocks;
};

/* V channels of one step as they are stored: they become floats when they are needed, since a conversion straight after
   its load would wait for it. V > 1: TB and TH are the arrays' types. V = 1: the types are asked at run time. */
template <int V, typename TB, typename TH> struct carry_channels {
    carry_pack<V, TB> raw;

    __device__ __forceinline__ void load(const carry_lane_array &from, int64_t at) {
        raw.load(static_cast<const TB *>(from.data) + at);
    }
    __device__ __forceinline__ void expand(float (&x)[V], const carry_lane_array &) const {
        raw.expand(x);
    }
    static __device__ __forceinline__ void store(const carry_lane_array &to, int64_t at, const float (&x)[V]) {
        carry_pack<V, TH> packed;
        packed.pack(x);
        packed.store(static_cast<TH *>(to.data) + at);
    }
};

/* One element's bits, of any type. */
struct carry_bits {
    unsigned raw;

    __device__ __forceinline__ void load(const carry_lane_array &from, int64_t at) {
        raw = from.type == CARRY_F32 ? __ldcs(static_cast<const unsigned *>(from.data) + at)
                                     : (unsigned)__ldcs(static_cast<const unsigned short *>(from.data) + at);
    }
    __device__ __forceinline__ float value(carry_dtype type) const {
        return type == CARRY_F32    ? __uint_as_float(raw)
               : type == CARRY_BF16 ? __uint_as_float(raw << 16)
                                    : __half2float(__ushort_as_half((unsigned short)raw));
    }
};

template <typename TB, typename TH> struct carry_channels<1, TB, TH> {
    carry_bits bits;

    __device__ __forceinline__ void load(const carry_lane_array &from, int64_t at) {
        bits.load(from, at);
    }
    __device__ __forceinline__ void expand(float (&x)[1], const carry_lane_array &from) const {
        x[0] = bits.value(from.type);
    }
    static __device__ __forceinline__ void store(const carry_lane_array &to, int64_t at, const float (&x)[1]) {
        carry_store_any(to.data, to.type, at, x[0]);
    }
};

/* The state that enters, of V channels. */
template <int V> static __device__ __forceinline__ void carry_initial(float (&state)[V], const carry_diagonal &d, int item,
                                                                      int channel) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        state[v] = d.h0.data != nullptr ? carry_load_any(d.h0.data, d.h0.type, item * d.h0.item + channel + v) : 0.0f;
    }
}

/* diagonal_segments.cu, diagonal_matmul.cu, diagonal_lookback.cu: launchers. wide: V = 16 bytes of b, else 1. */
cudaError_t carry_diagonal_sequential(const carry_diagonal &d, bool wide, cudaStream_t stream);
cudaError_t carry_diagonal_segments(const carry_diagonal &d, bool wide, carry_cuda_method method, int segments,
                                    cudaStream_t stream);
cudaError_t carry_diagonal_lookback(const carry_diagonal &d, bool wide, int segments, cudaStream_t stream);
cudaError_t carry_diagonal_matmul(const carry_diagonal &d, int radix, cudaStream_t stream);

/* Calls body with the number of channels and the types of b and h as its arguments; the five pairs that a scan can have.
   V16: channels of a thread when b has 16 bits. */
#define CARRY_DIAGONAL_TYPES(d, wide, V16, body)                                                                             \
    do {                                                                                                                \
        if (!(wide)) {                                                                                                  \
            body(1, float, float);                                                                                      \
        } else if ((d).b.type == CARRY_F32) {                                                                           \
            body(4, float, float);                                                                                      \
        } else if ((d).b.type == CARRY_BF16 && (d).h.type == CARRY_BF16) {                                              \
            body(V16, __nv_bfloat16, __nv_bfloat16);                                                                      \
        } else if ((d).b.type == CARRY_BF16) {                                                                          \
            body(V16, __nv_bfloat16, float);                                                                              \
        } else if ((d).h.type == CARRY_F16) {                                                                           \
            body(V16, __half, __half);                                                                                    \
        } else {                                                                                                        \
            body(V16, __half, float);                                                                                     \
        }                                                                                                               \
    } while (0)

#endif
