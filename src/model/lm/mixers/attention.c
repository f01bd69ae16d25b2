/* Attention layers: memory and forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/attention_pooled.h"
#include "model/lm/places.h"

#define BLOCK 256 /* queries in a block of attention: workspaces are largest for whole blocks */
#define BLOCKS 64 /* workspaces do not grow beyond this many blocks */

carry_tensor carry_lm_attention_heads(const carry_lm_pass *pass, carry_tensor rows) {
    const int64_t D = pass->lm->config.attention.head_dim;
    return carry_reshape_3d(rows, rows.shape[0], rows.shape[1] / D, D);
}

carry_tensor carry_lm_attention_norm_rows(const carry_lm_pass *pass, carry_tensor rows) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t D = c->attention.head_dim;
    return c->attention.qk_norm == CARRY_LM_NORM_HEADS ? carry_reshape_2d(rows, rows.shape[0] * rows.shape[1] / D, D)
                                                       : rows;
}

bool carry_lm_attention_document(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, int64_t *first,
                                 int64_t *count) {
    const int64_t *starts = args->cu_seqlens.data;
    const int64_t documents = starts != NULL ? args->cu_seqlens.shape[0] - 1 : pass->options.batch;
    if (index >= documents) {
        return false;
    }
    *first = starts != NULL ? starts[index] : index * pass->options.tokens;
    *count = starts != NULL ? starts[index + 1] - starts[index] : pass->options.tokens;
    return true;
}

carry_attention_args carry_lm_attention_args(const carry_lm_pass *pass, const carry_lm_attention_rows *r, int64_t first,
                                             int64_t count) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_tensor lse = carry_slice(carry_reshape_1d(r->lse, pass->tokens * c->attention.heads),
                                         first * c->attention.heads, count * c->attention.heads);
    return (carry_attention_args){
        .o = carry_slice(carry_lm_attention_heads(pass, r->o), first, count),
        .lse = r->lse.data != NULL ? carry_reshape_2d(lse, c->attention.heads, count) : (carry_tensor){0},
        .q = carry_slice(carry_lm_attention_heads(pass, r->q), first, count),
        .k = carry_slice(carry_lm_attention_heads(pass, r->k), first, count),
        .v = carry_slice(carry_lm_attention_heads(pass, r->v), first, count),
        .scale = (float)c->attention.scale,
        .causal = true,
        .window = c->attention.window,
    };
}

/* The arguments of a step of a batch, without rows and caches. */
static carry_attention_step_args step_of(const carry_lm *lm, int64_t batch, carry_dtype dtype) {
    const carry_lm_config *c = &lm->config;
    const int64_t q[] = {batch, c->attention.heads, c->attention.head_dim};
    const int64_t k[] = {batch, c->attention.kv_heads, c->attention.head_dim};
    const int64_t cache[] = {batch, 1, c->attention.kv_heads, c->attention.head_dim};
    return (carry_attention_step_args){.q = carry_view_on(lm->own.device, NULL, dtype, 3, q),
                                       .k = carry_view_on(lm->own.device, NULL, dtype, 3, k),
                                       .keys = carry_view_on(lm->own.device, NULL, dtype, 4, cache),
                                       .window = c->attention.window};
}

bool carry_lm_attention_records(const carry_lm *lm, int64_t batch, carry_dtype dtype) {
    const carry_attention_step_args step = step_of(lm, batch, dtype);
    return lm->config.attention.scale == 0.0 && carry_attention_steps(&step);
}

void carry_lm_attention_close(void *opened) {
    carry_lm_attention *o = opened;
    if (o != NULL) {
        if (o->rates_there != NULL && o->rates_there != o->rates) {
            carry_device_free(o->ctx, o->device, o->rates_there);
        }
        free(o->turns);
        free(o->positions);
        free(o->rates);
        free(o->starts);
        free(o);
    }
}

