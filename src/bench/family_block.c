/* One block of a video transformer on a GPU as problems: block:bf16:h40:d128:ff13824:q2160:kv4320:text512:device=cuda
   is a block of 14B over 2160 tokens, which go into the last rows of a cache of 4320, and 512 rows of text whose keys
   and values are there.

   Weights are normal with a variance of one over their inputs. Of the result some tokens are compared with float64,
   whose keys and values too; those of other tokens the reference takes from the cache as the block left it. There is
   one set of tensors, more than a cache for the sizes that matter, and the block works on the x that it left. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/deviation.h"
#include "bench/family.h"
#include "bench/timer.h"
#include "model/dit/dit_device.h"

/* Products of the float64 reference, about a second's worth; and a token is compared whatever it costs. */
#define COMPARED 1e9
#define BIASED_RUNS 3

/* T(name, field of carry_dit_device_args): all tensors, weights first. */
#define TENSOR_LIST(T)              \
    T(QKV, w.qkv)                   \
    T(QKV_BIAS, w.qkv_bias)         \
    T(O, w.o)                       \
    T(O_BIAS, w.o_bias)             \
    T(NORM_Q, w.norm_q)             \
    T(NORM_K, w.norm_k)             \
    T(NORM3, w.norm3)               \
    T(NORM3_BIAS, w.norm3_bias)     \
    T(CROSS_Q, w.cross_q)           \
    T(CROSS_Q_BIAS, w.cross_q_bias) \
    T(CROSS_NORM_Q, w.cross_norm_q) \
    T(CROSS_O, w.cross_o)           \
    T(CROSS_O_BIAS, w.cross_o_bias) \
    T(UP, w.up)                     \
    T(UP_BIAS, w.up_bias)           \
    T(DOWN, w.down)                 \
    T(DOWN_BIAS, w.down_bias)       \
    T(X, x)                         \
    T(MODULATION, modulation)       \
    T(TABLE, table)                 \
    T(K, k)                         \
    T(V, v)                         \
    T(TEXT_K, text_k)               \
    T(TEXT_V, text_v)

enum {
#define T(name, field) name,
    TENSOR_LIST(T)
#undef T
        TENSORS
};

typedef struct instance {
    carry_ctx *ctx;
    int64_t heads, head, ffn, queries, keys, text;
    bool biased, planned; /* planned: without inputs */
    int device;
    carry_key_run run[BIASED_RUNS];
    carry_tensor here[TENSORS], there[TENSORS];
    void *workspace;
    size_t workspace_bytes;
    uint16_t *results; /* of the tokens that are compared: x, k, v */
    double *reference;
    carry_timer *timer;
} instance;

static const char takes[] = "bf16, h, d, ff, q, kv (q unless given), text, bias, device=cuda";

static const char *method(int index) {
    return index == 0 ? "fused" : NULL;
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    (void)carry_problem_has(problem, "bf16");
    it->heads = carry_problem_size(problem, "h", 2);
    it->head = carry_problem_size(problem, "d", 128);
    int64_t qkv;
    bool fits = !__builtin_mul_overflow(it->heads, it->head, &qkv) && !__builtin_mul_overflow(qkv, 3, &qkv);
    it->ffn = carry_problem_size(problem, "ff", fits ? qkv : 1);
    it->queries = carry_problem_size(problem, "q", 64);
    it->keys = carry_problem_size(problem, "kv", it->queries);
    it->text = carry_problem_size(problem, "text", 16);
    it->biased = carry_problem_has(problem, "bias");
    CARRY_TRY(carry_problem_device(ctx, &it->device, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (it->keys < it->queries) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s': the cache (kv) holds the tokens (q) too", problem->text);
    }
    const int64_t largest[] = {it->heads, it->head, fits && qkv > it->ffn ? qkv : it->ffn};
    size_t bytes;
    if (!fits || !carry_size_product(&bytes, largest, 3, 64)) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s' has sizes that multiply to more than memory can be", problem->text);
    }
    int64_t eighth = it->keys / 8;
    int64_t half = it->keys / 2;
    it->run[0] = (carry_key_run){.first = 0, .count = eighth};
    it->run[1] = (carry_key_run){.first = eighth, .count = it->keys - half - eighth, .bias = logf(0.5f)};
    it->run[2] = (carry_key_run){.first = it->keys - half, .count = half};
    return CARRY_OK;
}

