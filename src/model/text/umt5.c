/* UMT5's encoder. */
#include "model/text/umt5.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "ops/video.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

/* X(name, key): a layer's parameters. */
#define LAYER_LIST(X)                                               \
    X(NORM, "layer.0.layer_norm.weight")                            \
    X(Q, "layer.0.SelfAttention.q.weight")                          \
    X(K, "layer.0.SelfAttention.k.weight")                          \
    X(V, "layer.0.SelfAttention.v.weight")                          \
    X(O, "layer.0.SelfAttention.o.weight")                          \
    X(BIAS, "layer.0.SelfAttention.relative_attention_bias.weight") \
    X(NORM_2, "layer.1.layer_norm.weight")                          \
    X(GATE, "layer.1.DenseReluDense.wi_0.weight")                   \
    X(UP, "layer.1.DenseReluDense.wi_1.weight")                     \
    X(DOWN, "layer.1.DenseReluDense.wo.weight")

typedef enum slot {
#define X(name, key) SLOT_##name,
    LAYER_LIST(X)
#undef X
        SLOTS
} slot;

static const char *const keys[] = {
#define X(name, key) key,
    LAYER_LIST(X)
#undef X
};

struct carry_umt5 {
    carry_ctx *ctx;
    carry_umt5_config config;
    carry_parameters own;
    int64_t embedding, final_norm, (*layer)[SLOTS];
    carry_dtype dtype;
    int64_t most;
    void *block;                        /* the tensors below, on the device */
    carry_tensor ids, x, h, q, k, v, o; /* rows of tokens */
    carry_tensor gate, up, scores, p, bias, wide;
    float *bias_here; /* bias of one layer, in host memory */
};

static bool other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size) {
    (void)names;
    return !pieces && which == 0 && strcmp(name, "shared.weight") == 0 &&
           snprintf(to, size, "encoder.embed_tokens.weight") < (int)size;
}

/* True for tensors of the whole model that the encoder does not use. */
static bool is_spare(const void *model, const carry_weights *weights, const char *name) {
    (void)model;
    (void)weights;
    return strncmp(name, "decoder.", 8) == 0 || strcmp(name, "lm_head.weight") == 0 ||
           strcmp(name, "encoder.embed_tokens.weight") == 0;
}

static carry_parameter describe(const carry_umt5_config *c, slot which) {
    const int64_t inner = c->num_heads * c->d_kv;
    switch (which) {
    case SLOT_NORM:
    case SLOT_NORM_2:
        return (carry_parameter){.rank = 1, .shape = {c->d_model}};
    case SLOT_Q:
    case SLOT_K:
    case SLOT_V:
        return (carry_parameter){.rank = 2, .shape = {inner, c->d_model}};
    case SLOT_O:
        return (carry_parameter){.rank = 2, .shape = {c->d_model, inner}};
    case SLOT_BIAS:
        return (carry_parameter){.rank = 2, .shape = {c->buckets, c->num_heads}};
    case SLOT_GATE:
    case SLOT_UP:
        return (carry_parameter){.rank = 2, .shape = {c->d_ff, c->d_model}};
    case SLOT_DOWN:
        return (carry_parameter){.rank = 2, .shape = {c->d_model, c->d_ff}};
    case SLOTS:
        break;
    }
    return (carry_parameter){0};
}

static void list_parameters(carry_umt5 *m) {
    const carry_umt5_config *c = &m->config;
    carry_parameter table = {
        .name = "shared.weight", .rank = 2, .shape = {c->vocab_size, c->d_model}, .may_be_narrow = true};
    carry_parameter norm = {.name = "encoder.final_layer_norm.weight", .rank = 1, .shape = {c->d_model}};
    m->embedding = carry_parameters_add(&m->own, table);
    m->final_norm = carry_parameters_add(&m->own, norm);
    for (int64_t i = 0; i < c->num_layers; i++) {
        for (slot s = 0; s < SLOTS; s++) {
            carry_parameter p = describe(c, s);
            (void)snprintf(p.name, sizeof p.name, "encoder.block.%" PRId64 ".%s", i, keys[s]);
            p.may_be_narrow = p.rank == 2 && s != SLOT_BIAS;
            m->layer[i][s] = carry_parameters_add(&m->own, p);
        }
    }
}

static carry_tensor take(carry_umt5 *m, carry_arena *arena, carry_dtype dtype, int64_t rows, int64_t columns) {
    return carry_arena_tensor(arena, m->own.device, dtype, 2, (const int64_t[]){rows, columns});
}

