/* Builds the list of operations for a step of a model. */
#include "engine/decode.h"

#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "engine/decode_model.h"
#include "engine/decode_ops.h"
#include "engine/decode_turn.h"
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"

#define KEY CARRY_DECODE_KEY
#define OPS_OF_LAYER 6 /* maximum number of operations */
#define ALIGNMENT ((size_t)256)
#define LAST_TAG 0xf0000000u /* tags restart at 1 before they overflow */

/* The operations for a given number of sequences. */
typedef struct decode_list {
    carry_decode_op *ops; /* on the device; NULL: not made yet */
    int count, splits;
} decode_list;

struct carry_decode {
    carry_lm *lm;
    carry_lm_state *state;
    carry_decode_options options;
    carry_tensor logits;
    const carry_decode_device *device;
    int ordinal, blocks, columns;
    decode_list list[CARRY_DECODE_SEQUENCES + 1];
    int64_t capacity; /* capacity of the caches to which the lists point */
    /* Used while a list is built: */
    carry_decode_op *op; /* in host memory */
    int count, next_block, sequences, slots, splits;
    int h_from;   /* index of the operation that last wrote h */
    void *memory; /* on the device: the lists, and the arrays below */
    size_t word_bytes;
    carry_decode_word *h, *low, *maps, *mixed, *activated, *part; /* h is the start of the memory for words */
    float *rates;
    int maps_width; /* words per sequence */
    uint32_t tag;   /* tag of the next step's first operation */
    carry_decode_turns turns;
};

/* Adds an operation to the list. Its first piece of work goes to the block after the one that gets the last piece of
   the previous operation, so that all blocks copy about equal shares of the weights. */
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
    p->h_from = d->h_from;
    return p;
}

static void add_norm(carry_decode *d, carry_decode_product *p, int64_t norm) {
    const carry_lm_config *c = &d->lm->config;
    p->input = CARRY_DECODE_NORM;
    p->x = d->low;
    p->x_from = d->h_from;
    p->w = carry_lm_weight(d->lm, norm).data;
    p->plus = c->norm_plus_one ? 1.0f : 0.0f;
    p->eps = (float)c->norm_eps;
}

static void add_segment(carry_decode_product *p, carry_tensor W, carry_decode_word *y, int stride) {
    p->segment[p->segments++] = (carry_decode_segment){.W = W.data, .y = y, .rows = (int)W.shape[0], .stride = stride};
}

/* Adds one product of norm(h) with the matrices of a sublayer's slots. The results are adjacent in `maps`. starts[i]:
   the position of the result of slots[i], or -1 if the matrix is absent. */
static void add_maps(carry_decode *d, const carry_lm_sublayer *own, const int *slots, int *starts) {
    int64_t rows = 0;
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_decode_matrix(d->lm, own, slots[i]);
        rows += W.data != NULL ? W.shape[0] : 0;
    }
    carry_decode_product *p = add_product(d, d->lm->config.hidden_size, rows, CARRY_DECODE_STORE);
    add_norm(d, p, own->norm);
    int at = 0;
    for (int i = 0; slots[i] >= 0; i++) {
        const carry_tensor W = carry_decode_matrix(d->lm, own, slots[i]);
        starts[i] = W.data != NULL ? at : -1;
        if (W.data != NULL) {
            add_segment(p, W, d->maps + at / 2, d->maps_width);
            at += (int)W.shape[0];
        }
    }
}

/* Adds h += W x, where the last operation wrote x. */
static carry_decode_product *add_out(carry_decode *d, carry_tensor W, const carry_decode_word *x,
                                     carry_decode_input input) {
    const int64_t hidden = d->lm->config.hidden_size;
    carry_decode_product *p = add_product(d, W.shape[1], hidden, CARRY_DECODE_ADD);
    p->input = input;
    p->x = x;
    p->x_from = d->count - 2;
    p->h = d->h;
    add_segment(p, W, d->low, (int)(hidden / 2));
    d->h_from = d->count - 1;
    return p;
}

