/* Compares the delta rule with vectors from other programs. The inputs of a case are converted to the type under
   test; the expected results are those of the f32 inputs, so bf16's bounds include the rounding of the inputs. */
#include "bench/golden/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/delta.h"
#include "carry/device.h"
#include "carry/ops.h"
#include "core/tensor.h"
#include "core/error.h"
#include "core/memory.h"
#include "file/safetensors.h"

/* Bounds of the relative RMS error. */
#define F32_BOUND 1e-5
#define F32_GRADIENT_BOUND 1e-4
#define BF16_BOUND 8e-3
#define BF16_GRADIENT_BOUND 2e-2
#define NAME_LIMIT 64

typedef struct golden {
    carry_ctx *ctx;
    const carry_safetensors *file;
    char name[NAME_LIMIT];
    carry_delta_problem problem;
    int device;
    void (*report)(void *user, const carry_golden_line *line);
    void *user;
    void *owned[32];
    int owned_count;
} golden;

static const carry_tensor *find(const golden *g, const char *tensor) {
    char name[CARRY_SAFETENSORS_NAME];
    (void)snprintf(name, sizeof name, "%s.%s", g->name, tensor);
    return carry_safetensors_find(g->file, name);
}

static carry_status make(golden *g, carry_tensor *to, const carry_tensor *like, carry_dtype dtype) {
    void *data = carry_aligned_new((size_t)carry_tensor_count(like) * carry_dtype_size(dtype));
    if (data == NULL || g->owned_count == (int)(sizeof g->owned / sizeof g->owned[0])) {
        free(data);
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: the case %s", g->name);
    }
    g->owned[g->owned_count++] = data;
    *to = carry_view(data, dtype, like->rank, like->shape);
    /* NaN, so that elements that are not written are noticed. */
    memset(data, 0xff, (size_t)carry_tensor_count(like) * carry_dtype_size(dtype));
    return CARRY_OK;
}

/* Copies a case's input to the type under test. */
static carry_status input(golden *g, carry_tensor *to, const char *name, carry_dtype dtype) {
    const carry_tensor *from = find(g, name);
    if (from == NULL || from->dtype != CARRY_F32) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "the case %s has no f32 tensor %s", g->name, name);
    }
    CARRY_TRY(make(g, to, from, dtype));
    return carry_convert(g->ctx, *to, *from);
}

static carry_status compare(golden *g, const char *method, const char *tensor, carry_dtype dtype,
                            const carry_tensor *got, double bound) {
    const carry_tensor *expected = find(g, tensor);
    if (expected == NULL) {
        return CARRY_OK; /* the case does not have this tensor */
    }
    if (expected->dtype != CARRY_F32 || carry_tensor_count(expected) != carry_tensor_count(got)) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "the case %s has a tensor %s of another size or type", g->name,
                          tensor);
    }
    double difference = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(expected); i++) {
        double wanted = carry_tensor_at(expected, i);
        double off = carry_tensor_at(got, i) - wanted;
        difference += off * off;
        magnitude += wanted * wanted;
    }
    g->report(g->user, &(carry_golden_line){.name = g->name,
                                            .method = method,
                                            .tensor = tensor,
                                            .dtype = dtype,
                                            .error = magnitude > 0.0 ? sqrt(difference / magnitude) : sqrt(difference),
                                            .bound = bound});
    return CARRY_OK;
}

typedef struct tensors {
    carry_tensor q, k, v, beta, g, state, grad_o, dstate;
    carry_tensor o, final, dq, dk, dv, dbeta, dg, dinitial;
    const carry_tensor *cu_seqlens;
    bool has_g, has_state, has_dstate;
} tensors;

static carry_status make_tensors(golden *g, tensors *t, carry_dtype dtype) {
    CARRY_TRY(input(g, &t->q, "q", dtype));
    CARRY_TRY(input(g, &t->k, "k", dtype));
    CARRY_TRY(input(g, &t->v, "v", dtype));
    CARRY_TRY(input(g, &t->beta, "beta", CARRY_F32));
    CARRY_TRY(input(g, &t->grad_o, "do", dtype));
    t->has_g = find(g, "g") != NULL;
    t->has_state = find(g, "initial_state") != NULL;
    t->has_dstate = find(g, "dfinal_state") != NULL;
    if (t->has_g) {
        CARRY_TRY(input(g, &t->g, "g", CARRY_F32));
        CARRY_TRY(make(g, &t->dg, &t->g, CARRY_F32));
    }
    if (t->has_state) {
        CARRY_TRY(input(g, &t->state, "initial_state", CARRY_F32));
    }
    if (t->has_dstate) {
        CARRY_TRY(input(g, &t->dstate, "dfinal_state", CARRY_F32));
    }
    t->cu_seqlens = find(g, "cu_seqlens");
    CARRY_TRY(make(g, &t->o, &t->v, dtype));
    CARRY_TRY(make(g, &t->dq, &t->q, dtype));
    CARRY_TRY(make(g, &t->dk, &t->k, dtype));
    CARRY_TRY(make(g, &t->dv, &t->v, dtype));
    CARRY_TRY(make(g, &t->dbeta, &t->beta, CARRY_F32));
    const carry_delta_problem *p = &g->problem;
    carry_tensor states =
        carry_view_4d(NULL, CARRY_F32, p->sequences > 0 ? p->sequences : p->batch, p->value_heads, p->key, p->value);
    CARRY_TRY(make(g, &t->final, &states, CARRY_F32));
    return make(g, &t->dinitial, &states, CARRY_F32);
}