/* Places the tensors for prompts of n tokens. */
static void lay_out(carry_umt5 *m, carry_arena *arena, int64_t n) {
    const carry_umt5_config *c = &m->config;
    const int64_t inner = c->num_heads * c->d_kv;
    m->ids = carry_arena_tensor(arena, m->own.device, CARRY_I64, 1, &n);
    m->x = take(m, arena, m->dtype, n, c->d_model);
    m->h = take(m, arena, m->dtype, n, c->d_model);
    m->q = take(m, arena, m->dtype, n, inner);
    m->k = take(m, arena, m->dtype, n, inner);
    m->v = take(m, arena, m->dtype, n, inner);
    m->o = take(m, arena, m->dtype, n, inner);
    m->gate = take(m, arena, m->dtype, n, c->d_ff);
    m->up = take(m, arena, m->dtype, n, c->d_ff);
    m->scores = carry_arena_tensor(arena, m->own.device, CARRY_F32, 3, (const int64_t[]){c->num_heads, n, n});
    m->p = m->dtype == CARRY_F32
               ? m->scores
               : carry_arena_tensor(arena, m->own.device, m->dtype, 3, (const int64_t[]){c->num_heads, n, n});
    m->bias = take(m, arena, CARRY_F32, c->num_heads, 2 * n - 1);
    m->wide = take(m, arena, CARRY_F32, n, c->d_model);
}

static carry_status make(carry_umt5 *m, const char *folder, int device) {
    const int64_t layers = m->config.num_layers;
    carry_arena counted = carry_arena_over(NULL, 0);
    size_t bytes = 0;
    m->layer = calloc((size_t)layers, sizeof *m->layer);
    m->bias_here = calloc((size_t)(m->config.num_heads * (2 * m->most - 1)), sizeof *m->bias_here);
    if (m->layer == NULL || m->bias_here == NULL) {
        return carry_fail(m->ctx, CARRY_EMEMORY, "out of memory: a text encoder of %" PRId64 " layers", layers);
    }
    CARRY_TRY(carry_parameters_open(m->ctx, &m->own, device, layers * SLOTS + 2));
    m->own.other = other_name;
    list_parameters(m);
    CARRY_TRY(carry_parameters_check(&m->own, folder));
    CARRY_TRY(carry_parameters_map(&m->own, folder)); /* the CPU reads 16-bit weights from the mapped file */
    if (m->dtype != CARRY_F32) {
        carry_parameters_narrow(&m->own, m->dtype);
    }
    CARRY_TRY(carry_parameters_allocate(&m->own));
    CARRY_TRY(carry_parameters_load(&m->own, folder, is_spare, NULL));
    lay_out(m, &counted, m->most);
    if (!carry_arena_total(&counted, &bytes)) {
        return carry_fail(m->ctx, CARRY_ERANGE, "a prompt of %" PRId64 " tokens is too long for this text encoder",
                          m->most);
    }
    CARRY_TRY(carry_device_alloc(m->ctx, &m->block, device, bytes));
    carry_arena arena = carry_arena_over(m->block, bytes);
    lay_out(m, &arena, m->most);
    return CARRY_OK;
}

carry_status carry_umt5_open(carry_ctx *ctx, carry_umt5 **made, const char *folder, int device, carry_dtype dtype,
                             int64_t most) {
    *made = NULL;
    carry_umt5_config config;
    CARRY_TRY(carry_umt5_config_read(ctx, &config, folder));
    if (!carry_dtype_is_real(dtype) || (device == 0 && dtype != CARRY_F32) || most < 1 || most > CARRY_UMT5_TOKENS) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "a text encoder in %s for %" PRId64
                          " tokens on device %d: f32 on the CPU, f32, bf16 or f16 on a "
                          "GPU, and prompts of 1 to %d tokens are supported",
                          carry_dtype_name(dtype), most, device, CARRY_UMT5_TOKENS);
    }
    carry_umt5 *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text encoder");
    }
    m->ctx = ctx;
    m->config = config;
    m->dtype = dtype;
    m->most = most;
    const carry_status status = make(m, folder, device);
    if (status != CARRY_OK) {
        carry_umt5_free(m);
        return status;
    }
    *made = m;
    return CARRY_OK;
}

void carry_umt5_free(carry_umt5 *model) {
    if (model != NULL) {
        carry_device_free(model->ctx, model->own.device, model->block);
        carry_parameters_free(&model->own);
        free(model->bias_here);
        free(model->layer);
        free(model);
    }
}

const carry_umt5_config *carry_umt5_config_of(const carry_umt5 *model) {
    return &model->config;
}

static carry_tensor weight(const carry_umt5 *m, int64_t layer, slot which) {
    return carry_parameters_view(&m->own, m->own.weights, m->layer[layer][which]);
}

static carry_tensor product(const carry_umt5 *m, int64_t layer, slot which) {
    return carry_parameters_product(&m->own, m->layer[layer][which]);
}

/* Computes the bias of a layer for n tokens by distance, from its weight [buckets, heads]. */
static carry_status put_bias(carry_umt5 *m, int64_t layer, int64_t n) {
    const carry_umt5_config *c = &m->config;
    const carry_parameter *p = &m->own.parameter[m->layer[layer][SLOT_BIAS]];
    float *w = malloc((size_t)p->count * sizeof *w);
    if (w == NULL) {
        return carry_fail(m->ctx, CARRY_EMEMORY, "out of memory: the bias of %" PRId64 " heads", c->num_heads);
    }
    const carry_status status = carry_parameters_sample(&m->own, w, m->layer[layer][SLOT_BIAS], p->count);
    for (int64_t i = 0; status == CARRY_OK && i < 2 * n - 1; i++) {
        const int64_t bucket = carry_umt5_bucket(i - (n - 1), c->buckets, c->distance);
        for (int64_t h = 0; h < c->num_heads; h++) {
            m->bias_here[h * (2 * n - 1) + i] = w[bucket * c->num_heads + h];
        }
    }
    free(w);
    CARRY_TRY(status);
    return carry_copy(m->ctx, m->bias, carry_view_2d(m->bias_here, CARRY_F32, c->num_heads, 2 * n - 1));
}

