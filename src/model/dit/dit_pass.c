/* Planning a training pass of the video transformer, its inputs and its loss. */
#include "model/dit/dit_pass.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/dit/dit_parts.h"
#include "model/dit/dit_pass_rows.h"

#define MAX_ROWS ((int64_t)1 << 31)

static carry_status check_options(carry_ctx *ctx, const carry_dit *dit, const carry_dit_pass_options *o) {
    const carry_dit_config *c = &dit->config;
    if (dit->ranks > 1 || !c->qk_norm || !c->cross_attn_norm || dit->own.gradients == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "what is trained is a whole model with gradients, qk_norm and cross_attn_norm");
    }
    CARRY_TRY(carry_dit_check_size(ctx, c, o->height, o->width));
    if (o->videos < 1 || o->chunks < 1 || o->frames < 1 || o->texts < 1 || o->window < o->frames ||
        o->chunks > CARRY_DIT_POSITIONS / o->frames) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%" PRId64 " videos of %" PRId64 " chunks of %" PRId64 " frames in a window of %" PRId64
                          " cannot be trained on",
                          o->videos, o->chunks, o->frames, o->window);
    }
    const int64_t tokens = o->frames * (o->height / c->patch[1]) * (o->width / c->patch[2]);
    if (o->videos > MAX_ROWS / tokens / (2 * o->chunks)) {
        return carry_fail(ctx, CARRY_ESIZE, "%" PRId64 " videos of %" PRId64 " chunks are too many rows", o->videos,
                          o->chunks);
    }
    return CARRY_OK;
}

static void measure(carry_dit_pass *p) {
    const carry_dit_config *c = &p->dit->config;
    const carry_dit_pass_options *o = &p->options;
    p->units_of = 2 * o->chunks - 1;
    p->units = p->units_of * o->videos;
    p->row_tokens = o->height / c->patch[1] * (o->width / c->patch[2]);
    p->tokens = p->row_tokens * o->frames;
    p->rows = p->units * p->tokens;
    p->text_rows = o->videos * o->texts * c->text_len;
    p->head = c->dim / c->num_heads;
}

carry_status carry_dit_pass_new(carry_dit *dit, carry_dit_pass **made, const carry_dit_pass_options *options) {
    carry_ctx *ctx = dit->ctx;
    *made = NULL;
    CARRY_TRY(check_options(ctx, dit, options));
    carry_dit_pass *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a pass");
    }
    p->ctx = ctx;
    p->dit = dit;
    p->options = *options;
    measure(p);
    p->block = calloc((size_t)dit->config.num_layers, sizeof *p->block);
    p->positions = carry_aligned_new(CARRY_DIT_POSITIONS * (size_t)p->head * sizeof(float));
    carry_status status = CARRY_OK;
    if (p->block == NULL || p->positions == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "no memory for a pass");
    } else {
        carry_arena count = carry_arena_over(NULL, 0);
        carry_dit_positions(p->positions, p->head);
        carry_dit_pass_lay_out(p, &count);
        if (!carry_arena_total(&count, &p->memory)) {
            status = carry_fail(ctx, CARRY_ESIZE, "the activations of this batch are larger than memory can be");
        }
    }
    if (status != CARRY_OK) {
        carry_dit_pass_free(p);
        return status;
    }
    *made = p;
    return CARRY_OK;
}

void carry_dit_pass_free(carry_dit_pass *pass) {
    if (pass != NULL) {
        free(pass->block);
        free(pass->positions);
        free(pass);
    }
}

size_t carry_dit_pass_memory(const carry_dit_pass *pass) {
    return pass->memory;
}

double carry_dit_pass_flops(const carry_dit_pass *pass) {
    const carry_dit_config *c = &pass->dit->config;
    const double d = (double)c->dim;
    const double keys = (double)(pass->options.window * pass->row_tokens); /* at most */
    const double block = 6.0 * d * d + 2.0 * d * (double)c->ffn_dim + 2.0 * d * (keys + (double)c->text_len);
    return 6.0 * (double)pass->rows * (double)c->num_layers * block;
}

/* The latents of place i of [videos, chunks]. */
static carry_tensor latents_of(const carry_dit_pass *pass, carry_tensor all, int64_t place) {
    const carry_dit_pass_options *o = &pass->options;
    const int64_t channels = pass->dit->config.in_dim;
    const int64_t count = channels * o->frames * o->height * o->width;
    return carry_view_4d((float *)all.data + place * count, CARRY_F32, channels, o->frames, o->height, o->width);
}

