/* Softmax attention as problems: attention:bf16:h40:q2160:kv4320:d128:bias.

   Inputs are normal, [rows, h, d], packed. bias: the keys form three runs, the first eighth, the middle and the last
   half, with ln 0.5 on the middle one. causal: the queries are the last q of kv tokens. hk: the number of heads of
   keys and values. backward: the gradients of one forward pass, which is not timed; dk and dv accumulate from one
   timed run to the next. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
#include "bench/family/attention_set.h"
#include "bench/deviation.h"
#include "bench/family/family.h"
#include "bench/timer.h"

/* Products that the float64 reference may compute, about one second of work. Only a part of larger problems is
   compared. */
#define COMPARED 1e8

typedef struct instance {
    carry_instance base;
    carry_attention_problem p;
    carry_tensor set[CARRY_COPIES][SET_TENSORS]; /* on the device */
    carry_tensor here[SET_TENSORS];              /* set 0 on the CPU */
    void *workspace;
    size_t workspace_bytes;
    double *reference; /* for the compared part */
} instance;

static const char takes[] = "f32, bf16 or f16, h, hk (h unless given), q, kv (q unless given), d, bias, causal, "
                            "backward, algo=NAME, device=cpu or cuda";

static const struct {
    const char *name, *about;
} methods[] = {{"blocks", "blocks: blocks of queries over blocks of keys with an online softmax"},
               {"fused", "fused: one kernel of the device with an online softmax"},
               {"wgmma", "wgmma: one kernel on Hopper's tensor cores; dQ is summed in a fixed order"},
               {"mma", "mma: two kernels on tensor cores, for dK and dV and for dQ"},
               {"plain", "plain: two kernels without tensor cores"}};
enum { METHODS = sizeof methods / sizeof *methods };

static const char *method(int index) {
    return index >= 0 && index < METHODS ? methods[index].name : NULL;
}

static int chosen_index(const instance *it) {
    if (it->p.device == 0 || !it->p.backward) {
        return it->p.device != 0 ? 1 : 0;
    }
    carry_tensor set[SET_TENSORS];
    for (int i = 0; i < SET_TENSORS; i++) {
        set[i] = carry_attention_set_shape(&it->p, i);
        set[i].device = it->p.device;
    }
    const carry_attention_backward_args args = carry_attention_set_args(&it->p, set);
    const char *name = carry_attention_backward_method(&args);
    int index = 0;
    while (index < METHODS - 1 && strcmp(methods[index].name, name) != 0) {
        index++;
    }
    return index;
}

static const char *chosen(const void *given) {
    return methods[chosen_index(given)].name;
}

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    CARRY_TRY(carry_problem_dtype(ctx, &it->p.dtype, problem, CARRY_F16));
    it->p.heads = carry_problem_size(problem, "h", 4);
    it->p.queries = carry_problem_size(problem, "q", 720);
    it->p.keys = carry_problem_size(problem, "kv", it->p.queries);
    it->p.key_heads = carry_problem_size(problem, "hk", it->p.heads);
    it->p.dim = carry_problem_size(problem, "d", 128);
    it->p.causal = carry_problem_has(problem, "causal");
    it->p.biased = carry_problem_has(problem, "bias");
    it->p.backward = carry_problem_has(problem, "backward");
    const char *algorithm = carry_problem_setting(problem, "algo");
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algorithm != NULL ? algorithm : "");
    CARRY_TRY(carry_problem_device(ctx, &it->p.device, problem));
    it->base.device = it->p.device;
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (it->p.key_heads < 1 || it->p.heads % it->p.key_heads != 0) {
        return carry_fail(ctx, CARRY_ESIZE, "hk is %" PRId64 " in '%s' and must divide h, %" PRId64, it->p.key_heads,
                          problem->text, it->p.heads);
    }
    if (it->p.causal && it->p.keys < it->p.queries) {
        return carry_fail(ctx, CARRY_ESIZE, "kv is %" PRId64 " in '%s': a causal call needs at least q, %" PRId64,
                          it->p.keys, problem->text, it->p.queries);
    }
    if (it->p.dim < 1 || it->p.dim > CARRY_ATTENTION_DIM) {
        return carry_fail(ctx, CARRY_ESIZE, "d is %" PRId64 " in '%s': attention takes 1 to %d", it->p.dim,
                          problem->text, CARRY_ATTENTION_DIM);
    }
    const int64_t all[] = {it->p.heads, it->p.queries > it->p.keys ? it->p.queries : it->p.keys, it->p.dim};
    size_t bytes;
    if (!carry_size_product(&bytes, all, 3, 64)) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s' has sizes that multiply to more than memory can be", problem->text);
    }
    int64_t eighth = it->p.keys / 8;
    int64_t half = it->p.keys / 2;
    it->p.run[0] = (carry_key_run){.first = 0, .count = eighth};
    it->p.run[1] = (carry_key_run){.first = eighth, .count = it->p.keys - half - eighth, .bias = logf(0.5f)};
    it->p.run[2] = (carry_key_run){.first = it->p.keys - half, .count = half};
    return CARRY_OK;
}

