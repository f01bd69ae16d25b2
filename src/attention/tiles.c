/* Tiles of rows as f32, and the distribution of units of work over places with scratch memory. */
#include <stdatomic.h>
#include <string.h>

#include "attention/attention.h"
#include "core/context.h"
#include "core/threads.h"
#include "ops/convert.h"

void *carry_attention_at(const carry_tensor *tensor, int64_t head, int64_t row) {
    ptrdiff_t at = row * tensor->stride[0] + head * tensor->stride[1];
    return (unsigned char *)tensor->data + at * (ptrdiff_t)carry_dtype_size(tensor->dtype);
}

const float *carry_attention_load(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                  int64_t count, float *into) {
    int64_t D = tensor->shape[2];
    if (tensor->dtype == CARRY_F32 && (tensor->stride[0] == D || count == 1)) {
        return carry_attention_at(tensor, head, first);
    }
    for (int64_t i = 0; i < count; i++) {
        carry_widen(kernels, into + i * D, carry_attention_at(tensor, head, first + i), tensor->dtype, D);
    }
    return into;
}

void carry_attention_load_scaled(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                 int64_t count, float factor, float *into) {
    int64_t D = tensor->shape[2];
    for (int64_t i = 0; i < count; i++) {
        carry_widen(kernels, into + i * D, carry_attention_at(tensor, head, first + i), tensor->dtype, D);
    }
    kernels->rows->scale(into, factor, count * D);
}

int64_t carry_attention_places(int64_t units) {
    return units < CARRY_ATTENTION_PLACES ? units : CARRY_ATTENTION_PLACES;
}

typedef struct taken {
    const carry_attention_job *job;
    _Atomic int64_t next; /* first unit not yet taken */
} taken;

/* A place works until no unit is left. If all places run in one piece, the first does all units. */
static void run_places(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    taken *t = argument;
    for (int64_t place = begin; place < end; place++) {
        unsigned char *scratch =
            t->job->scratch != NULL ? t->job->scratch + (size_t)place * t->job->scratch_bytes : NULL;
        for (;;) {
            int64_t unit = atomic_fetch_add(&t->next, 1);
            if (unit >= t->job->units) {
                return;
            }
            t->job->unit(t->job->call, scratch, unit);
        }
    }
}

void carry_attention_parallel(carry_ctx *ctx, const carry_attention_job *job) {
    taken t = {.job = job};
    atomic_init(&t.next, 0);
    carry_parallel(ctx, carry_attention_places(job->units), 1, run_places, &t);
}
