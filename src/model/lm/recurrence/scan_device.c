/* A layer's recurrence as a dense scan on a GPU. It processes as many units at a time as fit into MOST_BYTES of
   transitions and states, which keeps the GPU busy and bounds the memory. */
#include "model/lm/recurrence/scan_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/scan.h"
#include "core/context.h"
#include "core/launching.h"
#include "core/span.h"
#include "delta/dense.h"

#define MOST_BYTES ((int64_t)2 << 30)

typedef struct running {
    carry_ctx *ctx;
    const carry_delta_dense *kernels;
    carry_delta_plan *delta; /* describes a token; it is never run */
    carry_scan_plan *forward, *backward;
    int64_t units, together;
    size_t scan_bytes, workspace;
    char about[192];
} running;

typedef struct layout {
    carry_delta_units units;
    void *scan;
} layout;

static float *take(carry_arena *arena, int64_t a, int64_t b, int64_t c) {
    const int64_t sizes[] = {a, b, c};
    size_t count;
    if (!carry_size_product(&count, sizes, 3, 1)) {
        arena->overflowed = true;
        return NULL;
    }
    return carry_arena_take(arena, count, sizeof(float));
}

static void lay_out(const running *m, carry_arena *arena, layout *l) {
    const carry_delta_problem *p = &m->delta->problem;
    const int64_t items = m->together * p->tokens;
    const int64_t rows = p->batch * p->tokens;
    l->units = (carry_delta_units){.count = m->together,
                                   .A = take(arena, items, p->key, p->key),
                                   .S = take(arena, items, p->key, p->value),
                                   .L = take(arena, items, p->key, p->value),
                                   .part_q = take(arena, rows, p->value_heads, p->key),
                                   .part_k = take(arena, rows, p->value_heads, p->key),
                                   .part_beta = take(arena, rows, p->value_heads, 1),
                                   .part_g = take(arena, rows, p->value_heads, 1)};
    l->scan = carry_arena_take(arena, m->scan_bytes, 1);
}

/* The largest number of units that divides their total, so that one plan is enough, and fits the bound. */
static int64_t share_units(const carry_delta_problem *p) {
    const int64_t units = p->batch * p->value_heads;
    const int64_t each = p->tokens * p->key * (p->key + 2 * p->value) * (int64_t)sizeof(float);
    int64_t most = MOST_BYTES / each;
    most = most < 1 ? 1 : most < units ? most : units;
    while (units % most != 0) {
        most--;
    }
    return most;
}

static carry_status plan_scans(running *m, const char *algorithm) {
    const carry_delta_problem *p = &m->delta->problem;
    carry_scan_problem scan = {.kind = CARRY_SCAN_DENSE,
                               .batch = m->together,
                               .steps = p->tokens,
                               .n = p->key,
                               .width = p->value,
                               .dtype = CARRY_F32,
                               .device = p->device};
    const carry_scan_options options = {CARRY_INIT(carry_scan_options), .algorithm = algorithm};
    CARRY_TRY(carry_scan_plan_new(m->ctx, &m->forward, &scan, &options));
    scan.backward = true;
    CARRY_TRY(carry_scan_plan_new(m->ctx, &m->backward, &scan, &options));
    const size_t forward = carry_scan_run_workspace(m->forward);
    const size_t backward = carry_scan_backward_workspace(m->backward);
    m->scan_bytes = forward > backward ? forward : backward;
    carry_arena count = carry_arena_over(NULL, 0);
    lay_out(m, &count, &(layout){0});
    if (!carry_arena_total(&count, &m->workspace)) {
        return carry_fail(m->ctx, CARRY_ESIZE, "the workspace of a layer is larger than memory can be");
    }
    (void)snprintf(m->about, sizeof m->about, "%lld of %lld heads at a time, %.3g MB; %.100s", (long long)m->together,
                   (long long)m->units, 1e-6 * (double)m->workspace, carry_scan_plan_about(m->forward));
    return CARRY_OK;
}

carry_status carry_recurrence_device_open(carry_ctx *ctx, void **opened, const carry_delta_problem *problem,
                                          const char *algorithm, bool linear) {
    *opened = NULL;
    if (linear) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "gated linear attention, without the delta rule, is on the CPU only: use --device cpu");
    }
    if (carry_delta_dense_on_gpu() == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "this build has no layers as scans on GPUs");
    }
    if (problem->gate == CARRY_DELTA_KEY_GATE || problem->state_transposed || problem->snapshot_every > 0 ||
        problem->snapshot_last > 0 || problem->sequences > 0) {
        return carry_fail(
            ctx, CARRY_EUNSUPPORTED,
            "a layer as a scan on a GPU has no key gate, no transposed states, no snapshots and no packed "
            "rows");
    }
    if (problem->value > CARRY_MAX_DELTA_DIM) {
        return carry_fail(ctx, CARRY_ESIZE, "V is %lld and a layer as a scan on a GPU takes 1 to %d",
                          (long long)problem->value, CARRY_MAX_DELTA_DIM);
    }
    running *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a recurrence");
    }
    m->ctx = ctx;
    m->kernels = carry_delta_dense_on_gpu();
    carry_status status = carry_delta_plan_new(
        ctx, &m->delta, problem, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "recurrent"});
    if (status == CARRY_OK) { /* it has refused sizes whose products overflow */
        m->units = problem->batch * problem->value_heads;
        m->together = share_units(problem);
        status = plan_scans(m, algorithm);
    }
    if (status != CARRY_OK) {
        carry_recurrence_device_close(m);
        return status;
    }
    *opened = m;
    return CARRY_OK;
}

