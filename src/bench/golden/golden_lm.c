/* Compares a language model with vectors from other programs: a folder with config.json, model.safetensors and
   expected.safetensors, which holds input_ids [B, T], logits, loss, and grad.NAME for every parameter. The loss is
   the mean over tokens 2..T of each sequence; the labels are the inputs shifted left. Errors are the norm of the
   difference of the logits over the norm of the logits, the relative error of the loss, and the largest error of a
   gradient's elements over its largest element. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/golden/golden.h"
#include "model/host.h"
#include "model/lm/lm.h"
#include "file/safetensors.h"

#define LOGITS_BOUND 1e-5
#define LOSS_BOUND 1e-5
#define GRADIENT_BOUND 1e-4

typedef struct golden_lm {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_lm_pass *pass;
    carry_safetensors expected;
    int device;
    int64_t *labels;
    void *logits; /* on the device */
    float *seen;  /* host copy of the values to compare */
    void *memory;
    const char *name; /* of the case: that of the folder */
    void (*report)(void *user, const carry_golden_line *line);
    void *user;
} golden_lm;

static void tell(const golden_lm *g, const char *tensor, double error, double bound) {
    g->report(g->user, &(carry_golden_line){.name = g->name,
                                            .method = "chunk",
                                            .tensor = tensor,
                                            .dtype = CARRY_F32,
                                            .error = error,
                                            .bound = bound,
                                            .column = 42});
}

static carry_status find(const golden_lm *g, const carry_tensor **found, const char *name, carry_dtype dtype, int rank,
                         const int64_t *shape) {
    char nested[CARRY_SAFETENSORS_NAME];
    *found = carry_safetensors_find(&g->expected, name);
    if (*found == NULL && strncmp(name, "grad.model.", 11) == 0) { /* names in a multimodal folder differ */
        (void)snprintf(nested, sizeof nested, "grad.model.language_model.%.200s", name + 11);
        *found = carry_safetensors_find(&g->expected, nested);
    }
    if (*found == NULL || (*found)->dtype != dtype) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "expected.safetensors has no %s tensor %s", carry_dtype_name(dtype),
                          name);
    }
    return shape != NULL ? carry_tensor_expect(g->ctx, name, *found, rank, shape) : CARRY_OK;
}

static double largest_error(const carry_tensor *wanted, const carry_tensor *got) {
    double largest = 0.0;
    double error = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(wanted); i++) {
        const double value = fabs(carry_tensor_at(wanted, i));
        const double off = fabs(carry_tensor_at(got, i) - carry_tensor_at(wanted, i));
        largest = value > largest ? value : largest;
        error = off > error || isnan(off) ? off : error;
    }
    return largest > 0.0 ? error / largest : error;
}

static carry_status compare_logits(const golden_lm *g, const carry_tensor *got) {
    const carry_tensor *wanted;
    const carry_tensor seen = carry_view(g->seen, CARRY_F32, got->rank, got->shape);
    CARRY_TRY(find(g, &wanted, "logits", CARRY_F32, got->rank, got->shape));
    CARRY_TRY(carry_read(g->ctx, seen, *got));
    tell(g, "logits", carry_golden_error(wanted, &seen), LOGITS_BOUND);
    return CARRY_OK;
}

static carry_status prepare(golden_lm *g, const carry_tensor *ids) {
    const carry_lm_pass_options options = {.batch = ids->shape[0], .tokens = ids->shape[1], .dtype = CARRY_F32};
    CARRY_TRY(carry_lm_want_gradients(g->lm));
    CARRY_TRY(carry_lm_pass_new(g->lm, &g->pass, &options));
    const int64_t sizes[] = {options.batch, options.tokens, g->lm->config.vocab_size};
    size_t logits;
    bool fits = carry_size_product(&logits, sizes, 3, sizeof(float));
    g->labels = fits ? malloc((size_t)(options.batch * options.tokens) * sizeof *g->labels) : NULL;
    const size_t weights = (size_t)g->lm->own.count * sizeof(float); /* large enough for all gradients */
    g->seen = fits ? carry_aligned_new(logits > weights ? logits : weights) : NULL;
    CARRY_TRY(carry_lm_pass_take(g->pass, &g->memory));
    if (fits) {
        CARRY_TRY(carry_device_alloc(g->ctx, &g->logits, g->device, logits));
    }
    if (g->labels == NULL || g->logits == NULL || g->seen == NULL) {
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: the case %s", g->name);
    }
    const int64_t *from = ids->data;
    for (int64_t i = 0; i < options.batch * options.tokens; i++) {
        g->labels[i] = (i + 1) % options.tokens != 0 ? from[i + 1] : -100;
    }
    carry_stream *stream = carry_ctx_stream(g->ctx, g->device);
    /* NaN, so that elements that are not written are noticed. */
    CARRY_TRY(carry_device_fill(g->ctx, g->logits, g->device, 0xff, logits, stream));
    return carry_device_fill(g->ctx, g->memory, g->device, 0xff, carry_lm_pass_memory(g->pass), stream);
}

