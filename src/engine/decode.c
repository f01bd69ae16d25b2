/* The list of operations that make a step of a model. */
#include "engine/decode.h"

#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "engine/decode_ops.h"
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"

#define KEY 128               /* of a head of the delta rule */
#define OPS_OF_LAYER 6        /* at most */
#define CAPACITY_UNKNOWN (-1) /* of the caches: the list was not made yet */
#define ALIGNMENT ((size_t)256)

struct carry_decode {
    carry_lm *lm;
    carry_lm_state *state;
    carry_tensor ids, logits;
    const carry_decode_device *device;
    int ordinal, blocks, slots, columns, splits;
    carry_decode_op *op; /* in host memory */
    int count, next_block;
    int64_t capacity; /* of the caches that the list points to */
    void *memory;     /* on the device: all that follows */
    carry_decode_op *ops;
    unsigned *done, epoch;
    int64_t *lengths;
    float *h, *maps, *mixed, *activated, *part, *rates;
    int maps_width;
};

static carry_tensor rows_of(carry_tensor whole, const carry_lm_slot *slot) {
    return slot->rows > 0 ? carry_slice(whole, slot->first, slot->rows) : whole;
}

/* A parameter in f32, and a matrix in bf16. */
static const float *wide(const carry_decode *d, const carry_lm_sublayer *own, int slot) {
    const carry_lm_slot *at = &own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_lm_weight(d->lm, at->parameter), at).data : NULL;
}

static carry_tensor matrix(const carry_decode *d, const carry_lm_sublayer *own, int slot) {
    const carry_lm_slot *at = &own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_parameters_product(&d->lm->own, at->parameter), at) : (carry_tensor){0};
}

/* The next operation of the list. Its first piece of work goes to the block after the last of the one before, so that
   all blocks copy the same share of the weights. */
static carry_decode_op *add(carry_decode *d, carry_decode_kind kind, int64_t tiles) {
    carry_decode_op *op = &d->op[d->count++];
    *op = (carry_decode_op){.kind = kind, .tiles = (int)tiles, .first = d->next_block};
    d->next_block = (int)((d->next_block + tiles) % d->blocks);
    return op;
}

static carry_decode_product *add_product(carry_decode *d, int64_t columns, int64_t rows, carry_decode_output output) {
    carry_decode_op *op = add(d, CARRY_DECODE_PRODUCT, rows / CARRY_DECODE_ROWS);
    carry_decode_product *p = &op->as.product;
    *p = (carry_decode_product){.columns = (int)columns, .output = output, .shift = -1};
    p->team = d->device->team(p, op->tiles, d->blocks, d->slots);
    return p;
}

static void add_norm(carry_decode *d, carry_decode_product *p, int64_t norm) {
    const carry_lm_config *c = &d->lm->config;
    p->input = CARRY_DECODE_NORM;
    p->x = d->h;
    p->w = carry_lm_weight(d->lm, norm).data;
    p->plus = c->norm_plus_one ? 1.0f : 0.0f;
    p->eps = (float)c->norm_eps;
}

static void add_segment(carry_decode_product *p, carry_tensor W, float *y, int stride) {
    p->segment[p->segments++] = (carry_decode_segment){.W = W.data, .y = y, .rows = (int)W.shape[0], .stride = stride};
}

/* The products of a part's slots with the norm of h, one beside the other in `maps`; returns where each starts. */
static void add_maps(carry_decode *d, const carry_lm_sublayer *own, const int *slots, int *starts) {
    int64_t rows = 0;
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = matrix(d, own, slots[i]);
        rows += W.data != NULL ? W.shape[0] : 0;
    }
    carry_decode_product *p = add_product(d, d->lm->config.hidden_size, rows, CARRY_DECODE_STORE);
    add_norm(d, p, own->norm);
    int at = 0;
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = matrix(d, own, slots[i]);
        starts[i] = W.data != NULL ? at : -1;
        if (W.data != NULL) {
            add_segment(p, W, d->maps + at, d->maps_width);
            at += (int)W.shape[0];
        }
    }
}