/* Adds the delta rule of a layer and returns the index of its operation. */
static int add_delta(carry_decode *d, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {
        CARRY_LM_Q_PROJ, CARRY_LM_K_PROJ, CARRY_LM_V_PROJ, CARRY_LM_G_PROJ, CARRY_LM_A_PROJ, CARRY_LM_B_PROJ, -1};
    const carry_lm_config *c = &d->lm->config;
    int at[6];
    add_maps(d, own, slots, at);
    const int64_t slices = d->sequences * c->delta.value_heads * (KEY / CARRY_DECODE_SLICE);
    add(d, CARRY_DECODE_DELTA, slices)->as.delta = (carry_decode_delta){
        .in = d->maps,
        .from = d->count - 2,
        .in_stride = d->maps_width,
        .q = at[0],
        .k = at[1],
        .v = at[2],
        .a = at[4],
        .b = at[5],
        .heads = (int)c->delta.heads,
        .value_heads = (int)c->delta.value_heads,
        .taps = (int)c->delta.conv_size,
        .wq = carry_decode_wide(d->lm, own, CARRY_LM_Q_CONV),
        .wk = carry_decode_wide(d->lm, own, CARRY_LM_K_CONV),
        .wv = carry_decode_wide(d->lm, own, CARRY_LM_V_CONV),
        .tail = {state[0].data, state[1].data, state[2].data},
        .state = state[3].data,
        .A_log = carry_decode_wide(d->lm, own, CARRY_LM_A_LOG),
        .dt_bias = carry_decode_wide(d->lm, own, CARRY_LM_DT_BIAS),
        .beta_factor = c->delta.allow_neg_eigval ? 2.0f : 1.0f,
        .scale = 1.0f / sqrtf((float)KEY),
        .o = d->mixed,
    };
    const int delta = d->count - 1;
    carry_decode_product *p =
        add_out(d, carry_decode_matrix(d->lm, own, CARRY_LM_O_PROJ), d->mixed, CARRY_DECODE_GATED_NORM);
    p->w = carry_decode_wide(d->lm, own, CARRY_LM_O_NORM);
    p->eps = (float)c->delta.norm_eps;
    p->gate = d->maps + at[3] / 2;
    p->gate_stride = d->maps_width;
    p->gate_head = KEY / 2;
    p->gate_from = delta - 1;
    return delta;
}

static void add_attention(carry_decode *d, const carry_lm_sublayer *own, const carry_tensor *state) {
    static const int slots[] = {CARRY_LM_ATTENTION_Q, CARRY_LM_ATTENTION_K, CARRY_LM_ATTENTION_V, -1};
    const carry_lm_config *c = &d->lm->config;
    const int width = (int)c->attention.head_dim, q_head = c->attention.gate ? 2 * width : width;
    int at[3];
    add_maps(d, own, slots, at);
    carry_decode_op *op = add(d, CARRY_DECODE_ATTEND, d->sequences * c->attention.kv_heads * d->splits);
    op->as.attend = (carry_decode_attend){
        .in = d->maps,
        .from = d->count - 2,
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
        .q_norm = carry_decode_wide(d->lm, own, CARRY_LM_ATTENTION_Q_NORM),
        .k_norm = carry_decode_wide(d->lm, own, CARRY_LM_ATTENTION_K_NORM),
        .plus = c->norm_plus_one ? 1.0f : 0.0f,
        .eps = (float)c->norm_eps,
        .scale = 1.0f / sqrtf((float)width),
        .keys = state[0].data,
        .values = state[1].data,
        .splits = d->splits,
        .part = d->part,
        .o = d->mixed,
    };
    const int maps = d->count - 2;
    carry_decode_op *second = add(d, CARRY_DECODE_COMBINE, d->sequences * c->attention.heads);
    second->as.attend = op->as.attend;
    second->as.attend.from = maps + 1;
    carry_decode_product *p = add_out(d, carry_decode_matrix(d->lm, own, CARRY_LM_ATTENTION_O), d->mixed,
                                      c->attention.gate ? CARRY_DECODE_GATED : CARRY_DECODE_PAIRS);
    p->gate = d->maps + width / 2;
    p->gate_from = maps;
    p->gate_stride = d->maps_width;
    p->gate_head = q_head / 2;
    p->head_shift = width == 256 ? 1 : 0;
}

