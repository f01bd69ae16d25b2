#include "model/dit/dit_lora.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "file/safetensors.h"
#include "model/dit/dit_names.h"

#define LARGEST_SCALE 100.0

/* The factors of one matrix in one file; a is NULL if the file does not change it. */
typedef struct pair {
    const carry_tensor *a, *b;
    double factor; /* alpha / r */
} pair;

typedef struct target {
    int64_t parameter; /* index */
    void *base;        /* its weights without a LoRA: f32, or 16 bits if the model has only those */
    pair of[CARRY_LORAS];
} target;

struct carry_dit_loras {
    carry_dit *dit;
    carry_lora_file given[CARRY_LORAS];
    carry_safetensors file[CARRY_LORAS];
    int count, used;
    target *targets; /* at most [parameters of the model] */
    int64_t targets_count;
};

static carry_dtype base_type(const carry_dit *dit, int64_t parameter) {
    return dit->own.parameter[parameter].wide < 0 ? dit->own.low_dtype : CARRY_F32;
}

static target *target_of(carry_dit_loras *l, int64_t parameter) {
    for (int64_t i = 0; i < l->targets_count; i++) {
        if (l->targets[i].parameter == parameter) {
            return &l->targets[i];
        }
    }
    l->targets[l->targets_count] = (target){.parameter = parameter};
    return &l->targets[l->targets_count++];
}

/* The ends of tensor names: of A, of B and of alpha. */
static const char *const endings[][3] = {{".lora_A.weight", ".lora_B.weight", ".alpha"},
                                         {".lora_down.weight", ".lora_up.weight", ".alpha"},
                                         {".lora_A.default.weight", ".lora_B.default.weight", ".alpha"}};

/* Returns 0 for A, 1 for B, 2 for alpha, or -1 if the tensor is not part of a LoRA. *length is the length of the
   matrix's name, without the ending. */
static int part_of(const char *name, size_t *length) {
    const size_t all = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        for (int k = 0; k < 3; k++) {
            const size_t end = strlen(endings[i][k]);
            if (all > end && strcmp(name + all - end, endings[i][k]) == 0) {
                *length = all - end;
                return k;
            }
        }
    }
    return -1;
}

static carry_status find_parameter(const carry_dit_loras *l, const char *path, const char *name, size_t length,
                                   int64_t *index) {
    const carry_dit *dit = l->dit;
    char whole[CARRY_SAFETENSORS_NAME + 8];
    char own[CARRY_SAFETENSORS_NAME + 8];
    (void)snprintf(whole, sizeof whole, "%.*s.weight", (int)length, name);
    carry_dit_own_name(whole, own, sizeof own);
    const carry_parameter *p = carry_parameters_find(&dit->own, own);
    if (p == NULL || p->rank != 2) {
        return carry_fail(dit->ctx, CARRY_EFORMAT, "%s: %s is not for a matrix of the model (%s)", path, name, own);
    }
    *index = p - dit->own.parameter;
    return CARRY_OK;
}

static carry_status take_alpha(const carry_dit_loras *l, const char *path, const carry_safetensors_entry *e, pair *of) {
    float alpha = NAN;
    if (carry_tensor_count(&e->view) == 1) {
        CARRY_TRY(carry_convert(l->dit->ctx, carry_view_1d(&alpha, CARRY_F32, 1),
                                carry_view_1d(e->view.data, e->view.dtype, 1)));
    }
    if (!(fabsf(alpha) <= 1e6f)) {
        return carry_fail(l->dit->ctx, CARRY_EFORMAT, "%s: %s is %g: expected one number", path, e->name,
                          (double)alpha);
    }
    of->factor = (double)alpha; /* divided by r once it is known */
    return CARRY_OK;
}

static carry_status sort_tensors(carry_dit_loras *l, int k) {
    const char *path = l->given[k].path;
    for (int64_t i = 0; i < l->file[k].count; i++) {
        const carry_safetensors_entry *e = &l->file[k].entries[i];
        size_t length = 0;
        int64_t parameter = 0;
        const int part = part_of(e->name, &length);
        if (part < 0) {
            return carry_fail(l->dit->ctx, CARRY_EFORMAT,
                              "%s: %s is no part of a LoRA: expected NAME.lora_A.weight, NAME.lora_B.weight or "
                              "NAME.alpha",
                              path, e->name);
        }
        CARRY_TRY(find_parameter(l, path, e->name, length, &parameter));
        pair *of = &target_of(l, parameter)->of[k];
        if (part == 2) {
            CARRY_TRY(take_alpha(l, path, e, of));
        } else if ((part == 0 ? of->a : of->b) != NULL) {
            return carry_fail(l->dit->ctx, CARRY_EFORMAT, "%s: %s is there twice, by two names", path, e->name);
        } else {
            *(part == 0 ? &of->a : &of->b) = &e->view;
        }
    }
    return CARRY_OK;
}

