/* Planning a training pass of the video transformer, its inputs and its loss. */
#include "model/dit/dit_pass.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/dit/dit_pass_rows.h"
#include "model/host.h"

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
}

static carry_status make(carry_dit_pass *p) {
    const size_t head = (size_t)carry_dit_head(p->dit);
    const bool is_elsewhere = p->dit->own.device != 0;
    carry_arena here = carry_arena_over(NULL, 0);
    carry_arena there = carry_arena_over(NULL, 0);
    size_t host = 0;
    p->block = calloc((size_t)p->dit->config.num_layers, sizeof *p->block);
    p->row = calloc((size_t)p->units + 1, sizeof *p->row);
    p->positions = carry_aligned_new(CARRY_DIT_POSITIONS * head * sizeof(float));
    if (p->block == NULL || p->row == NULL || p->positions == NULL) {
        return carry_fail(p->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    for (int64_t i = 0; i <= p->units; i++) {
        p->row[i] = i * p->tokens;
    }
    p->call = (carry_dit_call){.dit = p->dit,
                               .groups = p->units,
                               .row = p->row,
                               .owner = p,
                               .self = carry_dit_pass_self,
                               .cross_groups = p->units,
                               .cross = carry_dit_pass_cross};
    carry_dit_positions(p->positions, (int64_t)head);
    carry_dit_pass_lay_out(p, &there);
    carry_dit_pass_lay_out_host(p, &here);
    if (!carry_arena_total(&there, &p->memory) || !carry_arena_total(&here, &host)) {
        return carry_fail(p->ctx, CARRY_ESIZE, "the activations of this batch are larger than memory can be");
    }
    p->host_memory = is_elsewhere ? carry_aligned_new(host) : NULL;
    if (is_elsewhere && p->host_memory == NULL) {
        return carry_fail(p->ctx, CARRY_EMEMORY, "out of memory: a batch, %zu bytes", host);
    }
    here = carry_arena_over(p->host_memory, host);
    carry_dit_pass_lay_out_host(p, &here);
    return p->options.dtype != CARRY_F32 ? carry_parameters_want_low(&p->dit->own, p->options.dtype) : CARRY_OK;
}

carry_status carry_dit_pass_new(carry_dit *dit, carry_dit_pass **made, const carry_dit_pass_options *options) {
    carry_ctx *ctx = dit->ctx;
    *made = NULL;
    CARRY_TRY(check_options(ctx, dit, options));
    carry_dit_pass *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    p->ctx = ctx;
    p->dit = dit;
    p->options = *options;
    measure(p);
    carry_status status = make(p);
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
        free(pass->row);
        free(pass->host_memory);
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

/* The latents of chunk `place` in [videos, chunks]. */
static carry_tensor latents_of(const carry_dit_pass *pass, carry_tensor all, int64_t place) {
    const carry_dit_pass_options *o = &pass->options;
    const int64_t channels = pass->dit->config.in_dim;
    const int64_t count = channels * o->frames * o->height * o->width;
    return carry_view_4d((float *)all.data + place * count, CARRY_F32, channels, o->frames, o->height, o->width);
}

/* Computes a unit's patches, positions, time, and the target of its velocity, in host memory. */
static carry_status enter_unit(const carry_dit_call *call, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass *pass = user;
    const carry_dit_pass_args *args = pass->args;
    const carry_dit_config *c = &pass->dit->config;
    bool noisy;
    const int64_t place = carry_dit_pass_place(pass, unit, &noisy);
    const int64_t video = unit / pass->units_of;
    const int64_t chunk = place - video * pass->options.chunks;
    const carry_tensor latents = latents_of(pass, noisy ? args->noisy : args->clean, place);
    (void)scratch;
    carry_dit_patchify(pass->ctx, carry_dit_group_rows(call, pass->host.patches, unit).data, &latents, c->patch + 1,
                       false);
    carry_dit_rotary_table(carry_dit_group_rows(call, pass->host.table, unit).data, pass->positions,
                           carry_dit_head(pass->dit), args->start[video] + chunk * pass->options.frames,
                           pass->options.frames, pass->options.height / c->patch[1], pass->options.width / c->patch[2]);
    carry_dit_sinusoid((float *)pass->host.sinusoid.data + unit * c->freq_dim, c->freq_dim,
                       noisy ? args->t[place] : 0.0);
    ((float *)pass->host.weight.data)[unit] = !noisy ? -1.0f : args->weight != NULL ? args->weight[place] : 1.0f;
    if (noisy && args->target.data != NULL) {
        const carry_tensor target = latents_of(pass, args->target, place);
        carry_dit_patchify(pass->ctx, carry_dit_group_rows(call, pass->host.target, unit).data, &target, c->patch + 1,
                           true);
    }
    return CARRY_OK;
}

/* Runs `work` on host memory for every unit; if the model is on a GPU, one unit after the other. */
static carry_status each_on_host(const carry_dit_pass *pass, carry_dit_work work) {
    for (int64_t unit = 0; pass->dit->own.device != 0 && unit < pass->units; unit++) {
        CARRY_TRY(work(&pass->call, pass, unit, NULL));
    }
    return pass->dit->own.device == 0 ? carry_dit_each(&pass->call, pass->units, work, pass) : CARRY_OK;
}

static carry_status bring(const carry_dit_pass *pass, carry_tensor to, carry_tensor from) {
    return to.data != from.data ? carry_copy(pass->ctx, to, from) : CARRY_OK;
}

static carry_status bring_all(carry_dit_pass *pass) {
    const carry_dit_pass_args *args = pass->args;
    carry_tensor text = carry_reshape_2d(args->text, pass->text_rows, pass->dit->config.text_dim);
    CARRY_TRY(each_on_host(pass, enter_unit));
    CARRY_TRY(bring(pass, pass->in.patches, pass->host.patches));
    CARRY_TRY(bring(pass, pass->in.table, pass->host.table));
    CARRY_TRY(bring(pass, pass->in.sinusoid, pass->host.sinusoid));
    CARRY_TRY(bring(pass, pass->in.weight, pass->host.weight));
    CARRY_TRY(args->target.data != NULL ? bring(pass, pass->in.target, pass->host.target) : CARRY_OK);
    if (pass->text_wide.data != NULL) {
        CARRY_TRY(carry_copy(pass->ctx, pass->text_wide, text));
        text = pass->text_wide;
    }
    if (pass->options.dtype == CARRY_F32) {
        pass->text_in = text;
        return CARRY_OK;
    }
    CARRY_TRY(carry_convert(pass->ctx, pass->narrow, pass->in.patches));
    return carry_convert(pass->ctx, pass->text_in, text);
}

static carry_status forward_inputs(carry_dit_pass *pass) {
    carry_ctx *ctx = pass->ctx;
    carry_dit *dit = pass->dit;
    CARRY_TRY(bring_all(pass));
    CARRY_TRY(carry_dit_outer_affine(dit, pass->block[0].x, pass->narrow, CARRY_DIT_PATCH, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_dit_outer_affine(dit, pass->time_0, pass->in.sinusoid, CARRY_DIT_TIME_0, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_activate(ctx, pass->time_1, pass->time_0, CARRY_SILU));
    CARRY_TRY(carry_dit_outer_affine(dit, pass->e, pass->time_1, CARRY_DIT_TIME_2, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_activate(ctx, pass->e1, pass->e, CARRY_SILU));
    CARRY_TRY(carry_dit_outer_affine(dit, pass->e0, pass->e1, CARRY_DIT_PROJECTION, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_dit_outer_affine(dit, pass->text_0, pass->text_in, CARRY_DIT_TEXT_0, CARRY_NO_ACTIVATION));
    CARRY_TRY(carry_activate(ctx, pass->text_1, pass->text_0, CARRY_GELU));
    return carry_dit_outer_affine(dit, pass->text, pass->text_1, CARRY_DIT_TEXT_2, CARRY_NO_ACTIVATION);
}

static carry_status head_unit(const carry_dit_call *call, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass *pass = user;
    const int64_t d = pass->dit->config.dim;
    const carry_tensor shift = carry_reshape_2d(carry_slice(pass->shifts, unit, 1), 2, d);
    const carry_tensor last = pass->block[pass->dit->config.num_layers - 1].next;
    (void)scratch;
    CARRY_TRY(carry_convert(pass->ctx, shift, carry_dit_outer_weight(pass->dit, CARRY_DIT_HEAD_MODULATION)));
    CARRY_TRY(carry_add_bias(pass->ctx, shift, carry_reshape_1d(carry_slice(pass->e, unit, 1), d)));
    return carry_layer_norm(pass->ctx, carry_dit_group_rows(call, pass->head_in, unit),
                            carry_dit_group_rows(call, last, unit), carry_dit_group_part(call, pass->shifts, unit, 1),
                            carry_dit_group_part(call, pass->shifts, unit, 0), 1.0f, (float)pass->dit->config.eps);
}

static carry_status leave_unit(const carry_dit_call *call, const void *user, int64_t unit, void *scratch) {
    const carry_dit_pass *pass = user;
    const bool is_elsewhere = pass->dit->own.device != 0;
    bool noisy;
    const int64_t place = carry_dit_pass_place(pass, unit, &noisy);
    (void)scratch;
    if (noisy) {
        const carry_tensor to = latents_of(pass, pass->args->velocity, place);
        const carry_tensor from = is_elsewhere ? pass->host.target : pass->wide_out;
        carry_dit_unpatchify(pass->ctx, &to, carry_dit_group_rows(call, from, unit).data, pass->dit->config.patch + 1);
    }
    return CARRY_OK;
}

static carry_status leave(carry_dit_pass *pass) {
    CARRY_TRY(pass->wide_out.data != pass->out.data ? carry_convert(pass->ctx, pass->wide_out, pass->out) : CARRY_OK);
    if (pass->dit->own.device != 0) { /* the target was uploaded, or is absent */
        CARRY_TRY(carry_read(pass->ctx, pass->host.target, pass->wide_out));
    }
    return each_on_host(pass, leave_unit);
}

/* Computes the loss: into args->total on the device, or into args->loss, for which it waits. */
static carry_status lose(carry_dit_pass *pass) {
    const carry_dit_pass_args *args = pass->args;
    const bool waits = args->total.data == NULL;
    CARRY_TRY(carry_squared_error(pass->ctx, &(carry_squared_error_args){.total = waits ? pass->total : args->total,
                                                                         .losses = pass->losses,
                                                                         .dy = pass->dout,
                                                                         .y = pass->out,
                                                                         .target = pass->in.target,
                                                                         .weight = pass->in.weight,
                                                                         .scale = args->scale}));
    return waits ? carry_read(pass->ctx, carry_view_1d(args->loss, CARRY_F64, 1), pass->total) : CARRY_OK;
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

static carry_status run(carry_dit_pass *pass) {
    const carry_dit_pass_args *args = pass->args;
    CARRY_TRY(forward_inputs(pass));
    for (int64_t i = 0; i < pass->dit->config.num_layers; i++) {
        CARRY_TRY(carry_dit_text_keys(pass->dit, i, pass->text, &pass->block[i]));
        CARRY_TRY(carry_dit_block_forward(&pass->call, i, &pass->block[i], false));
    }
    CARRY_TRY(carry_dit_each(&pass->call, pass->units, head_unit, pass));
    CARRY_TRY(carry_dit_outer_affine(pass->dit, pass->out, pass->head_in, CARRY_DIT_HEAD, CARRY_NO_ACTIVATION));
    CARRY_TRY(args->velocity.data != NULL ? leave(pass) : CARRY_OK);
    CARRY_TRY(args->target.data != NULL ? lose(pass) : CARRY_OK);
    return args->target.data != NULL && args->backward ? carry_dit_pass_backward(pass) : CARRY_OK;
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
    pass->args = args;
    const carry_status status = run(pass);
    pass->args = NULL;
    return status;
}