/* 1 / theta^(2i / rotary), rounded like the f32 sums of the transformers library. */
void carry_lm_attention_rates(const carry_lm_config *c, float *rates) {
    for (int64_t i = 0; i < c->attention.rotary / 2; i++) {
        const float exponent = (float)(2 * i) / (float)c->attention.rotary;
        rates[i] = 1.0f / (float)pow(c->attention.rope_theta, (double)exponent);
    }
}

/* The arguments of the backward pass of all rows, without data. */
static carry_attention_backward_args backward_of(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t q[] = {pass->tokens, c->attention.heads, c->attention.head_dim};
    const int64_t k[] = {pass->tokens, c->attention.kv_heads, c->attention.head_dim};
    const int device = pass->lm->own.device;
    const carry_tensor queries = carry_view_on(device, NULL, pass->options.dtype, 3, q);
    const carry_tensor keys = carry_view_on(device, NULL, pass->options.dtype, 3, k);
    return (carry_attention_backward_args){
        .dq = queries,
        .dk = keys,
        .dv = keys,
        .d_o = queries,
        .forward = {.o = queries, .q = queries, .k = keys, .v = keys, .causal = true, .window = c->attention.window}};
}

/* Sets the first row of each sequence of a batch, and a line of text about the kernels. */
static carry_status open_backward(const carry_lm_pass *pass, carry_lm_attention *o) {
    static const struct {
        const char *method, *line;
    } lines[] = {{"blocks", "attention by blocks with an online softmax"},
                 {"wgmma", "attention with an online softmax; backward by wgmma kernels"},
                 {"mma", "attention with an online softmax; backward by mma kernels"},
                 {"plain", "attention with an online softmax; backward by plain kernels"}};
    o->plan = lines[0].line;
    if (pass->options.forward_only) {
        return CARRY_OK;
    }
    const carry_attention_backward_args args = backward_of(pass);
    const char *method = carry_attention_backward_method(&args);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        o->plan = strcmp(method, lines[i].method) == 0 ? lines[i].line : o->plan;
    }
    o->starts = calloc((size_t)pass->options.batch + 1, sizeof *o->starts);
    if (o->starts == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: the rows of %lld sequences",
                          (long long)pass->options.batch);
    }
    for (int64_t i = 0; i <= pass->options.batch; i++) {
        o->starts[i] = i * pass->options.tokens;
    }
    return CARRY_OK;
}

/* The workspace of attention, for documents of any length up to the pass's. */
static size_t workspace_of(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_dtype dtype = pass->options.dtype;
    const int64_t longest = pass->options.sequences > 0 ? pass->tokens : pass->options.tokens;
    size_t most = 0;
    for (int64_t block = 0; block <= BLOCKS; block++) {
        const int64_t T = block == 0 ? longest : block * BLOCK;
        if (T > longest) {
            break;
        }
        const int64_t q[] = {T, c->attention.heads, c->attention.head_dim};
        const int64_t k[] = {T > BLOCK ? T : BLOCK, c->attention.kv_heads, c->attention.head_dim};
        const carry_attention_args args = {.q = carry_view_on(pass->lm->own.device, NULL, dtype, 3, q),
                                           .k = carry_view_on(pass->lm->own.device, NULL, dtype, 3, k),
                                           .causal = true};
        const size_t forward = carry_attention_workspace(&args);
        most = forward > most ? forward : most;
        if (block == 0 && pass->options.pooled > 0) {
            const size_t pooled = carry_lm_attention_pooled_workspace(pass);
            most = pooled > most ? pooled : most;
        }
    }
    if (!pass->options.forward_only) {
        const carry_attention_backward_args args = backward_of(pass);
        const size_t backward = carry_attention_backward_documents_workspace(&args, longest);
        most = backward > most ? backward : most;
    }
    return most;
}

