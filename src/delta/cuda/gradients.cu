/* The end of a backward pass on a GPU. Adds up the parts of gradients from blocks of V and from the value heads that
   share q and k in a fixed order, applies the gradients of l2norm, sigmoid and the gate's formula, and writes the
   results in the types of the tensors. */
#include "delta/cuda/device.cuh"

namespace {

constexpr int THREADS = 256;

/* The offset of a token, counted over the batch, in a tensor. */
__device__ __forceinline__ int64_t place(const carry_delta_job &job, const carry_delta_array &array, int64_t token,
                                         int64_t head) {
    return at_of(array, token / job.tokens, token % job.tokens, head);
}

__device__ __forceinline__ float sum_of(const float *parts, int64_t at, int64_t count, int64_t stride) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        sum += parts[at + i * stride];
    }
    return sum;
}

/* Computes dq or dk of a token and a head. One warp for each. */
__global__ void __launch_bounds__(THREADS)
    delta_row_gradients(const __grid_constant__ carry_delta_back_job back, int64_t rows) {
    constexpr int EACH = CARRY_MAX_DELTA_DIM / 32;
    const carry_delta_job &job = back.job;
    const int lane = (int)threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t i = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < 2 * rows; i += step) {
        const bool is_k = i >= rows;
        const int64_t row = is_k ? i - rows : i;
        const int64_t token = row / job.heads;
        const int64_t head = row % job.heads;
        const carry_delta_array &x = is_k ? job.k : job.q;
        const carry_delta_array &dx = is_k ? back.dk : back.dq;
        const int64_t from = (token * job.value_heads + head * job.group) * back.blocks * job.key;
        const int64_t x_at = place(job, x, token, head);
        const int64_t dx_at = place(job, dx, token, head);
        float gradient[EACH];
        float value[EACH];
        float squares = 0.0f;
        float dot = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int at = e * 32 + lane;
            gradient[e] = value[e] = 0.0f;
            if (at < job.key) {
                gradient[e] = sum_of(is_k ? back.part_k : back.part_q, from + at, job.group * back.blocks, job.key);
                value[e] = job.l2norm ? load_one(x, x_at + at) : 0.0f;
            }
            squares = fmaf(value[e], value[e], squares);
            dot = fmaf(value[e], gradient[e], dot);
        }
        const float norm = job.l2norm ? 1.0f / sqrtf(over_warp(squares) + 1e-6f) : 1.0f;
        const float along = over_warp(dot) * norm * norm; /* (y . dy) / |x| with y = x / |x| */
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int at = e * 32 + lane;
            if (at < job.key) {
                carry_store_any(dx.data, dx.dtype, dx_at + at, norm * fmaf(-value[e], along, gradient[e]));
            }
        }
    }
}

struct gate_gradients {
    float on_input, on_A_log;
};

/* Returns the gradients of a head's gate inputs, from the gradient of g. */
__device__ gate_gradients gate_gradients_of(const carry_delta_back_job &back, int64_t token, int64_t head) {
    const carry_delta_job &job = back.job;
    const float dg = sum_of(back.part_g, (token * job.value_heads + head) * back.blocks, back.blocks, 1);
    if (!job.gate_inside) {
        return {dg, 0.0f};
    }
    const float x = load_one(job.g, place(job, job.g, token, head)) + job.dt_bias[head];
    const float rate = -expf(job.A_log[head]);
    return {dg * rate / (1.0f + expf(-x)), dg * rate * softplus_of(x)};
}

/* Computes dbeta and dg, one number for each token and value head. */
__global__ void __launch_bounds__(THREADS)
    delta_number_gradients(const __grid_constant__ carry_delta_back_job back, int64_t rows) {
    const carry_delta_job &job = back.job;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows; i += (int64_t)gridDim.x * THREADS) {
        const int64_t token = i / job.value_heads;
        const int64_t head = i % job.value_heads;
        float dbeta = sum_of(back.part_beta, i * back.blocks, back.blocks, 1);
        if (job.beta_sigmoid) {
            const float sigmoid = 1.0f / (1.0f + expf(-load_one(job.beta, place(job, job.beta, token, head))));
            dbeta *= job.beta_factor * sigmoid * (1.0f - sigmoid);
        }
        carry_store_any(back.dbeta.data, back.dbeta.dtype, place(job, back.dbeta, token, head), dbeta);
        if (back.dg.data != nullptr && !job.by_key) {
            carry_store_any(back.dg.data, back.dg.dtype, place(job, back.dg, token, head),
                            gate_gradients_of(back, token, head).on_input);
        }
    }
}

