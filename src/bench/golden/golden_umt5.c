/* Compares a text encoder with vectors from other programs: a folder whose expected.safetensors holds input_ids [B,
   T], attention_mask [B, T] (a prompt's tokens first) and last_hidden_state [B, T, d_model]. */
#include <stdlib.h>
#include <string.h>

#include "bench/golden/golden.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "file/safetensors.h"
#include "model/text/umt5.h"

#define BOUND 1e-5
/* bf16 keeps 8 bits, and each layer's result is rounded when it is added to the sum of the layers before it: 0.024
   was measured. */
#define BOUND_BF16 4e-2

typedef struct golden_umt5 {
    carry_ctx *ctx;
    const char *folder;
    carry_safetensors expected;
    carry_umt5 *model;
    float *hidden;
} golden_umt5;

static carry_status find(const golden_umt5 *g, const carry_tensor **found, const char *name, carry_dtype dtype,
                         int rank) {
    char has[CARRY_SHAPE_TEXT];
    const carry_tensor *t = carry_safetensors_find(&g->expected, name);
    if (t == NULL || t->dtype != dtype || t->rank != rank || carry_tensor_count(t) < 1) {
        return carry_fail(g->ctx, CARRY_EFORMAT, "%s: expected.safetensors has %s %s, where %s of rank %d is needed",
                          g->folder, name, t != NULL ? carry_shape_text(has, t->rank, t->shape) : "not",
                          carry_dtype_name(dtype), rank);
    }
    *found = t;
    return CARRY_OK;
}

/* The number of tokens in a row before the padding; -1 if they do not come first. */
static int64_t prompt_of(const int64_t *mask, int64_t tokens) {
    int64_t count = 0;
    while (count < tokens && mask[count] == 1) {
        count++;
    }
    for (int64_t i = count; i < tokens; i++) {
        if (mask[i] != 0) {
            return -1;
        }
    }
    return count;
}

static carry_status run_case(golden_umt5 *g, const carry_tensor **wanted, int device, carry_dtype dtype) {
    const carry_tensor *ids;
    const carry_tensor *mask;
    CARRY_TRY(find(g, &ids, "input_ids", CARRY_I64, 2));
    CARRY_TRY(find(g, &mask, "attention_mask", CARRY_I64, 2));
    CARRY_TRY(find(g, wanted, "last_hidden_state", CARRY_F32, 3));
    const int64_t tokens = ids->shape[1];
    CARRY_TRY(carry_umt5_open(g->ctx, &g->model, g->folder, device, dtype, tokens));
    const int64_t width = carry_umt5_config_of(g->model)->d_model;
    CARRY_TRY(carry_tensor_expect(g->ctx, "attention_mask", mask, 2, ids->shape));
    CARRY_TRY(
        carry_tensor_expect(g->ctx, "last_hidden_state", *wanted, 3, (const int64_t[]){ids->shape[0], tokens, width}));
    g->hidden = carry_aligned_new((size_t)carry_tensor_count(*wanted) * sizeof *g->hidden);
    if (g->hidden == NULL) {
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: %s", g->folder);
    }
    for (int64_t b = 0; b < ids->shape[0]; b++) {
        int64_t *row = (int64_t *)ids->data + b * tokens;
        const int64_t prompt = prompt_of((const int64_t *)mask->data + b * tokens, tokens);
        if (prompt < 1) {
            return carry_fail(g->ctx, CARRY_EFORMAT, "%s: attention_mask has padding before a token, or no token",
                              g->folder);
        }
        CARRY_TRY(carry_umt5_encode(g->model, carry_view_2d(g->hidden + b * tokens * width, CARRY_F32, tokens, width),
                                    carry_view_1d(row, CARRY_I64, tokens), prompt));
    }
    return CARRY_OK;
}

/* Checks the whole case in one type. */
static carry_status check_in(golden_umt5 *g, const char *name, int device, carry_dtype dtype,
                             void (*report)(void *user, const carry_golden_line *line), void *user) {
    const carry_tensor *wanted = NULL;
    const carry_status status = run_case(g, &wanted, device, dtype);
    if (status == CARRY_OK) {
        const carry_tensor made = carry_view(g->hidden, CARRY_F32, wanted->rank, wanted->shape);
        report(user, &(carry_golden_line){.name = name,
                                          .method = device != 0 ? "umt5, GPU" : "umt5",
                                          .tensor = "hidden",
                                          .dtype = dtype,
                                          .error = carry_golden_error(wanted, &made),
                                          .bound = dtype == CARRY_F32 ? BOUND : BOUND_BF16});
    }
    free(g->hidden);
    carry_umt5_free(g->model);
    g->hidden = NULL;
    g->model = NULL;
    return status;
}

carry_status carry_golden_umt5(carry_ctx *ctx, const char *folder, const char *name, int device,
                               void (*report)(void *user, const carry_golden_line *line), void *user) {
    golden_umt5 g = {.ctx = ctx, .folder = folder};
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder, "expected.safetensors"));
    CARRY_TRY(carry_safetensors_open(ctx, &g.expected, path));
    carry_status status = check_in(&g, name, device, CARRY_F32, report, user);
    if (status == CARRY_OK && device != 0) {
        status = check_in(&g, name, device, CARRY_BF16, report, user);
    }
    carry_safetensors_close(&g.expected);
    return status;
}