static carry_tensor shape_of(const instance *it, int tensor) {
    int64_t D = it->heads * it->head;
    switch (tensor) {
    case QKV:
        return carry_view_2d(NULL, CARRY_BF16, 3 * D, D);
    case O:
    case CROSS_Q:
    case CROSS_O:
        return carry_view_2d(NULL, CARRY_BF16, D, D);
    case UP:
        return carry_view_2d(NULL, CARRY_BF16, it->ffn, D);
    case DOWN:
        return carry_view_2d(NULL, CARRY_BF16, D, it->ffn);
    case QKV_BIAS:
        return carry_view(NULL, CARRY_BF16, 1, (const int64_t[]){3 * D});
    case UP_BIAS:
        return carry_view(NULL, CARRY_BF16, 1, (const int64_t[]){it->ffn});
    case O_BIAS:
    case CROSS_Q_BIAS:
    case CROSS_O_BIAS:
    case DOWN_BIAS:
        return carry_view(NULL, CARRY_BF16, 1, (const int64_t[]){D});
    case X:
        return carry_view_2d(NULL, CARRY_BF16, it->queries, D);
    case MODULATION:
        return carry_view_2d(NULL, CARRY_F32, 6, D);
    case TABLE:
        return carry_view_3d(NULL, CARRY_F32, it->queries, it->head / 2, 2);
    case K:
    case V:
        return carry_view_3d(NULL, CARRY_BF16, it->keys, it->heads, it->head);
    case TEXT_K:
    case TEXT_V:
        return carry_view_3d(NULL, CARRY_BF16, it->text, it->heads, it->head);
    default: /* norms */
        return carry_view(NULL, CARRY_F32, 1, (const int64_t[]){D});
    }
}

static size_t tensor_bytes(const carry_tensor *tensor) {
    return (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype);
}

/* Norms are about 1; biases, gates and what is added are small; the rest is such that products keep a variance of 1. */
static carry_status fill(instance *it, int tensor, uint64_t seed) {
    carry_tensor t = it->here[tensor];
    bool is_weight = t.rank == 2 && tensor < X;
    bool is_factor = tensor == NORM_Q || tensor == NORM_K || tensor == NORM3 || tensor == CROSS_NORM_Q;
    bool is_small = tensor == MODULATION || (t.rank == 1 && !is_factor);
    float spread = is_weight ? 1.0f / sqrtf((float)t.shape[1]) : is_factor ? 0.1f : is_small ? 0.2f : 1.0f;
    CARRY_TRY(carry_random_normal(it->ctx, t, seed, (uint64_t)tensor, is_factor ? 1.0f : 0.0f, spread));
    for (int64_t i = 0; tensor == TABLE && i < carry_tensor_count(&t); i += 2) {
        double angle = (double)(i / it->head) * pow(10000.0, -(double)(i % it->head) / (double)it->head);
        ((float *)t.data)[i] = (float)cos(angle);
        ((float *)t.data)[i + 1] = (float)sin(angle);
    }
    return CARRY_OK;
}

static carry_status send(instance *it, int tensor) {
    CARRY_TRY(carry_device_copy(it->ctx, it->there[tensor].data, it->device, it->here[tensor].data, 0,
                                tensor_bytes(&it->here[tensor]), NULL));
    return carry_stream_wait(it->ctx, it->device, NULL);
}

static carry_status fetch(instance *it, int tensor) {
    CARRY_TRY(carry_stream_wait(it->ctx, it->device, carry_ctx_stream(it->ctx, it->device)));
    return carry_device_copy(it->ctx, it->here[tensor].data, 0, it->there[tensor].data, it->device,
                             tensor_bytes(&it->here[tensor]), NULL);
}