static carry_decode_product *add_out(carry_decode *d, carry_tensor W, const float *x, carry_decode_input input) {
    const int64_t hidden = d->lm->config.hidden_size;
    carry_decode_product *p = add_product(d, W.shape[1], hidden, CARRY_DECODE_ADD);
    p->input = input;
    p->x = x;
    add_segment(p, W, d->h, (int)hidden);
    return p;
}

static void add_delta(carry_decode *d, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {
        CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_G_PROJ, CARRY_LM_A_PROJ, CARRY_LM_B_PROJ, -1};
    const carry_lm_config *c = &d->lm->config;
    int at[6];
    add_maps(d, own, slots, at);
    const int64_t slices = d->state->batch * c->delta.value_heads * (KEY / CARRY_DECODE_SLICE);
    add(d, CARRY_DECODE_DELTA, slices)->as.delta = (carry_decode_delta){
        .in = d->maps,
        .in_stride = d->maps_width,
        .q = at[0],
        .k = at[1],
        .v = at[2],
        .a = at[4],
        .b = at[5],
        .heads = (int)c->delta.heads,
        .value_heads = (int)c->delta.value_heads,
        .taps = (int)c->delta.conv_size,
        .wq = wide(d, own, CARRY_LM_Q_CONV),
        .wk = wide(d, own, CARRY_LM_K_CONV),
        .wv = wide(d, own, CARRY_LM_V_CONV),
        .tail = {state[0].data, state[1].data, state[2].data},
        .state = state[3].data,
        .A_log = wide(d, own, CARRY_LM_A_LOG),
        .dt_bias = wide(d, own, CARRY_LM_DT_BIAS),
        .beta_factor = c->delta.allow_neg_eigval ? 2.0f : 1.0f,
        .scale = 1.0f / sqrtf((float)KEY),
        .o = d->mixed,
    };
    const int delta = d->count - 1;
    carry_decode_product *p = add_out(d, matrix(d, own, CARRY_LM_O_PROJ), d->mixed, CARRY_DECODE_GATED_NORM);
    p->w = wide(d, own, CARRY_LM_O_NORM);
    p->eps = (float)c->delta.norm_eps;
    p->gate = d->maps + at[3];
    p->gate_stride = d->maps_width;
    p->gate_head = KEY;
    p->shift = delta;
}

static void add_attention(carry_decode *d, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {CARRY_LM_ATTENTION_Q, CARRY_LM_ATTENTION_K, CARRY_LM_ATTENTION_V, -1};
    const carry_lm_config *c = &d->lm->config;
    const int width = (int)c->attention.head_dim, q_head = c->attention.gate ? 2 * width : width;
    int at[3];
    add_maps(d, own, slots, at);
    carry_decode_op *op = add(d, CARRY_DECODE_ATTEND, d->state->batch * c->attention.kv_heads * d->splits);
    op->as.attend = (carry_decode_attend){
        .in = d->maps,
        .in_stride = d->maps_width,
        .q = at[0],
        .q_head = q_head,
        .k = at[1],
        .v = at[2],
        .heads = (int)c->attention.heads,
        .key_heads = (int)c->attention.kv_heads,
        .width = width,
        .rotary = (int)c->attention.rotary,
        .rates = d->rates,
        .q_norm = wide(d, own, CARRY_LM_ATTENTION_Q_NORM),
        .k_norm = wide(d, own, CARRY_LM_ATTENTION_K_NORM),
        .plus = c->norm_plus_one ? 1.0f : 0.0f,
        .eps = (float)c->norm_eps,
        .scale = 1.0f / sqrtf((float)width),
        .keys = state[0].data,
        .values = state[1].data,
        .capacity = d->state->room,
        .splits = d->splits,
        .part = d->part,
        .o = d->mixed,
    };
    add(d, CARRY_DECODE_COMBINE, d->state->batch * c->attention.heads)->as.attend = op->as.attend;
    carry_decode_product *p = add_out(d, matrix(d, own, CARRY_LM_ATTENTION_O), d->mixed, CARRY_DECODE_GATED);
    p->gate = c->attention.gate ? d->maps + width : NULL;
    p->gate_stride = d->maps_width;
    p->gate_head = q_head;
    p->head_shift = width == 256 ? 1 : 0;
}

