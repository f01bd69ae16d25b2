/* Builds the list of kernels for a decoding step. */
#include "engine/chain.h"

#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "engine/decode_model.h"
#include "model/lm/feedforward/experts.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"
#include "ops/pool.h"

#define OPS_OF_LAYER 12 /* maximum: each of six maps may need its own product */

struct carry_chain {
    carry_lm *lm;
    carry_lm_state *pool;
    const carry_chain_device *device;
    int ordinal;
    carry_chain_lists lists;
    bool same_bits;
    carry_chain_op *ops;
    int count;
    bool head;      /* the last operation computes the logits */
    bool has_tiles; /* matrices are quantised */
    void *memory;   /* on the device: all arrays below, for CARRY_CHAIN_SEQUENCES sequences */
    float *h, *part, *rates, *weights;
    int32_t *numbers;
    carry_tensor low, maps, mixed, activated, x; /* [CARRY_CHAIN_SEQUENCES, width], bf16 */
};

static carry_chain_op *add(carry_chain *c, carry_chain_kind kind) {
    carry_chain_op *op = &c->ops[c->count++];
    *op = (carry_chain_op){.kind = kind};
    return op;
}

static carry_chain_product *add_product(carry_chain *c, carry_tensor W, int64_t rows, const carry_tensor *x,
                                        const carry_tensor *y, carry_chain_output output) {
    carry_chain_product *p = &add(c, CARRY_CHAIN_PRODUCT)->as.product;
    *p = (carry_chain_product){.W = W.data,
                               .x = x->data,
                               .y = y->data,
                               .h = c->h,
                               .rows = (int)rows,
                               .columns = (int)W.shape[1],
                               .x_stride = (int)W.shape[1],
                               .y_stride = (int)y->shape[1],
                               .output = output};
    return p;
}

static void add_norm(const carry_chain *c, carry_chain_product *p, int64_t norm) {
    const carry_lm_config *config = &c->lm->config;
    p->norm = carry_lm_weight(c->lm, norm).data;
    p->plus = config->norm_plus_one ? 1.0f : 0.0f;
    p->eps = (float)config->norm_eps;
}

/* Adds a product with matrices quantised in the same format; its results start at column y_at. */
static carry_tile_product *add_tiles(carry_chain *c, const carry_tensor *W, int count, const carry_tensor *x,
                                     const carry_tensor *y, int64_t y_at, carry_tile_output output) {
    carry_quant_tiles layout;
    carry_tile_product *p = &add(c, CARRY_CHAIN_TILES)->as.tiles;
    *p = (carry_tile_product){.count = count,
                              .x = x->data,
                              .y = y->data,
                              .h = output == CARRY_TILE_ADD ? c->h : NULL,
                              .x_stride = x->shape[1],
                              .y_stride = y->shape[1],
                              .output = output};
    for (int i = 0; i < count; i++) {
        p->maps[i] = (carry_tile_map){.tiles = W[i].data, .rows = (int)W[i].shape[0], .y_at = (int)y_at};
        y_at += W[i].shape[0];
    }
    (void)carry_quant_tiles_of_tensor(&layout, &W[0]); /* carry_decode_supports has checked it */
    carry_tile_product_finish(p, &layout);
    c->has_tiles = true;
    return p;
}

static void add_tile_norm(const carry_chain *c, carry_tile_product *p, int64_t norm) {
    const carry_lm_config *config = &c->lm->config;
    p->norm = carry_lm_weight(c->lm, norm).data;
    p->plus = config->norm_plus_one ? 1.0f : 0.0f;
    p->eps = (float)config->norm_eps;
}

static bool is_quantised(const carry_tensor *W) {
    return W->dtype == CARRY_QUANTISED;
}

/* True if matrices a and b can be in one product: they are quantised in the same format, or b follows a in memory. */
static bool goes_on(const carry_tensor *a, const carry_tensor *b) {
    return is_quantised(a) || is_quantised(b)
               ? is_quantised(a) && is_quantised(b) && a->stride[1] == b->stride[1]
               : b->data == (unsigned char *)a->data + (size_t)(a->shape[0] * a->shape[1]) * carry_dtype_size(a->dtype);
}