/* Uploads the rates: a pooled pass, and every pass on a device, computes rotations from positions there. */
static carry_status bring_rates(const carry_lm_pass *pass, carry_lm_attention *o) {
    const size_t bytes = (size_t)pass->lm->config.attention.rotary / 2 * sizeof *o->rates;
    o->ctx = pass->ctx;
    o->device = pass->lm->own.device;
    if (o->device == 0) {
        o->rates_there = o->rates;
        return CARRY_OK;
    }
    void *there = NULL;
    CARRY_TRY(carry_device_alloc(o->ctx, &there, o->device, bytes));
    o->rates_there = there;
    carry_stream *stream = carry_ctx_stream(o->ctx, o->device);
    CARRY_TRY(carry_device_copy(o->ctx, there, o->device, o->rates, 0, bytes, stream));
    return carry_stream_wait(o->ctx, o->device, stream);
}

carry_status carry_lm_attention_open(carry_lm_pass *pass, void **opened) {
    const carry_lm_config *c = &pass->lm->config;
    *opened = NULL;
    if (pass->options.recurrence == &carry_lm_recurrence_ranks) {
        return carry_fail(
            pass->ctx, CARRY_EUNSUPPORTED,
            "the model has layers with attention, whose rows cannot be split over ranks: let ranks share the batch");
    }
    carry_lm_attention *o = calloc(1, sizeof *o);
    const int64_t sizes[] = {pass->tokens, c->attention.rotary};
    const bool there = pass->lm->own.device != 0;
    size_t bytes;
    const bool fits = carry_size_product(&bytes, sizes, 2, sizeof(float));
    if (o != NULL && fits && c->attention.rotary > 0) {
        o->turns = there ? NULL : carry_aligned_new(bytes);
        o->positions = there ? calloc((size_t)pass->tokens, sizeof *o->positions) : NULL;
        o->rates = malloc((size_t)c->attention.rotary / 2 * sizeof *o->rates);
    }
    if (o == NULL || (c->attention.rotary > 0 && ((o->turns == NULL && o->positions == NULL) || o->rates == NULL))) {
        carry_lm_attention_close(o);
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: the positions of %lld tokens",
                          (long long)pass->tokens);
    }
    if (o->rates != NULL) {
        carry_lm_attention_rates(c, o->rates);
    }
    carry_status status = o->rates != NULL && (there || pass->options.pooled > 0) ? bring_rates(pass, o) : CARRY_OK;
    status = status == CARRY_OK ? open_backward(pass, o) : status;
    if (status != CARRY_OK) {
        carry_lm_attention_close(o);
        return status;
    }
    o->scratch = workspace_of(pass);
    o->steps = pass->options.pooled == 0 && pass->options.forward_only && pass->options.tokens == 1 &&
               pass->options.sequences == 0 &&
               carry_lm_attention_records(pass->lm, pass->options.batch, pass->options.dtype);
    if (o->steps) {
        const carry_attention_step_args step = step_of(pass->lm, pass->options.batch, pass->options.dtype);
        const size_t needed = carry_attention_step_workspace(&step);
        o->scratch = needed > o->scratch ? needed : o->scratch;
    }
    *opened = o;
    return CARRY_OK;
}

static const char *plan_line(const void *opened) {
    return ((const carry_lm_attention *)opened)->plan;
}

static size_t scratch(const carry_lm_pass *pass, const void *opened) {
    const carry_lm_config *c = &pass->lm->config;
    const size_t attention = ((const carry_lm_attention *)opened)->scratch;
    if (pass->options.forward_only || c->attention.qk_norm == CARRY_LM_NO_QK_NORM) {
        return attention;
    }
    const bool by_head = c->attention.qk_norm == CARRY_LM_NORM_HEADS;
    const size_t norm =
        carry_rms_norm_backward_workspace(by_head ? pass->tokens * c->attention.heads : pass->tokens,
                                          by_head ? c->attention.head_dim : c->attention.heads * c->attention.head_dim);
    return attention > norm ? attention : norm;
}