static carry_status make(instance *it, int tensor, uint64_t seed) {
    carry_tensor made = shape_of(it, tensor);
    size_t bytes = tensor_bytes(&made);
    made.data = carry_aligned_new(bytes);
    if (made.data == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "%.3g GB of memory could not be had: reduce h, ff, q or kv",
                          1e-9 * (double)bytes);
    }
    it->here[tensor] = made;
    it->there[tensor] = made;
    it->there[tensor].device = it->device;
    it->there[tensor].data = NULL;
    CARRY_TRY(fill(it, tensor, seed));
    CARRY_TRY(carry_device_alloc(it->ctx, &it->there[tensor].data, it->device, bytes));
    return send(it, tensor);
}

static void close_instance(void *given) {
    instance *it = given;
    carry_timer_free(it->timer);
    for (int i = 0; i < TENSORS; i++) {
        carry_device_free(it->ctx, it->device, it->there[i].data);
        free(it->here[i].data);
    }
    carry_device_free(it->ctx, it->device, it->workspace);
    free(it->results);
    free(it->reference);
    free(it);
}

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    instance *it = calloc(1, sizeof *it);
    *opened = NULL;
    if (it == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a problem");
    }
    it->ctx = ctx;
    it->planned = copies == 0;
    carry_status status = parse(ctx, it, problem);
    for (int i = 0; status == CARRY_OK && copies > 0 && it->device != 0 && i < TENSORS; i++) {
        status = make(it, i, seed);
    }
    if (status == CARRY_OK && it->device != 0 && copies > 0) {
        status = carry_timer_new(ctx, &it->timer, it->device);
    }
    if (status != CARRY_OK) {
        close_instance(it);
        return status;
    }
    *opened = it;
    return CARRY_OK;
}

static double bytes(const void *given) {
    double sum = 0.0;
    for (int i = 0; i < TENSORS; i++) {
        carry_tensor tensor = shape_of(given, i);
        sum += (double)tensor_bytes(&tensor);
    }
    return sum;
}

static carry_dit_device_args args_of(const instance *it, const carry_tensor t[TENSORS]) {
    carry_dit_device_args args = {
        .first = it->keys - it->queries, .run = it->run, .runs = it->biased ? BIASED_RUNS : 0, .eps = 1e-6f};
#define T(name, member) args.member = t[name];
    TENSOR_LIST(T)
#undef T
    return args;
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    if (wanted != NULL && strcmp(wanted, method(0)) != 0) {
        return carry_fail(it->ctx, CARRY_ENOTFOUND, "there is no block '%s' in this build", wanted);
    }
    if (it->device == 0 && !it->planned) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "a block as a problem is for a GPU: say device=cuda");
    }
    carry_tensor shapes[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        shapes[i] = shape_of(it, i);
        shapes[i].device = it->device;
    }
    carry_dit_device_args args = args_of(it, shapes);
    it->workspace_bytes = carry_dit_device_workspace(&args);
    bool ready = it->workspace != NULL || it->here[X].data == NULL;
    return ready ? CARRY_OK : carry_device_alloc(it->ctx, &it->workspace, it->device, it->workspace_bytes);
}

static const char *chosen(const void *given) {
    (void)given;
    return method(0);
}

static const char *about_plan(const void *given) {
    const instance *it = given;
    return it->device == 0
               ? "fused: it would need a GPU: say device=cuda"
               : "fused: large products with their biases and GELU, one pass over memory between two of them";
}

static const char *only(const void *given) {
    (void)given;
    return NULL;
}

static carry_status run(void *given) {
    instance *it = given;
    carry_dit_device_args args = args_of(it, it->there);
    return carry_dit_device_block(it->ctx, &args, it->workspace, it->workspace_bytes);
}

static carry_status time_run(void *given, double *seconds) {
    instance *it = given;
    return carry_timer_time(it->timer, seconds, run, it);
}

static int device_of(const void *given) {
    return ((const instance *)given)->device;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    double T = (double)it->queries;
    double D = (double)(it->heads * it->head);
    double seen = (double)it->keys + (double)it->text;
    return (carry_counts){.flops = 2.0 * T * D * (6.0 * D + 2.0 * (double)it->ffn) + 4.0 * T * D * seen,
                          .bytes = bytes(it),
                          .products = 6,
                          .workspace = (double)it->workspace_bytes,
                          .tokens = T};
}

