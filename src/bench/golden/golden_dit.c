/* Compares a video transformer with vectors from other programs: a folder whose expected.safetensors holds latents
   [16, F, h, w], the context [L, text_dim], the time t [1] and the resulting velocity. All frames attend to each
   other: they are one chunk. Each tensor may have a leading batch dimension. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "bench/golden/golden.h"
#include "model/dit/dit.h"
#include "file/safetensors.h"

#define BOUND 1e-5
/* bf16 keeps 8 bits (2^-9 per rounding), and weights, activations and keys are all rounded: 0.0066 was measured. */
#define BOUND_BF16 2e-2

typedef struct golden_dit {
    carry_ctx *ctx;
    const char *folder, *name;
    carry_safetensors expected;
    carry_dit *dit;
    carry_dit_cache *cache;
    float *velocity;
    int device;
    carry_dtype dtype; /* of weights, activations and keys */
} golden_dit;

/* Finds a tensor with a leading batch dimension, which may be left out if it is 1. */
static carry_status find(const golden_dit *g, carry_tensor *found, const char *name, int rank) {
    const carry_tensor *t = carry_safetensors_find(&g->expected, name);
    if (t == NULL) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "%s: expected.safetensors has no tensor %s", g->folder, name);
    }
    const bool bare = t->rank == rank - 1;
    if ((t->rank != rank && !bare) || (t->dtype == CARRY_I64 && rank > 1) || carry_tensor_count(t) < 1) {
        char has[CARRY_SHAPE_TEXT];
        return carry_fail(
            g->ctx, CARRY_EFORMAT, "%s: %s is %s of shape %s where numbers of rank %d, or %d with a batch, are needed",
            g->folder, name, carry_dtype_name(t->dtype), carry_shape_text(has, t->rank, t->shape), rank - 1, rank);
    }
    int64_t shape[CARRY_MAX_RANK] = {1};
    memcpy(shape + (bare ? 1 : 0), t->shape, (size_t)t->rank * sizeof *shape);
    *found = carry_view(t->data, t->dtype, rank, shape);
    return CARRY_OK;
}

/* Item b of a batch. */
static carry_tensor item(const carry_tensor *t, int64_t b) {
    return carry_view((unsigned char *)t->data + (size_t)(b * t->stride[0]) * carry_dtype_size(t->dtype), t->dtype,
                      t->rank - 1, t->shape + 1);
}

static double time_of(const carry_tensor *t, int64_t b) {
    const int64_t at = t->shape[0] > 1 ? b : 0;
    return t->dtype == CARRY_I64 ? (double)((const int64_t *)t->data)[at] : carry_tensor_at(t, at);
}

static carry_status check_shapes(const golden_dit *g, const carry_tensor *latents, const carry_tensor *context,
                                 const carry_tensor *t, const carry_tensor *velocity) {
    const int64_t batch = latents->shape[0];
    const int64_t shape[5] = {batch, g->dit->config.out_dim, latents->shape[2], latents->shape[3], latents->shape[4]};
    CARRY_TRY(carry_tensor_expect(g->ctx, "velocity", velocity, 5, shape));
    if (latents->dtype != CARRY_F32 || context->shape[0] != batch || (t->shape[0] != batch && t->shape[0] != 1)) {
        return carry_fail(g->ctx, CARRY_EFORMAT,
                          "%s: %" PRId64 " latents, which must be f32, %" PRId64 " contexts and %" PRId64 " times",
                          g->folder, batch, context->shape[0], t->shape[0]);
    }
    return CARRY_OK;
}

static carry_status run_case(golden_dit *g, carry_tensor *wanted) {
    carry_tensor latents;
    carry_tensor context;
    carry_tensor t;
    CARRY_TRY(find(g, &latents, "latents", 5));
    CARRY_TRY(find(g, &context, "context", 3));
    CARRY_TRY(find(g, &t, "t", 1));
    CARRY_TRY(find(g, wanted, "velocity", 5));
    CARRY_TRY(check_shapes(g, &latents, &context, &t, wanted));
    const int64_t frames = latents.shape[2];
    /* Cannot overflow: it is in memory already. */
    const size_t bytes = (size_t)carry_tensor_count(wanted) * sizeof(float);
    CARRY_TRY(carry_dit_cache_new(g->dit, &g->cache,
                                  &(carry_dit_cache_options){.height = latents.shape[3],
                                                             .width = latents.shape[4],
                                                             .chunk = frames,
                                                             .window = frames,
                                                             .dtype = g->dtype}));
    g->velocity = carry_aligned_new(bytes);
    if (g->velocity == NULL) {
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: the case %s", g->name);
    }
    memset(g->velocity, 0xff, bytes); /* NaN, so that elements that are not written are noticed */
    const carry_tensor made = carry_view(g->velocity, CARRY_F32, 5, wanted->shape);
    for (int64_t b = 0; b < latents.shape[0]; b++) {
        carry_dit_cache_reset(g->cache);
        CARRY_TRY(carry_dit_cache_text(g->cache, item(&context, b)));
        const carry_dit_chunk chunk = {
            .velocity = item(&made, b), .latents = item(&latents, b), .t = time_of(&t, b), .start = 0};
        CARRY_TRY(carry_dit_forward(g->dit, g->cache, &chunk, 1, 0.0f));
    }
    return CARRY_OK;
}

/* Checks the whole case in one type. */
static carry_status check_in(golden_dit *g, const carry_dit_config *config, carry_dtype dtype,
                             void (*report)(void *user, const carry_golden_line *line), void *user) {
    carry_tensor wanted;
    g->dtype = dtype;
    carry_status status = carry_dit_new_for(g->ctx, &g->dit, config, NULL, g->device, g->folder, dtype);
    status = status == CARRY_OK ? carry_dit_load(g->dit, g->folder) : status;
    status = status == CARRY_OK ? run_case(g, &wanted) : status;
    if (status == CARRY_OK) {
        const carry_tensor made = carry_view(g->velocity, CARRY_F32, 5, wanted.shape);
        report(user, &(carry_golden_line){.name = g->name,
                                          .method = g->device != 0 ? "dit, GPU" : "dit",
                                          .tensor = "velocity",
                                          .dtype = dtype,
                                          .error = carry_golden_error(&wanted, &made),
                                          .bound = dtype == CARRY_F32 ? BOUND : BOUND_BF16});
    }
    carry_dit_cache_free(g->cache);
    carry_dit_free(g->dit);
    free(g->velocity);
    g->cache = NULL;
    g->dit = NULL;
    g->velocity = NULL;
    return status;
}

carry_status carry_golden_dit(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user) {
    golden_dit g = {.ctx = ctx, .folder = folder, .name = name, .device = device};
    char path[CARRY_FILE_PATH];
    carry_dit_config config;
    CARRY_TRY(carry_file_in(ctx, path, folder, "expected.safetensors"));
    CARRY_TRY(carry_safetensors_open(ctx, &g.expected, path));
    carry_status status = carry_dit_config_read(ctx, &config, folder);
    status = status == CARRY_OK ? check_in(&g, &config, CARRY_F32, report, user) : status;
    if (status == CARRY_OK && device != 0) {
        status = check_in(&g, &config, CARRY_BF16, report, user);
    }
    carry_safetensors_close(&g.expected);
    return status;
}