void carry_recurrence_device_close(void *opened) {
    running *m = opened;
    if (m != NULL) {
        carry_delta_plan_free(m->delta);
        carry_scan_plan_free(m->forward);
        carry_scan_plan_free(m->backward);
        free(m);
    }
}

const char *carry_recurrence_device_plan(const void *opened) {
    return ((const running *)opened)->about;
}

size_t carry_recurrence_device_workspace(const void *opened) {
    return ((const running *)opened)->workspace;
}

static carry_tensor states(const running *m, float *data) {
    const carry_delta_problem *p = &m->delta->problem;
    return carry_view_on(p->device, data, CARRY_F32, 4, (const int64_t[]){m->together, p->tokens, p->key, p->value});
}

static carry_tensor transitions(const running *m, float *data) {
    const carry_delta_problem *p = &m->delta->problem;
    return carry_view_on(p->device, data, CARRY_F32, 4, (const int64_t[]){m->together, p->tokens, p->key, p->key});
}

/* Computes the states after every token of these units. */
static carry_status make_states(running *m, const carry_delta_inputs *in, const layout *l) {
    CARRY_SPAN(m->ctx, "model", "scan");
    carry_launching_set("delta as a scan");
    CARRY_TRY(m->kernels->steps(m->delta, in, &l->units));
    const carry_tensor S = states(m, l->units.S);
    return carry_scan_run(m->forward, &(carry_scan_args){.h = S, .A = transitions(m, l->units.A), .b = S}, l->scan,
                          m->scan_bytes);
}

carry_status carry_recurrence_device_forward(void *opened, const carry_delta_forward_args *args, void *workspace,
                                             size_t bytes) {
    running *m = opened;
    const carry_delta_problem *p = &m->delta->problem;
    carry_delta_inputs in = {.q = &args->q,
                             .k = &args->k,
                             .v = &args->v,
                             .beta = &args->beta,
                             .g = carry_delta_given(&args->g),
                             .A_log = carry_delta_given(&args->A_log),
                             .dt_bias = carry_delta_given(&args->dt_bias)};
    if (args->initial_state.data != NULL || args->final_state.data != NULL || args->cu_seqlens.data != NULL) {
        return carry_fail(m->ctx, CARRY_EUNSUPPORTED, "a layer as a scan on a GPU is for training: it has no states");
    }
    CARRY_TRY(carry_delta_check_inputs(m->ctx, p, &in));
    CARRY_TRY(carry_delta_check_written(m->ctx, p, "o", &args->o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_workspace(m->ctx, workspace, bytes, m->workspace));
    carry_arena arena = carry_arena_over(workspace, bytes);
    layout l;
    lay_out(m, &arena, &l);
    for (l.units.first = 0; l.units.first < m->units; l.units.first += m->together) {
        CARRY_TRY(make_states(m, &in, &l));
        carry_launching_set("delta as a scan");
        CARRY_TRY(m->kernels->outputs(m->delta, &in, args->o, &l.units));
    }
    return CARRY_OK;
}

carry_status carry_recurrence_device_backward(void *opened, const carry_delta_backward_args *args, void *workspace,
                                              size_t bytes) {
    running *m = opened;
    const carry_delta_problem *p = &m->delta->problem;
    carry_delta_inputs in = {.q = &args->q,
                             .k = &args->k,
                             .v = &args->v,
                             .beta = &args->beta,
                             .g = carry_delta_given(&args->g),
                             .A_log = carry_delta_given(&args->A_log),
                             .dt_bias = carry_delta_given(&args->dt_bias)};
    CARRY_TRY(carry_delta_check_inputs(m->ctx, p, &in));
    CARRY_TRY(carry_delta_check_workspace(m->ctx, workspace, bytes, m->workspace));
    carry_arena arena = carry_arena_over(workspace, bytes);
    layout l;
    lay_out(m, &arena, &l);
    for (l.units.first = 0; l.units.first < m->units; l.units.first += m->together) {
        CARRY_TRY(make_states(m, &in, &l));
        carry_launching_set("delta as a scan, backward");
        CARRY_TRY(m->kernels->seeds(m->delta, &in, args->d_o, &l.units));
        const carry_tensor L = states(m, l.units.L);
        const carry_scan_backward_args gradients = {
            .db = L, .dh = L, .A = transitions(m, l.units.A), .h = states(m, l.units.S)};
        CARRY_TRY(carry_scan_backward(m->backward, &gradients, l.scan, m->scan_bytes));
        carry_launching_set("delta as a scan, backward");
        CARRY_TRY(m->kernels->parts(m->delta, args, &l.units));
    }
    return m->kernels->gradients(m->delta, args, &l.units);
}