/* Adds the products of these slots' matrices with a norm, as few as possible. starts: the first column of each result.
   False if a matrix is absent. */
static bool add_maps(carry_chain *c, const carry_lm_sublayer *own, const int *slots, int *starts) {
    carry_tensor W[CARRY_TILE_PRODUCT_MAPS];
    int64_t columns = 0;
    int count = 0;
    for (; slots[count] >= 0; count++) {
        W[count] = carry_decode_matrix(c->lm, own, slots[count]);
        starts[count] = (int)columns;
        columns += W[count].data != NULL ? W[count].shape[0] : 0;
        if (W[count].data == NULL) {
            return false;
        }
    }
    for (int first = 0, next; first < count; first = next) {
        int64_t rows = W[first].shape[0];
        for (next = first + 1; next < count && goes_on(&W[next - 1], &W[next]); next++) {
            rows += W[next].shape[0];
        }
        if (is_quantised(&W[first])) {
            add_tile_norm(c, add_tiles(c, W + first, next - first, &c->low, &c->maps, starts[first], CARRY_TILE_STORE),
                          own->norm);
            continue;
        }
        carry_chain_product *p = add_product(c, W[first], rows, &c->low, &c->maps, CARRY_CHAIN_STORE);
        p->y = (uint16_t *)p->y + starts[first];
        add_norm(c, p, own->norm);
    }
    return true;
}

static void add_out(carry_chain *c, const carry_lm_sublayer *own, int slot, const carry_tensor *x) {
    const carry_tensor W = carry_decode_matrix(c->lm, own, slot);
    if (is_quantised(&W)) {
        (void)add_tiles(c, &W, 1, x, &c->low, 0, CARRY_TILE_ADD);
    } else {
        (void)add_product(c, W, W.shape[0], x, &c->low, CARRY_CHAIN_ADD);
    }
}

static bool add_delta(carry_chain *c, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {
        CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_G_PROJ, CARRY_LM_A_PROJ, CARRY_LM_B_PROJ, -1};
    const carry_lm *lm = c->lm;
    const carry_lm_config *config = &lm->config;
    int at[6];
    if (!add_maps(c, own, slots, at)) {
        return false;
    }
    add(c, CARRY_CHAIN_DELTA)->as.delta = (carry_chain_delta){
        .in = c->maps.data,
        .in_stride = (int)c->maps.shape[1],
        .q = at[0],
        .k = at[1],
        .v = at[2],
        .z = at[3],
        .a = at[4],
        .b = at[5],
        .heads = (int)config->delta.heads,
        .value_heads = (int)config->delta.value_heads,
        .taps = (int)config->delta.conv_size,
        .wq = carry_decode_wide(lm, own, CARRY_LM_Q_CONV),
        .wk = carry_decode_wide(lm, own, CARRY_LM_K_CONV),
        .wv = carry_decode_wide(lm, own, CARRY_LM_V_CONV),
        .tail = {state[0].data, state[1].data, state[2].data},
        .state = state[3].data,
        .A_log = carry_decode_wide(lm, own, CARRY_LM_A_LOG),
        .dt_bias = carry_decode_wide(lm, own, CARRY_LM_DT_BIAS),
        .norm = carry_decode_wide(lm, own, CARRY_LM_O_NORM),
        .beta_factor = config->delta.allow_neg_eigval ? 2.0f : 1.0f,
        .scale = 1.0f / sqrtf((float)CARRY_CHAIN_KEY),
        .eps = (float)config->delta.norm_eps,
        .y = c->mixed.data,
    };
    add_out(c, own, CARRY_LM_O_PROJ, &c->mixed);
    return true;
}