static void gradient_name(const golden_lm *g, int64_t parameter, char name[CARRY_SAFETENSORS_NAME]) {
    (void)snprintf(name, CARRY_SAFETENSORS_NAME, "grad.%s", g->lm->own.parameter[parameter].name);
}

/* A view of one gradient in a copy of all of them. */
static carry_tensor in_host(const carry_parameters *own, float *copy, int64_t parameter) {
    const carry_parameter *p = &own->parameter[parameter];
    return carry_view(copy + p->offset, CARRY_F32, p->rank, p->shape);
}

/* Copies all gradients to host memory, with rows in the order of the file. */
static carry_status read_gradients(const golden_lm *g, float *to) {
    const carry_parameters *own = &g->lm->own;
    const carry_tensor from = carry_parameters_flat(own, own->gradients, 0, own->count);
    CARRY_TRY(carry_read(g->ctx, carry_view(to, CARRY_F32, 1, from.shape), from));
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const size_t bytes = (size_t)p->count * sizeof(float);
        if (p->order.groups > 0) {
            float *copy = carry_aligned_new(bytes);
            if (copy == NULL) {
                return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: the gradient of %s", p->name);
            }
            memcpy(copy, to + p->offset, bytes);
            carry_parameters_reorder(p, to + p->offset, copy, CARRY_F32, true);
            free(copy);
        }
    }
    return CARRY_OK;
}

static bool is_zero(const carry_tensor *x) {
    for (int64_t i = 0; i < carry_tensor_count(x); i++) {
        if (carry_tensor_at(x, i) != 0.0) {
            return false;
        }
    }
    return true;
}

static carry_status compare_gradients(const golden_lm *g) {
    const carry_parameters *own = &g->lm->own;
    char name[CARRY_SAFETENSORS_NAME];
    CARRY_TRY(read_gradients(g, g->seen));
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_tensor *wanted;
        const carry_tensor got = in_host(own, g->seen, i);
        gradient_name(g, i, name);
        if (!g->lm->own.parameter[i].decays && carry_safetensors_find(&g->expected, name) == NULL && is_zero(&got)) {
            continue; /* the parameter is not trained */
        }
        CARRY_TRY(find(g, &wanted, name, CARRY_F32, got.rank, got.shape));
        tell(g, name, largest_error(wanted, &got), GRADIENT_BOUND);
    }
    return CARRY_OK;
}

static carry_status run_case(golden_lm *g) {
    const carry_tensor *ids;
    const carry_tensor *wanted;
    CARRY_TRY(find(g, &ids, "input_ids", CARRY_I64, 0, NULL));
    if (ids->rank != 2 || ids->shape[0] < 1 || ids->shape[1] < 2) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "input_ids must be [B, T] with at least two tokens a sequence");
    }
    CARRY_TRY(prepare(g, ids));
    double loss = 0.0;
    int64_t counted = 0;
    const carry_lm_args args = {
        .ids = *ids,
        .labels = carry_view_2d(g->labels, CARRY_I64, ids->shape[0], ids->shape[1]),
        .logits = carry_view_on(g->device, g->logits, CARRY_F32, 3,
                                (const int64_t[]){ids->shape[0], ids->shape[1], g->lm->config.vocab_size}),
        .backward = true,
        .loss = &loss,
        .counted = &counted};
    CARRY_TRY(carry_lm_run(g->pass, &args, g->memory, carry_lm_pass_memory(g->pass)));
    CARRY_TRY(compare_logits(g, &args.logits));
    CARRY_TRY(find(g, &wanted, "loss", CARRY_F32, 0, NULL));
    if (carry_tensor_count(wanted) != 1) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "expected.safetensors: loss must be one number");
    }
    const double expected = carry_tensor_at(wanted, 0);
    tell(g, "loss", fabs(loss / (double)counted - expected) / fabs(expected), LOSS_BOUND);
    return compare_gradients(g);
}

static carry_status run_folder(golden_lm *g, const char *folder) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(g->ctx, path, folder, "expected.safetensors"));
    CARRY_TRY(carry_safetensors_open(g->ctx, &g->expected, path));
    CARRY_TRY(carry_lm_load(g->ctx, &g->lm, folder, g->device));
    return run_case(g);
}

carry_status carry_golden_lm(carry_ctx *ctx, const char *folder, const char *name, int device,
                             void (*report)(void *user, const carry_golden_line *line), void *user) {
    golden_lm g = {.ctx = ctx, .name = name, .device = device, .report = report, .user = user};
    carry_status status = run_folder(&g, folder);
    carry_device_free(ctx, device, g.memory);
    carry_device_free(ctx, device, g.logits);
    carry_lm_pass_free(g.pass);
    carry_lm_free(g.lm);
    carry_safetensors_close(&g.expected);
    free(g.labels);
    free(g.seen);
    return status;
}