static void add_swiglu(carry_decode *d, const carry_lm_sublayer *own) {
    const carry_lm_config *c = &d->lm->config;
    carry_decode_product *p = add_product(d, c->hidden_size, c->swiglu.width, CARRY_DECODE_SWIGLU);
    add_norm(d, p, own->norm);
    add_segment(p, matrix(d, own, CARRY_LM_SWIGLU_GATE), d->activated, (int)c->swiglu.width);
    add_segment(p, matrix(d, own, CARRY_LM_SWIGLU_UP), d->activated, (int)c->swiglu.width);
    add_out(d, matrix(d, own, CARRY_LM_SWIGLU_DOWN), d->activated, CARRY_DECODE_GATED);
}

/* The whole list, for the caches as they are. */
static carry_status make_list(carry_decode *d) {
    carry_lm *lm = d->lm;
    const carry_lm_config *c = &lm->config;
    d->count = d->next_block = 0;
    add(d, CARRY_DECODE_EMBED, d->blocks)->as.embed = (carry_decode_embed){
        .table = carry_parameters_product(&lm->own, lm->embeddings).data, .h = d->h, .width = (int)c->hidden_size};
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const carry_lm_layer *layer = &lm->layer[i];
        if (layer->mixer.part == &carry_lm_mixer_delta) {
            add_delta(d, &layer->mixer, d->state->part[i]);
        } else {
            add_attention(d, &layer->mixer, d->state->part[i]);
        }
        add_swiglu(d, &layer->feedforward);
    }
    carry_decode_product *p = add_product(d, c->hidden_size, c->vocab_size, CARRY_DECODE_STORE);
    add_norm(d, p, lm->norm);
    add_segment(p, carry_parameters_product(&lm->own, lm->head), d->logits.data, (int)c->vocab_size);
    d->capacity = d->state->room;
    const int device = lm->own.device;
    carry_stream *stream = carry_ctx_stream(lm->ctx, device);
    /* The list is read by steps that were enqueued before. */
    CARRY_TRY(carry_stream_wait(lm->ctx, device, stream));
    CARRY_TRY(carry_device_copy(lm->ctx, d->ops, device, d->op, 0, (size_t)d->count * sizeof *d->op, stream));
    return carry_stream_wait(lm->ctx, device, stream);
}

static bool is_low(carry_tensor W, int64_t columns) {
    return W.data != NULL && W.dtype == CARRY_BF16 && W.rank == 2 && W.shape[1] == columns &&
           W.shape[0] % CARRY_DECODE_ROWS == 0 && columns % KEY == 0 && columns <= 64 * KEY;
}

static bool fits_delta(const carry_decode *d, const carry_lm_sublayer *own) {
    const carry_lm_config *c = &d->lm->config;
    return c->delta.use_delta_rule && c->delta.gated && c->delta.use_gate && c->delta.use_short_conv &&
           c->delta.key == KEY && c->delta.value == KEY && c->delta.conv_size >= 2 && c->delta.conv_size <= 4 &&
           c->delta.value_heads % CARRY_DECODE_ROWS == 0 && is_low(matrix(d, own, CARRY_LM_Q_PROJ), c->hidden_size) &&
           is_low(matrix(d, own, CARRY_LM_O_PROJ), c->delta.value_width);
}