static carry_status enter_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass_args *args = user;
    const carry_dit_config *c = &pass->dit->config;
    bool noisy;
    const int64_t place = carry_dit_pass_place(pass, unit, &noisy);
    const int64_t video = unit / pass->units_of;
    const int64_t chunk = place - video * pass->options.chunks;
    const carry_tensor latents = latents_of(pass, noisy ? args->noisy : args->clean, place);
    (void)scratch;
    carry_dit_patchify(pass->ctx, carry_dit_pass_unit(pass, pass->patches, unit).data, &latents, c->patch + 1);
    carry_dit_rotary_table(carry_dit_pass_unit(pass, pass->table, unit).data, pass->positions, pass->head,
                           args->start[video] + chunk * pass->options.frames, pass->options.frames,
                           pass->options.height / c->patch[1], pass->options.width / c->patch[2]);
    carry_dit_sinusoid((float *)pass->sinusoid.data + unit * c->freq_dim, c->freq_dim, noisy ? args->t[place] : 0.0);
    return CARRY_OK;
}

static carry_status outer(const carry_dit_pass *pass, carry_tensor y, carry_tensor x, carry_dit_outer slot) {
    return carry_dit_pass_linear(pass, y, x, carry_dit_pass_outer(pass, slot),
                                 carry_dit_pass_outer(pass, (carry_dit_outer)(slot + 1)));
}

static carry_status forward_inputs(carry_dit_pass *pass, const carry_dit_pass_args *args) {
    carry_ctx *ctx = pass->ctx;
    const carry_tensor text = carry_view_2d(args->text.data, CARRY_F32, pass->text_rows, pass->dit->config.text_dim);
    CARRY_TRY(carry_dit_pass_units(pass, enter_unit, args));
    CARRY_TRY(outer(pass, pass->block[0].x, pass->patches, CARRY_DIT_PATCH));
    CARRY_TRY(outer(pass, pass->time_0, pass->sinusoid, CARRY_DIT_TIME_0));
    CARRY_TRY(carry_activate(ctx, pass->time_1, pass->time_0, CARRY_SILU));
    CARRY_TRY(outer(pass, pass->e, pass->time_1, CARRY_DIT_TIME_2));
    CARRY_TRY(carry_activate(ctx, pass->e1, pass->e, CARRY_SILU));
    CARRY_TRY(outer(pass, pass->e0, pass->e1, CARRY_DIT_PROJECTION));
    CARRY_TRY(outer(pass, pass->text_0, text, CARRY_DIT_TEXT_0));
    CARRY_TRY(carry_activate(ctx, pass->text_1, pass->text_0, CARRY_GELU));
    return outer(pass, pass->text, pass->text_1, CARRY_DIT_TEXT_2);
}

static carry_status head_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const int64_t d = pass->dit->config.dim;
    const float *own = carry_dit_pass_outer(pass, CARRY_DIT_HEAD_MODULATION).data;
    const float *e = (const float *)pass->e.data + unit * d;
    float *to = (float *)pass->shifts.data + unit * 2 * d;
    (void)scratch;
    (void)user;
    for (int64_t i = 0; i < 2 * d; i++) {
        to[i] = own[i] + e[i % d];
    }
    return carry_layer_norm(pass->ctx, carry_dit_pass_unit(pass, pass->head_in, unit),
                            carry_dit_pass_unit(pass, pass->last, unit),
                            carry_dit_pass_part(pass, pass->shifts, unit, 1),
                            carry_dit_pass_part(pass, pass->shifts, unit, 0), 1.0f, (float)pass->dit->config.eps);
}

/* The squares of a noisy unit, and their gradient in the order of the head, channel fastest. */
static carry_status lose_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass_args *args = user;
    const carry_dit_pass_options *o = &pass->options;
    const carry_dit_config *c = &pass->dit->config;
    const int64_t columns = o->width / c->patch[2];
    const int64_t rows = o->height / c->patch[1];
    const int64_t width = pass->out.shape[1];
    bool noisy;
    const int64_t place = carry_dit_pass_place(pass, unit, &noisy);
    const float *out = carry_dit_pass_unit(pass, pass->out, unit).data;
    float *dout = carry_dit_pass_unit(pass, pass->dout, unit).data;
    (void)scratch;
    pass->losses[unit] = 0.0;
    if (!noisy) {
        memset(dout, 0, (size_t)(pass->tokens * width) * sizeof *dout);
        return CARRY_OK;
    }
    const double weight = args->weight != NULL ? (double)args->weight[place] : 1.0;
    const float factor = (float)(2.0 * args->scale * weight);
    const float *target = latents_of(pass, args->target, place).data;
    double sum = 0.0;
    for (int64_t token = 0; token < pass->tokens; token++) {
        const int64_t frame = token / pass->row_tokens;
        const int64_t y = token % pass->row_tokens / columns * c->patch[1];
        const int64_t x = token % columns * c->patch[2];
        for (int64_t i = 0; i < width; i++) {
            const int64_t inside = i / c->out_dim;
            const int64_t line = (i % c->out_dim * o->frames + frame) * rows * c->patch[1] + y + inside / c->patch[2];
            const float off = out[token * width + i] - target[line * o->width + x + inside % c->patch[2]];
            dout[token * width + i] = factor * off;
            sum += (double)off * (double)off;
        }
    }
    pass->losses[unit] = weight * sum;
    return CARRY_OK;
}

