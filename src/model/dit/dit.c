/* The parameters of a video transformer, or of a rank's shard of it: the list, the buffers, start values. */
#include "model/dit/dit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "model/dit/dit_file.h"
#include "model/dit/dit_parts.h"

#define GAP 16 /* elements: every parameter starts on a line of the cache */

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

static carry_parameter matrix(int64_t out, int64_t in, int cut) {
    return (carry_parameter){.rank = 2, .shape = {out, in}, .decays = true, .start = CARRY_DIT_START_LINEAR | cut};
}

static carry_parameter vector(bool present, int64_t n, int start) {
    return (carry_parameter){.rank = present ? 1 : 0, .shape = {n}, .start = start};
}

static carry_parameter modulation(int64_t rows, int64_t dim) {
    return (carry_parameter){.rank = 3, .shape = {1, rows, dim}, .start = CARRY_DIT_START_MODULATION};
}

/* What a block's parameter is like in the whole model, or rank 0 when the configuration has none. */
static carry_parameter describe(const carry_dit_config *c, carry_dit_slot slot) {
    const int64_t d = c->dim;
    switch (slot) {
    case CARRY_DIT_MODULATION:
        return modulation(6, d);
    case CARRY_DIT_Q:
    case CARRY_DIT_K:
    case CARRY_DIT_V:
        return matrix(d, d, CARRY_DIT_BY_ROWS);
    case CARRY_DIT_Q_BIAS:
    case CARRY_DIT_K_BIAS:
    case CARRY_DIT_V_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS | CARRY_DIT_BY_ROWS);
    case CARRY_DIT_O:
        return matrix(d, d, CARRY_DIT_BY_COLUMNS);
    case CARRY_DIT_NORM_Q:
    case CARRY_DIT_NORM_K:
        return vector(c->qk_norm, d, CARRY_DIT_START_ONES | CARRY_DIT_BY_ROWS);
    case CARRY_DIT_NORM3:
        return vector(c->cross_attn_norm, d, CARRY_DIT_START_ONES);
    case CARRY_DIT_NORM3_BIAS:
        return vector(c->cross_attn_norm, d, CARRY_DIT_START_BIAS);
    case CARRY_DIT_CROSS_Q:
    case CARRY_DIT_CROSS_K:
    case CARRY_DIT_CROSS_V:
    case CARRY_DIT_CROSS_O:
        return matrix(d, d, 0);
    case CARRY_DIT_CROSS_NORM_Q:
    case CARRY_DIT_CROSS_NORM_K:
        return vector(c->qk_norm, d, CARRY_DIT_START_ONES);
    case CARRY_DIT_FFN_UP:
        return matrix(c->ffn_dim, d, CARRY_DIT_BY_ROWS);
    case CARRY_DIT_FFN_UP_BIAS:
        return vector(true, c->ffn_dim, CARRY_DIT_START_BIAS | CARRY_DIT_BY_ROWS);
    case CARRY_DIT_FFN_DOWN:
        return matrix(d, c->ffn_dim, CARRY_DIT_BY_COLUMNS);
    case CARRY_DIT_O_BIAS:
    case CARRY_DIT_CROSS_Q_BIAS:
    case CARRY_DIT_CROSS_K_BIAS:
    case CARRY_DIT_CROSS_V_BIAS:
    case CARRY_DIT_CROSS_O_BIAS:
    case CARRY_DIT_FFN_DOWN_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS);
    case CARRY_DIT_SLOTS:
        break;
    }
    return (carry_parameter){0};
}

