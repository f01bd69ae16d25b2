/* Samples tokens from rows of logits: loading, the order of the filters, and the launch. */
#include "engine/cuda/sample_kernel.cuh"

#include "device/cuda.h"

namespace sampling {

static __device__ void load_plain(const carry_sample_call &call, const carry_sample_row &row, const row_view &v) {
    const size_t base = (size_t)row.row * (size_t)call.stride;
    for (int i = threadIdx.x; i < v.count; i += THREADS) {
        const size_t at = base + (size_t)(v.first + i);
        v.x[i] = call.is_bf16 ? __bfloat162float(((const __nv_bfloat16 *)call.logits)[at])
                              : ((const float *)call.logits)[at];
    }
    __syncthreads();
}

/* Loads the block's share of a row and applies the run's penalty, bias and mask, in this order. Returns false if one of
   this thread's logits is NaN or plus infinity after the bias, even if the mask then excludes its token. */
static __device__ bool load(const carry_sample_call &call, const carry_sample_row &row, row_view &v) {
    const float *bias = row.bias >= 0 ? (const float *)(call.words + row.bias) : nullptr;
    bool fine = true;
    load_plain(call, row, v);
    for (int i = threadIdx.x; i < row.seen_count; i += THREADS) { /* each token occurs only once */
        const int token = (int)call.words[row.seen + i] - v.first;
        if (token >= 0 && token < v.count) {
            const double x = (double)v.x[token];
            v.x[token] = (float)(x > 0.0 ? x / row.penalty : x * row.penalty);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < v.count; i += THREADS) {
        const int token = v.first + i;
        float x = v.x[i];
        x += bias != nullptr ? bias[token] : 0.0f;
        fine = fine && x < CUDART_INF_F;
        if (row.allowed >= 0 && (call.words[row.allowed + token / 32] >> token % 32 & 1u) == 0) {
            x = -CUDART_INF_F;
        }
        v.x[i] = x;
    }
    __syncthreads();
    return fine;
}

/* The row's largest packed logit that is less than `under`. Logits are packed as (key, complement of the token): among
   equal logits, the token with the smallest id has the largest packed value. */
static __device__ mass_t largest(row_view &v, mass_t under) {
    mass_t best = 0;
    for (int i = v.from; i < v.to; i++) {
        const mass_t packed = (mass_t)key_of(v.x[i]) << 32 | (unsigned)~(v.first + i);
        best = packed < under && packed > best ? packed : best;
    }
    return all<larger>(v, best);
}

static __device__ __forceinline__ int token_of(mass_t packed) {
    return (int)~(unsigned)packed;
}

static __device__ int pick(row_view &v, const carry_sample_row &row) {
    kept k = {0, INT_MAX};
    if (row.top_k > 0) {
        k = narrow(v, k, row.top_k, ~(mass_t)0);
    }
    if (row.top_p < 1.0) {
        mass_t sum = 0;
        for (int i = v.from; i < v.to; i++) {
            sum += is_kept(k, v.x[i], v.first + i) ? mass_of(v, v.x[i]) : 0;
        }
        sum = all<add>(v, sum);
        k = narrow(v, k, LLONG_MAX, max((mass_t)1, (mass_t)ceil(row.top_p * (double)sum)));
    }
    const mass_t least = row.min_p > 0.0 ? (mass_t)ceil(row.min_p * (double)MASS_ONE) : 0;
    return draw(v, k, max((mass_t)1, least), row.unit);
}

/* Writes the log probabilities of the token and of the likeliest tokens, from the model's own logits. */
static __device__ void report(const carry_sample_call &call, row_view &v, const carry_sample_row &row, int token,
                              carry_run_result *to) {
    if (row.seen >= 0 || row.allowed >= 0 || row.bias >= 0) {
        __syncthreads();
        load_plain(call, row, v);
        v.most = value_of((unsigned)(largest(v, ~(mass_t)0) >> 32));
    }
    double own = 0.0;
    for (int i = v.from; i < v.to; i++) {
        own += (double)__expf(v.x[i] - v.most);
    }
    const double sum = __longlong_as_double((long long)all<add_double>(v, (mass_t)__double_as_longlong(own)));
    const double rest = log(sum) + (double)v.most;
    if (token >= v.first && token < v.first + v.count && threadIdx.x == 0) {
        to->logprob = (float)((double)v.x[token - v.first] - rest);
    }
    mass_t under = ~(mass_t)0;
    for (int n = 0; n < row.logprobs; n++) {
        under = largest(v, under);
        if (this_cluster().block_rank() == 0 && threadIdx.x == 0) {
            to->top[n] = token_of(under);
            to->top_logprob[n] = (float)((double)value_of((unsigned)(under >> 32)) - rest);
        }
    }
}

static __global__ SAMPLE_CLUSTER __launch_bounds__(THREADS,
                                                   1) void sample(const __grid_constant__ carry_sample_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ shared_head head; /* static: its size shows whether the kernel is in this build (works) */
    const int share = (call.vocabulary + BLOCKS - 1) / BLOCKS, first = (int)blockIdx.x * share;
    const int count = max(0, min(share, call.vocabulary - first));
    const int each =
        ((share + THREADS - 1) / THREADS) | 1; /* odd, to avoid bank conflicts between neighbouring threads */
    const int from = min(count, (int)threadIdx.x * each), to = min(count, from + each);
    const carry_sample_row row = call.row[blockIdx.y];
    row_view v = {&head, (float *)memory, first, count, from, to, 0, 0.0f, row.rate};
    const bool fine = load(call, row, v);
    const mass_t most = largest(v, ~(mass_t)0);
    const bool bad = all<larger>(v, fine ? 0 : 1) != 0;
    v.most = value_of((unsigned)(most >> 32));
    const bool is_failed = bad || !(v.most > -CUDART_INF_F);
    carry_run_result *result = call.results + row.result;
    int token = token_of(most);
    if (!is_failed) {
        token = row.rate > 0.0f ? pick(v, row) : token;
        if (row.logprobs >= 0) {
            report(call, v, row, token, result);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        result->token = is_failed ? -1 : token;
        result->is_failed = is_failed;
        if (call.last != nullptr) {
            call.last[row.slot] = is_failed ? 0 : token;
        }
    }
    this_cluster().sync(); /* no block may exit while others read its shared memory */
#endif
}

/* For rows of which only the largest logit is wanted: no logits are kept in shared memory, so that several blocks fit
   on a multiprocessor. NaN and plus infinity have keys above all others. */
static __device__ __forceinline__ void consider(mass_t &best, float x, int token) {
    const mass_t packed = (mass_t)(isnan(x) ? ~0u : key_of(x)) << 32 | (unsigned)~token;
    best = packed > best ? packed : best;
}

static __global__ SAMPLE_CLUSTER
__launch_bounds__(GREEDY) void take_largest(const __grid_constant__ carry_sample_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ mass_t warps[GREEDY / 32], mine;
    cluster_group cluster = this_cluster();
    const carry_sample_row row = call.row[blockIdx.y];
    const size_t base = (size_t)row.row * (size_t)call.stride;
    const int first = (int)blockIdx.x * GREEDY + (int)threadIdx.x, step = BLOCKS * GREEDY;
    mass_t best = 0;
    if (call.is_bf16 && (base + (size_t)(uintptr_t)call.logits / 2) % 8 == 0) {
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)call.logits + base;
        const int eights = call.vocabulary / 8;
#pragma unroll 4
        for (int i = first; i < eights; i += step) {
            const uint4 x = __ldcs((const uint4 *)from + i);
            const unsigned pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                consider(best, __uint_as_float(pairs[j] << 16), 8 * i + 2 * j);
                consider(best, __uint_as_float(pairs[j] & 0xffff0000u), 8 * i + 2 * j + 1);
            }
        }
        for (int i = 8 * eights + first; i < call.vocabulary; i += step) {
            consider(best, __bfloat162float(from[i]), i);
        }
    } else {
#pragma unroll 4
        for (int i = first; i < call.vocabulary; i += step) {
            consider(best,
                     call.is_bf16 ? __bfloat162float(((const __nv_bfloat16 *)call.logits)[base + i])
                                  : __ldcs((const float *)call.logits + base + i),
                     i);
        }
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        best = larger::of(best, __shfl_xor_sync(~0u, best, d));
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < GREEDY / 32; i++) {
            best = larger::of(best, warps[i]);
        }
        mine = best;
    }
    cluster.sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (int b = 0; b < BLOCKS; b++) {
            best = larger::of(best, *cluster.map_shared_rank(&mine, b));
        }
        const unsigned key = (unsigned)(best >> 32);
        const bool is_failed = key >= key_of(CUDART_INF_F) || key <= key_of(-CUDART_INF_F);
        carry_run_result *result = call.results + row.result;
        result->token = is_failed ? -1 : token_of(best);
        result->is_failed = is_failed;
        if (call.last != nullptr) {
            call.last[row.slot] = is_failed ? 0 : token_of(best);
        }
    }
    cluster.sync();