static carry_status make_set(void *given, int index, uint64_t seed) {
    instance *it = given;
    return carry_attention_set_new(it->base.ctx, it->set[index], index == 0 ? it->here : NULL, &it->p, seed);
}

static void release(void *given) {
    instance *it = given;
    for (int i = 0; i < it->base.copies; i++) {
        carry_attention_set_free(it->base.ctx, it->set[i], it->p.device);
    }
    if (it->p.device != 0) { /* otherwise it is set 0 itself */
        carry_attention_set_free(it->base.ctx, it->here, 0);
    }
    carry_device_free(it->base.ctx, it->p.device, it->workspace);
    free(it->reference);
}

static double bytes(const void *given) {
    return carry_attention_set_moved(&((const instance *)given)->p);
}

static carry_status forward_on(instance *it, int at) {
    carry_attention_backward_args args = carry_attention_set_args(&it->p, it->set[at]);
    return carry_attention(it->base.ctx, &args.forward, it->workspace, it->workspace_bytes);
}

static carry_status run_on(instance *it, int at) {
    if (!it->p.backward) {
        return forward_on(it, at);
    }
    carry_attention_backward_args args = carry_attention_set_args(&it->p, it->set[at]);
    return carry_attention_backward(it->base.ctx, &args, it->workspace, it->workspace_bytes);
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    bool known = wanted == NULL;
    for (int i = 0; i < METHODS; i++) {
        known = known || strcmp(wanted, methods[i].name) == 0;
    }
    if (!known) {
        return carry_fail(it->base.ctx, CARRY_ENOTFOUND, "there is no attention '%s' in this build", wanted);
    }
    if (wanted != NULL && strcmp(wanted, chosen(it)) != 0) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "this problem is computed by %s, not by %s", chosen(it),
                          wanted);
    }
    it->workspace_bytes = carry_attention_set_workspace(&it->p);
    if (it->workspace != NULL || it->base.copies == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_device_alloc(it->base.ctx, &it->workspace, it->p.device, it->workspace_bytes));
    /* Makes o and lse of every set, which backward needs. */
    for (int i = 0; it->p.backward && i < it->base.copies; i++) {
        CARRY_TRY(forward_on(it, i));
    }
    return CARRY_OK;
}

static const char *about_plan(const void *given) {
    return methods[chosen_index(given)].about;
}

static carry_status run(void *given) {
    instance *it = given;
    it->base.current = (it->base.current + 1) % it->base.copies;
    return run_on(it, it->base.current);
}

