/* Cross entropy of a linear layer by logits in f16 (loss.cuh).

   A block keeps a row of logits in its registers in f16, so that two blocks fit on a multiprocessor: one computes while
   the other waits for memory. Exponentials are computed twice, once for their sum and once for the gradient, since the
   registers cannot hold the exponentials of a row beside its logits. The gradient, in bf16, overwrites the logits. */
#include <math.h>

#include "ops/cuda/fp8.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/loss.cuh"
#include "ops/cuda/over_block.cuh"

constexpr int64_t LEFT_OUT = -100;
constexpr int ROW_THREADS = 512, VECTORS = 8; /* vectors of 8 logits of a thread */
constexpr int WORDS = VECTORS * ONCE / 2;
constexpr int64_t MOST = (int64_t)ROW_THREADS * VECTORS * ONCE, LEAST = 8192;

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two logits of a word. */
static __device__ __forceinline__ float2 both_of(uint32_t word) {
    return __half22float2(*(const __half2 *)&word);
}

/* The compiler must not keep the widened logits for the next pass over them: they would be spilled. */
static __device__ __forceinline__ void widen_again(uint32_t (&v)[WORDS]) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        asm volatile("" : "+r"(v[i]));
    }
}

/* Reads and then overwrites rows. A target that is neither LEFT_OUT nor in the vocabulary gives a NaN loss. CODED: the
   gradient is also written as e5m2, with its scale (ops/fp8.h). */
template <bool CODED>
__global__ void __launch_bounds__(ROW_THREADS, 2)
    loss_half_kernel(float *losses, uint16_t *logits, const int64_t *targets, int64_t tokens, int vocabulary,
                     float scale, unsigned char *codes, float *code_scale) {
    __shared__ float most[ROW_THREADS / 32], sums[ROW_THREADS / 32];
    constexpr float LOG2_E = 1.44269504f;
    constexpr uint32_t MINUS_INFINITIES = 0xfc00fc00u; /* two, behind the end of a row */
    if (CODED && blockIdx.x == 0 && threadIdx.x == 0) {
        code_scale[CARRY_FP8_SCALE] = scale / CARRY_FP8_TOP_E5M2;
        code_scale[CARRY_FP8_INVERSE] = CARRY_FP8_TOP_E5M2 / scale;
    }
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        uint16_t *row = logits + t * vocabulary;
        const int64_t target = targets[t];
        const bool counts = target != LEFT_OUT, known = target >= 0 && target < vocabulary;
        const float at_target = threadIdx.x == 0 && known ? quick<type_f16>::widen(row[target]) : NAN;
        uint32_t v[WORDS];
        __half2 both = __floats2half2_rn(-INFINITY, -INFINITY);
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int i = ONCE * ((int)threadIdx.x + k * ROW_THREADS);
            const uint4 four = i < vocabulary
                                   ? *(const uint4 *)(row + i)
                                   : uint4{MINUS_INFINITIES, MINUS_INFINITIES, MINUS_INFINITIES, MINUS_INFINITIES};
            v[4 * k] = four.x;
            v[4 * k + 1] = four.y;
            v[4 * k + 2] = four.z;
            v[4 * k + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            both = __hmax2(both, *(const __half2 *)&v[i]);
        }
        const float2 mine = __half22float2(both);
        const float largest =
            over_block<ROW_THREADS / 32>(fmaxf(mine.x, mine.y), most, [](float a, float b) { return fmaxf(a, b); });
        const float base = largest == -INFINITY ? 0.0f : largest * LOG2_E;
        widen_again(v);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const float2 x = both_of(v[i]);
            sum += power_of_two(fmaf(x.x, LOG2_E, -base)) + power_of_two(fmaf(x.y, LOG2_E, -base));
        }
        sum = over_block<ROW_THREADS / 32>(sum, sums, [](float a, float b) { return a + b; });
        if (threadIdx.x == 0) {
            losses[t] = counts ? logf(sum) + (largest - at_target) : 0.0f;
        }
        const float share = counts ? scale / sum : 0.0f, code_share = counts ? CARRY_FP8_TOP_E5M2 / sum : 0.0f;
        widen_again(v);
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int i = ONCE * ((int)threadIdx.x + k * ROW_THREADS), at = known ? (int)target - i : -1;
            uint32_t d[4], code[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 x = both_of(v[4 * k + j]);
                x.x = power_of_two(fmaf(x.x, LOG2_E, -base)) - (at == 2 * j ? sum : 0.0f);
                x.y = power_of_two(fmaf(x.y, LOG2_E, -base)) - (at == 2 * j + 1 ? sum : 0.0f);
                d[j] = counts ? pair_of_bf16(x.x * share, x.y * share) : 0u;
                code[j] = CODED && counts ? fp8_pair<true>(x.x * code_share, x.y * code_share) : 0u;
            }
            if (i < vocabulary) {
                *(uint4 *)(row + i) = uint4{d[0], d[1], d[2], d[3]};
                if (CODED) {
                    __stcg((uint2 *)(codes + t * vocabulary + i),
                           make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16));
                }
            }
        }
    }
}

