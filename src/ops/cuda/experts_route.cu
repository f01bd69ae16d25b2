/* The router of a mixture of experts on NVIDIA GPUs. A warp has a token; the numbers of experts and rows stay on the
   device. Of equal scores the first is chosen, as on the CPU. */
#include "ops/cuda/nn.cuh"

extern "C" {
#include "ops/experts.h"
}

namespace {

constexpr unsigned ALL = 0xffffffffu;

template <typename T> struct route_args {
    float *weights; /* dweights in backward */
    int64_t *chosen;
    const float *bias;
    const typename T::stored *logits;
    typename T::stored *dlogits;
    carry_router router;
    int64_t tokens;
    int experts, k;
};

/* Shared memory of a warp: probabilities, the scores by which experts are chosen, and marks of the experts taken. */
struct route_room {
    float *p, *score;
    unsigned char *taken;
};

size_t room_bytes(int experts) {
    return (size_t)(experts + 3) / 4 * 4 * (2 * sizeof(float) + 1);
}

__device__ __forceinline__ route_room room_of(void *shared, int experts, int warp) {
    const int count = (experts + 3) / 4 * 4;
    unsigned char *at = (unsigned char *)shared + (size_t)warp * (size_t)count * (2 * sizeof(float) + 1);
    return route_room{(float *)at, (float *)at + count, at + 2 * sizeof(float) * (size_t)count};
}

/* p = softmax or sigmoid of a token's logits. */
template <typename T>
__device__ __forceinline__ void scores_of(const route_args<T> &a, int64_t token, float *p, int lane) {
    const typename T::stored *logits = a.logits + token * a.experts;
    float largest = -INFINITY, sum = 0.0f;
    for (int e = lane; e < a.experts; e += 32) {
        p[e] = T::widen(logits[e]);
        largest = fmaxf(largest, p[e]);
    }
    if (a.router.score == CARRY_ROUTER_SIGMOID) {
        for (int e = lane; e < a.experts; e += 32) {
            p[e] = sigmoid_of(p[e]);
        }
        __syncwarp();
        return;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, step));
    }
    for (int e = lane; e < a.experts; e += 32) {
        p[e] = expf(p[e] - largest);
        sum += p[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < a.experts; e += 32) {
        p[e] /= sum;
    }
    __syncwarp();
}

/* Returns the first of the largest free scores, or some free one if there is a NaN. All lanes find the same one,
   since the comparison of two scores selects the same one in either order. */
