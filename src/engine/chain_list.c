/* Lists the kernels of a decoding step: the embeddings, about five for each layer, the last norm or the logits. */
#include <math.h>

#include "core/tensor.h"
#include "engine/chain_inside.h"
#include "engine/decode_model.h"
#include "model/lm/feedforward/experts.h"
#include "model/lm/lm_pass.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"

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
    p->is_second = c->next_is_second;
    c->next_is_second = !c->next_is_second;
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

/* Adds the products of norm(h) with the matrices of these slots. Matrices that can be combined (goes_on) share a
   product. starts: the first column of each result. Returns false if a matrix is absent. */
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
        .is_bf16 = state[3].dtype == CARRY_BF16,
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
        .key_scales = state[0].dtype == CARRY_F8 ? state[2].data : NULL,
        .value_scales = state[0].dtype == CARRY_F8 ? state[3].data : NULL,
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
    const carry_tensor up = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_UP);
    if (is_quantised(&up)) {
        const carry_tensor down = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_DOWN);
        const carry_tensor shared = carry_decode_matrix(c->lm, own, CARRY_LM_EXPERTS_SHARED_DOWN);
        op->as.experts.is_quantised = c->has_tiles = true;
        (void)carry_quant_tiles_of_stack(&op->as.experts.up_tiles, &up); /* carry_decode_supports has checked them */
        (void)carry_quant_tiles_of_stack(&op->as.experts.down_tiles, &down);
        (void)(shared.data != NULL && carry_quant_tiles_of_tensor(&op->as.experts.shared_tiles, &shared));
    }
    carry_chain_op *next = add(c, CARRY_CHAIN_EXPERTS_DOWN);
    next->as.experts = op->as.experts;
}

bool carry_chain_list(carry_chain *c) {
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