static bool add_attention(carry_chain *c, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {CARRY_LM_ATTENTION_Q, CARRY_LM_ATTENTION_K, CARRY_LM_ATTENTION_V, -1};
    const carry_lm *lm = c->lm;
    const carry_lm_config *config = &lm->config;
    const int width = (int)config->attention.head_dim;
    int at[3];
    if (!add_maps(c, own, slots, at)) {
        return false;
    }
    carry_chain_op *op = add(c, CARRY_CHAIN_ATTEND);
    op->as.attend = (carry_chain_attend){
        .in = c->maps.data,
        .in_stride = (int)c->maps.shape[1],
        .q = at[0],
        .q_head = config->attention.gate ? 2 * width : width,
        .k = at[1],
        .v = at[2],
        .gate = config->attention.gate ? at[0] + width : -1,
        .heads = (int)config->attention.heads,
        .key_heads = (int)config->attention.kv_heads,
        .width = width,
        .rotary = (int)config->attention.rotary,
        .rates = c->rates,
        .q_norm = carry_decode_wide(lm, own, CARRY_LM_ATTENTION_Q_NORM),
        .k_norm = carry_decode_wide(lm, own, CARRY_LM_ATTENTION_K_NORM),
        .plus = config->norm_plus_one ? 1.0f : 0.0f,
        .eps = (float)config->norm_eps,
        .scale = 1.0f / sqrtf((float)width),
        .keys = state[0].data,
        .values = state[1].data,
        .part = c->part,
        .y = c->mixed.data,
    };
    add(c, CARRY_CHAIN_COMBINE)->as.attend = op->as.attend;
    add_out(c, own, CARRY_LM_ATTENTION_O, &c->mixed);
    return true;
}

static bool add_swiglu(carry_chain *c, const carry_lm_sublayer *own) {
    const carry_tensor W[] = {carry_decode_matrix(c->lm, own, CARRY_LM_SWIGLU_GATE),
                              carry_decode_matrix(c->lm, own, CARRY_LM_SWIGLU_UP)};
    if (W[0].dtype != W[1].dtype || (is_quantised(&W[0]) && W[0].stride[1] != W[1].stride[1])) {
        return false;
    }
    if (is_quantised(&W[0])) {
        add_tile_norm(c, add_tiles(c, W, 2, &c->low, &c->activated, 0, CARRY_TILE_SWIGLU), own->norm);
    } else {
        carry_chain_product *p = add_product(c, W[0], W[0].shape[0], &c->low, &c->activated, CARRY_CHAIN_SWIGLU);
        p->up = W[1].data;
        add_norm(c, p, own->norm);
    }
    add_out(c, own, CARRY_LM_SWIGLU_DOWN, &c->activated);
    return true;
}

static void add_embed(carry_chain *c) {
    const carry_lm *lm = c->lm;
    const carry_tensor table = carry_parameters_product(&lm->own, lm->embeddings);
    carry_chain_embed *e = &add(c, CARRY_CHAIN_EMBED)->as.embed;
    *e = (carry_chain_embed){.table = table.data, .h = c->h, .low = c->low.data, .width = (int)lm->config.hidden_size};
    e->is_quantised = is_quantised(&table) && carry_quant_tiles_of_tensor(&e->layout, &table);
}

/* Adds the norm and the logits; each step sets the address of the logits. */
static void add_head(carry_chain *c) {
    const carry_lm *lm = c->lm;
    const carry_tensor W = carry_parameters_product(&lm->own, lm->head);
    const carry_tensor logits = {.shape = {0, W.shape[0]}};
    if (is_quantised(&W)) {
        add_tile_norm(c, add_tiles(c, &W, 1, &c->low, &logits, 0, CARRY_TILE_STORE), lm->norm);
    } else {
        add_norm(c, add_product(c, W, W.shape[0], &c->low, &logits, CARRY_CHAIN_STORE), lm->norm);
    }
}

