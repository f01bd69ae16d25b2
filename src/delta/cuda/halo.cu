/* Copies or adds the rows of a halo on a GPU: a few tokens of every sequence. */
#include "device/cuda.h"
#include "scan/cuda/value.cuh"

extern "C" {
#include "delta/halo.h"
}

namespace {

constexpr int THREADS = 256;

struct rows {
    void *data;
    int dtype;
    int64_t token, sequence;
};

__global__ void move_rows(rows to, rows from, int64_t batch, int64_t channels, int64_t count, bool adds) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t channel = i % channels, sequence = i / channels % batch, token = i / channels / batch;
        const int64_t at = token * to.token + sequence * to.sequence + channel;
        const float x =
            carry_value::load(from.data, from.dtype, token * from.token + sequence * from.sequence + channel);
        carry_value::store(to.data, to.dtype, at, adds ? carry_value::load(to.data, to.dtype, at) + x : x);
    }
}

rows rows_of(carry_halo_rows r) {
    return rows{r.data, (int)r.dtype, r.token, r.sequence};
}

} // namespace

extern "C" carry_status carry_halo_move(carry_ctx *ctx, int device, carry_halo_rows to, carry_halo_rows from,
                                        int64_t tokens, int64_t batch, int64_t channels, int adds) {
    int ordinal = 0;
    const int64_t count = tokens * batch * channels, blocks = (count + THREADS - 1) / THREADS;
    (void)carry_backend_of(device, &ordinal);
    if (count == 0) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    move_rows<<<(unsigned)(blocks < 1024 ? blocks : 1024), THREADS, 0, (cudaStream_t)carry_ctx_stream(ctx, device)>>>(
        rows_of(to), rows_of(from), batch, channels, count, adds != 0);
    CARRY_CUDA_TRY(cudaGetLastError(), "a halo cannot be moved");
    return CARRY_OK;
}