void carry_lm_attention_take_once(const carry_lm_pass *pass, void *opened, carry_arena *arena) {
    carry_lm_attention *o = opened;
    const int64_t half = pass->lm->config.attention.rotary / 2;
    const int64_t shape[] = {pass->tokens, half, 2};
    o->table = o->positions_there = (carry_tensor){0};
    if (half > 0 && pass->lm->own.device != 0) {
        o->table = carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 3, shape);
        o->positions_there = carry_arena_tensor(arena, pass->lm->own.device, CARRY_I64, 1, &pass->tokens);
    } else if (half > 0) {
        o->table = carry_view(o->turns, CARRY_F32, 3, shape);
    }
    o->lengths = o->steps ? carry_arena_tensor(arena, pass->lm->own.device, CARRY_I64, 1, &pass->options.batch)
                          : (carry_tensor){0};
}

static void take(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *rows) {
    const carry_lm_config *c = &pass->lm->config;
    carry_lm_attention_rows *r = rows;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    const int64_t width = c->attention.heads * c->attention.head_dim;
    const int64_t key_width = c->attention.kv_heads * c->attention.head_dim;
    const bool moved = c->attention.qk_norm != CARRY_LM_NO_QK_NORM || c->attention.rotary > 0;
    (void)opened;
    r->both = c->attention.gate ? carry_lm_take(pass, arena, dtype, 2 * width) : absent;
    r->gate = c->attention.gate ? carry_lm_take(pass, arena, dtype, width) : absent;
    r->open = c->attention.gate ? carry_lm_take(pass, arena, dtype, width) : absent;
    r->q_in = carry_lm_take(pass, arena, dtype, width);
    r->k_in = carry_lm_take(pass, arena, dtype, key_width);
    r->q = moved ? carry_lm_take(pass, arena, dtype, width) : r->q_in;
    r->k = moved ? carry_lm_take(pass, arena, dtype, key_width) : r->k_in;
    r->v = carry_lm_take(pass, arena, dtype, key_width);
    r->o = carry_lm_take(pass, arena, dtype, width);
    r->y = c->attention.gate ? carry_lm_take(pass, arena, dtype, width) : r->o;
    r->lse = pass->options.forward_only ? absent : carry_lm_take(pass, arena, CARRY_F32, c->attention.heads);
}

static void take_back(const carry_lm_pass *pass, void *opened, carry_arena *arena, void *given) {
    const carry_lm_config *c = &pass->lm->config;
    carry_lm_attention_back *back = given;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    const int64_t width = c->attention.heads * c->attention.head_dim;
    const int64_t key_width = c->attention.kv_heads * c->attention.head_dim;
    (void)opened;
    back->dy = carry_lm_take(pass, arena, dtype, width);
    back->d_o = c->attention.gate ? carry_lm_take(pass, arena, dtype, width) : back->dy;
    back->dgate = c->attention.gate ? carry_lm_take(pass, arena, dtype, width) : absent;
    back->dboth = c->attention.gate ? carry_lm_take(pass, arena, dtype, 2 * width) : absent;
    back->dq = carry_lm_take(pass, arena, dtype, width);
    back->dk = carry_lm_take(pass, arena, dtype, key_width);
    back->dv = carry_lm_take(pass, arena, dtype, key_width);
    back->dq_in = carry_lm_take(pass, arena, dtype, width);
    back->dk_in = carry_lm_take(pass, arena, dtype, key_width);
}

/* The cosines and sines of one position. */
static void turn(const carry_lm_attention *o, int64_t position, int64_t half, float *to) {
    for (int64_t j = 0; j < half; j++) {
        const float angle = (float)position * o->rates[j];
        to[2 * j] = (float)cos((double)angle);
        to[2 * j + 1] = (float)sin((double)angle);
    }
}