/* shift: the index of the layer's delta operation, or -1. */
static void add_swiglu(carry_decode *d, const carry_lm_sublayer *own, int shift) {
    const carry_lm_config *c = &d->lm->config;
    carry_decode_product *p = add_product(d, c->hidden_size, c->swiglu.width, CARRY_DECODE_SWIGLU);
    add_norm(d, p, own->norm);
    p->shift = shift;
    add_segment(p, carry_decode_matrix(d->lm, own, CARRY_LM_SWIGLU_GATE), d->activated, (int)(c->swiglu.width / 2));
    add_segment(p, carry_decode_matrix(d->lm, own, CARRY_LM_SWIGLU_UP), d->activated, (int)(c->swiglu.width / 2));
    add_out(d, carry_decode_matrix(d->lm, own, CARRY_LM_SWIGLU_DOWN), d->activated, CARRY_DECODE_PAIRS);
}

/* Builds the whole list for a number of sequences and the current caches. */
static carry_status make_list(carry_decode *d, int sequences) {
    carry_lm *lm = d->lm;
    const carry_lm_config *c = &lm->config;
    decode_list *list = &d->list[sequences];
    const bool same = d->options.same_bits;
    const int widest = sequences > CARRY_DECODE_FEW ? CARRY_DECODE_SEQUENCES : CARRY_DECODE_FEW;
    const int heads = c->attention.kv_heads > 0 ? (int)c->attention.kv_heads : 1;
    const int splits = d->blocks / (same ? heads : heads * sequences);
    d->count = d->next_block = 0;
    d->sequences = sequences;
    d->slots = d->device->slots(same ? widest : sequences, d->columns);
    d->splits = splits > 0 ? splits : 1;
    d->h_from = 0;
    add(d, CARRY_DECODE_EMBED, d->blocks)->as.embed =
        (carry_decode_embed){.table = carry_parameters_product(&lm->own, lm->embeddings).data,
                             .h = d->h,
                             .low = d->low,
                             .width = (int)c->hidden_size};
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const carry_lm_layer *layer = &lm->layer[i];
        int shift = -1;
        if (layer->mixer.part == &carry_lm_mixer_delta) {
            shift = add_delta(d, &layer->mixer, d->state->part[i]);
        } else {
            add_attention(d, &layer->mixer, d->state->part[i]);
        }
        add_swiglu(d, &layer->feedforward, shift);
    }
    carry_decode_product *p = add_product(d, c->hidden_size, c->vocab_size, CARRY_DECODE_LOGITS);
    add_norm(d, p, lm->norm);
    add_segment(p, carry_parameters_product(&lm->own, lm->head), d->logits.data, (int)c->vocab_size); /* floats */
    const int device = lm->own.device;
    carry_stream *stream = carry_ctx_stream(lm->ctx, device);
    /* Steps that were enqueued earlier may still read the list. */
    CARRY_TRY(carry_stream_wait(lm->ctx, device, stream));
    CARRY_TRY(carry_device_copy(lm->ctx, list->ops, device, d->op, 0, (size_t)d->count * sizeof *d->op, stream));
    list->count = d->count;
    return carry_stream_wait(lm->ctx, device, stream);
}

static bool fits(carry_decode *d) {
    int64_t columns;
    const carry_decode_needs needs = {.group = CARRY_DECODE_GROUP, .rows = CARRY_DECODE_ROWS};
    if (!carry_decode_supports(d->lm, &needs, &columns)) {
        return false;
    }
    d->columns = (int)columns;
    while (d->options.sequences > 0 && d->device->slots((int)d->options.sequences, d->columns) < 2) {
        d->options.sequences--;
    }
    return d->options.sequences > 0;
}

static void *take(unsigned char **at, size_t bytes) {
    void *taken = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return taken;
}

static size_t most_ops(const carry_decode *d) {
    return (size_t)(2 + d->lm->config.num_hidden_layers * OPS_OF_LAYER);
}

