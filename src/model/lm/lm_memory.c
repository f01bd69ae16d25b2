/* Where the activations of a pass lie. The same lines count the bytes and carve them. */
#include "model/lm/lm_pass.h"

#include "core/tensor.h"

static carry_tensor take(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t rows,
                         int64_t width) {
    return carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, (const int64_t[]){rows, width});
}

static carry_tensor take_1d(const carry_lm_pass *pass, carry_arena *arena, carry_dtype dtype, int64_t count) {
    return carry_arena_tensor(arena, pass->lm->own.device, dtype, 1, &count);
}

static carry_tensor take_before(const carry_lm_pass *pass, carry_arena *arena, int64_t channels) {
    const carry_lm_config *c = &pass->lm->config;
    if (pass->mixer->halo == NULL || !c->use_short_conv || c->conv_size < 2) {
        return (carry_tensor){0};
    }
    const int64_t shape[] = {pass->options.batch, c->conv_size - 1, channels};
    return carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 3, shape);
}

static void take_layer(const carry_lm_pass *pass, carry_arena *arena, carry_lm_rows *r) {
    const carry_lm_config *c = &pass->lm->config;
    carry_dtype dtype = pass->options.dtype;
    int64_t n = pass->tokens;
    bool gated = c->kind == CARRY_LM_GATED_DELTANET;
    r->x = take(pass, arena, dtype, n, c->hidden_size);
    r->q_in = take(pass, arena, dtype, n, c->key_width);
    r->k_in = take(pass, arena, dtype, n, c->key_width);
    r->v_in = take(pass, arena, dtype, n, c->value_width);
    r->before[0] = take_before(pass, arena, c->key_width);
    r->before[1] = take_before(pass, arena, c->key_width);
    r->before[2] = take_before(pass, arena, c->value_width);
    r->q = take(pass, arena, dtype, n, c->key_width);
    r->k = take(pass, arena, dtype, n, c->key_width);
    r->v = take(pass, arena, dtype, n, c->value_width);
    r->a = gated ? take(pass, arena, dtype, n, c->value_heads) : (carry_tensor){0};
    r->b = gated || c->use_beta ? take(pass, arena, dtype, n, c->value_heads) : pass->beta;
    r->z = c->use_gate ? take(pass, arena, dtype, n, c->value_width) : (carry_tensor){0};
    r->o = take(pass, arena, dtype, n, c->value_width);
    r->y = take(pass, arena, dtype, n, c->value_width);
    r->middle = take(pass, arena, dtype, n, c->hidden_size);
    r->x2 = take(pass, arena, dtype, n, c->hidden_size);
    r->gate = take(pass, arena, dtype, n, c->intermediate);
    r->up = take(pass, arena, dtype, n, c->intermediate);
    r->activated = take(pass, arena, dtype, n, c->intermediate);
    r->kept = pass->options.forward_only ? NULL : carry_arena_take(arena, pass->mixer->kept(pass->mixing), 1);
}

