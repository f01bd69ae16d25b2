/* One block of a video transformer as problems: block:bf16:h40:d128:ff13824:q2160:kv4320:text512:device=cuda is a
   block of the 14B model over 2160 tokens, which go into the last rows of a cache of 4320 rows, and 512 rows of text
   whose keys and values exist already. It is the same block that streams and training use (model/dit/dit_block.h).

   Weights are normal with a variance of one over the number of their inputs. Some tokens of the result, with their
   keys and values, are compared with the same block on the CPU in f32, which takes the keys and values of other
   tokens from the GPU's cache. There is one set of tensors, larger than a cache for the sizes that matter, and each
   run works on the x that the previous run left. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/family/block_side.h"
#include "bench/deviation.h"
#include "bench/family/family.h"
#include "bench/timer.h"
#include "model/host.h"

/* Products that the CPU may compute, about one second of work; at least some tokens are compared in any case. */
#define COMPARED 1e10

typedef struct instance {
    carry_instance base;
    carry_block_sizes sizes;
    carry_block_side here, there;
    int64_t token[64];
    uint16_t *results; /* results of the compared tokens: x, k, v */
    double *reference;
} instance;

static const char takes[] = "bf16, h, d, ff, q, kv (q unless given), text, bias, device=cpu or cuda";

static const char *method(int index) {
    return index == 0 ? "fused" : NULL;
}

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    it->here.sizes = it->there.sizes = &it->sizes;
    it->there.dtype = CARRY_BF16;
    (void)carry_problem_has(problem, "bf16");
    it->sizes.heads = carry_problem_size(problem, "h", 2);
    it->sizes.head = carry_problem_size(problem, "d", 128);
    int64_t qkv;
    bool fits = !__builtin_mul_overflow(it->sizes.heads, it->sizes.head, &qkv) && !__builtin_mul_overflow(qkv, 3, &qkv);
    it->sizes.ffn = carry_problem_size(problem, "ff", fits ? qkv : 1);
    it->sizes.queries = it->there.rows = carry_problem_size(problem, "q", 64);
    it->sizes.keys = carry_problem_size(problem, "kv", it->sizes.queries);
    it->sizes.text = carry_problem_size(problem, "text", 16);
    it->sizes.runs = carry_problem_has(problem, "bias") ? CARRY_BLOCK_RUNS : 0;
    CARRY_TRY(carry_problem_device(ctx, &it->base.device, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (it->sizes.keys < it->sizes.queries) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s': the cache (kv) holds the tokens (q) too", problem->text);
    }
    const int64_t largest[] = {it->sizes.heads, it->sizes.head, fits && qkv > it->sizes.ffn ? qkv : it->sizes.ffn};
    size_t bytes;
    if (!fits || !carry_size_product(&bytes, largest, 3, 64)) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s' has sizes that multiply to more than memory can be", problem->text);
    }
    int64_t eighth = it->sizes.keys / 8;
    int64_t half = it->sizes.keys / 2;
    it->sizes.run[0] = (carry_key_run){.first = 0, .count = eighth};
    it->sizes.run[1] = (carry_key_run){.first = eighth, .count = it->sizes.keys - half - eighth, .bias = logf(0.5f)};
    it->sizes.run[2] = (carry_key_run){.first = it->sizes.keys - half, .count = half};
    return CARRY_OK;
}

/* Both sides have the same weights, rounded so that bf16 represents them exactly. */
static carry_status make_weights(instance *it) {
    const carry_dit_config config = carry_block_config(&it->sizes);
    CARRY_TRY(carry_dit_new(it->base.ctx, &it->here.dit, &config, NULL, 0));
    CARRY_TRY(carry_dit_init(it->here.dit, it->base.seed));
    carry_parameters *own = &it->here.dit->own;
    for (int64_t i = 0; i < own->count; i++) {
        own->weights[i] = carry_f32_from_bf16(carry_bf16_from_f32(own->weights[i]));
    }
    CARRY_TRY(carry_dit_new(it->base.ctx, &it->there.dit, &config, NULL, it->base.device));
    carry_parameters *there = &it->there.dit->own;
    CARRY_TRY(carry_parameters_upload(there, there->weights, 0, own->weights, own->count));
    return carry_parameters_want_low(there, CARRY_BF16);
}

/* Fills a tensor with its initial values: normal random numbers, or the rotary table of the sizes on the GPU. */
static carry_status fill_rows(const instance *it, carry_tensor t, int tensor) {
    if (tensor != CARRY_BLOCK_TABLE) {
        return carry_random_normal(it->base.ctx, carry_reshape_1d(t, carry_tensor_count(&t)), it->base.seed,
                                   (uint64_t)tensor, 0.0f, tensor == CARRY_BLOCK_MODULATION ? 0.2f : 1.0f);
    }
    for (int64_t i = 0; i < carry_tensor_count(&t); i += 2) {
        const double angle =
            (double)(i / it->sizes.head) * pow(10000.0, -(double)(i % it->sizes.head) / (double)it->sizes.head);
        ((float *)t.data)[i] = (float)cos(angle);
        ((float *)t.data)[i + 1] = (float)sin(angle);
    }
    return CARRY_OK;
}

