/* What all parts of a training pass use: weights, the rows of a unit, who sees what, and threads. */
#include <stdatomic.h>

#include "carry/nn.h"
#include "core/context.h"
#include "core/threads.h"
#include "model/dit/dit_parts.h"
#include "model/dit/dit_pass_rows.h"

carry_tensor carry_dit_pass_w(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot) {
    return carry_dit_view(pass->dit, pass->dit->own.weights, pass->dit->block[block][slot]);
}

carry_tensor carry_dit_pass_dw(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot) {
    return carry_dit_view(pass->dit, pass->dit->own.gradients, pass->dit->block[block][slot]);
}

carry_tensor carry_dit_pass_outer(const carry_dit_pass *pass, carry_dit_outer slot) {
    return carry_dit_view(pass->dit, pass->dit->own.weights, pass->dit->outer[slot]);
}

carry_tensor carry_dit_pass_douter(const carry_dit_pass *pass, carry_dit_outer slot) {
    return carry_dit_view(pass->dit, pass->dit->own.gradients, pass->dit->outer[slot]);
}

carry_tensor carry_dit_pass_unit(const carry_dit_pass *pass, carry_tensor rows, int64_t unit) {
    const int64_t width = rows.shape[1];
    return carry_view_2d((float *)rows.data + unit * pass->tokens * width, CARRY_F32, pass->tokens, width);
}

carry_tensor carry_dit_pass_part(const carry_dit_pass *pass, carry_tensor modulation, int64_t unit, int64_t part) {
    const int64_t d = pass->dit->config.dim;
    return carry_view_1d((float *)modulation.data + unit * modulation.shape[1] + part * d, CARRY_F32, d);
}

int64_t carry_dit_pass_chunk(const carry_dit_pass *pass, int64_t unit, bool *noisy) {
    const int64_t at = unit % pass->units_of;
    const int64_t cleans = pass->options.chunks - 1;
    *noisy = at >= cleans;
    return *noisy ? at - cleans : at;
}

int64_t carry_dit_pass_place(const carry_dit_pass *pass, int64_t unit, bool *noisy) {
    return unit / pass->units_of * pass->options.chunks + carry_dit_pass_chunk(pass, unit, noisy);
}

typedef struct each_job {
    carry_dit_pass *pass;
    carry_dit_work work;
    const void *user;
    _Atomic int status;
} each_job;

/* Index 0 is done already. */
static void run_some(void *argument, int64_t begin, int64_t end, int worker) {
    each_job *j = argument;
    void *scratch = j->pass->scratch + (size_t)worker * j->pass->scratch_bytes;
    for (int64_t i = begin; i < end; i++) {
        const carry_status status = j->work(j->pass, j->user, i + 1, scratch);
        if (status != CARRY_OK) {
            atomic_store(&j->status, (int)status);
            return;
        }
    }
}

carry_status carry_dit_pass_each(carry_dit_pass *pass, int64_t count, carry_dit_work work, const void *user) {
    each_job j = {.pass = pass, .work = work, .user = user};
    CARRY_TRY(work(pass, user, 0, pass->scratch));
    carry_parallel(pass->ctx, count - 1, 1, run_some, &j);
    return (carry_status)atomic_load(&j.status);
}

carry_status carry_dit_pass_units(carry_dit_pass *pass, carry_dit_work work, const void *user) {
    return carry_dit_pass_each(pass, pass->units, work, user);
}

/* Rows as [rows, heads, head]. */
static carry_tensor heads(const carry_dit_pass *pass, carry_tensor rows, int64_t first, int64_t count) {
    const int64_t d = pass->dit->config.dim;
    return carry_view_3d(rows.data != NULL ? (float *)rows.data + first * d : NULL, CARRY_F32, count,
                         pass->dit->config.num_heads, pass->head);
}

static carry_tensor lse_of(const carry_dit_pass *pass, carry_tensor lse, int64_t unit) {
    const int64_t h = pass->dit->config.num_heads;
    return carry_view_2d(lse.data != NULL ? (float *)lse.data + unit * h * pass->tokens : NULL, CARRY_F32, h,
                         pass->tokens);
}

carry_attention_args carry_dit_pass_self(const carry_dit_pass *pass, const carry_dit_rows *r, int64_t unit,
                                         carry_key_run runs[2]) {
    const int64_t video_rows = pass->units_of * pass->tokens;
    const int64_t first = unit / pass->units_of * video_rows;
    const int64_t frames = pass->options.frames;
    bool noisy;
    const int64_t chunk = carry_dit_pass_chunk(pass, unit, &noisy);
    const int64_t oldest = (chunk + 1) * frames - pass->options.window;
    const int64_t from = oldest > 0 ? oldest : 0;
    const int64_t until = (noisy ? chunk : chunk + 1) * frames;
    runs[0] = (carry_key_run){.first = from * pass->row_tokens, .count = (until - from) * pass->row_tokens};
    runs[1] = (carry_key_run){.first = unit % pass->units_of * pass->tokens, .count = noisy ? pass->tokens : 0};
    return (carry_attention_args){.o = heads(pass, r->o, unit * pass->tokens, pass->tokens),
                                  .lse = lse_of(pass, r->lse, unit),
                                  .q = heads(pass, r->q, unit * pass->tokens, pass->tokens),
                                  .k = heads(pass, r->k, first, video_rows),
                                  .v = heads(pass, r->v, first, video_rows),
                                  .run = runs,
                                  .runs = 2};
}

carry_attention_args carry_dit_pass_cross(const carry_dit_pass *pass, const carry_dit_rows *r,
                                          const carry_dit_pass_args *args, int64_t unit, carry_key_run *run) {
    const int64_t length = pass->dit->config.text_len;
    const int64_t texts = pass->options.texts;
    bool noisy;
    const int64_t caption = args->caption != NULL ? args->caption[carry_dit_pass_place(pass, unit, &noisy)] : 0;
    *run = (carry_key_run){.first = caption * length, .count = length};
    return (carry_attention_args){.o = heads(pass, r->co, unit * pass->tokens, pass->tokens),
                                  .lse = lse_of(pass, r->clse, unit),
                                  .q = heads(pass, r->cq, unit * pass->tokens, pass->tokens),
                                  .k = heads(pass, r->ck, unit / pass->units_of * texts * length, texts * length),
                                  .v = heads(pass, r->cv, unit / pass->units_of * texts * length, texts * length),
                                  .run = run,
                                  .runs = 1};
}

carry_status carry_dit_pass_linear(const carry_dit_pass *pass, carry_tensor y, carry_tensor x, carry_tensor W,
                                   carry_tensor b) {
    CARRY_TRY(carry_linear(pass->ctx, y, x, W, false));
    return carry_add_bias(pass->ctx, y, b);
}