__device__ __forceinline__ int take_largest(const float *score, unsigned char *taken, int count, int lane) {
    int best = -1;
    for (int i = lane; i < count; i += 32) {
        if (!taken[i] && (best < 0 || score[i] > score[best])) {
            best = i;
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const int other = __shfl_xor_sync(ALL, best, step);
        if (other >= 0 && (best < 0 || score[other] > score[best] || (!(score[other] < score[best]) && other < best))) {
            best = other;
        }
    }
    if (lane == 0) {
        taken[best] = 1;
    }
    __syncwarp();
    return best;
}

/* Marks the experts of dropped groups as taken. The sums of groups overwrite p, which the caller computes
   again. */
template <typename T>
__device__ __forceinline__ void drop_groups(const route_args<T> &a, const route_room &r, int lane) {
    const int groups = (int)a.router.groups, each = a.experts / groups;
    float *sums = r.p;
    for (int g = lane; g < groups; g += 32) {
        float first = -INFINITY, second = each > 1 ? -INFINITY : 0.0f;
        for (int e = g * each; e < (g + 1) * each; e++) {
            const float s = r.score[e];
            second = each > 1 ? s > first ? first : s > second ? s : second : 0.0f;
            first = s > first ? s : first;
        }
        sums[g] = first + second;
    }
    __syncwarp();
    for (int i = 0; i < (int)a.router.kept_groups; i++) {
        (void)take_largest(sums, r.taken, groups, lane);
    }
    /* Runs from the last expert down, since `taken` of the groups and of the experts are the same memory: e / each <=
       e, so the flag of a group is read before it is overwritten. */
    for (int e = (a.experts - 1) / 32 * 32 + lane; e >= 0; e -= 32) {
        const bool dropped = e < a.experts && !r.taken[e / each];
        __syncwarp();
        if (e < a.experts) {
            r.taken[e] = dropped;
        }
        __syncwarp();
    }
}

template <typename T> __global__ void route_kernel(route_args<T> a) {
    extern __shared__ uint4 shared_memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const route_room r = room_of(shared_memory, a.experts, warp);
    for (int64_t t = (int64_t)blockIdx.x * warps + warp; t < a.tokens; t += (int64_t)gridDim.x * warps) {
        scores_of(a, t, r.p, lane);
        for (int e = lane; e < a.experts; e += 32) {
            r.score[e] = r.p[e] + (a.bias != NULL ? a.bias[e] : 0.0f);
            r.taken[e] = 0;
        }
        __syncwarp();
        if (a.router.groups > 1) {
            drop_groups(a, r, lane);
            scores_of(a, t, r.p, lane);
        }
        float all = 0.0f; /* NaN if a logit is NaN */
        for (int e = lane; e < a.experts; e += 32) {
            all += r.p[e];
        }
        all = warp_sum(all);
        float sum = 1e-20f;
        for (int i = 0; i < a.k; i++) {
            const int e = take_largest(r.score, r.taken, a.experts, lane);
            sum += r.p[e];
            if (lane == 0) {
                a.chosen[t * a.k + i] = e;
            }
        }
        __syncwarp();
        for (int i = lane; i < a.k; i += 32) {
            const float p = r.p[a.chosen[t * a.k + i]];
            const float weight = a.router.scale * (a.router.normalise ? p / sum : p);
            a.weights[t * a.k + i] = isnan(all) ? all : weight;
            if (i == 0 && a.router.first_nan != NULL && (isnan(all) || isnan(weight))) {
                atomicMin((unsigned long long *)a.router.first_nan, (unsigned long long)(a.router.mark + t));
            }
        }
        __syncwarp();
    }
}

template <typename T> __global__ void route_backward_kernel(route_args<T> a) {
    extern __shared__ uint4 shared_memory[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const route_room r = room_of(shared_memory, a.experts, warp);
    for (int64_t t = (int64_t)blockIdx.x * warps + warp; t < a.tokens; t += (int64_t)gridDim.x * warps) {
        const int64_t *chosen = a.chosen + t * a.k;
        const float *dw = a.weights + t * a.k;
        scores_of(a, t, r.p, lane);
        for (int e = lane; e < a.experts; e += 32) {
            r.score[e] = 0.0f; /* dp */
        }
        __syncwarp();
        float sum = 1e-20f, dot = 0.0f, all = 0.0f;
        for (int i = 0; i < a.k; i++) {
            sum += r.p[chosen[i]];
            dot += dw[i] * r.p[chosen[i]];
        }
        for (int i = 0; i < a.k; i++) {
            const float own = a.router.scale * (a.router.normalise ? (dw[i] - dot / sum) / sum : dw[i]);
            all += r.p[chosen[i]] * own;
            if (lane == 0) {
                r.score[chosen[i]] = own;
            }
        }
        __syncwarp();
        for (int e = lane; e < a.experts; e += 32) {
            const float p = r.p[e], dp = r.score[e];
            a.dlogits[t * a.experts + e] =
                T::narrow(p * (a.router.score == CARRY_ROUTER_SIGMOID ? (1.0f - p) * dp : dp - all));
        }
        __syncwarp();
    }
}

carry_status run_route(carry_ctx *ctx, const carry_tensor &weights, const carry_tensor &chosen,
                       const carry_tensor &logits, const carry_tensor &bias, const carry_tensor &dlogits,
                       const carry_router *router) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, logits.device));
    with_type(logits.dtype, [&](auto type) {
        using T = decltype(type);
        using E = typename T::stored;
        route_args<T> a = {};
        a.weights = (float *)weights.data;
        a.chosen = (int64_t *)chosen.data;
        a.bias = (const float *)bias.data;
        a.logits = (const E *)logits.data;
        a.dlogits = (E *)dlogits.data;
        a.router = *router;
        a.tokens = logits.shape[0];
        a.experts = (int)logits.shape[1];
        a.k = (int)chosen.shape[1];
        const size_t each = room_bytes(a.experts);
        const int warps = each > 20000 ? 1 : each > 10000 ? 2 : 4; /* within 48 KB */
        if (a.dlogits == NULL) {
            route_kernel<T><<<blocks_for(a.tokens, warps), warps * 32, each * warps, at.stream>>>(a);
        } else {
            route_backward_kernel<T><<<blocks_for(a.tokens, warps), warps * 32, each * warps, at.stream>>>(a);
        }
    });
    return launched(ctx, at, "a router cannot be launched");
}