/* Makes the initial values of a GPU tensor in host memory, which the caller frees; uploads them if `sends`. */
static carry_status made(const instance *it, int tensor, carry_tensor *host, bool sends) {
    *host = it->there.t[tensor];
    host->device = 0;
    host->data = carry_aligned_new((size_t)carry_tensor_count(host) * carry_dtype_size(host->dtype));
    if (host->data == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: a tensor of a block");
    }
    CARRY_TRY(fill_rows(it, *host, tensor));
    CARRY_TRY(sends ? carry_copy(it->base.ctx, it->there.t[tensor], *host) : CARRY_OK);
    return carry_stream_wait(it->base.ctx, it->base.device, carry_ctx_stream(it->base.ctx, it->base.device));
}

/* Makes one set: its weights alone exceed the caches. */
static carry_status make_set(void *given, int index, uint64_t seed) {
    instance *it = given;
    (void)seed;
    if (index > 0) {
        return CARRY_OK;
    }
    CARRY_TRY(make_weights(it));
    CARRY_TRY(carry_block_side_take(&it->there));
    carry_status status = CARRY_OK;
    for (int i = 0; status == CARRY_OK && i < CARRY_BLOCK_TENSORS; i++) {
        carry_tensor host;
        status = made(it, i, &host, true);
        free(host.data);
    }
    return status;
}

static void release(void *given) {
    instance *it = given;
    carry_block_side_give(&it->here);
    carry_block_side_give(&it->there);
    free(it->results);
    free(it->reference);
}

/* Bytes of the block's weights and biases, and of what it reads and writes. */
static double bytes(const void *given) {
    const instance *it = given;
    const double D = (double)(it->sizes.heads * it->sizes.head);
    const double F = (double)it->sizes.ffn;
    return 2.0 * (D * (6.0 * D + 2.0 * F + 7.0) + F) + 4.0 * 11.0 * D +
           4.0 * (double)(it->sizes.queries * it->sizes.head) +
           2.0 * D * (double)(it->sizes.queries + 2 * it->sizes.keys + 2 * it->sizes.text);
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    if (wanted != NULL && strcmp(wanted, method(0)) != 0) {
        return carry_fail(it->base.ctx, CARRY_ENOTFOUND, "there is no block '%s' in this build", wanted);
    }
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    (void)given;
    return method(0);
}

static const char *about_plan(const void *given) {
    const instance *it = given;
    return it->base.device == 0
               ? "fused: on the CPU its parts, one after the other"
               : "fused: large products with their biases and GELU, one pass over memory between two of them";
}

static carry_status run(void *given) {
    instance *it = given;
    return carry_block_side_run(&it->there);
}

static carry_status time_run(void *given, double *seconds) {
    return carry_timer_time(((carry_instance *)given)->timer, seconds, run, given);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    double T = (double)it->sizes.queries;
    double D = (double)(it->sizes.heads * it->sizes.head);
    double seen = (double)it->sizes.keys + (double)it->sizes.text;
    return (carry_counts){.flops = 2.0 * T * D * (6.0 * D + 2.0 * (double)it->sizes.ffn) + 4.0 * T * D * seen,
                          .bytes = bytes(it),
                          .products = 6,
                          .workspace = (double)it->there.bytes,
                          .tokens = T};
}

/* Converts rows of a host tensor to f32 for the CPU's side; token NULL: all rows. */
static carry_status give_rows(instance *it, int tensor, carry_tensor host, const int64_t *token) {
    carry_tensor to = it->here.t[tensor];
    for (int64_t i = 0; token != NULL && i < it->here.rows; i++) {
        CARRY_TRY(carry_convert(it->base.ctx, carry_slice(to, i, 1), carry_slice(host, token[i], 1)));
    }
    return token == NULL ? carry_convert(it->base.ctx, to, host) : CARRY_OK;
}

/* Prepares the CPU's side: the same inputs for the chosen tokens, and the cache as the GPU left it. */
static carry_status prepare_here(instance *it) {
    carry_status status = carry_block_side_take(&it->here);
    for (int i = 0; status == CARRY_OK && i < CARRY_BLOCK_TENSORS; i++) {
        carry_tensor host;
        status = made(it, i, &host, false);
        if (status == CARRY_OK && (i == CARRY_BLOCK_K || i == CARRY_BLOCK_V)) {
            status = carry_read(it->base.ctx, host, it->there.t[i]);
            for (int64_t j = 0; status == CARRY_OK && j < it->here.rows; j++) {
                const carry_tensor row = carry_slice(host, it->sizes.keys - it->sizes.queries + it->token[j], 1);
                memcpy(it->results + ((i - CARRY_BLOCK_K + 1) * it->here.rows + j) * row.shape[1], row.data,
                       (size_t)row.shape[1] * sizeof *it->results);
            }
        }
        status = status == CARRY_OK
                     ? give_rows(it, i, host, i == CARRY_BLOCK_X || i == CARRY_BLOCK_TABLE ? it->token : NULL)
                     : status;
        free(host.data);
    }
    return status;
}