static bool fits_attention(const carry_decode *d, const carry_lm_sublayer *own) {
    const carry_lm_config *c = &d->lm->config;
    const int64_t width = c->attention.head_dim;
    return c->attention.window == 0 && c->attention.scale == 0.0 && c->attention.qk_norm != CARRY_LM_NORM_WIDTH && (width == 128 || width == 256) &&
           c->attention.heads <= CARRY_DECODE_GROUP * c->attention.kv_heads &&
           c->attention.rotary % (width / 16) == 0 && is_low(matrix(d, own, CARRY_LM_ATTENTION_Q), c->hidden_size) &&
           is_low(matrix(d, own, CARRY_LM_ATTENTION_O), c->attention.heads * width);
}

static bool fits(carry_decode *d) {
    const carry_lm *lm = d->lm;
    const carry_lm_config *c = &lm->config;
    int64_t columns = c->swiglu.width > c->hidden_size ? c->swiglu.width : c->hidden_size;
    columns = c->delta.value_width > columns ? c->delta.value_width : columns;
    columns =
        c->attention.heads * c->attention.head_dim > columns ? c->attention.heads * c->attention.head_dim : columns;
    if (c->embedding_factor != 0.0 || c->residual_factor != 0.0 || c->logits_divisor != 0.0 ||
        d->state->batch > CARRY_DECODE_SEQUENCES || columns > 16384 ||
        !is_low(carry_parameters_product(&lm->own, lm->head), c->hidden_size) ||
        !is_low(carry_parameters_product(&lm->own, lm->embeddings), c->hidden_size)) {
        return false;
    }
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const carry_lm_layer *layer = &lm->layer[i];
        const bool mixer = layer->mixer.part == &carry_lm_mixer_delta       ? fits_delta(d, &layer->mixer)
                           : layer->mixer.part == &carry_lm_mixer_attention ? fits_attention(d, &layer->mixer)
                                                                            : false;
        if (!mixer || layer->norms_after || layer->feedforward.part != &carry_lm_feedforward_swiglu ||
            !is_low(matrix(d, &layer->feedforward, CARRY_LM_SWIGLU_GATE), c->hidden_size) ||
            !is_low(matrix(d, &layer->feedforward, CARRY_LM_SWIGLU_DOWN), c->swiglu.width)) {
            return false;
        }
    }
    d->columns = (int)columns;
    /* The order of sums follows from the slots: those that the largest batch has, so that a sequence has the same bits
       in any batch. */
    d->slots = d->device->slots(CARRY_DECODE_SEQUENCES, d->columns);
    return d->slots >= 2;
}

static void *take(unsigned char **at, size_t bytes) {
    void *taken = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return taken;
}

/* All of the step's own memory on the device; over NULL it counts. */
static size_t place(carry_decode *d, void *memory) {
    const carry_lm_config *c = &d->lm->config;
    const size_t batch = (size_t)d->state->batch, number = sizeof(float);
    const int64_t delta_maps = 2 * c->delta.key_width + 2 * c->delta.value_width + 2 * c->delta.value_heads;
    const int64_t attention_maps = (2 * c->attention.heads + 2 * c->attention.kv_heads) * c->attention.head_dim;
    const int64_t wide_heads = c->attention.heads * c->attention.head_dim;
    const size_t most = (size_t)(1 + c->num_hidden_layers * OPS_OF_LAYER + 1);
    unsigned char *at = memory;
    d->maps_width = (int)(delta_maps > attention_maps ? delta_maps : attention_maps);
    d->ops = take(&at, most * sizeof *d->ops);
    d->done = take(&at, most * sizeof *d->done);
    d->lengths = take(&at, batch * sizeof *d->lengths);
    d->rates = take(&at, (size_t)(c->attention.rotary / 2 + 1) * number);
    d->h = take(&at, batch * (size_t)c->hidden_size * number);
    d->maps = take(&at, batch * (size_t)d->maps_width * number);
    d->mixed =
        take(&at, batch * (size_t)(wide_heads > c->delta.value_width ? wide_heads : c->delta.value_width) * number);
    d->activated = take(&at, batch * (size_t)c->swiglu.width * number);
    d->part = take(&at, batch * (size_t)(c->attention.heads * d->splits * (c->attention.head_dim + 2)) * number);
    return (size_t)(at - (unsigned char *)memory);
}

