/* The memory layout of a pass's activations. The same code counts the bytes and assigns the addresses. */
#include "model/lm/lm_pass.h"

#include "core/tensor.h"
#include "model/lm/lm_heads.h"

carry_tensor carry_lm_take(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t width) {
    return carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, (const int64_t[]){pass->tokens, width});
}

#define ROW_OF 64 /* elements: rows of joined columns start on cache lines */

void carry_lm_take_columns(const carry_lm_pass *pass, carry_arena *arena, bool joined, int count, const int64_t *width,
                           carry_tensor *const *to) {
    const carry_dtype dtype = pass->options.dtype;
    int64_t row = 0;
    for (int i = 0; i < count; i++) {
        *to[i] = width[i] > 0 && !joined ? carry_lm_take(pass, arena, dtype, width[i]) : (carry_tensor){0};
        row += width[i];
    }
    if (!joined) {
        return;
    }
    row = (row + ROW_OF - 1) / ROW_OF * ROW_OF;
    carry_tensor columns = carry_lm_take(pass, arena, dtype, row);
    for (int i = 0; i < count; i++) {
        if (width[i] > 0) {
            columns.shape[1] = width[i];
            *to[i] = columns;
        }
        if (columns.data != NULL) {
            columns.data = (char *)columns.data + (size_t)width[i] * carry_dtype_size(dtype);
        }
    }
}

static carry_tensor take_1d(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t count) {
    return carry_arena_tensor(arena, pass->lm->own.device, dtype, 1, &count);
}

/* Places the activations of a layer that belong to no part. before, after: norms come before, or after, mixer and
   feed-forward. */
static void take_common(const carry_lm_pass *pass, carry_arena *arena, carry_lm_rows *r, bool before, bool after) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    r->x = before ? carry_lm_take(pass, arena, dtype, c->hidden_size) : absent;
    r->out = after ? carry_lm_take(pass, arena, dtype, c->hidden_size) : absent;
    r->out2 = after ? carry_lm_take(pass, arena, dtype, c->hidden_size) : absent;
    r->middle = carry_lm_take(pass, arena, dtype, c->hidden_size);
    r->x2 = before ? carry_lm_take(pass, arena, dtype, c->hidden_size) : absent;
}

static void take_layers(carry_lm_pass *pass, carry_arena *arena) {
    const int64_t layers = pass->lm->config.num_hidden_layers;
    carry_lm_rows common;
    if (pass->shares) {
        take_common(pass, arena, &common, true, true);
    }
    for (int i = 0; pass->shares && i < CARRY_LM_PARTS; i++) {
        const carry_lm_opened *at = &pass->part[i];
        if (at->part != NULL) {
            at->part->take(pass, at->opened, arena, at->rows);
        }
    }
    for (int64_t i = 0; i < layers; i++) {
        const carry_lm_layer *l = &pass->lm->layer[i];
        const carry_lm_opened *mixer = &pass->part[l->mixer.kind];
        const carry_lm_opened *feedforward = &pass->part[l->feedforward.kind];
        carry_lm_rows *r = &pass->layer[i];
        if (pass->shares) {
            common.mixer = mixer->rows;
            common.feedforward = feedforward->rows;
            *r = common;
        } else {
            take_common(pass, arena, r, !l->norms_after, l->norms_after || pass->lm->config.residual_factor != 0.0);
            feedforward->part->take(pass, feedforward->opened, arena, r->feedforward);
            mixer->part->take(pass, mixer->opened, arena, r->mixer);
        }
    }
}

static void take_back(carry_lm_pass *pass, carry_arena *arena) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_dtype dtype = pass->options.dtype;
    carry_lm_back *back = &pass->back;
    back->dh = carry_lm_take(pass, arena, dtype, c->hidden_size);
    back->dx = carry_lm_take(pass, arena, dtype, c->hidden_size);
    back->dout = carry_lm_take(pass, arena, dtype, c->hidden_size);
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        if (pass->part[i].part != NULL) {
            pass->part[i].part->take_back(pass, pass->part[i].opened, arena, pass->part[i].back);
        }
    }
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Tokens whose logits the head computes at once on a GPU, unless the pass has fewer tokens. Larger blocks are faster:
   for 32768 tokens and a vocabulary of 32000 it takes 46 ms in blocks of 128, for which
   carry_linear_cross_entropy_workspace asks, and 13 ms in blocks of 8192 (H200). */
#define HEAD_TOKENS 2048
/* For a vocabulary of up to this size, training in bf16 computes logits in f16, of twice the tokens at once, from
   copies of the weight and of the inputs. */
#define HALF_WORDS 32768