carry_status carry_lm_attention_begin(carry_lm_pass *pass, void *opened, const carry_lm_args *args) {
    const carry_lm_attention *o = opened;
    const int64_t half = pass->lm->config.attention.rotary / 2;
    int64_t first;
    int64_t count;
    if (args->places != NULL) {
        return half > 0 ? carry_rotary_turns(pass->ctx, o->table, args->places->there.positions, o->rates_there)
                        : CARRY_OK;
    }
    for (int64_t i = 0; half > 0 && carry_lm_attention_document(pass, args, i, &first, &count); i++) {
        const int64_t past = args->state != NULL ? args->state->length[i] : 0;
        for (int64_t t = 0; t < count; t++) {
            if (o->positions != NULL) {
                o->positions[first + t] = past + t;
            } else {
                turn(o, past + t, half, o->turns + (first + t) * half * 2);
            }
        }
    }
    if (o->steps && args->state != NULL) {
        CARRY_TRY(
            carry_copy(pass->ctx, o->lengths, carry_view(args->state->length, CARRY_I64, 1, &pass->options.batch)));
    }
    if (o->positions == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_copy(pass->ctx, o->positions_there, carry_view_1d(o->positions, CARRY_I64, pass->tokens)));
    return carry_rotary_turns(pass->ctx, o->table, o->positions_there.data, o->rates_there);
}

/* to = norm(from), with rotary positions. */
static carry_status prepare(const carry_lm_call *call, int slot, carry_tensor to, carry_tensor from) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention *o = call->opened;
    const carry_tensor w = carry_lm_w(call, slot);
    if (w.data != NULL) {
        CARRY_TRY(
            carry_lm_norm(pass, carry_lm_attention_norm_rows(pass, to), carry_lm_attention_norm_rows(pass, from), w));
        from = to;
    }
    return o->table.data != NULL ? carry_rotary_halves(pass->ctx, carry_lm_attention_heads(pass, to),
                                                       carry_lm_attention_heads(pass, from), o->table, false)
                                 : CARRY_OK;
}

/* Appends the keys and values of a sequence to those in its state, and makes all of them the input of attention. */
static carry_status extend(const carry_lm_call *call, int64_t sequence, carry_attention_args *attention) {
    carry_lm_state *state = call->args->state;
    const int64_t past = state->length[sequence];
    const int64_t count = attention->k.shape[0];
    carry_tensor *given[] = {&attention->k, &attention->v};
    for (int i = 0; i < 2; i++) {
        const carry_tensor *part = &state->part[call->layer][state->part[call->layer][1].data != NULL ? i : 0];
        const int64_t room = part->shape[1];
        const carry_tensor all = carry_reshape_3d(*part, part->shape[0] * room, part->shape[2], part->shape[3]);
        CARRY_TRY(carry_copy(call->pass->ctx, carry_slice(all, sequence * room + past, count), *given[i]));
        *given[i] = carry_slice(all, sequence * room, past + count);
    }
    return CARRY_OK;
}

static carry_status attend_step(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention_rows *r = call->rows;
    carry_attention_step_args step = step_of(pass->lm, pass->options.batch, pass->options.dtype);
    step.o = carry_lm_attention_heads(pass, r->o);
    step.q = carry_lm_attention_heads(pass, r->q);
    step.k = carry_lm_attention_heads(pass, r->k);
    step.v = carry_lm_attention_heads(pass, r->v);
    step.keys = call->args->state->part[call->layer][0];
    step.values = call->args->state->part[call->layer][1];
    step.lengths = ((const carry_lm_attention *)call->opened)->lengths;
    return carry_attention_step(pass->ctx, &step, pass->scratch, pass->scratch_bytes);
}

/* One query at a time: the sums of a query depend on the other queries of its block. */
static carry_status attend_each(const carry_lm_pass *pass, const carry_attention_args *all) {
    const int64_t past = all->k.shape[0] - all->q.shape[0];
    for (int64_t t = 0; t < all->q.shape[0]; t++) {
        carry_attention_args one = *all;
        one.o = carry_slice(all->o, t, 1);
        one.q = carry_slice(all->q, t, 1);
        one.k = carry_slice(all->k, 0, past + t + 1);
        one.v = carry_slice(all->v, 0, past + t + 1);
        CARRY_TRY(carry_attention(pass->ctx, &one, pass->scratch, pass->scratch_bytes));
    }
    return CARRY_OK;
}