__global__ void __launch_bounds__(THREADS) half_of_bf16_kernel(uint4 *to, const uint4 *from, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const uint4 four = from[i];
        uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float low = __uint_as_float(word[j] << 16), high = __uint_as_float(word[j] & 0xffff0000u);
            word[j] = (uint32_t)__half_as_ushort(__float2half_rn(low)) |
                      (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
        }
        to[i] = uint4{word[0], word[1], word[2], word[3]};
    }
}

/* Bytes rounded up to the alignment that products are fastest with. */
static int64_t whole(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* The workspace: the weight in f16, then for every token of a block its input in f16 and its logits. */
int64_t half_loss_block(const half_loss &call) {
    const int64_t n = call.x.shape[1], vocabulary = call.W.shape[0];
    const int64_t weight = whole(vocabulary * n * 2) + 256, token = (vocabulary + n) * 2;
    const bool applies = call.x.dtype == CARRY_BF16 && call.W.dtype == CARRY_BF16 && vocabulary >= LEAST &&
                         vocabulary <= MOST && vocabulary % ONCE == 0 && n % ONCE == 0 && is_aligned(call.x.data) &&
                         is_aligned(call.W.data) && is_aligned(call.workspace) && (int64_t)call.bytes > weight;
    return applies ? ((int64_t)call.bytes - weight) / token : 0;
}

static carry_status to_half(carry_ctx *ctx, const place &at, void *to, const void *from, int64_t elements) {
    half_of_bf16_kernel<<<blocks_for(elements / ONCE, THREADS), THREADS, 0, at.stream>>>(
        (uint4 *)to, (const uint4 *)from, elements / ONCE);
    return launched(ctx, at, "cross_entropy cannot be launched");
}

static carry_status run_losses(carry_ctx *ctx, const place &at, float *losses, void *logits, const int64_t *targets,
                               int64_t tokens, int64_t vocabulary, float scale, const carry_fp8 &codes) {
    int units = 0;
    const int ordinal = at.ordinal;
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    const unsigned blocks = (unsigned)(tokens < 2 * units ? tokens : 2 * units);
    if (codes.codes != NULL) {
        loss_half_kernel<true><<<blocks, ROW_THREADS, 0, at.stream>>>(losses, (uint16_t *)logits, targets, tokens,
                                                                      (int)vocabulary, scale, codes.codes, codes.scale);
    } else {
        loss_half_kernel<false><<<blocks, ROW_THREADS, 0, at.stream>>>(losses, (uint16_t *)logits, targets, tokens,
                                                                       (int)vocabulary, scale, NULL, NULL);
    }
    return launched(ctx, at, "cross_entropy cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_loss(carry_ctx *ctx, carry_tensor losses, carry_tensor logits,
                                            carry_tensor targets, carry_fp8 codes, float scale) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, logits.device));
    if (!is_aligned(logits.data)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "logits are not aligned to 16 bytes");
    }
    return run_losses(ctx, at, (float *)losses.data, logits.data, (const int64_t *)targets.data, logits.shape[0],
                      logits.shape[1], scale, codes);
}

carry_status half_loss_run(carry_ctx *ctx, const half_loss &call, int64_t block) {
    place at = {};
    const int device = call.x.device;
    const int64_t tokens = call.x.shape[0], n = call.x.shape[1], vocabulary = call.W.shape[0];
    CARRY_TRY(open_place(ctx, &at, device));
    char *weight = (char *)call.workspace, *input = weight + whole(vocabulary * n * 2),
         *logits = input + whole(block * n * 2);
    CARRY_TRY(to_half(ctx, at, weight, call.W.data, vocabulary * n));
    for (int64_t first = 0; first < tokens; first += block) {
        const int64_t count = tokens - first < block ? tokens - first : block;
        const char *rows = (const char *)call.x.data + first * n * 2;
        CARRY_TRY(to_half(ctx, at, input, rows, count * n));
        CARRY_TRY(multiply(ctx, device, logits, CARRY_F16, count, vocabulary, n, matrix{input, CARRY_F16, n, false},
                           matrix{weight, CARRY_F16, n, true}, false));
        CARRY_TRY(run_losses(ctx, at, call.losses + first, logits, (const int64_t *)call.targets.data + first, count,
                             vocabulary, call.scale, carry_fp8{}));
        if (call.dx.data != NULL) {
            CARRY_TRY(multiply(ctx, device, (char *)call.dx.data + first * n * 2, CARRY_BF16, count, n, vocabulary,
                               matrix{logits, CARRY_BF16, vocabulary, false}, matrix{call.W.data, CARRY_BF16, n, false},
                               false));
        }
        if (call.dW.data != NULL) {
            CARRY_TRY(multiply(ctx, device, call.dW.data, CARRY_F32, vocabulary, n, count,
                               matrix{logits, CARRY_BF16, vocabulary, true}, matrix{rows, CARRY_BF16, n, false}, true));
        }
    }
    return CARRY_OK;
}