static void add_experts(carry_chain *c, const carry_lm_sublayer *own) {
    const carry_lm_config *config = &c->lm->config;
    const carry_lm_experts_options *e = &config->experts;
    const carry_tensor router = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_ROUTER);
    add_norm(c, add_product(c, router, router.shape[0], &c->low, &c->maps, CARRY_CHAIN_STORE), own->norm);
    carry_chain_op *op = add(c, CARRY_CHAIN_EXPERTS_UP);
    op->as.experts = (carry_chain_experts){
        .logits = c->maps.data,
        .up = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_UP).data,
        .down = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_DOWN).data,
        .shared_gate = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_SHARED_GATE).data,
        .shared_up = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_SHARED_UP).data,
        .shared_down = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_SHARED_DOWN).data,
        .shared_scale = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_SHARED_SCALE).data,
        .norm = carry_lm_weight(c->lm, own->norm).data,
        .plus = config->norm_plus_one ? 1.0f : 0.0f,
        .eps = (float)config->norm_eps,
        .scale = e->router.scale,
        .h = c->h,
        .low = c->low.data,
        .activated = c->activated.data,
        .numbers = c->numbers,
        .weights = c->weights,
        .experts = (int)e->count,
        .chosen = (int)e->chosen,
        .width = (int)e->width,
        .shared_width = (int)e->shared_width,
        .columns = (int)config->hidden_size,
        .logits_stride = (int)c->maps.shape[1],
        .activated_stride = (int)c->activated.shape[1],
        .normalise = e->router.normalise,
    };
    add(c, CARRY_CHAIN_EXPERTS_DOWN)->as.experts = op->as.experts;
}

/* Builds the list; false if the kernels do not support the layout of the matrices. */
static bool make_list(carry_chain *c) {
    const carry_lm *lm = c->lm;
    const carry_lm_config *config = &lm->config;
    const carry_tensor head = carry_parameters_product(&lm->own, lm->head);
    bool fits = true;
    c->count = 0;
    add_embed(c);
    for (int64_t i = 0; fits && i < config->num_hidden_layers; i++) {
        const carry_lm_layer *layer = &lm->layer[i];
        const int first = c->count;
        fits = layer->mixer.part == &carry_lm_mixer_delta ? add_delta(c, &layer->mixer, c->pool->part[i])
                                                          : add_attention(c, &layer->mixer, c->pool->part[i]);
        for (int j = first; j < c->count; j++) {
            c->ops[j].layer = (int)i;
        }
        if (layer->feedforward.part == &carry_lm_feedforward_experts) {
            add_experts(c, &layer->feedforward);
        } else {
            fits = fits && add_swiglu(c, &layer->feedforward);
        }
    }
    c->head = c->same_bits || is_quantised(&head);
    if (c->head) {
        add_head(c);
        return fits;
    }
    add(c, CARRY_CHAIN_NORM)->as.norm = (carry_chain_norm){.h = c->h,
                                                           .norm = carry_lm_weight(lm, lm->norm).data,
                                                           .plus = config->norm_plus_one ? 1.0f : 0.0f,
                                                           .eps = (float)config->norm_eps,
                                                           .x = c->x.data,
                                                           .width = (int)config->hidden_size};
    return fits;
}

static carry_tensor take(const carry_chain *c, carry_arena *arena, int64_t width) {
    const int64_t shape[] = {CARRY_CHAIN_SEQUENCES, (width + 7) / 8 * 8};
    return carry_arena_tensor(arena, c->lm->own.device, CARRY_BF16, 2, shape);
}