constexpr int SORTERS = 1024; /* threads of a block */

/* Block e counts the pairs of the experts before it, and puts its own pairs after them. A thread has a range of
   pairs. */
__global__ void __launch_bounds__(SORTERS)
    sort_kernel(int64_t *pair, int64_t *place_of, int64_t *offsets, const int64_t *chosen, int64_t pairs, int experts) {
    __shared__ int own[SORTERS / 32], before[SORTERS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, expert = (int)blockIdx.x;
    const int64_t each = (pairs + SORTERS - 1) / SORTERS;
    const int64_t begin = each * threadIdx.x;
    const int64_t end = begin + each < pairs ? begin + each : pairs;
    int less = 0, equal = 0;
    for (int64_t i = begin; i < end; i++) {
        less += chosen[i] < expert;
        equal += chosen[i] == expert;
    }
    int sum = equal;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, sum, (unsigned)step);
        sum += lane >= step ? other : 0;
    }
    less = warp_sum(less);
    if (lane == 31) {
        own[warp] = sum;
        before[warp] = less;
    }
    __syncthreads();
    int64_t row = sum - equal, first = 0, count = 0;
    for (int i = 0; i < SORTERS / 32; i++) {
        first += before[i];
        count += own[i];
        row += i < warp ? own[i] : 0;
    }
    row += first;
    if (threadIdx.x == 0) {
        offsets[expert] = first;
        if (expert == experts - 1) {
            offsets[experts] = first + count;
        }
    }
    for (int64_t i = begin; i < end; i++) {
        if (chosen[i] == expert) {
            pair[row] = i;
            place_of[i] = row++;
        }
    }
}

} // namespace

extern "C" carry_status carry_cuda_route(carry_ctx *ctx, carry_tensor weights, carry_tensor chosen, carry_tensor logits,
                                         carry_tensor bias, const carry_router *router) {
    return run_route(ctx, weights, chosen, logits, bias, carry_tensor{}, router);
}

extern "C" carry_status carry_cuda_route_backward(carry_ctx *ctx, carry_tensor dlogits, carry_tensor dweights,
                                                  carry_tensor logits, carry_tensor chosen,
                                                  const carry_router *router) {
    return run_route(ctx, dweights, chosen, logits, carry_tensor{}, dlogits, router);
}

extern "C" carry_status carry_cuda_sort_experts(carry_ctx *ctx, carry_tensor pair, carry_tensor place_of,
                                                carry_tensor offsets, carry_tensor chosen) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, chosen.device));
    const int experts = (int)offsets.shape[0] - 1;
    sort_kernel<<<(unsigned)experts, SORTERS, 0, at.stream>>>((int64_t *)pair.data, (int64_t *)place_of.data,
                                                              (int64_t *)offsets.data, (const int64_t *)chosen.data,
                                                              chosen.shape[0], experts);
    return launched(ctx, at, "the sort of experts cannot be launched");
}