static carry_parameter describe_outer(const carry_dit_config *c, carry_dit_outer outer) {
    const int64_t d = c->dim;
    carry_parameter patch = matrix(d, c->in_dim, 0);
    switch (outer) {
    case CARRY_DIT_PATCH:
        patch.rank = 5;
        memcpy(patch.shape + 2, c->patch, sizeof c->patch);
        return patch;
    case CARRY_DIT_TEXT_0:
        return matrix(d, c->text_dim, 0);
    case CARRY_DIT_TIME_0:
        return matrix(d, c->freq_dim, 0);
    case CARRY_DIT_TEXT_2:
    case CARRY_DIT_TIME_2:
        return matrix(d, d, 0);
    case CARRY_DIT_PROJECTION:
        return matrix(6 * d, d, 0);
    case CARRY_DIT_PROJECTION_BIAS:
        return vector(true, 6 * d, CARRY_DIT_START_BIAS);
    case CARRY_DIT_HEAD_MODULATION:
        return modulation(2, d);
    case CARRY_DIT_HEAD:
        return matrix(c->out_dim * c->patch[0] * c->patch[1] * c->patch[2], d, 0);
    case CARRY_DIT_HEAD_BIAS:
        return vector(true, c->out_dim * c->patch[0] * c->patch[1] * c->patch[2], CARRY_DIT_START_BIAS);
    case CARRY_DIT_PATCH_BIAS:
    case CARRY_DIT_TEXT_0_BIAS:
    case CARRY_DIT_TEXT_2_BIAS:
    case CARRY_DIT_TIME_0_BIAS:
    case CARRY_DIT_TIME_2_BIAS:
        return vector(true, d, CARRY_DIT_START_BIAS);
    case CARRY_DIT_OUTERS:
        break;
    }
    return (carry_parameter){0};
}

/* The next of the list, cut for this rank; its place follows the last one's. */
static int64_t add(carry_dit *dit, carry_parameter p) {
    carry_parameters *own = &dit->own;
    if (p.rank == 0) {
        return -1;
    }
    int cut = carry_dit_cut(&p);
    if (cut >= 0) {
        p.shape[cut] /= dit->ranks;
    }
    p.count = 1;
    for (int i = 0; i < p.rank; i++) {
        p.count *= p.shape[i]; /* carry_dit_config_check has bounded the sum of them */
    }
    p.offset = own->count;
    own->count += (p.count + GAP - 1) / GAP * GAP;
    own->trained += p.count;
    own->parameter[own->parameters] = p;
    return own->parameters++;
}

static void list_parameters(carry_dit *dit) {
    for (carry_dit_outer outer = 0; outer < CARRY_DIT_OUTERS; outer++) {
        carry_parameter p = describe_outer(&dit->config, outer);
        (void)snprintf(p.name, sizeof p.name, "%s", outer_keys[outer]);
        dit->outer[outer] = add(dit, p);
    }
    for (int64_t block = 0; block < dit->config.num_layers; block++) {
        for (carry_dit_slot slot = 0; slot < CARRY_DIT_SLOTS; slot++) {
            carry_parameter p = describe(&dit->config, slot);
            (void)snprintf(p.name, sizeof p.name, "blocks.%" PRId64 ".%s", block, block_keys[slot]);
            dit->block[block][slot] = add(dit, p);
        }
    }
}

int carry_dit_cut(const carry_parameter *p) {
    return ((unsigned)p->start & CARRY_DIT_BY_ROWS) != 0      ? 0
           : ((unsigned)p->start & CARRY_DIT_BY_COLUMNS) != 0 ? 1
                                                              : -1;
}

static carry_status make(carry_dit *dit) {
    size_t blocks = (size_t)dit->config.num_layers;
    dit->heads = dit->config.num_heads / dit->ranks;
    dit->ffn = dit->config.ffn_dim / dit->ranks;
    dit->own.parameter = calloc(blocks * CARRY_DIT_SLOTS + CARRY_DIT_OUTERS, sizeof *dit->own.parameter);
    dit->block = calloc(blocks, sizeof *dit->block);
    if (dit->own.parameter != NULL && dit->block != NULL) {
        list_parameters(dit);
        dit->own.weights = carry_aligned_new((size_t)dit->own.count * sizeof(float));
    }
    if (dit->own.weights == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "no memory for the %" PRId64 " parameters of a model",
                          dit->own.count);
    }
    memset(dit->own.weights, 0, (size_t)dit->own.count * sizeof(float));
    return CARRY_OK;
}

carry_status carry_dit_new(carry_ctx *ctx, carry_dit **made, const carry_dit_config *config, carry_comm *mesh) {
    *made = NULL;
    const int ranks = mesh != NULL ? carry_comm_size(mesh) : 1;
    CARRY_TRY(carry_dit_config_check(ctx, config, ranks));
    carry_dit *dit = calloc(1, sizeof *dit);
    if (dit == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a model");
    }
    dit->ctx = ctx;
    dit->mesh = ranks > 1 ? mesh : NULL;
    dit->ranks = ranks;
    dit->rank = mesh != NULL ? carry_comm_rank(mesh) : 0;
    dit->config = *config;
    carry_status status = make(dit);
    if (status != CARRY_OK) {
        carry_dit_free(dit);
        return status;
    }
    *made = dit;
    return CARRY_OK;
}