static bool is_real(const carry_tensor *t) {
    return t->rank == 2 && (t->dtype == CARRY_F32 || t->dtype == CARRY_BF16 || t->dtype == CARRY_F16);
}

/* A size of the whole matrix: that of this rank's part, times the number of ranks if it is cut at this index. */
static int64_t whole_size(const carry_dit *dit, const carry_parameter *p, int index) {
    const bool is_cut = index == 0 ? p->cut == CARRY_CUT_ROWS : p->cut == CARRY_CUT_COLUMNS;
    return p->shape[index] * (is_cut ? dit->ranks : 1);
}

static carry_status check_pairs(carry_dit_loras *l, int k) {
    carry_dit *dit = l->dit;
    for (int64_t i = 0; i < l->targets_count; i++) {
        const carry_parameter *p = &dit->own.parameter[l->targets[i].parameter];
        pair *of = &l->targets[i].of[k];
        if (of->a == NULL && of->b == NULL && of->factor == 0.0) {
            continue;
        }
        if (of->a == NULL || of->b == NULL || !is_real(of->a) || !is_real(of->b) ||
            of->a->shape[0] != of->b->shape[1] || of->a->shape[0] < 1 || of->b->shape[0] != whole_size(dit, p, 0) ||
            of->a->shape[1] != whole_size(dit, p, 1)) {
            return carry_fail(dit->ctx, CARRY_ESHAPE,
                              "%s: the factors of %s [%" PRId64 ", %" PRId64 "] are missing or do not fit: expected "
                              "A [r, %" PRId64 "] and B [%" PRId64 ", r]",
                              l->given[k].path, p->name, whole_size(dit, p, 0), whole_size(dit, p, 1),
                              whole_size(dit, p, 1), whole_size(dit, p, 0));
        }
        of->factor = of->factor != 0.0 ? of->factor / (double)of->a->shape[0] : 1.0;
    }
    return CARRY_OK;
}

static carry_status open_file(carry_dit_loras *l, int k) {
    const carry_lora_file *given = &l->given[k];
    if (!(fabs(given->scale) <= LARGEST_SCALE)) {
        return carry_fail(l->dit->ctx, CARRY_ERANGE, "%s: a scale of %g: expected -%g to %g", given->path, given->scale,
                          LARGEST_SCALE, LARGEST_SCALE);
    }
    CARRY_TRY(carry_safetensors_open(l->dit->ctx, &l->file[k], given->path));
    l->count = k + 1;
    CARRY_TRY(sort_tensors(l, k));
    return check_pairs(l, k);
}

/* Copies the original weights before the first LoRA is applied. */
static carry_status keep_base(carry_dit_loras *l, target *t) {
    carry_dit *dit = l->dit;
    const carry_parameter *p = &dit->own.parameter[t->parameter];
    const carry_dtype type = base_type(dit, t->parameter);
    float *wide = carry_aligned_new((size_t)p->count * sizeof *wide);
    t->base = type == CARRY_F32 ? wide : carry_aligned_new((size_t)p->count * carry_dtype_size(type));
    if (wide == NULL || t->base == NULL) {
        free(wide);
        t->base = type == CARRY_F32 ? NULL : t->base;
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: a copy of %s", p->name);
    }
    carry_status status = carry_parameters_sample(&dit->own, wide, t->parameter, p->count);
    if (type != CARRY_F32) {
        status = status == CARRY_OK ? carry_convert(dit->ctx, carry_view_1d(t->base, type, p->count),
                                                    carry_view_1d(wide, CARRY_F32, p->count))
                                    : status;
        free(wide);
    }
    return status;
}

carry_status carry_dit_loras_new(carry_dit *dit, carry_dit_loras **made, const carry_lora_file *files, int count) {
    *made = NULL;
    if (count < 1 || count > CARRY_LORAS) {
        return carry_fail(dit->ctx, CARRY_ERANGE, "%d LoRA files: 1 to %d are taken", count, CARRY_LORAS);
    }
    carry_dit_loras *l = calloc(1, sizeof *l);
    target *targets = calloc((size_t)dit->own.parameters, sizeof *targets);
    if (l == NULL || targets == NULL) {
        free(l);
        free(targets);
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: LoRA files");
    }
    l->dit = dit;
    l->targets = targets;
    memcpy(l->given, files, (size_t)count * sizeof *files);
    carry_status status = CARRY_OK;
    for (int k = 0; k < count && status == CARRY_OK; k++) {
        status = open_file(l, k);
    }
    for (int64_t i = 0; i < l->targets_count && status == CARRY_OK; i++) {
        status = keep_base(l, &l->targets[i]);
    }
    if (status != CARRY_OK) {
        carry_dit_loras_free(l);
        return status;
    }
    *made = l;
    return CARRY_OK;
}