static carry_status leave_unit(const carry_dit_pass *pass, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass_args *args = user;
    bool noisy;
    const int64_t place = carry_dit_pass_place(pass, unit, &noisy);
    (void)scratch;
    if (noisy) {
        const carry_tensor to = latents_of(pass, args->velocity, place);
        carry_dit_unpatchify(pass->ctx, &to, carry_dit_pass_unit(pass, pass->out, unit).data,
                             pass->dit->config.patch + 1);
    }
    return CARRY_OK;
}

static carry_status expect_latents(const carry_dit_pass *pass, const char *name, const carry_tensor *t) {
    const carry_dit_pass_options *o = &pass->options;
    const int64_t shape[] = {o->videos, o->chunks, pass->dit->config.in_dim, o->frames, o->height, o->width};
    CARRY_TRY(carry_tensor_expect(pass->ctx, name, t, 6, shape));
    return t->dtype == CARRY_F32 && carry_tensor_is_packed(t, 0)
               ? CARRY_OK
               : carry_fail(pass->ctx, CARRY_EDTYPE, "%s must be packed f32", name);
}

static carry_status check_args(const carry_dit_pass *pass, const carry_dit_pass_args *args) {
    const carry_dit_pass_options *o = &pass->options;
    const carry_dit_config *c = &pass->dit->config;
    const int64_t text[] = {o->videos * o->texts, c->text_len, c->text_dim};
    CARRY_TRY(expect_latents(pass, "clean", &args->clean));
    CARRY_TRY(expect_latents(pass, "noisy", &args->noisy));
    CARRY_TRY(carry_tensor_expect(pass->ctx, "text", &args->text, 3, text));
    if (args->target.data != NULL) {
        CARRY_TRY(expect_latents(pass, "target", &args->target));
    }
    if (args->velocity.data != NULL) {
        CARRY_TRY(expect_latents(pass, "velocity", &args->velocity));
    }
    for (int64_t i = 0; i < o->videos * o->chunks; i++) {
        if (args->caption[i] < 0 || args->caption[i] >= o->texts) {
            return carry_fail(pass->ctx, CARRY_ERANGE, "caption %" PRId64 " is not one of %" PRId64, args->caption[i],
                              o->texts);
        }
    }
    for (int64_t i = 0; i < o->videos; i++) {
        if (args->start[i] < 0 || args->start[i] > CARRY_DIT_POSITIONS - o->chunks * o->frames) {
            return carry_fail(pass->ctx, CARRY_ERANGE, "a video that starts at frame %" PRId64 " does not end by %d",
                              args->start[i], CARRY_DIT_POSITIONS);
        }
    }
    return CARRY_OK;
}

carry_status carry_dit_pass_run(carry_dit_pass *pass, const carry_dit_pass_args *args, void *memory, size_t bytes) {
    CARRY_SPAN(pass->ctx, "model", "training pass");
    CARRY_TRY(check_args(pass, args));
    if (memory == NULL || bytes < pass->memory) {
        return carry_fail(pass->ctx, CARRY_EWORKSPACE, "a pass needs %zu bytes, and %zu are given", pass->memory,
                          bytes);
    }
    carry_arena arena = carry_arena_over(memory, bytes);
    carry_dit_pass_lay_out(pass, &arena);
    CARRY_TRY(forward_inputs(pass, args));
    for (int64_t i = 0; i < pass->dit->config.num_layers; i++) {
        CARRY_TRY(carry_dit_pass_block(pass, args, i));
    }
    CARRY_TRY(carry_dit_pass_units(pass, head_unit, args));
    CARRY_TRY(outer(pass, pass->out, pass->head_in, CARRY_DIT_HEAD));
    if (args->velocity.data != NULL) {
        CARRY_TRY(carry_dit_pass_units(pass, leave_unit, args));
    }
    if (args->target.data == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_dit_pass_units(pass, lose_unit, args));
    *args->loss = 0.0;
    for (int64_t u = 0; u < pass->units; u++) {
        *args->loss += pass->losses[u];
    }
    return args->backward ? carry_dit_pass_backward(pass, args) : CARRY_OK;
}