static void place(carry_chain *c, carry_arena *arena) {
    const carry_lm_config *o = &c->lm->config;
    const int64_t delta = 2 * o->delta.key_width + 2 * o->delta.value_width + 2 * o->delta.value_heads;
    const int64_t heads = o->attention.heads * o->attention.head_dim;
    const int64_t attention = 2 * heads + 2 * o->attention.kv_heads * o->attention.head_dim;
    const int64_t maps = delta > attention ? delta : attention;
    const int64_t experts = o->experts.chosen * o->experts.width + o->experts.shared_width;
    const size_t rows = CARRY_CHAIN_SEQUENCES;
    c->low = take(c, arena, o->hidden_size);
    c->x = take(c, arena, o->hidden_size);
    c->maps = take(c, arena, o->experts.count > maps ? o->experts.count : maps);
    c->mixed = take(c, arena, heads > o->delta.value_width ? heads : o->delta.value_width);
    c->activated = take(c, arena, experts > o->swiglu.width ? experts : o->swiglu.width);
    c->h = carry_arena_take(arena, rows * (size_t)o->hidden_size, sizeof *c->h);
    c->part = carry_arena_take(
        arena, rows * (size_t)(o->attention.heads * CARRY_CHAIN_SPLITS * (o->attention.head_dim + 2)), sizeof *c->part);
    c->numbers = carry_arena_take(arena, rows * CARRY_CHAIN_CHOSEN_MOST, sizeof *c->numbers);
    c->weights = carry_arena_take(arena, rows * (CARRY_CHAIN_CHOSEN_MOST + 1), sizeof *c->weights);
    c->rates = carry_arena_take(arena, (size_t)o->attention.rotary / 2 + 1, sizeof *c->rates);
}

static carry_status open_memory(carry_chain *c) {
    carry_ctx *ctx = c->lm->ctx;
    const int device = c->lm->own.device;
    carry_arena count = carry_arena_over(NULL, 0);
    size_t bytes;
    place(c, &count);
    c->ops = calloc((size_t)c->lm->config.num_hidden_layers * OPS_OF_LAYER + 2, sizeof *c->ops);
    if (c->ops == NULL || !carry_arena_total(&count, &bytes)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the kernels of a step");
    }
    CARRY_TRY(carry_device_alloc(ctx, &c->memory, device, bytes));
    carry_arena arena = carry_arena_over(c->memory, bytes);
    place(c, &arena);
    CARRY_TRY(carry_device_fill(ctx, c->memory, device, 0, bytes, NULL));
    CARRY_TRY(carry_decode_put_rates(c->lm, c->rates));
    return carry_stream_wait(ctx, device, NULL);
}

void carry_chain_close(carry_chain *c) {
    if (c != NULL) {
        carry_device_free(c->lm->ctx, c->lm->own.device, c->memory);
        free(c->ops);
        free(c);
    }
}

carry_status carry_chain_open(carry_chain **made, carry_lm *lm, carry_lm_state *pool,
                              const carry_chain_options *options) {
    int ordinal = 0;
    int64_t columns;
    *made = NULL;
    const carry_chain_device *device = carry_chain_device_of(lm->own.device, &ordinal);
    const carry_decode_needs needs = {.group = CARRY_CHAIN_GROUP, .rows = 1, .experts = true, .quantised = true};
    if (device == NULL || !carry_decode_supports(lm, &needs, &columns)) {
        return CARRY_OK;
    }
    carry_chain *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: the kernels of a step");
    }
    *c = (carry_chain){.lm = lm, .pool = pool, .device = device, .ordinal = ordinal};
    c->lists = options->lists;
    c->same_bits = options->same_bits;
    if (c->lists.sequences > CARRY_CHAIN_SEQUENCES) {
        c->lists.sequences = CARRY_CHAIN_SEQUENCES;
    }
    const carry_status status = open_memory(c);
    /* With quantised matrices the order of sums depends on the number of sequences. */
    if (status != CARRY_OK || !make_list(c) || (c->has_tiles && c->same_bits)) {
        carry_chain_close(c);
        return status;
    }
    *made = c;
    return CARRY_OK;
}

int64_t carry_chain_sequences(const carry_chain *c) {
    return c->lists.sequences;
}