/* A view of [T, H D] as [H, T, D]. */
static carry_tensor by_heads(const carry_umt5 *m, carry_tensor rows) {
    const int64_t n = rows.shape[0];
    const int64_t d = m->config.d_kv;
    carry_tensor t = carry_reshape_3d(rows, m->config.num_heads, n, d);
    t.stride[0] = d;
    t.stride[1] = m->config.num_heads * d;
    return t;
}

static carry_status attend(carry_umt5 *m, int64_t layer, int64_t tokens) {
    const float eps = (float)m->config.eps;
    const carry_tensor none = {0};
    CARRY_TRY(put_bias(m, layer, m->x.shape[0]));
    CARRY_TRY(carry_rms_norm(m->ctx, m->h, m->x, weight(m, layer, SLOT_NORM), none, eps));
    CARRY_TRY(carry_linear(m->ctx, m->q, m->h, product(m, layer, SLOT_Q), false));
    CARRY_TRY(carry_linear(m->ctx, m->k, m->h, product(m, layer, SLOT_K), false));
    CARRY_TRY(carry_linear(m->ctx, m->v, m->h, product(m, layer, SLOT_V), false));
    CARRY_TRY(carry_matmul(m->ctx, m->scores, by_heads(m, m->q), by_heads(m, m->k),
                           &(carry_matmul_options){CARRY_INIT(carry_matmul_options), .b_transposed = true}));
    CARRY_TRY(carry_relative_softmax(m->ctx, m->p, m->scores, m->bias, tokens));
    CARRY_TRY(carry_matmul(m->ctx, by_heads(m, m->o), m->p, by_heads(m, m->v), NULL));
    return carry_linear(m->ctx, m->x, m->o, product(m, layer, SLOT_O), true);
}

static carry_status feed_forward(carry_umt5 *m, int64_t layer) {
    const carry_tensor none = {0};
    CARRY_TRY(carry_rms_norm(m->ctx, m->h, m->x, weight(m, layer, SLOT_NORM_2), none, (float)m->config.eps));
    CARRY_TRY(carry_linear(m->ctx, m->gate, m->h, product(m, layer, SLOT_GATE), false));
    CARRY_TRY(carry_linear(m->ctx, m->up, m->h, product(m, layer, SLOT_UP), false));
    CARRY_TRY(carry_activate(m->ctx, m->gate, m->gate, CARRY_GELU));
    CARRY_TRY(carry_elementwise(m->ctx, m->gate, m->gate, m->up, CARRY_MULTIPLY));
    return carry_linear(m->ctx, m->x, m->gate, product(m, layer, SLOT_DOWN), true);
}

carry_status carry_umt5_encode(carry_umt5 *m, carry_tensor hidden, carry_tensor ids, int64_t tokens) {
    const int64_t n = ids.shape[0];
    const carry_tensor none = {0};
    if (ids.rank != 1 || ids.dtype != CARRY_I64 || n < 1 || n > m->most || tokens < 1 || tokens > n) {
        return carry_fail(m->ctx, CARRY_ESHAPE,
                          "ids have %" PRId64 " tokens, %" PRId64 " of them a prompt's: 1 to %" PRId64 " are needed", n,
                          tokens, m->most);
    }
    CARRY_TRY(carry_tensor_expect(m->ctx, "hidden", &hidden, 2, (const int64_t[]){n, m->config.d_model}));
    CARRY_TRY(carry_check_ids(m->ctx, ids, m->config.vocab_size));
    carry_arena arena = carry_arena_over(m->block, SIZE_MAX / 2); /* it was allocated for `most` tokens, and n is not
                                                                     more */
    lay_out(m, &arena, n);
    CARRY_TRY(carry_copy(m->ctx, m->ids, ids));
    CARRY_TRY(carry_embed(m->ctx, m->x, carry_parameters_product(&m->own, m->embedding), m->ids));
    for (int64_t layer = 0; layer < m->config.num_layers; layer++) {
        CARRY_TRY(attend(m, layer, tokens));
        CARRY_TRY(feed_forward(m, layer));
    }
    CARRY_TRY(carry_rms_norm(m->ctx, m->h, m->x, carry_parameters_view(&m->own, m->own.weights, m->final_norm), none,
                             (float)m->config.eps));
    CARRY_TRY(carry_convert(m->ctx, m->wide, m->h));
    CARRY_TRY(carry_copy(m->ctx, hidden, m->wide));
    return m->own.device != 0 ? carry_stream_wait(m->ctx, m->own.device, carry_ctx_stream(m->ctx, m->own.device))
                              : CARRY_OK;
}
