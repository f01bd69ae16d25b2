/* Muon, one matrix after the other. */
#include "train/muon.h"

#include <math.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/muon.h"

#define ITERATIONS 5
#define FIRST 3.4445
#define THIRD (-4.7750)
#define FIFTH 2.0315
#define LIKE_ADAMW 0.2

bool carry_muon_takes(const carry_parameter *p) {
    return !p->is_table && p->decays && p->shape[p->rank - 1] > 1 &&
           (p->rank == 2 || (p->rank == 3 && p->shape[1] > 1)) && p->shape[p->rank - 2] > 1;
}

void carry_muon_init(carry_muon *muon, carry_ctx *ctx, const carry_parameters *model, double momentum) {
    *muon = (carry_muon){.ctx = ctx,
                         .model = model,
                         .momentum = momentum,
                         .dtype = model->low != NULL && model->low_dtype == CARRY_BF16 ? CARRY_BF16 : CARRY_F32};
    for (int64_t i = 0; i < model->parameters; i++) {
        const carry_parameter *p = &model->parameter[i];
        if (carry_muon_takes(p)) {
            const int64_t rows = p->shape[p->rank - 2];
            const int64_t columns = p->shape[p->rank - 1];
            const int64_t least = rows < columns ? rows : columns;
            muon->most = rows * columns > muon->most ? rows * columns : muon->most;
            muon->side = least > muon->side ? least : muon->side;
        }
    }
    muon->workspace_bytes = carry_sum_squares_workspace(muon->most);
}

void carry_muon_place(carry_muon *muon, carry_arena *arena) {
    const int device = muon->model->device;
    const int64_t square = muon->side * muon->side;
    muon->u = carry_arena_tensor(arena, device, CARRY_F32, 1, &muon->most);
    muon->x = carry_arena_tensor(arena, device, muon->dtype, 1, &muon->most);
    muon->next = carry_arena_tensor(arena, device, muon->dtype, 1, &muon->most);
    muon->a = carry_arena_tensor(arena, device, muon->dtype, 1, &square);
    muon->b = carry_arena_tensor(arena, device, muon->dtype, 1, &square);
    muon->squares = carry_arena_tensor(arena, device, CARRY_F64, 1, (const int64_t[]){1});
    muon->rates = carry_arena_tensor(arena, device, CARRY_F32, 1, (const int64_t[]){CARRY_MUON_RATES});
    muon->workspace = carry_arena_take(arena, muon->workspace_bytes, sizeof(double));
}

/* A view of the first elements of memory as [rows, columns]. */
static carry_tensor matrix(carry_tensor memory, int64_t rows, int64_t columns) {
    return carry_reshape_2d(carry_slice(memory, 0, rows * columns), rows, columns);
}

/* Iterates X towards its nearest orthogonal matrix; X must not have more rows than columns. The result is in *x. */
static carry_status iterate(carry_muon *muon, carry_tensor *x, carry_tensor next) {
    const int64_t rows = x->shape[0];
    const carry_tensor a = matrix(muon->a, rows, rows);
    const carry_tensor b = matrix(muon->b, rows, rows);
    const carry_tensor absent = {0};
    for (int i = 0; i < ITERATIONS; i++) {
        CARRY_TRY(carry_linear(muon->ctx, a, *x, *x, false));
        CARRY_TRY(carry_linear(muon->ctx, b, a, a, false)); /* a is symmetric */
        CARRY_TRY(carry_blend(muon->ctx, b, a, b, THIRD, FIFTH));
        CARRY_TRY(carry_linear_backward(muon->ctx, next, absent, b, *x, *x, false));
        CARRY_TRY(carry_blend(muon->ctx, *x, *x, next, FIRST, 1.0));
    }
    return CARRY_OK;
}

static carry_status step_matrix(carry_muon *muon, int64_t rows, int64_t columns, int64_t offset, carry_tensor m,
                                carry_tensor clip) {
    carry_ctx *ctx = muon->ctx;
    const carry_parameters *model = muon->model;
    const int64_t count = rows * columns;
    const bool turns = rows > columns;
    const carry_tensor u = matrix(muon->u, rows, columns);
    const carry_tensor flat = carry_reshape_1d(u, count);
    carry_tensor x = matrix(muon->x, turns ? columns : rows, turns ? rows : columns);
    const carry_tensor low = carry_parameters_low(model, offset, count);
    CARRY_TRY(carry_muon_momentum(ctx, flat, carry_slice(m, offset, count),
                                  carry_parameters_flat(model, model->gradients, offset, count), clip,
                                  carry_slice(muon->rates, 2, 1), muon->momentum));
    CARRY_TRY(carry_sum_squares(ctx, muon->squares, flat, false, muon->workspace, muon->workspace_bytes));
    CARRY_TRY(carry_muon_normalise(ctx, x, u, muon->squares, turns));
    CARRY_TRY(iterate(muon, &x, matrix(muon->next, x.shape[0], x.shape[1])));
    const double scale = LIKE_ADAMW * sqrt((double)(turns ? rows : columns));
    return carry_muon_update(
        ctx, carry_reshape_2d(carry_parameters_flat(model, model->weights, offset, count), rows, columns),
        low.data != NULL ? carry_reshape_2d(low, rows, columns) : low, x, carry_slice(muon->rates, 0, 2), clip, scale,
        turns);
}

carry_status carry_muon_step(carry_muon *muon, carry_tensor m, carry_tensor clip) {
    CARRY_SPAN(muon->ctx, "train", "muon");
    for (int64_t i = 0; i < muon->model->parameters; i++) {
        const carry_parameter *p = &muon->model->parameter[i];
        const int64_t stack = carry_muon_takes(p) ? (p->rank == 3 ? p->shape[0] : 1) : 0;
        for (int64_t k = 0; k < stack; k++) {
            const int64_t rows = p->shape[p->rank - 2];
            const int64_t columns = p->shape[p->rank - 1];
            CARRY_TRY(step_matrix(muon, rows, columns, p->offset + k * rows * columns, m, clip));
        }
    }
    return CARRY_OK;
}
