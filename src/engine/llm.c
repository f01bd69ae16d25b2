/* carry/model.h over model/lm: opening, logits, states and generation. */
#include "engine/llm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/tensor.h"
#include "file/gguf_model.h"
#include "file/hub_cache.h"
#include "engine/generator.h"
#include "engine/sample.h"
#include "model/host.h"

struct carry_llm_state {
    carry_llm *model;
    carry_lm_generator *generator;
    bool is_busy;  /* in carry_llm_generate */
    bool is_freed; /* freed by a callback of that call: the call frees it at its end */
};

/* Checks a device. The message names it and says whether the build or the machine lacks it. */
static carry_status check_device(carry_ctx *ctx, int device) {
    char name[32];
    int found;
    if (device < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "device %d: expected 0 for the CPU or the number of a GPU", device);
    }
    (void)snprintf(name, sizeof name, "cuda:%d", device - 1);
    return device == 0 ? CARRY_OK : carry_device_named(ctx, &found, name);
}

carry_status carry_llm_open(carry_ctx *ctx, carry_llm **model, const char *folder, const carry_llm_options *options) {
    carry_llm_options o;
    *model = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_llm_options, &o, options));
    if (o.dtype != CARRY_F32 && o.dtype != CARRY_BF16 && o.dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "a model computes in f32, bf16 or f16, not in %s",
                          carry_dtype_name(o.dtype));
    }
    CARRY_TRY(check_device(ctx, o.device));
    char found[CARRY_FILE_PATH];
    CARRY_TRY(carry_hub_resolve(ctx, found, folder)); /* hf:OWNER/NAME */
    carry_llm *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a model");
    }
    m->ctx = ctx;
    m->dtype = o.dtype;
    m->end_count = -1;
    carry_status status = (o.trains ? carry_lm_load : carry_lm_open)(ctx, &m->lm, found, o.device);
    status = status == CARRY_OK && o.trains ? carry_lm_want_gradients(m->lm) : status;
    if (status != CARRY_OK) {
        carry_llm_close(m);
        return status;
    }
    *model = m;
    return CARRY_OK;
}

void carry_llm_close(carry_llm *model) {
    if (model == NULL) {
        return;
    }
    if (model->generating > 0) {
        model->is_closed = true;
        return;
    }
    if (model->lm != NULL) {
        carry_llm_training_free(model);
    }
    carry_lm_free(model->lm);
    free(model);
}

const char *carry_llm_folder(const carry_llm *model) {
    return model->lm->folder;
}

int64_t carry_llm_vocabulary(const carry_llm *model) {
    return model->lm->config.vocab_size;
}

int64_t carry_llm_parameters(const carry_llm *model) {
    return model->lm->own.trained;
}

/* If the tokenizer cannot be read, generation from ids still works; its tokens are then not among the end tokens. */
static void find_ends(carry_llm *llm) {
    carry_model model = {.lm = llm->lm, .start = -1, .end = -1, .other_end = -1};
    llm->end_count = 0;
    (void)snprintf(model.folder, sizeof model.folder, "%s", llm->lm->folder); /* it fits, since the folder was opened by
                                                                                 this name */
    if (carry_model_has(llm->ctx, model.folder, "tokenizer.json") &&
        carry_tokenizer_open(llm->ctx, &model.tokenizer, model.folder) != CARRY_OK) {
        model.tokenizer = NULL;
        carry_log(llm->ctx, CARRY_LOG_WARNING, "the tokens of this tokenizer do not end texts: %s",
                  carry_ctx_error(llm->ctx));
    }
    carry_model_find_ends(llm->ctx, &model);
    const int64_t first[] = {model.end, model.other_end};
    for (int i = 0; i < 2; i++) {
        if (first[i] >= 0 && (i == 0 || first[1] != first[0])) {
            llm->ends[llm->end_count++] = first[i];
        }
    }
    for (int i = 0; i < model.end_count; i++) {
        llm->ends[llm->end_count++] = model.ends[i];
    }
    carry_tokenizer_close(model.tokenizer);
}