static carry_status compare_tokens(instance *it, int64_t tokens, carry_deviation *deviations) {
    int64_t D = it->heads * it->head;
    int64_t size = tokens * D;
    carry_tensor before = it->here[X];
    carry_dit_device_args args = args_of(it, it->here);
    double *x = it->reference, *k = x + size, *v = k + size;
    for (int64_t i = 0; i < tokens; i++) { /* spread over all, the last one among them */
        int64_t t = tokens > 1 ? i * (it->queries - 1) / (tokens - 1) : it->queries - 1;
        CARRY_TRY(carry_dit_device_reference(it->ctx, x + i * D, k + i * D, v + i * D, &args, t));
        int64_t row = (args.first + t) * D;
        memcpy(it->results + size + i * D, (uint16_t *)args.k.data + row, (size_t)D * 2);
        memcpy(it->results + 2 * size + i * D, (uint16_t *)args.v.data + row, (size_t)D * 2);
    }
    CARRY_TRY(fetch(it, X)); /* what it was is not needed any more */
    for (int64_t i = 0; i < tokens; i++) {
        int64_t t = tokens > 1 ? i * (it->queries - 1) / (tokens - 1) : it->queries - 1;
        memcpy(it->results + i * D, (uint16_t *)before.data + t * D, (size_t)D * 2);
    }
    /* In units of bf16's rounding: h, q or k; and for x those of h, attention's p and o, y, and x itself, in each of
       three parts. The largest of many, over the largest element. */
    static const struct {
        const char *name;
        double units;
    } of[] = {{"x", 8.0}, {"k", 4.0}, {"v", 4.0}};
    for (int i = 0; i < 3; i++) {
        carry_tensor result = carry_view_2d(it->results + i * size, CARRY_BF16, tokens, D);
        deviations[i] = carry_deviation_of(of[i].name, &result, it->reference + i * size,
                                           of[i].units * carry_unit_roundoff(CARRY_BF16));
    }
    return CARRY_OK;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    *count = 0;
    double D = (double)(it->heads * it->head);
    double each = D * (6.0 * D + 2.0 * (double)it->ffn) + 2.0 * D * (double)(it->keys + it->text);
    int64_t tokens = (int64_t)(COMPARED / each);
    tokens = tokens > it->queries ? it->queries : tokens < 2 ? (it->queries < 2 ? it->queries : 2) : tokens;
    size_t size = (size_t)tokens * (size_t)(it->heads * it->head) * 3;
    free(it->results);
    free(it->reference);
    it->results = calloc(size + 1, sizeof *it->results);
    it->reference = calloc(size + 1, sizeof *it->reference);
    if (it->results == NULL || it->reference == NULL) {
        return carry_fail(it->ctx, CARRY_EMEMORY, "no memory for the float64 reference");
    }
    /* x as it was made, and NaN in the rows of the cache that the block writes. */
    CARRY_TRY(fill(it, X, 0));
    CARRY_TRY(send(it, X));
    for (int tensor = K; tensor <= V; tensor++) {
        carry_tensor own = it->here[tensor];
        own.data = (uint16_t *)own.data + (it->keys - it->queries) * it->heads * it->head;
        own.shape[0] = it->queries;
        carry_poison(&own);
        CARRY_TRY(send(it, tensor));
    }
    CARRY_TRY(run(it));
    CARRY_TRY(fetch(it, K));
    CARRY_TRY(fetch(it, V));
    CARRY_TRY(compare_tokens(it, tokens, deviations));
    *count = 3;
    return CARRY_OK;
}

extern const carry_family carry_family_block;

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    if (measure) {
        carry_log(ctx, CARRY_LOG_WARNING, "nothing is measured for '%s': a block has one way", problem->text);
    }
    return carry_family_plan_only(&carry_family_block, ctx, opened, problem);
}

const carry_family carry_family_block = {
    .name = "block",
    .about = "one block of a video transformer on a GPU, over a cache of keys and values",
    .takes = takes,
    .example = "block:bf16:h40:d128:ff13824:q2160:kv4320:text512",
    .support = {.cuda = "bf16"},
    .type = CARRY_BF16,
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = only,
    .run = run,
    .time = time_run,
    .device = device_of,
    .counts = counts,
    .compare = compare,
};
