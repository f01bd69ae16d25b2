/* The parameters of a video transformer, or of a rank's shard of it: their list and start values. */
#include "model/dit/dit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "model/dit/dit_fp8.h"
#include "model/dit/dit_names.h"
#include "model/dit/dit_parts.h"
#include "ops/sampler.h"

static const char *const block_keys[] = {
#define X(name, key) key,
    CARRY_DIT_BLOCK_LIST(X)
#undef X
};

static const char *const outer_keys[] = {
#define X(name, key) key,
    CARRY_DIT_OUTER_LIST(X)
#undef X
};

static carry_parameter matrix(int64_t out, int64_t in, carry_parameter_cut cut) {
    return (carry_parameter){
        .rank = 2, .shape = {out, in}, .decays = true, .start = CARRY_DIT_START_LINEAR, .cut = cut};
}

static carry_parameter vector(bool present, int64_t n, int start, carry_parameter_cut cut) {
    return (carry_parameter){.rank = present ? 1 : 0, .shape = {n}, .start = start, .cut = cut};
}

static carry_parameter modulation(int64_t rows, int64_t dim) {
    return (carry_parameter){.rank = 3, .shape = {1, rows, dim}, .start = CARRY_DIT_START_MODULATION};
}

/* Describes a block's parameter in the whole model; rank 0 if the configuration does not have it. */
static carry_parameter describe(const carry_dit_config *c, carry_dit_slot slot) {
    const int64_t d = c->dim;
    switch (slot) {
    case CARRY_DIT_MODULATION:
        return modulation(6, d);
    case CARRY_DIT_Q:
    case CARRY_DIT_K:
    case CARRY_DIT_V:
        return matrix(d, d, CARRY_CUT_ROWS);
    case CARRY_DIT_Q_BIAS:
    case CARRY_DIT_K_BIAS:
    case CARRY_DIT_V_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS, CARRY_CUT_ROWS);
    case CARRY_DIT_O:
        return matrix(d, d, CARRY_CUT_COLUMNS);
    case CARRY_DIT_NORM_Q:
    case CARRY_DIT_NORM_K:
        return vector(c->qk_norm, d, CARRY_DIT_START_ONES, CARRY_CUT_ROWS);
    case CARRY_DIT_NORM3:
        return vector(c->cross_attn_norm, d, CARRY_DIT_START_ONES, CARRY_CUT_NONE);
    case CARRY_DIT_NORM3_BIAS:
        return vector(c->cross_attn_norm, d, CARRY_DIT_START_BIAS, CARRY_CUT_NONE);
    case CARRY_DIT_CROSS_Q:
    case CARRY_DIT_CROSS_K:
    case CARRY_DIT_CROSS_V:
    case CARRY_DIT_CROSS_O:
        return matrix(d, d, CARRY_CUT_NONE);
    case CARRY_DIT_CROSS_NORM_Q:
    case CARRY_DIT_CROSS_NORM_K:
        return vector(c->qk_norm, d, CARRY_DIT_START_ONES, CARRY_CUT_NONE);
    case CARRY_DIT_FFN_UP:
        return matrix(c->ffn_dim, d, CARRY_CUT_ROWS);
    case CARRY_DIT_FFN_UP_BIAS:
        return vector(true, c->ffn_dim, CARRY_DIT_START_BIAS, CARRY_CUT_ROWS);
    case CARRY_DIT_FFN_DOWN:
        return matrix(d, c->ffn_dim, CARRY_CUT_COLUMNS);
    case CARRY_DIT_O_BIAS:
    case CARRY_DIT_CROSS_Q_BIAS:
    case CARRY_DIT_CROSS_K_BIAS:
    case CARRY_DIT_CROSS_V_BIAS:
    case CARRY_DIT_CROSS_O_BIAS:
    case CARRY_DIT_FFN_DOWN_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS, CARRY_CUT_NONE);
    case CARRY_DIT_SLOTS:
        break;
    }
    return (carry_parameter){0};
}