int64_t carry_llm_ends(carry_llm *model, int64_t *ends, int64_t capacity) {
    if (model->end_count < 0) {
        find_ends(model);
    }
    for (int64_t i = 0; i < model->end_count && i < capacity; i++) {
        ends[i] = model->ends[i];
    }
    return model->end_count;
}

carry_status carry_llm_save(const carry_llm *model, const char *folder, carry_dtype dtype) {
    return carry_lm_save(model->lm, folder, dtype);
}

/* The pass of carry_llm_logits, and device memory for its logits: in its type, and in f32. */
typedef struct row_pass {
    carry_lm_pass *pass;
    void *memory, *room;
    carry_tensor logits, wide;
} row_pass;

static void place_logits(const carry_llm *model, row_pass *r, int64_t count, carry_arena *arena) {
    const int64_t shape[] = {1, count, carry_llm_vocabulary(model)};
    const int device = model->lm->own.device;
    r->wide = carry_arena_tensor(arena, device, CARRY_F32, 3, shape);
    r->logits = model->dtype == CARRY_F32 ? r->wide : carry_arena_tensor(arena, device, model->dtype, 3, shape);
}

static carry_status run_row(carry_llm *model, row_pass *r, const int64_t *ids, int64_t count, float *logits) {
    carry_ctx *ctx = model->ctx;
    const carry_lm_pass_options options = {.batch = 1, .tokens = count, .dtype = model->dtype, .forward_only = true};
    size_t bytes;
    CARRY_TRY(carry_lm_pass_new(model->lm, &r->pass, &options));
    CARRY_TRY(carry_lm_pass_take(r->pass, &r->memory));
    carry_arena arena = carry_arena_over(NULL, 0);
    place_logits(model, r, count, &arena);
    if (!carry_arena_total(&arena, &bytes)) {
        return carry_fail(ctx, CARRY_ESIZE, "the logits of %" PRId64 " tokens are too large", count);
    }
    CARRY_TRY(carry_device_alloc(ctx, &r->room, model->lm->own.device, bytes));
    arena = carry_arena_over(r->room, bytes);
    place_logits(model, r, count, &arena);
    const carry_lm_args args = {.ids = carry_view_2d((void *)(uintptr_t)ids, CARRY_I64, 1, count), /* only read */
                                .logits = r->logits};
    CARRY_TRY(carry_lm_run(r->pass, &args, r->memory, carry_lm_pass_memory(r->pass)));
    CARRY_TRY(carry_lm_router_check(r->pass));
    if (model->dtype != CARRY_F32) {
        CARRY_TRY(carry_convert(ctx, r->wide, r->logits));
    }
    return carry_read(ctx, carry_view(logits, CARRY_F32, 3, r->wide.shape), r->wide);
}

carry_status carry_llm_logits(carry_llm *model, const int64_t *ids, int64_t count, float *logits) {
    row_pass r = {0};
    if (ids == NULL || logits == NULL || count < 1) {
        return carry_fail(model->ctx, CARRY_EARGUMENT, "logits need a row of one token or more, not of %" PRId64,
                          count);
    }
    carry_status status = run_row(model, &r, ids, count, logits);
    carry_device_free(model->ctx, model->lm->own.device, r.room);
    if (r.pass != NULL) {
        carry_lm_pass_give(r.pass, r.memory);
        carry_lm_pass_free(r.pass);
    }
    return status;
}

carry_status carry_llm_state_new(carry_llm *model, carry_llm_state **state) {
    *state = NULL;
    carry_llm_state *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return carry_fail(model->ctx, CARRY_EMEMORY, "out of memory: a state");
    }
    s->model = model;
    carry_status status = carry_lm_generator_new(model->lm, &s->generator, 1, model->dtype);
    if (status != CARRY_OK) {
        free(s);
        return status;
    }
    *state = s;
    return CARRY_OK;
}