static size_t head_bytes(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t logits[] = {pass->tokens < HEAD_TOKENS ? pass->tokens : HEAD_TOKENS, c->vocab_size};
    const int64_t copies[] = {c->vocab_size + 2 * HEAD_TOKENS, c->hidden_size};
    size_t bytes = carry_linear_cross_entropy_workspace(pass->tokens, c->hidden_size, c->vocab_size);
    size_t more = 0;
    size_t beside = 0;
    const bool half = !pass->options.forward_only && pass->options.dtype == CARRY_BF16 && c->vocab_size <= HALF_WORDS;
    if (pass->lm->own.device == 0) {
        return larger(bytes, carry_lm_fp8_head_bytes(pass));
    }
    if (!carry_size_product(&more, logits, 2, sizeof(float)) ||
        (half && !carry_size_product(&beside, copies, 2, sizeof(uint16_t)))) {
        return bytes;
    }
    return larger(larger(bytes, more + beside + 1024), carry_lm_fp8_head_bytes(pass));
}

/* The largest workspace that an operator of the pass needs. */
static size_t scratch_bytes(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    size_t bytes = pass->options.pooled > 0 && !pass->options.scores ? 0 : head_bytes(pass);
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        const carry_lm_opened *at = &pass->part[i];
        if (at->part != NULL && at->part->scratch != NULL) {
            bytes = larger(bytes, at->part->scratch(pass, at->opened));
        }
    }
    return pass->options.forward_only ? bytes
                                      : larger(bytes, carry_rms_norm_backward_workspace(pass->tokens, c->hidden_size));
}

bool carry_lm_joins(const carry_lm_pass *pass) {
    return pass->lm->own.device != 0 && pass->lm->adapter == NULL;
}

/* The number of elements of the largest parameter that is not a matrix. */
static int64_t widest_vector(const carry_parameters *own) {
    int64_t most = 1;
    for (int64_t i = 0; i < own->parameters; i++) {
        const bool is_matrix = own->parameter[i].rank == 2 || own->parameter[i].may_be_narrow;
        most = !is_matrix && own->parameter[i].count > most ? own->parameter[i].count : most;
    }
    return most;
}

void carry_lm_pass_lay_out(carry_lm_pass *pass, carry_arena *arena) {
    const carry_lm_config *c = &pass->lm->config;
    carry_dtype dtype = pass->options.dtype;
    if (c->norm_plus_one) {
        const int64_t widest = c->hidden_size > c->attention.head_dim ? c->hidden_size : c->attention.head_dim;
        pass->ones = take_1d(pass, arena, CARRY_F32, widest);
        pass->factor = take_1d(pass, arena, CARRY_F32, widest);
    }
    const carry_tensor absent = {0};
    pass->embedding_factor = c->embedding_factor != 0.0 ? take_1d(pass, arena, CARRY_F32, c->hidden_size) : absent;
    pass->residual_factor = c->residual_factor != 0.0 ? take_1d(pass, arena, CARRY_F32, c->hidden_size) : absent;
    pass->logits_factor = c->logits_divisor != 0.0 ? take_1d(pass, arena, CARRY_F32, c->hidden_size) : absent;
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        if (pass->part[i].part != NULL && pass->part[i].part->take_once != NULL) {
            pass->part[i].part->take_once(pass, pass->part[i].opened, arena);
        }
    }
    for (int64_t i = 0; i <= c->num_hidden_layers; i++) {
        bool own = i == 0 || !pass->options.forward_only;
        pass->h[i] = own ? carry_lm_take(pass, arena, dtype, c->hidden_size) : pass->h[0];
    }
    take_layers(pass, arena);
    const int64_t lasts[] = {pass->options.pooled > 0 ? pass->options.pooled : pass->options.batch, c->hidden_size};
    pass->last = carry_lm_take(pass, arena, dtype, c->hidden_size);
    pass->joined = carry_lm_is_heads(pass->lm) ? carry_lm_take(pass, arena, dtype, 2 * c->hidden_size) : absent;
    pass->last_h = carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, lasts);
    pass->last_x = carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, lasts);
    pass->losses = take_1d(pass, arena, CARRY_F32, pass->tokens);
    pass->total = take_1d(pass, arena, CARRY_F64, 2);
    if (pass->lm->own.device != 0) { /* on the CPU they are used in place */
        pass->ids = take_1d(pass, arena, CARRY_I64, pass->tokens);
        pass->labels = take_1d(pass, arena, CARRY_I64, pass->tokens);
        pass->cuts = take_1d(pass, arena, CARRY_I64, pass->options.sequences + 1);
    }
    if (!pass->options.forward_only) {
        take_back(pass, arena);
    }
    carry_lm_adapter_take(pass, arena);
    carry_lm_fp8_take(pass, arena);
    pass->unread = absent;
    if (!pass->options.forward_only && pass->lm->own.gradients == NULL) {
        const int64_t unread[] = {CARRY_LM_SLOTS, widest_vector(&pass->lm->own)};
        pass->unread = carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 2, unread);
    }
    pass->scratch_bytes = scratch_bytes(pass);
    pass->scratch = carry_arena_take(arena, pass->scratch_bytes, 1);
}