/* Copies the states of `count` sequences, from those starting at index `from` to those starting at `to`. */
static carry_status follow(const carry_chain *c, int layer, int64_t to, int64_t from, int64_t count) {
    for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
        const carry_tensor *states = &c->pool->part[layer][i];
        const carry_lm_state_part *about = &c->pool->about[layer][i];
        if (states->data == NULL || about->grows) {
            continue;
        }
        const int64_t slots = states->shape[0];
        const int64_t slices = about->slices > 0 ? about->slices : 1;
        const carry_tensor rows =
            carry_reshape_2d(*states, slices * slots, carry_tensor_count(states) / slots / slices);
        for (int64_t j = 0; j < slices; j++) {
            CARRY_TRY(carry_copy_slots(c->lm->ctx, carry_slice(rows, j * slots, slots), c->lists.slots + to,
                                       c->lists.slots + from, count));
        }
    }
    return CARRY_OK;
}

/* The same operation for the sequences from `first` on. */
static carry_chain_op from_row(const carry_chain_op *op, int64_t first) {
    carry_chain_op part = *op;
    if (op->kind == CARRY_CHAIN_DELTA) {
        carry_chain_delta *d = &part.as.delta;
        d->in = (const uint16_t *)d->in + first * d->in_stride;
        d->y = (uint16_t *)d->y + first * d->value_heads * CARRY_CHAIN_KEY;
    } else {
        carry_chain_attend *a = &part.as.attend;
        a->in = (const uint16_t *)a->in + first * a->in_stride;
        a->part += first * a->heads * CARRY_CHAIN_SPLITS * (a->width + 2);
        a->y = (uint16_t *)a->y + first * a->heads * a->width;
    }
    return part;
}

/* Runs an operation on states wave by wave. A later wave loads states or keys that the wave before it writes, so it
   must not start early. */
static carry_status run_waves(carry_chain *c, const carry_chain_op *op, const int64_t *wave, int64_t waves) {
    carry_lm *lm = c->lm;
    carry_stream *stream = carry_ctx_stream(lm->ctx, lm->own.device);
    for (int64_t i = 0; i < waves; i++) {
        const int64_t first = wave[i];
        const int64_t count = wave[i + 1] - first;
        const carry_chain_op part = from_row(op, first);
        carry_chain_lists lists = c->lists;
        lists.slots += first;
        lists.offsets += first;
        lists.lengths += first;
        lists.ids += first;
        lists.sequences = (int)count;
        if (i > 0 && op->kind == CARRY_CHAIN_DELTA) {
            CARRY_TRY(follow(c, op->layer, first, wave[i - 1], count));
        }
        CARRY_TRY(c->device->launch(lm->ctx, c->ordinal, stream, &part, &lists, i == 0));
    }
    return CARRY_OK;
}

carry_status carry_chain_run(carry_chain *c, carry_tensor logits, int64_t sequences, const int64_t *wave,
                             int64_t waves) {
    carry_lm *lm = c->lm;
    carry_stream *stream = carry_ctx_stream(lm->ctx, lm->own.device);
    carry_chain_lists lists = c->lists;
    if (sequences < 1 || sequences > c->lists.sequences) {
        return carry_fail(lm->ctx, CARRY_EARGUMENT, "a step of %lld sequences: at most %d are possible",
                          (long long)sequences, c->lists.sequences);
    }
    lists.sequences = (int)sequences;
    carry_chain_op *last = &c->ops[c->count - 1];
    if (c->head && last->kind == CARRY_CHAIN_TILES) {
        last->as.tiles.y = logits.data;
        last->as.tiles.y_stride = logits.stride[0];
    } else if (c->head) {
        last->as.product.y = logits.data;
        last->as.product.y_stride = (int)logits.stride[0];
    }
    for (int i = 0; i < c->count; i++) {
        const carry_chain_op *op = &c->ops[i];
        const bool in_waves = waves > 1 && (op->kind == CARRY_CHAIN_DELTA || op->kind == CARRY_CHAIN_ATTEND);
        CARRY_TRY(in_waves ? run_waves(c, op, wave, waves)
                           : c->device->launch(lm->ctx, c->ordinal, stream, op, &lists, i > 0));
    }
    return c->head ? CARRY_OK
                   : carry_linear(lm->ctx, logits, carry_slice(c->x, 0, sequences),
                                  carry_parameters_product(&lm->own, lm->head), false);
}