/* Computes dg with a key gate. */
__global__ void __launch_bounds__(THREADS)
    delta_key_gradients(const __grid_constant__ carry_delta_back_job back, int64_t count) {
    const carry_delta_job &job = back.job;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / job.key;
        const int64_t key = i % job.key;
        const float dg = sum_of(back.part_g, row * back.blocks * job.key + key, back.blocks, job.key);
        carry_store_any(back.dg.data, back.dg.dtype,
                        place(job, back.dg, row / job.value_heads, row % job.value_heads) + key, dg);
    }
}

/* Computes dA_log and ddt_bias of a value head as sums over all tokens. One block for each head. */
__global__ void __launch_bounds__(THREADS)
    delta_head_gradients(const __grid_constant__ carry_delta_back_job back, int64_t tokens) {
    __shared__ float sums[2][THREADS];
    for (int64_t head = blockIdx.x; head < back.job.value_heads; head += gridDim.x) {
        float on_A_log = 0.0f;
        float on_dt_bias = 0.0f;
        for (int64_t token = threadIdx.x; token < tokens; token += THREADS) {
            gate_gradients one = gate_gradients_of(back, token, head);
            on_A_log += one.on_A_log;
            on_dt_bias += one.on_input;
        }
        sums[0][threadIdx.x] = on_A_log;
        sums[1][threadIdx.x] = on_dt_bias;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if ((int)threadIdx.x < half) {
                sums[0][threadIdx.x] += sums[0][threadIdx.x + half];
                sums[1][threadIdx.x] += sums[1][threadIdx.x + half];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0 && back.dA_log != nullptr) {
            back.dA_log[head] = sums[0][0] + (back.add_partials ? back.dA_log[head] : 0.0f);
        }
        if (threadIdx.x == 0 && back.ddt_bias != nullptr) {
            back.ddt_bias[head] = sums[1][0] + (back.add_partials ? back.ddt_bias[head] : 0.0f);
        }
        __syncthreads();
    }
}

unsigned grid_for(int64_t tasks, int64_t each) {
    int64_t blocks = (tasks + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks < 1 << 20 ? blocks : 1 << 20);
}

__global__ void __launch_bounds__(THREADS) delta_zero(float *to, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        to[i] = 0.0f;
    }
}

} // namespace

cudaError_t carry_delta_rows_launch(const carry_delta_back_job *back, cudaStream_t stream) {
    const carry_delta_job *job = &back->job;
    int64_t rows = (job->borders == NULL ? job->sequences * job->tokens : job->tokens) * job->heads;
    delta_row_gradients<<<grid_for(2 * rows, THREADS / 32), THREADS, 0, stream>>>(*back, rows);
    return cudaGetLastError();
}

cudaError_t carry_delta_gradients_launch(const carry_delta_back_job *back, cudaStream_t stream) {
    const carry_delta_job *job = &back->job;
    int64_t tokens = job->borders == NULL ? job->sequences * job->tokens : job->tokens;
    int64_t numbers = tokens * job->value_heads;
    if (back->part_q != NULL) { /* otherwise dq and dk are already written */
        (void)carry_delta_rows_launch(back, stream);
    }
    delta_number_gradients<<<grid_for(numbers, THREADS), THREADS, 0, stream>>>(*back, numbers);
    if (job->by_key && back->dg.data != NULL) {
        delta_key_gradients<<<grid_for(numbers * job->key, THREADS), THREADS, 0, stream>>>(*back, numbers * job->key);
    }
    if (job->gate_inside && (back->dA_log != NULL || back->ddt_bias != NULL)) {
        delta_head_gradients<<<grid_for(job->value_heads, 1), THREADS, 0, stream>>>(*back, tokens);
    } else { /* without a gate inside, their gradients are zero, as on the CPU */
        float *none[] = {back->dA_log, back->ddt_bias};
        for (int i = 0; i < 2; i++) {
            if (none[i] != NULL) {
                delta_zero<<<grid_for(job->value_heads, THREADS), THREADS, 0, stream>>>(none[i], job->value_heads);
            }
        }
    }
    return cudaGetLastError();
}