enum { TENSORS = 16 };

static carry_tensor *tensor_at(tensors *t, int index) {
    carry_tensor *const all[TENSORS] = {&t->q,      &t->k,      &t->v,  &t->beta,    &t->g,  &t->state,
                                        &t->grad_o, &t->dstate, &t->o,  &t->final,   &t->dq, &t->dk,
                                        &t->dv,     &t->dbeta,  &t->dg, &t->dinitial};
    return all[index];
}

/* Moves the case's tensors to the device where it runs: copies on a GPU, which go back to the host after the run. */
static carry_status move(const golden *g, tensors *to, tensors *from, bool there) {
    for (int i = 0; i < TENSORS; i++) {
        const carry_tensor *source = tensor_at(from, i);
        carry_tensor *target = tensor_at(to, i);
        size_t bytes = (size_t)carry_tensor_count(source) * carry_dtype_size(source->dtype);
        if (source->data == NULL) {
            continue;
        }
        if (there) {
            *target = *source;
            target->data = NULL;
            target->device = g->device;
            CARRY_TRY(carry_device_alloc(g->ctx, &target->data, g->device, bytes));
        }
        CARRY_TRY(carry_device_copy(g->ctx, target->data, target->device, source->data, source->device, bytes, NULL));
    }
    return carry_stream_wait(g->ctx, g->device, NULL);
}

static void release(const golden *g, tensors *there) {
    for (int i = 0; i < TENSORS; i++) {
        carry_device_free(g->ctx, g->device, tensor_at(there, i)->data);
    }
}

/* Reads the sizes from the tensors, and the scale from the metadata: "scale": "0.125" in the case's text. */
static carry_status read_problem(golden *g, carry_dtype dtype) {
    const carry_tensor *q = find(g, "q");
    const carry_tensor *v = find(g, "v");
    const carry_tensor *borders = find(g, "cu_seqlens");
    if (q == NULL || v == NULL || q->rank != 4 || v->rank != 4) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "the case %s has no q and v of rank 4", g->name);
    }
    g->problem = (carry_delta_problem){.batch = q->shape[0],
                                       .tokens = q->shape[1],
                                       .heads = q->shape[2],
                                       .key = q->shape[3],
                                       .value_heads = v->shape[2],
                                       .value = v->shape[3],
                                       .dtype = dtype,
                                       .device = g->device,
                                       .gate = find(g, "g") != NULL ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_NO_GATE,
                                       .sequences = borders != NULL && borders->rank == 1 ? borders->shape[0] - 1 : 0};
    const char *about = carry_safetensors_metadata(g->file, g->name);
    const char *scale = about != NULL ? strstr(about, "\"scale\":") : NULL;
    if (scale != NULL) {
        scale += strlen("\"scale\":");
        scale += strspn(scale, " \"");
        g->problem.scale = strtof(scale, NULL);
    }
    return CARRY_OK;
}

/* Runs forward and backward on tensors of the device. */
static carry_status run_plan(golden *g, const tensors *t, const char *method) {
    carry_delta_plan *plan = NULL;
    void *workspace = NULL;
    void *kept = NULL;
    carry_status status = carry_delta_plan_new(
        g->ctx, &plan, &g->problem, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method});
    size_t backward = status == CARRY_OK ? carry_delta_backward_workspace(plan) : 0;
    size_t forward = status == CARRY_OK ? carry_delta_forward_workspace(plan) : 0;
    if (status == CARRY_OK) {
        status = carry_device_alloc(g->ctx, &workspace, g->device, backward > forward ? backward : forward);
    }
    if (status == CARRY_OK) {
        status = carry_device_alloc(g->ctx, &kept, g->device, carry_delta_kept_bytes(plan));
    }
    bool keeps = g->device != 0 || strcmp(method, "recurrent") != 0;
    if (status == CARRY_OK) {
        status = carry_delta_forward(
            plan,
            &(carry_delta_forward_args){.o = t->o,
                                        .final_state = t->final,
                                        .kept = keeps ? kept : NULL,
                                        .q = t->q,
                                        .k = t->k,
                                        .v = t->v,
                                        .beta = t->beta,
                                        .g = t->has_g ? t->g : (carry_tensor){0},
                                        .initial_state = t->has_state ? t->state : (carry_tensor){0},
                                        .cu_seqlens = t->cu_seqlens != NULL ? *t->cu_seqlens : (carry_tensor){0}},
            workspace, forward);
    }
    if (status == CARRY_OK) {
        status = carry_delta_backward(
            plan,
            &(carry_delta_backward_args){.dq = t->dq,
                                         .dk = t->dk,
                                         .dv = t->dv,
                                         .dbeta = t->dbeta,
                                         .dg = t->has_g ? t->dg : (carry_tensor){0},
                                         .dinitial_state = t->dinitial,
                                         .d_o = t->grad_o,
                                         .dfinal_state = t->has_dstate ? t->dstate : (carry_tensor){0},
                                         .kept = keeps ? kept : NULL,
                                         .q = t->q,
                                         .k = t->k,
                                         .v = t->v,
                                         .beta = t->beta,
                                         .g = t->has_g ? t->g : (carry_tensor){0},
                                         .initial_state = t->has_state ? t->state : (carry_tensor){0},
                                         .cu_seqlens = t->cu_seqlens != NULL ? *t->cu_seqlens : (carry_tensor){0}},
            workspace, backward);
    }
    if (status == CARRY_OK && g->device != 0) {
        status = carry_stream_wait(g->ctx, g->device, carry_ctx_stream(g->ctx, g->device));
    }
    carry_device_free(g->ctx, g->device, workspace);
    carry_device_free(g->ctx, g->device, kept);
    carry_delta_plan_free(plan);
    return status;
}