void carry_dit_free(carry_dit *dit) {
    if (dit != NULL) {
        free(dit->own.parameter);
        free(dit->own.weights);
        free(dit->own.gradients);
        free(dit->block);
        free(dit);
    }
}

static void fill(float *w, float value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        w[i] = value;
    }
}

/* The whole tensor, wherever this rank's part of it lies. */
static carry_status start(carry_dit *dit, carry_tensor whole, const carry_parameter *p, uint64_t seed, bool training) {
    const int64_t count = whole.shape[0];
    const int64_t rows = p->shape[0] * (carry_dit_cut(p) == 0 ? dit->ranks : 1);
    const uint64_t stream = carry_crc32c(0, p->name, strlen(p->name));
    const float by_dim = 1.0f / sqrtf((float)dit->config.dim);
    switch ((unsigned)p->start & CARRY_DIT_START_KIND) {
    case CARRY_DIT_START_LINEAR:
        return carry_random_normal(dit->ctx, whole, seed, stream, 0.0f, 1.0f / sqrtf((float)(count / rows)));
    case CARRY_DIT_START_MODULATION:
        return carry_random_normal(dit->ctx, whole, seed, stream, 0.0f, by_dim);
    case CARRY_DIT_START_ONES:
        fill(whole.data, 1.0f, count);
        return training ? CARRY_OK : carry_random_normal(dit->ctx, whole, seed, stream, 1.0f, 0.1f);
    default:
        fill(whole.data, 0.0f, count);
        return training ? CARRY_OK : carry_random_normal(dit->ctx, whole, seed, stream, 0.0f, 0.02f);
    }
}

static carry_status start_all(carry_dit *dit, uint64_t seed, bool training) {
    carry_status status = CARRY_OK;
    float *whole = NULL;
    int64_t room = 0;
    for (int64_t i = 0; status == CARRY_OK && i < dit->own.parameters; i++) {
        const carry_parameter *p = &dit->own.parameter[i];
        if (carry_dit_cut(p) < 0 || dit->ranks == 1) {
            status = start(dit, carry_view_1d(dit->own.weights + p->offset, CARRY_F32, p->count), p, seed, training);
            continue;
        }
        const int64_t count = p->count * dit->ranks;
        if (count > room) {
            free(whole);
            whole = carry_aligned_new((size_t)count * sizeof(float));
            room = count;
        }
        if (whole == NULL) {
            return carry_fail(dit->ctx, CARRY_EMEMORY, "no memory for the whole of %s", p->name);
        }
        status = start(dit, carry_view_1d(whole, CARRY_F32, count), p, seed, training);
        status = status == CARRY_OK ? carry_dit_take(dit, i, whole, CARRY_F32) : status;
    }
    free(whole);
    return status;
}

carry_status carry_dit_init(carry_dit *dit, uint64_t seed) {
    return start_all(dit, seed, false);
}

/* Blocks start as nothing but cross-attention, since both their gates, modulation + projection of the time, are zero;
   and the velocity as zero, since the head is. */
carry_status carry_dit_init_training(carry_dit *dit, uint64_t seed) {
    const int64_t d = dit->config.dim;
    CARRY_TRY(start_all(dit, seed, true));
    const carry_tensor projection = carry_dit_outer_weight(dit, CARRY_DIT_PROJECTION);
    const carry_tensor head = carry_dit_outer_weight(dit, CARRY_DIT_HEAD);
    for (int64_t gate = 2; gate < 6; gate += 3) {
        fill((float *)projection.data + gate * d * d, 0.0f, d * d);
        for (int64_t block = 0; block < dit->config.num_layers; block++) {
            fill((float *)carry_dit_block_weight(dit, block, CARRY_DIT_MODULATION).data + gate * d, 0.0f, d);
        }
    }
    fill(head.data, 0.0f, head.shape[0] * head.shape[1]);
    return CARRY_OK;
}