carry_status carry_lm_attend(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention_rows *r = call->rows;
    int64_t first;
    int64_t count;
    if (call->args->places != NULL) {
        return carry_lm_attend_pooled(call);
    }
    if (((const carry_lm_attention *)call->opened)->steps && call->args->state != NULL) {
        return attend_step(call);
    }
    for (int64_t i = 0; carry_lm_attention_document(pass, call->args, i, &first, &count); i++) {
        carry_attention_args attention = carry_lm_attention_args(pass, r, first, count);
        if (count == 0) {
            continue;
        }
        if (call->args->state != NULL) {
            CARRY_TRY(extend(call, i, &attention));
        }
        CARRY_TRY(pass->options.same_bits ? attend_each(pass, &attention)
                                          : carry_attention(pass->ctx, &attention, pass->scratch, pass->scratch_bytes));
    }
    return CARRY_OK;
}

static carry_status forward(const carry_lm_call *call) {
    carry_lm_pass *pass = call->pass;
    carry_ctx *ctx = pass->ctx;
    const carry_lm_attention_rows *r = call->rows;
    const int64_t D = pass->lm->config.attention.head_dim;
    const int64_t heads = pass->tokens * pass->lm->config.attention.heads;
    const bool gate = r->gate.data != NULL;
    CARRY_TRY(carry_lm_project(call, CARRY_LM_ATTENTION_Q, gate ? r->both : r->q_in, call->x));
    CARRY_TRY(carry_lm_project(call, CARRY_LM_ATTENTION_K, r->k_in, call->x));
    CARRY_TRY(carry_lm_project(call, CARRY_LM_ATTENTION_V, r->v, call->x));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_ATTENTION_Q_BIAS, gate ? r->both : r->q_in));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_ATTENTION_K_BIAS, r->k_in));
    CARRY_TRY(carry_lm_add_bias(call, CARRY_LM_ATTENTION_V_BIAS, r->v));
    if (gate) {
        const carry_tensor both = carry_reshape_2d(r->both, heads, 2 * D);
        CARRY_TRY(carry_copy_columns(ctx, carry_reshape_2d(r->q_in, heads, D), 0, both, 0, D));
        CARRY_TRY(carry_copy_columns(ctx, carry_reshape_2d(r->gate, heads, D), 0, both, D, D));
    }
    CARRY_TRY(prepare(call, CARRY_LM_ATTENTION_Q_NORM, r->q, r->q_in));
    CARRY_TRY(prepare(call, CARRY_LM_ATTENTION_K_NORM, r->k, r->k_in));
    CARRY_TRY(carry_lm_attend(call));
    if (call->count == 0) {
        return CARRY_OK;
    }
    if (gate) {
        CARRY_TRY(carry_activate(ctx, r->open, r->gate, CARRY_SIGMOID));
        CARRY_TRY(carry_elementwise(ctx, r->y, r->o, r->open, CARRY_MULTIPLY));
    }
    CARRY_TRY(carry_lm_project_out(call, CARRY_LM_ATTENTION_O, r->y));
    return carry_lm_add_bias_out(call, CARRY_LM_ATTENTION_O_BIAS);
}

const carry_lm_part carry_lm_mixer_attention = {
    .name = "attention",
    .about = "softmax attention with grouped heads",
    .check = carry_lm_attention_check,
    .slots = CARRY_LM_ATTENTION_SLOTS,
    .names = carry_lm_attention_names,
    .describe = carry_lm_attention_describe,
    .state = carry_lm_attention_state,
    .open = carry_lm_attention_open,
    .close = carry_lm_attention_close,
    .plan = plan_line,
    .scratch = scratch,
    .rows_size = sizeof(carry_lm_attention_rows),
    .back_size = sizeof(carry_lm_attention_back),
    .take = take,
    .take_back = take_back,
    .take_once = carry_lm_attention_take_once,
    .begin = carry_lm_attention_begin,
    .forward = forward,
    .backward = carry_lm_attention_backward,
};