void carry_llm_state_free(carry_llm_state *state) {
    if (state != NULL && state->is_busy) {
        state->is_freed = true;
    } else if (state != NULL) {
        carry_lm_generator_free(state->generator);
        free(state);
    }
}

int64_t carry_llm_state_length(const carry_llm_state *state) {
    return carry_lm_state_length(carry_lm_generator_state(state->generator), 0);
}

static carry_status check_idle(const carry_llm_state *state) {
    return !state->is_busy ? CARRY_OK
                           : carry_fail(state->model->ctx, CARRY_EARGUMENT,
                                        "the state is in use by carry_llm_generate, which called this callback: use "
                                        "another state, or a copy");
}

carry_status carry_llm_state_clear(carry_llm_state *state) {
    CARRY_TRY(check_idle(state));
    return carry_lm_state_clear(carry_lm_generator_state(state->generator), 0);
}

carry_status carry_llm_state_copy(carry_llm_state *to, const carry_llm_state *from) {
    if (to->model != from->model) {
        return carry_fail(to->model->ctx, CARRY_EARGUMENT, "a state can be copied only to a state of the same model");
    }
    CARRY_TRY(check_idle(to));
    return carry_lm_state_copy(carry_lm_generator_state(to->generator), 0, carry_lm_generator_state(from->generator),
                               0);
}

carry_status carry_llm_state_save(carry_llm_state *state, const char *path) {
    return carry_lm_state_save(carry_lm_generator_state(state->generator), 0, path);
}

carry_status carry_llm_state_load(carry_llm_state *state, const char *path) {
    CARRY_TRY(check_idle(state));
    return carry_lm_state_load(carry_lm_generator_state(state->generator), 0, path);
}

static carry_status read_tokens(carry_llm_state *state, const int64_t *ids, int64_t count, float *logits) {
    carry_ctx *ctx = state->model->ctx;
    float *own = logits != NULL ? NULL : malloc((size_t)carry_llm_vocabulary(state->model) * sizeof *own);
    if (logits == NULL && own == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: logits");
    }
    carry_status status = CARRY_OK;
    if (ids == NULL) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "no tokens to read");
    } else {
        status = carry_lm_generator_prompt(state->generator, 0, ids, count, logits != NULL ? logits : own);
    }
    free(own);
    return status;
}

carry_status carry_llm_read(carry_llm_state *state, const int64_t *ids, int64_t count, float *logits) {
    CARRY_TRY(check_idle(state));
    return read_tokens(state, ids, count, logits);
}

/* A text in progress. */
typedef struct text {
    carry_llm_state *state;
    const carry_llm_generation *options;
    carry_sampler *sampler;
    float *logits;
    uint32_t *seen; /* each token once, for the penalty; NULL without one */
    unsigned char *is_seen;
    size_t seen_count;
} text;

static void close_text(text *t) {
    carry_sampler_free(t->sampler);
    free(t->logits);
    free(t->seen);
    free(t->is_seen);
}

static carry_status open_text(text *t, carry_ctx *ctx, int64_t vocabulary) {
    const carry_llm_generation *o = t->options;
    const carry_sampling sampling = {.temperature = o->temperature,
                                     .top_k = o->top_k,
                                     .top_p = o->top_p == 0.0 ? 1.0 : o->top_p,
                                     .min_p = o->min_p,
                                     .repetition = o->repetition == 0.0 ? 1.0 : o->repetition,
                                     .seed = o->seed};
    if (o->tokens < 1 || o->end_count < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "tokens is %" PRId64 " and end_count is %" PRId64 ": expected 1 or more, and 0 or more",
                          o->tokens, o->end_count);
    }
    CARRY_TRY(carry_sampling_check(ctx, &sampling));
    CARRY_TRY(carry_sampler_new(ctx, &t->sampler, vocabulary, &sampling));
    t->logits = malloc((size_t)vocabulary * sizeof *t->logits);
    bool is_whole = t->logits != NULL;
    if (sampling.repetition != 1.0) {
        t->seen = malloc((size_t)vocabulary * sizeof *t->seen);
        t->is_seen = calloc((size_t)vocabulary, 1);
        is_whole = is_whole && t->seen != NULL && t->is_seen != NULL;
    }
    return is_whole ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: logits");
}

