/* The units of a training pass: the chunk of each, and the chunks that it attends to. */
#include "model/dit/dit_pass_rows.h"

static int64_t chunk_of(const carry_dit_pass *pass, int64_t unit, bool *noisy) {
    const int64_t at = unit % pass->units_of;
    const int64_t cleans = pass->options.chunks - 1;
    *noisy = at >= cleans;
    return *noisy ? at - cleans : at;
}

int64_t carry_dit_pass_place(const carry_dit_pass *pass, int64_t unit, bool *noisy) {
    return unit / pass->units_of * pass->options.chunks + chunk_of(pass, unit, noisy);
}

/* The part of lse that belongs to a unit: [heads, tokens]. */
static carry_tensor lse_of(const carry_dit_pass *pass, carry_tensor lse, int64_t unit) {
    return carry_reshape_2d(carry_slice(lse, unit, 1), pass->dit->config.num_heads, pass->tokens);
}

carry_attention_args carry_dit_pass_self(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                         int64_t unit, carry_key_run *run) {
    const carry_dit_pass *pass = call->owner;
    const int64_t video_rows = pass->units_of * pass->tokens;
    const int64_t first = unit / pass->units_of * video_rows;
    const int64_t frames = pass->options.frames;
    bool noisy;
    const int64_t chunk = chunk_of(pass, unit, &noisy);
    const int64_t oldest = (chunk + 1) * frames - pass->options.window;
    const int64_t from = oldest > 0 ? oldest : 0;
    const int64_t until = (noisy ? chunk : chunk + 1) * frames;
    (void)block;
    run[0] = (carry_key_run){.first = from * pass->row_tokens, .count = (until - from) * pass->row_tokens};
    run[1] = (carry_key_run){.first = unit % pass->units_of * pass->tokens, .count = noisy ? pass->tokens : 0};
    return (carry_attention_args){.o = carry_dit_heads(pass->dit, r->o, unit * pass->tokens, pass->tokens),
                                  .lse = lse_of(pass, r->lse, unit),
                                  .q = carry_dit_heads(pass->dit, r->q, unit * pass->tokens, pass->tokens),
                                  .k = carry_dit_heads(pass->dit, r->k, first, video_rows),
                                  .v = carry_dit_heads(pass->dit, r->v, first, video_rows),
                                  .run = run,
                                  .runs = 2};
}

carry_attention_args carry_dit_pass_cross(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                          int64_t unit, carry_key_run *run) {
    const carry_dit_pass *pass = call->owner;
    const int64_t length = pass->dit->config.text_len;
    const int64_t rows = pass->options.texts * length;
    bool noisy;
    const int64_t caption = pass->args != NULL ? pass->args->caption[carry_dit_pass_place(pass, unit, &noisy)] : 0;
    (void)block;
    *run = (carry_key_run){.first = caption * length, .count = length};
    return (carry_attention_args){.o = carry_dit_heads(pass->dit, r->co, unit * pass->tokens, pass->tokens),
                                  .lse = lse_of(pass, r->clse, unit),
                                  .q = carry_dit_heads(pass->dit, r->cq, unit * pass->tokens, pass->tokens),
                                  .k = carry_dit_heads(pass->dit, r->ck, unit / pass->units_of * rows, rows),
                                  .v = carry_dit_heads(pass->dit, r->cv, unit / pass->units_of * rows, rows),
                                  .run = run,
                                  .runs = 1};
}