static carry_status run_on_device(golden *g, tensors *t, const char *method) {
    if (g->device == 0) {
        return run_plan(g, t, method);
    }
    tensors there = {
        .cu_seqlens = t->cu_seqlens, .has_g = t->has_g, .has_state = t->has_state, .has_dstate = t->has_dstate};
    carry_status status = move(g, &there, t, true);
    status = status == CARRY_OK ? run_plan(g, &there, method) : status;
    status = status == CARRY_OK ? move(g, t, &there, false) : status;
    release(g, &there);
    return status;
}

static carry_status run_method(golden *g, tensors *t, const char *method, carry_dtype dtype) {
    bool f32 = dtype == CARRY_F32;
    double bound = f32 ? F32_BOUND : BF16_BOUND;
    double gradient_bound = f32 ? F32_GRADIENT_BOUND : BF16_GRADIENT_BOUND;
    carry_status status = run_on_device(g, t, method);
    if (status == CARRY_EUNSUPPORTED && g->device != 0) {
        return CARRY_OK; /* another method of the GPU supports this size */
    }
    const struct {
        const char *name;
        const carry_tensor *tensor;
        double bound;
    } results[] = {{"o", &t->o, bound},
                   {"final_state", &t->final, bound},
                   {"dq", &t->dq, gradient_bound},
                   {"dk", &t->dk, gradient_bound},
                   {"dv", &t->dv, gradient_bound},
                   {"dbeta", &t->dbeta, gradient_bound},
                   {"dg", &t->dg, gradient_bound},
                   {"dinitial_state", &t->dinitial, gradient_bound}};
    for (size_t i = 0; status == CARRY_OK && i < sizeof results / sizeof results[0]; i++) {
        if (results[i].tensor->data != NULL) {
            status = compare(g, method, results[i].name, dtype, results[i].tensor, results[i].bound);
        }
    }
    return status;
}

static carry_status run_case(golden *g, carry_dtype dtype) {
    tensors t = {0};
    carry_status status = read_problem(g, dtype);
    status = status == CARRY_OK ? make_tensors(g, &t, dtype) : status;
    for (int i = 0; status == CARRY_OK && carry_delta_name(g->device, i) != NULL; i++) {
        status = run_method(g, &t, carry_delta_name(g->device, i), dtype);
    }
    while (g->owned_count > 0) {
        free(g->owned[--g->owned_count]);
    }
    return status;
}

carry_status carry_golden_delta(carry_ctx *ctx, const char *path, int device,
                                void (*report)(void *user, const carry_golden_line *line), void *user) {
    carry_safetensors file;
    CARRY_TRY(carry_safetensors_open(ctx, &file, path));
    golden g = {.ctx = ctx, .file = &file, .device = device, .report = report, .user = user};
    carry_status status = CARRY_OK;
    int cases = 0;
    for (int64_t i = 0; status == CARRY_OK && i < file.count; i++) {
        size_t length = strlen(file.entries[i].name);
        if (length < 3 || length - 2 >= NAME_LIMIT || strcmp(file.entries[i].name + length - 2, ".q") != 0) {
            continue; /* every case has a q; other names are not cases */
        }
        cases++;
        (void)snprintf(g.name, sizeof g.name, "%.*s", (int)(length - 2), file.entries[i].name);
        for (carry_dtype dtype = CARRY_F32; status == CARRY_OK && dtype <= CARRY_BF16; dtype++) {
            status = run_case(&g, dtype);
        }
    }
    if (status == CARRY_OK && cases == 0) {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s has no delta-rule cases: no tensor is named CASE.q", path);
    }
    carry_safetensors_close(&file);
    return status;
}