/* Radians a position, as the passes of model/lm round them. */
static carry_status put_rates(carry_decode *d) {
    const carry_lm_config *c = &d->lm->config;
    const int64_t half = c->attention.rotary / 2;
    float *rates = half > 0 ? malloc((size_t)half * sizeof *rates) : NULL;
    if (half == 0) {
        return CARRY_OK;
    }
    if (rates == NULL) {
        return carry_fail(d->lm->ctx, CARRY_EMEMORY, "out of memory: the rates of %lld angles", (long long)half);
    }
    carry_lm_attention_rates(c, rates);
    const carry_status status =
        carry_device_copy(d->lm->ctx, d->rates, d->lm->own.device, rates, 0, (size_t)half * sizeof *rates, NULL);
    free(rates);
    return status;
}

static carry_status open_memory(carry_decode *d) {
    carry_ctx *ctx = d->lm->ctx;
    const carry_lm_config *c = &d->lm->config;
    const int device = d->lm->own.device;
    const int64_t heads = c->attention.kv_heads > 0 ? c->attention.kv_heads : 1;
    d->splits = (int)(d->blocks > heads ? d->blocks / heads : 1); /* of one sequence: see d->slots */
    const size_t bytes = place(d, NULL);
    d->op = calloc((size_t)(2 + c->num_hidden_layers * OPS_OF_LAYER), sizeof *d->op);
    if (d->op == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the operations of a step");
    }
    CARRY_TRY(carry_device_alloc(ctx, &d->memory, device, bytes));
    place(d, d->memory);
    d->capacity = CAPACITY_UNKNOWN;
    CARRY_TRY(carry_device_fill(ctx, d->memory, device, 0, bytes, NULL));
    CARRY_TRY(put_rates(d));
    return carry_stream_wait(ctx, device, NULL);
}

void carry_decode_close(carry_decode *d) {
    if (d != NULL) {
        carry_device_free(d->lm->ctx, d->lm->own.device, d->memory);
        free(d->op);
        free(d);
    }
}

carry_status carry_decode_open(carry_decode **made, carry_lm *lm, carry_lm_state *state, carry_tensor ids,
                               carry_tensor logits) {
    int ordinal = 0;
    *made = NULL;
    const carry_decode_device *device = carry_decode_device_of(lm->own.device, &ordinal);
    if (device == NULL) {
        return CARRY_OK;
    }
    carry_decode *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: the operations of a step");
    }
    *d = (carry_decode){.lm = lm, .state = state, .ids = ids, .logits = logits, .device = device, .ordinal = ordinal};
    d->blocks = device->blocks(ordinal);
    if (!fits(d)) {
        free(d);
        return CARRY_OK;
    }
    const carry_status status = open_memory(d);
    if (status != CARRY_OK) {
        carry_decode_close(d);
        return status;
    }
    *made = d;
    return CARRY_OK;
}

carry_status carry_decode_step(carry_decode *d) {
    carry_lm *lm = d->lm;
    CARRY_TRY(carry_lm_state_reserve(d->state, 1, CARRY_BF16));
    if (d->capacity != d->state->room) {
        CARRY_TRY(make_list(d));
    }
    carry_stream *stream = carry_ctx_stream(lm->ctx, lm->own.device);
    CARRY_TRY(carry_device_copy(lm->ctx, d->lengths, lm->own.device, d->state->length, 0,
                                (size_t)d->state->batch * sizeof *d->state->length, stream));
    const carry_decode_call call = {.ops = d->ops,
                                    .count = d->count,
                                    .sequences = (int)d->state->batch,
                                    .ids = d->ids.data,
                                    .lengths = d->lengths,
                                    .done = d->done,
                                    .epoch = ++d->epoch};
    CARRY_TRY(d->device->launch(lm->ctx, d->ordinal, stream, &call, d->columns));
    carry_lm_state_advance(d->state, 1);
    return CARRY_OK;
}