static void take_back(const carry_lm_pass *pass, carry_arena *arena, carry_lm_back *back) {
    const carry_lm_config *c = &pass->lm->config;
    carry_dtype dtype = pass->options.dtype;
    int64_t n = pass->tokens;
    back->dh = take(pass, arena, dtype, n, c->hidden_size);
    back->dx = take(pass, arena, dtype, n, c->hidden_size);
    back->dmiddle_wide = take(pass, arena, dtype, n, c->intermediate);
    back->dy = take(pass, arena, dtype, n, c->value_width);
    back->dout = take(pass, arena, dtype, n, c->value_width);
    back->dz = c->use_gate ? take(pass, arena, dtype, n, c->value_width) : (carry_tensor){0};
    back->dq = take(pass, arena, dtype, n, c->key_width);
    back->dk = take(pass, arena, dtype, n, c->key_width);
    back->dv = take(pass, arena, dtype, n, c->value_width);
    back->dq_in = take(pass, arena, dtype, n, c->key_width);
    back->dk_in = take(pass, arena, dtype, n, c->key_width);
    back->dv_in = back->dy; /* used up by then */
    back->da = take(pass, arena, dtype, n, c->value_heads);
    back->db = take(pass, arena, dtype, n, c->value_heads);
    back->dbefore_key = take_before(pass, arena, c->key_width);
    back->dbefore_value = take_before(pass, arena, c->value_width);
    back->dA_log = take_1d(pass, arena, CARRY_F32, c->value_heads);
    back->ddt_bias = take_1d(pass, arena, CARRY_F32, c->value_heads);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Logits of this many tokens at once make the head of a GPU fast: 32768 tokens of 32000 words take 46 ms in blocks of
   the 128 that carry_linear_cross_entropy_workspace asks for, and 13 in blocks of 8192 (H200). */
#define HEAD_TOKENS 2048

static size_t head_bytes(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t logits[] = {pass->tokens < HEAD_TOKENS ? pass->tokens : HEAD_TOKENS, c->vocab_size};
    size_t bytes = carry_linear_cross_entropy_workspace(pass->tokens, c->hidden_size, c->vocab_size);
    size_t more;
    return pass->lm->own.device != 0 && carry_size_product(&more, logits, 2, sizeof(float)) ? larger(bytes, more)
                                                                                            : bytes;
}

/* The most that any operator of the pass asks for. */
static size_t scratch_bytes(const carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_lm_pass_options *o = &pass->options;
    size_t bytes = pass->mixer->workspace(pass->mixing);
    bytes = larger(bytes, head_bytes(pass));
    if (!o->forward_only) {
        bytes = larger(bytes, carry_rms_norm_backward_workspace(pass->tokens, c->hidden_size));
        bytes = larger(bytes, carry_rms_norm_backward_workspace(pass->tokens * c->value_heads, c->value));
        if (c->use_short_conv) {
            int64_t widest = c->key_width > c->value_width ? c->key_width : c->value_width;
            bytes = larger(bytes, carry_conv_backward_workspace(o->batch, o->tokens, widest, c->conv_size));
        }
    }
    return bytes;
}

void carry_lm_pass_lay_out(carry_lm_pass *pass, carry_arena *arena) {
    const carry_lm_config *c = &pass->lm->config;
    carry_dtype dtype = pass->options.dtype;
    bool constant = c->kind == CARRY_LM_DELTA_NET && !c->use_beta;
    pass->beta = constant ? take(pass, arena, CARRY_F32, pass->tokens, c->value_heads) : (carry_tensor){0};
    pass->ones =
        c->qk_activation == CARRY_ELU ? take(pass, arena, dtype, pass->tokens, c->key_width) : (carry_tensor){0};
    for (int64_t i = 0; i <= c->num_hidden_layers; i++) {
        bool own = i == 0 || !pass->options.forward_only;
        pass->h[i] = own ? take(pass, arena, dtype, pass->tokens, c->hidden_size) : pass->h[0];
    }
    for (int64_t i = 0; i < pass->layers_kept; i++) {
        take_layer(pass, arena, &pass->layer[i]);
    }
    pass->last = take(pass, arena, dtype, pass->tokens, c->hidden_size);
    pass->last_h = take(pass, arena, dtype, pass->options.batch, c->hidden_size);
    pass->last_x = take(pass, arena, dtype, pass->options.batch, c->hidden_size);
    pass->losses = take_1d(pass, arena, CARRY_F32, pass->tokens);
    pass->total = take_1d(pass, arena, CARRY_F64, 2);
    if (pass->lm->own.device != 0) { /* on the CPU they are used where they are */
        pass->ids = take_1d(pass, arena, CARRY_I64, pass->tokens);
        pass->labels = take_1d(pass, arena, CARRY_I64, pass->tokens);
        pass->cuts = take_1d(pass, arena, CARRY_I64, pass->options.sequences + 1);
    }
    if (!pass->options.forward_only) {
        take_back(pass, arena, &pass->back);
    }
    pass->scratch_bytes = scratch_bytes(pass);
    pass->scratch = carry_arena_take(arena, pass->scratch_bytes, 1);
}