static carry_status time_run(void *given, double *seconds) {
    return carry_timer_time(((carry_instance *)given)->timer, seconds, run, given);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const double queries = (double)it->p.queries;
    const double masked = it->p.causal ? 0.5 * queries * (queries - 1.0) : 0.0;
    const double scores = (double)it->p.heads * (queries * (double)it->p.keys - masked);
    return (carry_counts){.flops = (it->p.backward ? 10.0 : 4.0) * scores * (double)it->p.dim,
                          .bytes = bytes(it),
                          .workspace = (double)it->workspace_bytes,
                          .tokens = (double)it->p.queries};
}

/* A part of a tensor [rows, h, d] of set 0: every step-th row of the first heads. */
static carry_tensor part_of(const instance *it, int tensor, int64_t rows, int64_t step, int64_t heads) {
    const int64_t group = it->p.heads / it->p.key_heads;
    const bool of_keys = it->here[tensor].shape[1] == it->p.key_heads;
    heads = of_keys && group > 1 ? (heads + group - 1) / group : heads;
    carry_tensor part = it->here[tensor];
    part.shape[0] = rows;
    part.stride[0] *= step;
    part.shape[1] = heads;
    return part;
}

/* carry_deviation_of takes packed tensors, so the part is packed in place; rows only move towards the front. */
static carry_deviation deviation_of(const char *name, carry_tensor part, const double *reference, double bound) {
    size_t row = (size_t)(part.shape[1] * part.shape[2]) * carry_dtype_size(part.dtype);
    size_t apart = (size_t)part.stride[0] * carry_dtype_size(part.dtype);
    for (int64_t i = 1; i < part.shape[0]; i++) {
        memmove((unsigned char *)part.data + (size_t)i * row, (unsigned char *)part.data + (size_t)i * apart, row);
    }
    carry_tensor packed = carry_view(part.data, part.dtype, 3, part.shape);
    return carry_deviation_of(name, &packed, reference, bound);
}

static carry_status reserve(instance *it, int64_t count) {
    free(it->reference);
    it->reference = calloc((size_t)count + 1, sizeof *it->reference);
    return it->reference != NULL ? CARRY_OK
                                 : carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
}

/* Copies a tensor of set 0 from the CPU to the device or back. */
static carry_status copy_set(instance *it, int tensor, bool back) {
    const int device = it->p.device;
    void *here = it->here[tensor].data, *there = it->set[0][tensor].data;
    if (device == 0) {
        return CARRY_OK;
    }
    carry_stream *stream = carry_ctx_stream(it->base.ctx, device);
    CARRY_TRY(carry_device_copy(it->base.ctx, back ? here : there, back ? 0 : device, back ? there : here,
                                back ? device : 0, carry_attention_set_bytes(&it->here[tensor]), stream));
    return carry_stream_wait(it->base.ctx, device, stream);
}

/* The number of heads to compare, in whole groups, if each head costs `each` products. */
static int64_t heads_compared(const instance *it, double each) {
    const int64_t group = it->p.heads / it->p.key_heads;
    const int64_t heads = ((int64_t)(COMPARED / each) / group + 1) * group;
    return heads < it->p.heads ? heads : it->p.heads;
}

/* Compares some queries of all heads, which are independent of each other; for a causal call, all queries of some
   heads. Errors of scores, exponentials and sums are a few 2^-24 times sqrt(d); a device also rounds probabilities
   to 16 bits before it multiplies them with v. */
