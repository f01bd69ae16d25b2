/* Compares the gradients of a delta-rule problem: delta_gradients.h. */
#include "bench/family/delta_gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/deviation.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

/* Compares dv with a float64 central difference along one direction d: (L(v + d) - L(v - d)) / 2 = <dL/dv, d>, where
   L = <o, grad_o>. It is exact, since o is linear in v.
   carry check --golden and the tests compare the whole gradient with vectors from other programs. */
carry_status carry_delta_gradients_dv(carry_ctx *ctx, carry_delta_set *s, const carry_delta_problem *problem,
                                      bool initial, carry_deviation *deviations, int *count) {
    carry_delta_problem p = *problem;
    p.device = 0;
    int64_t size = carry_tensor_count(&s->v);
    float *kept = malloc((size_t)size * sizeof *kept);
    double *o = malloc((size_t)size * 2 * sizeof *o);
    if (kept == NULL || o == NULL) {
        free(kept);
        free(o);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: comparing");
    }
    float *v = s->v.data;
    memcpy(kept, v, (size_t)size * sizeof *kept);
    const float *along = s->grad_o.data; /* any direction will do */
    const float *dv = s->dv.data;
    double analytic = 0.0;
    double numeric = 0.0;
    double scale = 0.0;
    carry_status status = CARRY_OK;
    for (int side = 0; side < 2 && status == CARRY_OK; side++) {
        for (int64_t i = 0; i < size; i++) {
            v[i] = kept[i] + (side == 0 ? 1.0f : -1.0f) * along[(i * 7 + 3) % size];
        }
        carry_delta_forward_args args = carry_delta_set_forward(s, &p, initial);
        status = carry_delta_reference(ctx, o + side * size, NULL, &p, &args);
    }
    for (int64_t i = 0; i < size; i++) { /* o is linear in v, so the difference is exact */
        numeric += 0.5 * (o[i] - o[size + i]) * (double)along[i];
        double part = (double)dv[i] * (double)along[(i * 7 + 3) % size];
        analytic += part;
        scale += part * part;
    }
    memcpy(v, kept, (size_t)size * sizeof *kept);
    free(kept);
    free(o);
    double off = fabs(analytic - numeric);
    deviations[0] = (carry_deviation){.tensor = "dv", .error = off / sqrt(scale), .absolute = off, .bound = 1e-4};
    *count = 1;
    return status;
}

static carry_deviation compare(const char *name, const carry_tensor *got, const carry_tensor *wanted, double *room) {
    for (int64_t i = 0; i < carry_tensor_count(wanted); i++) {
        room[i] = carry_tensor_at(wanted, i);
    }
    /* Both sides round sums of up to K + V + C terms, and their results to the type: twice the bound of one side. */
    return carry_deviation_of(name, got, room, 1e-4 + 2.0 * carry_unit_roundoff(got->dtype));
}

static carry_status run_on_cpu(carry_ctx *ctx, carry_delta_set *s, const carry_delta_problem *p, bool initial) {
    carry_delta_plan *plan;
    CARRY_TRY(carry_delta_plan_new(ctx, &plan, p,
                                   &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk64"}));
    size_t bytes = carry_delta_backward_workspace(plan);
    void *workspace = carry_aligned_new(bytes);
    carry_delta_backward_args args = carry_delta_set_backward(s, p, initial, NULL);
    carry_status status = CARRY_OK;
    if (workspace == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: gradients of the CPU");
    }
    status = status == CARRY_OK ? carry_delta_backward(plan, &args, workspace, bytes) : status;
    free(workspace);
    carry_delta_plan_free(plan);
    return status;
}

carry_status carry_delta_gradients_cpu(carry_ctx *ctx, carry_delta_set *set, const carry_delta_problem *problem,
                                       bool initial, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    carry_delta_problem p = *problem;
    p.device = 0;
    carry_delta_set wanted = *set;
    const struct {
        const char *name;
        const carry_tensor *got;
        carry_tensor *wanted;
    } all[] = {{"dq", &set->dq, &wanted.dq},
               {"dk", &set->dk, &wanted.dk},
               {"dv", &set->dv, &wanted.dv},
               {"dbeta", &set->dbeta, &wanted.dbeta},
               {"dstate", &set->dstate, &wanted.dstate},
               {"dg", &set->dg, &wanted.dg}};
    const int gradients = p.gate != CARRY_DELTA_NO_GATE ? 6 : 5;
    int64_t most = 0;
    carry_status status = CARRY_OK;
    for (int i = 0; i < 6; i++) {
        int64_t size = carry_tensor_count(all[i].got);
        most = size > most ? size : most;
        all[i].wanted->data = carry_aligned_new((size_t)size * carry_dtype_size(all[i].got->dtype));
        if (all[i].wanted->data == NULL) {
            status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: gradients of the CPU");
        }
    }
    double *room = malloc((size_t)most * sizeof *room);
    if (room == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: comparing");
    }
    status = status == CARRY_OK ? run_on_cpu(ctx, &wanted, &p, initial) : status;
    *count = 0;
    for (int i = 0; status == CARRY_OK && i < gradients; i++) {
        deviations[(*count)++] = compare(all[i].name, all[i].got, all[i].wanted, room);
    }
    for (int i = 0; i < 6; i++) {
        free(all[i].wanted->data);
    }
    free(room);
    return status;
}