/* Places all arrays of the steps in device memory and returns their size; if memory is NULL, only counts. */
static size_t place(carry_decode *d, void *memory) {
    const carry_lm_config *c = &d->lm->config;
    const size_t batch = (size_t)d->options.sequences, word = sizeof(carry_decode_word);
    const int64_t delta_maps = 2 * c->delta.key_width + 2 * c->delta.value_width + 2 * c->delta.value_heads;
    const int64_t attention_maps = (2 * c->attention.heads + 2 * c->attention.kv_heads) * c->attention.head_dim;
    const int64_t wide_heads = c->attention.heads * c->attention.head_dim;
    const int64_t mixed = wide_heads > c->delta.value_width ? wide_heads : c->delta.value_width;
    const int64_t splits = c->attention.kv_heads > 0 ? d->blocks / c->attention.kv_heads + 1 : 1;
    unsigned char *at = memory;
    d->maps_width = (int)((delta_maps > attention_maps ? delta_maps : attention_maps) + 3) / 4 * 2;
    for (int i = 1; i <= (int)d->options.sequences; i++) {
        d->list[i].ops = take(&at, most_ops(d) * sizeof(carry_decode_op));
    }
    d->rates = take(&at, (size_t)(c->attention.rotary / 2 + 1) * sizeof(float));
    d->h = take(&at, batch * (size_t)c->hidden_size * word);
    d->low = take(&at, batch * (size_t)c->hidden_size / 2 * word);
    d->maps = take(&at, batch * (size_t)d->maps_width * word);
    d->mixed = take(&at, batch * (size_t)mixed / 2 * word);
    d->activated = take(&at, batch * (size_t)c->swiglu.width / 2 * word);
    d->part = take(&at, batch * (size_t)(c->attention.heads * splits * (c->attention.head_dim + 2)) * word);
    d->word_bytes = (size_t)(at - (unsigned char *)d->h);
    return (size_t)(at - (unsigned char *)memory);
}

static carry_status open_memory(carry_decode *d) {
    carry_ctx *ctx = d->lm->ctx;
    const int device = d->lm->own.device;
    const size_t bytes = place(d, NULL);
    d->op = calloc(most_ops(d), sizeof *d->op);
    if (d->op == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the operations of a step");
    }
    CARRY_TRY(carry_device_alloc(ctx, &d->memory, device, bytes));
    place(d, d->memory);
    d->capacity = d->state->room;
    d->tag = 1;
    CARRY_TRY(carry_device_fill(ctx, d->memory, device, 0, bytes, NULL));
    CARRY_TRY(carry_decode_put_rates(d->lm, d->rates));
    CARRY_TRY(carry_stream_wait(ctx, device, NULL));
    return carry_decode_turns_open(&d->turns, ctx, device, d->state->batch);
}

void carry_decode_close(carry_decode *d) {
    if (d != NULL) {
        carry_decode_turns_close(&d->turns);
        carry_device_free(d->lm->ctx, d->lm->own.device, d->memory);
        free(d->op);
        free(d);
    }
}

carry_status carry_decode_open(carry_decode **made, carry_lm *lm, carry_lm_state *state, carry_tensor logits,
                               const carry_decode_options *options) {
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
    *d = (carry_decode){
        .lm = lm, .state = state, .options = *options, .logits = logits, .device = device, .ordinal = ordinal};
    if (d->options.sequences > CARRY_DECODE_SEQUENCES) {
        d->options.sequences = CARRY_DECODE_SEQUENCES;
    }
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

int64_t carry_decode_sequences(const carry_decode *d) {
    return d->options.sequences;
}

carry_status carry_decode_step(carry_decode *d, const carry_run *runs, int64_t count) {
    carry_lm *lm = d->lm;
    if (count < 1 || count > d->options.sequences) {
        return carry_fail(lm->ctx, CARRY_EARGUMENT, "a step of %lld sequences: at most %lld are possible",
                          (long long)count, (long long)d->options.sequences);
    }
    if (d->capacity != d->state->room) { /* the caches have moved */
        for (int i = 1; i <= CARRY_DECODE_SEQUENCES; i++) {
            d->list[i].count = 0;
        }
        d->capacity = d->state->room;
    }
    if (d->list[count].count == 0) {
        CARRY_TRY(make_list(d, (int)count));
    }
    if (d->tag > LAST_TAG) {
        d->tag = 1; /* clear the tags of the earlier round */
        CARRY_TRY(carry_device_fill(lm->ctx, d->h, lm->own.device, 0, d->word_bytes,
                                    carry_ctx_stream(lm->ctx, lm->own.device)));
    }
    carry_decode_call call = {.ops = d->list[count].ops,
                              .count = d->list[count].count,
                              .last = d->options.last,
                              .sequences = (int)count,
                              .tag = d->tag};
    int new_pages;
    CARRY_TRY(carry_decode_turn_put(&d->turns, &call, runs, &new_pages));
    CARRY_TRY(d->device->launch(lm->ctx, d->ordinal, carry_ctx_stream(lm->ctx, lm->own.device), &call, d->columns,
                                new_pages));
    d->tag += (uint32_t)call.count;
    return carry_decode_turn_done(&d->turns);
}