static carry_status compare_forward(instance *it, carry_deviation *deviations, int *count) {
    double each = (double)it->p.heads * (double)it->p.keys * (double)it->p.dim;
    int64_t step = it->p.causal ? 1 : 1 + (int64_t)((double)it->p.queries * each / COMPARED);
    int64_t rows = (it->p.queries + step - 1) / step;
    const double per_head = (double)it->p.queries * (double)it->p.keys * (double)it->p.dim;
    const int64_t heads = it->p.causal ? heads_compared(it, per_head) : it->p.heads;
    carry_poison(&it->here[SET_O]);
    CARRY_TRY(copy_set(it, SET_O, false));
    CARRY_TRY(forward_on(it, 0));
    CARRY_TRY(copy_set(it, SET_O, true));
    carry_attention_args args = carry_attention_set_args(&it->p, it->here).forward;
    args.o = part_of(it, SET_O, rows, step, heads);
    args.q = part_of(it, SET_Q, rows, step, heads);
    args.k = part_of(it, SET_K, it->p.keys, 1, heads);
    args.v = part_of(it, SET_V, it->p.keys, 1, heads);
    args.lse = (carry_tensor){.data = NULL};
    CARRY_TRY(reserve(it, carry_tensor_count(&args.o)));
    CARRY_TRY(carry_attention_reference(it->base.ctx, it->reference, NULL, &args));
    double unit = carry_unit_roundoff(it->p.dtype);
    deviations[0] = deviation_of("o", args.o, it->reference,
                                 (64.0 + 16.0 * sqrt((double)it->p.dim)) * 0x1p-24 + (it->p.dtype == CARRY_F32 ? 1.0
                                                                                      : it->p.device != 0      ? 4.0
                                                                                                               : 2.0) *
                                                                                         unit);
    *count = 1;
    return CARRY_OK;
}

/* Compares the first heads. mean = dO.O uses the stored o, whose rounding is in every gradient. */
static carry_status compare_backward(instance *it, carry_deviation *deviations, int *count) {
    double each = (double)it->p.queries * (double)it->p.keys * (double)it->p.dim;
    const int64_t heads = heads_compared(it, each);
    CARRY_TRY(forward_on(it, 0));
    carry_poison(&it->here[SET_DQ]);
    memset(it->here[SET_DK].data, 0, carry_attention_set_bytes(&it->here[SET_DK]));
    memset(it->here[SET_DV].data, 0, carry_attention_set_bytes(&it->here[SET_DV]));
    static const int results[] = {SET_DQ, SET_DK, SET_DV};
    for (int i = 0; i < 3; i++) {
        CARRY_TRY(copy_set(it, results[i], false));
    }
    CARRY_TRY(run_on(it, 0));
    for (int i = 0; i < 3; i++) {
        CARRY_TRY(copy_set(it, results[i], true));
    }
    carry_tensor parts[SET_TENSORS] = {{.data = NULL}};
    for (int i = 0; i < SET_TENSORS; i++) {
        if (i != SET_LSE) {
            parts[i] = part_of(it, i, it->here[i].shape[0], 1, heads);
        }
    }
    carry_attention_backward_args args = carry_attention_set_args(&it->p, parts);
    int64_t of_queries = carry_tensor_count(&parts[SET_Q]);
    int64_t of_keys = carry_tensor_count(&parts[SET_K]);
    CARRY_TRY(reserve(it, of_queries + 2 * of_keys));
    double *dk = it->reference + of_queries;
    CARRY_TRY(carry_attention_reference_backward(it->base.ctx, it->reference, dk, dk + of_keys, &args));
    /* A device rounds probabilities and their gradients to 16 bits before it multiplies them. */
    const double roundings = it->p.dtype == CARRY_F32 ? 0.0 : it->p.device != 0 ? 12.0 : 4.0;
    double bound = 1024.0 * 0x1p-24 + roundings * carry_unit_roundoff(it->p.dtype);
    deviations[0] = deviation_of("dq", parts[SET_DQ], it->reference, bound);
    deviations[1] = deviation_of("dk", parts[SET_DK], dk, bound);
    deviations[2] = deviation_of("dv", parts[SET_DV], dk + of_keys, bound);
    *count = 3;
    return CARRY_OK;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    *count = 0;
    return it->p.backward ? compare_backward(it, deviations, count) : compare_forward(it, deviations, count);
}

extern const carry_family carry_family_attention;

const carry_family carry_family_attention = {
    .name = "attention",
    .about = "softmax attention, causal or over runs of keys with a bias each: forward, or backward",
    .takes = takes,
    .example = "attention:f32:h4:q720:kv2160:d128:bias",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16"},
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .unmeasured = "attention has one method for each call",
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
