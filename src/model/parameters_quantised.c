/* Quantised weights: kept as blocks, or decoded. */
#include "model/parameters_quantised.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"

#define GRAIN 8 /* rows handed to a thread */

/* The blocks of a tensor: where they are, or made, which the caller frees (*made). */
static carry_status take_blocks(carry_ctx *ctx, const carry_tensor *from, const char *name, carry_tensor *blocks,
                                void **made) {
    const carry_quant_source *source = carry_quant_source_of(from);
    size_t bytes;
    *made = NULL;
    *blocks = *from;
    if (source == NULL) {
        return CARRY_OK;
    }
    *made = carry_quant_bytes(&bytes, source->format, source->rows, source->columns) ? carry_aligned_new(bytes) : NULL;
    if (*made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", name);
    }
    *blocks = carry_quant_view(*made, source->format, source->rows, source->columns);
    return carry_quant_convert(ctx, source, *made);
}

typedef struct decode_job {
    const carry_tensor *W;
    float *to;
} decode_job;

static void decode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const decode_job *j = argument;
    for (int64_t row = begin; row < end; row++) {
        carry_quant_decode(j->W, row, 0, j->W->shape[1], j->to + row * j->W->shape[1]);
    }
}

/* The message names the folder, too. */
static carry_status check(carry_ctx *ctx, const char *folder, const char *name, const carry_tensor *W) {
    char whole[512];
    (void)snprintf(whole, sizeof whole, "%.380s: %.120s", folder, name);
    return carry_quant_check(ctx, whole, W);
}

carry_status carry_parameters_decode(const carry_parameters *own, const carry_tensor *from, const char *name,
                                     const char *folder, float *to) {
    carry_tensor W;
    void *made;
    carry_status status = take_blocks(own->ctx, from, name, &W, &made);
    status = status == CARRY_OK ? check(own->ctx, folder, name, &W) : status;
    if (status == CARRY_OK) {
        decode_job j = {.W = &W, .to = to};
        carry_parallel(own->ctx, W.shape[0], GRAIN, decode_rows, &j);
    }
    free(made);
    return status;
}

carry_status carry_parameters_map_quantised(carry_parameters *own, int64_t index, const carry_tensor *from) {
    carry_parameter *p = &own->parameter[index];
    carry_tensor W;
    if (p->rank != 2 || p->order.groups != 0) {
        return CARRY_OK;
    }
    CARRY_TRY(take_blocks(own->ctx, from, p->name, &W, &p->blocks));
    p->mapped = W.data;
    p->mapped_dtype = CARRY_QUANTISED;
    p->format = carry_quant_format_of(&W);
    return CARRY_OK;
}

carry_status carry_parameters_load_quantised(carry_parameters *own, int64_t index, const carry_tensor *from,
                                             const char *folder) {
    const carry_parameter *p = &own->parameter[index];
    if (p->mapped != NULL) {
        const carry_tensor W = carry_parameters_view(own, own->weights, index);
        return check(own->ctx, folder, p->name, &W);
    }
    const size_t count = (size_t)carry_tensor_count(from);
    float *whole = carry_aligned_new(count * sizeof *whole);
    float *ordered = p->order.groups > 0 ? carry_aligned_new(count * sizeof *ordered) : NULL;
    carry_status status = CARRY_OK;
    if (whole == NULL || (p->order.groups > 0 && ordered == NULL)) {
        status = carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    status = status == CARRY_OK ? carry_parameters_decode(own, from, p->name, folder, whole) : status;
    if (status == CARRY_OK && ordered != NULL) {
        carry_parameters_reorder(p, ordered, whole, CARRY_F32, false);
    }
    status =
        status == CARRY_OK ? carry_parameters_put(own, index, ordered != NULL ? ordered : whole, CARRY_F32) : status;
    free(ordered);
    free(whole);
    return status;
}

carry_status carry_parameters_sample_quantised(const carry_parameters *own, float *to, int64_t index, int64_t count) {
    const carry_tensor W = carry_parameters_view(own, own->weights, index);
    const int64_t columns = W.shape[1];
    float *row = malloc((size_t)columns * sizeof *row);
    if (row == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", own->parameter[index].name);
    }
    for (int64_t at = 0; at < count; at += columns) {
        carry_quant_decode(&W, at / columns, 0, columns, row);
        memcpy(to + at, row, (size_t)(count - at < columns ? count - at : columns) * sizeof *row);
    }
    free(row);
    return CARRY_OK;
}