static carry_parameter describe_outer(const carry_dit_config *c, carry_dit_outer outer) {
    const int64_t d = c->dim;
    carry_parameter patch = matrix(d, c->in_dim, CARRY_CUT_NONE);
    switch (outer) {
    case CARRY_DIT_PATCH:
        patch.rank = 5;
        memcpy(patch.shape + 2, c->patch, sizeof c->patch);
        return patch;
    case CARRY_DIT_TEXT_0:
        return matrix(d, c->text_dim, CARRY_CUT_NONE);
    case CARRY_DIT_TIME_0:
        return matrix(d, c->freq_dim, CARRY_CUT_NONE);
    case CARRY_DIT_TEXT_2:
    case CARRY_DIT_TIME_2:
        return matrix(d, d, CARRY_CUT_NONE);
    case CARRY_DIT_PROJECTION:
        return matrix(6 * d, d, CARRY_CUT_NONE);
    case CARRY_DIT_PROJECTION_BIAS:
        return vector(true, 6 * d, CARRY_DIT_START_BIAS, CARRY_CUT_NONE);
    case CARRY_DIT_HEAD_MODULATION:
        return modulation(2, d);
    case CARRY_DIT_HEAD:
        return matrix(c->out_dim * c->patch[0] * c->patch[1] * c->patch[2], d, CARRY_CUT_NONE);
    case CARRY_DIT_HEAD_BIAS:
        return vector(true, c->out_dim * c->patch[0] * c->patch[1] * c->patch[2], CARRY_DIT_START_BIAS, CARRY_CUT_NONE);
    case CARRY_DIT_PATCH_BIAS:
    case CARRY_DIT_TEXT_0_BIAS:
    case CARRY_DIT_TEXT_2_BIAS:
    case CARRY_DIT_TIME_0_BIAS:
    case CARRY_DIT_TIME_2_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS, CARRY_CUT_NONE);
    case CARRY_DIT_OUTERS:
        break;
    }
    return (carry_parameter){0};
}

static void list_parameters(carry_dit *dit) {
    for (carry_dit_outer outer = 0; outer < CARRY_DIT_OUTERS; outer++) {
        carry_parameter p = describe_outer(&dit->config, outer);
        (void)snprintf(p.name, sizeof p.name, "%s", outer_keys[outer]);
        /* The parameters that process the time are computed in f32. */
        p.may_be_narrow =
            p.decays && outer != CARRY_DIT_TIME_0 && outer != CARRY_DIT_TIME_2 && outer != CARRY_DIT_PROJECTION;
        dit->outer[outer] = carry_parameters_add(&dit->own, p);
    }
    for (int64_t block = 0; block < dit->config.num_layers; block++) {
        for (carry_dit_slot slot = 0; slot < CARRY_DIT_SLOTS; slot++) {
            carry_parameter p = describe(&dit->config, slot);
            (void)snprintf(p.name, sizeof p.name, "blocks.%" PRId64 ".%s", block, block_keys[slot]);
            p.may_be_narrow = p.decays;
            dit->block[block][slot] = carry_parameters_add(&dit->own, p);
        }
    }
}

static carry_status make(carry_dit *dit, int device, const char *folder, carry_dtype dtype) {
    const int64_t blocks = dit->config.num_layers;
    dit->heads = dit->config.num_heads / dit->ranks;
    dit->ffn = dit->config.ffn_dim / dit->ranks;
    dit->own.rank = dit->rank;
    dit->own.ranks = dit->ranks;
    dit->block = calloc((size_t)blocks, sizeof *dit->block);
    if (dit->block == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: a model of %" PRId64 " blocks", blocks);
    }
    CARRY_TRY(carry_parameters_open(dit->ctx, &dit->own, device, blocks * CARRY_DIT_SLOTS + CARRY_DIT_OUTERS));
    dit->own.other = carry_dit_other_name;
    list_parameters(dit); /* carry_dit_config_check has bounded the sum of all sizes */
    CARRY_TRY(folder != NULL ? carry_parameters_check(&dit->own, folder) : CARRY_OK);
    if (dtype != CARRY_F32) {
        carry_parameters_narrow(&dit->own, dtype);
    }
    return carry_parameters_allocate(&dit->own);
}

carry_status carry_dit_new(carry_ctx *ctx, carry_dit **made, const carry_dit_config *config, carry_comm *mesh,
                           int device) {
    return carry_dit_new_for(ctx, made, config, mesh, device, NULL, CARRY_F32);
}

carry_status carry_dit_new_for(carry_ctx *ctx, carry_dit **made, const carry_dit_config *config, carry_comm *mesh,
                               int device, const char *folder, carry_dtype dtype) {
    *made = NULL;
    const int ranks = mesh != NULL ? carry_comm_size(mesh) : 1;
    CARRY_TRY(carry_dit_config_check(ctx, config, ranks));
    carry_dit *dit = calloc(1, sizeof *dit);
    if (dit == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a model");
    }
    dit->ctx = ctx;
    dit->mesh = ranks > 1 ? mesh : NULL;
    dit->ranks = ranks;
    dit->rank = mesh != NULL ? carry_comm_rank(mesh) : 0;
    dit->config = *config;
    carry_status status = make(dit, device, folder, dtype);
    if (status == CARRY_OK && dit->mesh != NULL && device != 0) {
        status = carry_comm_open(ctx, &dit->far, "staged",
                                 &(carry_comm_options){CARRY_INIT(carry_comm_options), .device = device, .over = mesh,
                                                       .deadline = carry_comm_deadline(mesh)});
    }
    if (status != CARRY_OK) {
        carry_dit_free(dit);
        return status;
    }
    *made = dit;
    return CARRY_OK;
}