static void note_seen(text *t, int64_t token) {
    if (t->seen != NULL && t->is_seen != NULL && t->is_seen[token] == 0) {
        t->is_seen[token] = 1;
        t->seen[t->seen_count++] = (uint32_t)token;
    }
}

static bool is_end(const carry_llm_generation *o, int64_t token) {
    bool ends = false;
    for (int64_t i = 0; i < o->end_count; i++) {
        ends = ends || o->ends[i] == token;
    }
    return ends;
}

/* True if a callback has closed the model or freed the state. */
static bool is_ended(const text *t) {
    return t->state->is_freed || t->state->model->is_closed;
}

/* Reads the prompt in the same pieces as the generator, so that the logits do not depend on `proceed`. */
static carry_status read_prompt(text *t, const int64_t *prompt, int64_t count, bool *proceeds) {
    const int64_t piece = carry_lm_generator_piece(t->state->generator);
    *proceeds = true;
    for (int64_t at = 0; *proceeds && (at < count || at == 0); at += piece) {
        const int64_t some = count - at < piece ? count - at : piece;
        CARRY_TRY(read_tokens(t->state, prompt != NULL ? prompt + at : NULL, some, t->logits));
        for (int64_t i = at; i < at + some; i++) {
            note_seen(t, prompt[i]); /* the prompt was read, so all ids are valid */
        }
        if (at + some < count) {
            *proceeds = (t->options->proceed == NULL || t->options->proceed(t->options->user)) && !is_ended(t);
        }
    }
    return CARRY_OK;
}

static carry_status write_text(text *t, carry_ctx *ctx) {
    const carry_llm_generation *o = t->options;
    for (int64_t i = 0; i < o->tokens; i++) {
        int64_t token;
        if (t->seen != NULL) {
            carry_sample_penalize(t->logits, t->seen, t->seen_count, o->repetition);
        }
        CARRY_TRY(carry_sample(ctx, t->sampler, t->logits, 0, (uint64_t)i, &token));
        note_seen(t, token);
        if (is_end(o, token) || (o->on_token != NULL && !o->on_token(o->user, token)) || i + 1 == o->tokens ||
            is_ended(t)) {
            break;
        }
        CARRY_TRY(carry_lm_generator_step(t->state->generator, &token, t->logits));
    }
    return CARRY_OK;
}

/* Called after the last use of the state: frees the objects that callbacks asked to free. */
static void leave(carry_llm_state *state) {
    carry_llm *model = state->model;
    state->is_busy = false;
    model->generating--;
    if (state->is_freed) {
        carry_llm_state_free(state);
    }
    if (model->is_closed && model->generating == 0) {
        carry_llm_close(model);
    }
}

carry_status carry_llm_generate(carry_llm_state *state, const int64_t *prompt, int64_t count,
                                const carry_llm_generation *options) {
    carry_ctx *ctx = state->model->ctx;
    carry_llm_generation own;
    text t = {.state = state, .options = &own};
    bool proceeds = true;
    CARRY_TRY(check_idle(state));
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_llm_generation, &own, options));
    state->is_busy = true;
    state->model->generating++;
    carry_status status = open_text(&t, ctx, carry_llm_vocabulary(state->model));
    status = status == CARRY_OK ? read_prompt(&t, prompt, count, &proceeds) : status;
    status = status == CARRY_OK && proceeds ? write_text(&t, ctx) : status;
    close_text(&t);
    leave(state);
    return status;
}