/* Compares the chosen tokens with the CPU's: x, and the rows of k and v. */
static carry_status compare_tokens(instance *it, carry_deviation *deviations) {
    const int64_t D = it->sizes.heads * it->sizes.head;
    const int64_t tokens = it->here.rows;
    /* Bounds in units of bf16's rounding error. k and v are rounded, and so is the norm of x from which they are
       computed. Each of the block's three parts rounds x, its norm, and the result that is added to x; attention also
       rounds its probabilities and output. An error is the largest of all elements, relative to the largest element. */
    static const struct {
        const char *name;
        double units;
        int tensor;
    } of[] = {{"x", 8.0, CARRY_BLOCK_X}, {"k", 4.0, CARRY_BLOCK_K}, {"v", 4.0, CARRY_BLOCK_V}};
    for (int i = 0; i < 3; i++) {
        const carry_tensor result = carry_view_2d(it->results + i * tokens * D, CARRY_BF16, tokens, D);
        for (int64_t j = 0; j < tokens; j++) {
            const int64_t row = i == 0 ? j : it->sizes.keys - it->sizes.queries + it->token[j];
            const float *from = (const float *)it->here.t[of[i].tensor].data + row * D;
            for (int64_t d = 0; d < D; d++) {
                it->reference[j * D + d] = (double)from[d];
            }
        }
        deviations[i] =
            carry_deviation_of(of[i].name, &result, it->reference, of[i].units * carry_unit_roundoff(CARRY_BF16));
    }
    return CARRY_OK;
}

/* Resets x to its initial values and fills the rows of the cache that the block writes with NaN, then runs the block
   on the GPU. */
static carry_status run_anew(instance *it) {
    carry_status status = CARRY_OK;
    for (int i = 0; status == CARRY_OK && i < CARRY_BLOCK_TENSORS; i++) {
        carry_tensor host;
        if (i != CARRY_BLOCK_X && i != CARRY_BLOCK_K && i != CARRY_BLOCK_V) {
            continue;
        }
        status = made(it, i, &host, i == CARRY_BLOCK_X);
        if (status == CARRY_OK && i != CARRY_BLOCK_X) {
            carry_tensor own = carry_slice(host, it->sizes.keys - it->sizes.queries, it->sizes.queries);
            carry_poison(&own);
            status = carry_copy(it->base.ctx, it->there.t[i], host);
            status = status == CARRY_OK ? carry_stream_wait(it->base.ctx, it->base.device,
                                                            carry_ctx_stream(it->base.ctx, it->base.device))
                                        : status;
        }
        free(host.data);
    }
    CARRY_TRY(status);
    return run(it);
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    *count = 0;
    const double D = (double)(it->sizes.heads * it->sizes.head);
    const double each =
        D * (6.0 * D + 2.0 * (double)it->sizes.ffn) + 2.0 * D * (double)(it->sizes.keys + it->sizes.text);
    const int64_t most = it->sizes.queries < 64 ? it->sizes.queries : 64;
    int64_t tokens = (int64_t)(COMPARED / each);
    tokens = tokens > most ? most : tokens < 2 ? (most < 2 ? most : 2) : tokens;
    for (int64_t i = 0; i < tokens; i++) { /* spread over all tokens, including the last */
        it->token[i] = tokens > 1 ? i * (it->sizes.queries - 1) / (tokens - 1) : it->sizes.queries - 1;
    }
    const size_t size = (size_t)(tokens * it->sizes.heads * it->sizes.head);
    free(it->results);
    free(it->reference);
    it->results = calloc(3 * size + 1, sizeof *it->results);
    it->reference = calloc(size + 1, sizeof *it->reference);
    if (it->results == NULL || it->reference == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: the tokens that are compared");
    }
    it->here.rows = tokens;
    it->here.token = it->token;
    CARRY_TRY(run_anew(it));
    carry_status status = prepare_here(it);
    for (int64_t i = 0; status == CARRY_OK && i < tokens; i++) {
        status = carry_read(it->base.ctx, carry_view_2d(it->results + i * (int64_t)D, CARRY_BF16, 1, (int64_t)D),
                            carry_slice(it->there.t[CARRY_BLOCK_X], it->token[i], 1));
    }
    status = status == CARRY_OK ? carry_block_side_run(&it->here) : status;
    status = status == CARRY_OK ? compare_tokens(it, deviations) : status;
    free(it->here.memory);
    it->here.memory = NULL;
    *count = status == CARRY_OK ? 3 : 0;
    return status;
}

extern const carry_family carry_family_block;

const carry_family carry_family_block = {
    .name = "block",
    .about = "one block of a video transformer in bf16, over a cache of keys and values",
    .takes = takes,
    .example = "block:bf16:h40:d128:ff13824:q2160:kv4320:text512",
    .support = {.cpu = "bf16", .cuda = "bf16"},
    .type = CARRY_BF16,
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .unmeasured = "a block has one way",
    .release = release,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .device = carry_instance_device,
    .counts = counts,
    .compare = compare,
};