void carry_dit_free(carry_dit *dit) {
    if (dit != NULL) {
        carry_comm_close(dit->far);
        carry_dit_fp8_close(dit);
        carry_parameters_free(&dit->own);
        free(dit->block);
        free(dit);
    }
}

static void fill(float *w, float value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        w[i] = value;
    }
}

/* Sets the gates and the head to zero. Blocks then start with only cross-attention, since both gates (modulation plus
   projection of the time) are zero, and the velocity starts at zero. */
static void close_gates(const carry_dit *dit, const carry_parameter *p, float *w) {
    const int64_t index = p - dit->own.parameter;
    const bool is_head = index == dit->outer[CARRY_DIT_HEAD];
    const bool is_modulation = p->start == CARRY_DIT_START_MODULATION && p->shape[1] == 6;
    if (is_head || is_modulation || index == dit->outer[CARRY_DIT_PROJECTION]) {
        const int64_t part = p->count / 6;
        fill(w + (is_head ? 0 : 2 * part), 0.0f, is_head ? p->count : part);
        fill(w + (is_head ? 0 : 5 * part), 0.0f, is_head ? 0 : part);
    }
}

typedef struct distribution {
    float mean, deviation; /* deviation 0: all elements equal the mean */
} distribution;

static distribution distribution_of(const carry_dit *dit, const carry_parameter *p, int64_t count, bool training) {
    const int64_t rows = p->shape[0] * (p->cut == CARRY_CUT_ROWS ? dit->ranks : 1);
    switch (p->start) {
    case CARRY_DIT_START_LINEAR:
        return (distribution){0.0f, 1.0f / sqrtf((float)(count / rows))};
    case CARRY_DIT_START_MODULATION:
        return (distribution){0.0f, 1.0f / sqrtf((float)dit->config.dim)};
    case CARRY_DIT_START_ONES:
        return (distribution){1.0f, training ? 0.0f : 0.1f};
    default:
        return (distribution){0.0f, training ? 0.0f : 0.02f};
    }
}

static carry_status start(const carry_dit *dit, const carry_parameter *p, carry_tensor whole, uint64_t seed,
                          bool training) {
    const distribution d = distribution_of(dit, p, whole.shape[0], training);
    const uint64_t stream = carry_crc32c(0, p->name, strlen(p->name));
    return d.deviation > 0.0f ? carry_random_fill(dit->ctx, whole, seed, stream, d.mean, d.deviation)
                              : carry_fill(dit->ctx, whole, d.mean);
}

static carry_status start_inference(const void *dit, const carry_parameter *p, carry_tensor whole, uint64_t seed) {
    return start(dit, p, whole, seed, false);
}

static carry_status start_training(const void *model, const carry_parameter *p, carry_tensor whole, uint64_t seed) {
    CARRY_TRY(start(model, p, whole, seed, true));
    close_gates(model, p, whole.data);
    return CARRY_OK;
}

/* Initialises this rank's part of a parameter. */
static carry_status start_part(const carry_dit *dit, const carry_parameter *p, carry_tensor part, uint64_t seed) {
    const distribution d = distribution_of(dit, p, p->count * dit->ranks, false);
    const int64_t columns = p->cut == CARRY_CUT_COLUMNS ? p->count / p->shape[0] : p->count;
    return carry_random_part(dit->ctx, &(carry_random_part_args){.out = part,
                                                                 .seed = seed,
                                                                 .stream = carry_crc32c(0, p->name, strlen(p->name)),
                                                                 .mean = d.mean,
                                                                 .deviation = d.deviation,
                                                                 .columns = columns,
                                                                 .next = columns * dit->ranks,
                                                                 .first = columns * dit->rank});
}

/* Without f32 masters, values are generated directly on the device: 14e9 of them take half a minute on 16 cores of a
   host. */
static carry_status start_there(carry_dit *dit, uint64_t seed) {
    carry_parameters *own = &dit->own;
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const carry_tensor all = carry_reshape_1d(carry_parameters_view(own, own->weights, i), p->count);
        CARRY_TRY(p->cut != CARRY_CUT_NONE && dit->ranks > 1 ? start_part(dit, p, all, seed)
                                                             : start(dit, p, all, seed, false));
    }
    return carry_parameters_round(own);
}

carry_status carry_dit_init(carry_dit *dit, uint64_t seed) {
    if (dit->own.is_narrow) {
        return start_there(dit, seed);
    }
    return carry_parameters_start(&dit->own, start_inference, dit, seed);
}

carry_status carry_dit_init_training(carry_dit *dit, uint64_t seed) {
    return carry_parameters_start(&dit->own, start_training, dit, seed);
}