void carry_dit_loras_free(carry_dit_loras *l) {
    if (l == NULL) {
        return;
    }
    for (int k = 0; k < l->count; k++) {
        carry_safetensors_close(&l->file[k]);
    }
    for (int64_t i = 0; i < l->targets_count; i++) {
        free(l->targets[i].base);
    }
    free(l->targets);
    free(l);
}

/* Computes the factors of this rank's part: b [rows, r] times the scale, and a transposed, [columns, r]. */
static carry_status take_factors(const carry_dit *dit, const carry_parameter *p, const pair *of, double scale, float *b,
                                 float *a_transposed) {
    const int64_t r = of->a->shape[0];
    const int64_t columns = of->a->shape[1];
    const int64_t row = p->cut == CARRY_CUT_ROWS ? p->shape[0] * dit->rank : 0;
    const int64_t column = p->cut == CARRY_CUT_COLUMNS ? p->shape[1] * dit->rank : 0;
    float *a = carry_aligned_new((size_t)(r * columns) * sizeof *a);
    if (a == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: factors of %s", p->name);
    }
    const char *from = (const char *)of->b->data + (size_t)(row * r) * carry_dtype_size(of->b->dtype);
    carry_status status = carry_convert(dit->ctx, carry_view_1d(a, CARRY_F32, r * columns),
                                        carry_view_1d(of->a->data, of->a->dtype, r * columns));
    status = status == CARRY_OK ? carry_convert(dit->ctx, carry_view_1d(b, CARRY_F32, p->shape[0] * r),
                                                carry_view_1d((void *)(uintptr_t)from, of->b->dtype, p->shape[0] * r))
                                : status;
    for (int64_t i = 0; i < p->shape[0] * r; i++) {
        b[i] *= (float)(scale * of->factor);
    }
    for (int64_t c = 0; c < p->shape[1]; c++) {
        for (int64_t k = 0; k < r; k++) {
            a_transposed[c * r + k] = a[k * columns + column + c];
        }
    }
    free(a);
    return status;
}

static carry_status add_product(const carry_dit *dit, const carry_parameter *p, const pair *of, double scale,
                                float *weights) {
    const int64_t r = of->a->shape[0];
    float *b = carry_aligned_new((size_t)(p->shape[0] * r) * sizeof *b);
    float *a = carry_aligned_new((size_t)(p->shape[1] * r) * sizeof *a);
    carry_status status = CARRY_OK;
    if (b == NULL || a == NULL) {
        status = carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: factors of %s", p->name);
    }
    status = status == CARRY_OK ? take_factors(dit, p, of, scale, b, a) : status;
    status = status == CARRY_OK ? carry_linear(dit->ctx, carry_view_2d(weights, CARRY_F32, p->shape[0], p->shape[1]),
                                               carry_view_2d(b, CARRY_F32, p->shape[0], r),
                                               carry_view_2d(a, CARRY_F32, p->shape[1], r), true)
                                : status;
    free(a);
    free(b);
    return status;
}

static carry_status put_target(carry_dit_loras *l, const target *t, int which) {
    carry_dit *dit = l->dit;
    const carry_parameter *p = &dit->own.parameter[t->parameter];
    const pair *of = which > 0 ? &t->of[which - 1] : NULL;
    float *weights = carry_aligned_new((size_t)p->count * sizeof *weights);
    if (weights == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    carry_status status = carry_convert(dit->ctx, carry_view_1d(weights, CARRY_F32, p->count),
                                        carry_view_1d(t->base, base_type(dit, t->parameter), p->count));
    if (of != NULL && of->a != NULL) {
        status = status == CARRY_OK ? add_product(dit, p, of, l->given[which - 1].scale, weights) : status;
    }
    status = status == CARRY_OK ? carry_parameters_put_part(&dit->own, t->parameter, weights) : status;
    free(weights);
    return status;
}

carry_status carry_dit_loras_use(carry_dit_loras *l, int which) {
    carry_dit *dit = l->dit;
    const int device = dit->own.device;
    if (which < 0 || which > l->count) {
        return carry_fail(dit->ctx, CARRY_ERANGE, "LoRA %d: 0 (none) to %d are open", which, l->count);
    }
    if (which == l->used) {
        return CARRY_OK;
    }
    CARRY_TRY(device != 0 ? carry_stream_wait(dit->ctx, device, carry_ctx_stream(dit->ctx, device)) : CARRY_OK);
    l->used = -1; /* until all are written */
    for (int64_t i = 0; i < l->targets_count; i++) {
        CARRY_TRY(put_target(l, &l->targets[i], which));
    }
    CARRY_TRY(carry_parameters_round(&dit->own));
    CARRY_TRY(device != 0 ? carry_stream_wait(dit->ctx, device, carry_ctx_stream(dit->ctx, device)) : CARRY_OK);
    l->used = which;
    return CARRY_OK;
}