#endif
}

static __global__ void replace_ids(int64_t *ids, const int32_t *slots, const int32_t *last, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && ids[i] < 0) {
        ids[i] = last[slots[i]];
    }
}

static size_t bytes_of(int64_t vocabulary) {
    return (size_t)((vocabulary + BLOCKS - 1) / BLOCKS) * sizeof(float);
}

static bool works(int ordinal, int64_t vocabulary) {
    int major = 0;
    cudaFuncAttributes attributes;
    const bool there = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                       major >= 9 && cudaFuncGetAttributes(&attributes, sample) == cudaSuccess &&
                       attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return there && vocabulary > 0 && bytes_of(vocabulary) + sizeof(shared_head) + 1024 <= 227 * 1024;
}

static carry_status fill_ids(carry_ctx *ctx, int ordinal, carry_stream *stream, int64_t *ids, const int32_t *slots,
                             const int32_t *last, int64_t count) {
    replace_ids<<<(unsigned)((count + 127) / 128), 128, 0, (cudaStream_t)stream>>>(ids, slots, last, count);
    CARRY_CUDA_TRY(cudaGetLastError(), "the ids of a step could not be filled in");
    return CARRY_OK;
}

static carry_status launch(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_sample_call *call) {
    const size_t bytes = bytes_of(call->vocabulary);
    if (call->is_greedy) {
        take_largest<<<dim3(BLOCKS, (unsigned)call->rows), GREEDY, 0, (cudaStream_t)stream>>>(*call);
        CARRY_CUDA_TRY(cudaGetLastError(), "the sampling kernel could not be launched");
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaFuncSetAttribute(sample, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                   "shared memory of the sampling kernel");
    sample<<<dim3(BLOCKS, (unsigned)call->rows), THREADS, bytes, (cudaStream_t)stream>>>(*call);
    CARRY_CUDA_TRY(cudaGetLastError(), "the sampling kernel could not be launched");
    return CARRY_OK;
}

} // namespace sampling

extern "C" const carry_sample_kernel carry_sample_cuda = {"cuda", sampling::works, sampling::fill_ids,
                                                          sampling::launch};
