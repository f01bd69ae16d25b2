/* Generation through the engine: all prompts are requests of one scheduler. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/error.h"
#include "engine/generate_inside.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "file/state_file.h"
#include "engine/text_rule.h"
#include "model/lm/lm_heads.h"

#define STEP_CPU 512
#define STEP_GPU 4096
#define CACHE_DIR_BYTES ((size_t)16 << 30)
#define SNAPSHOTS 64 /* maximum number of slots for cached prefixes */

typedef struct job {
    struct together *all;
    int64_t prompt;
    carry_decoded text;
    bool is_stopped; /* by a stop text */
    carry_text_rule rule;
    bool is_complete; /* its rule allows no more tokens */
} job;

typedef struct together {
    carry_generation *g;
    carry_lm *heads; /* multi-token heads; NULL: none */
    carry_runner *runner;
    carry_scheduler *scheduler;
    uint32_t *allowed;
    int32_t ends[CARRY_MODEL_ENDS + 2];
    int64_t end_count;
    job *jobs;
    carry_ids *prompts;
    uint64_t loaded, kept; /* handles of the state that prompts continue from, and of the one after the text; 0: none */
    carry_status status;   /* the first failure */
    bool has_called;       /* the callback was called since the last step began */
} together;

static void close_together(together *w) {
    carry_scheduler_free(w->scheduler);
    if (w->runner != NULL) {
        w->runner->ops->close(w->runner);
    }
    carry_lm_free(w->heads);
    for (int64_t i = 0; i < w->g->count && w->jobs != NULL; i++) {
        carry_text_rule_close(&w->jobs[i].rule);
    }
    for (int64_t i = 0; i < w->g->count && w->prompts != NULL; i++) {
        carry_ids_free(&w->prompts[i]);
    }
    free(w->prompts);
    free(w->jobs);
    free(w->allowed);
}

/* Ids beyond the tokenizer's vocabulary are not tokens. */
static carry_status find_tokens(together *w) {
    const carry_model *m = w->g->model;
    const int64_t vocabulary = m->lm->config.vocab_size;
    const int64_t tokens = m->tokenizer != NULL ? carry_tokenizer_size(m->tokenizer) : vocabulary;
    for (int64_t i = 0; i < vocabulary && w->end_count < CARRY_MODEL_ENDS + 2; i++) {
        if (carry_model_ends_with(m, i)) {
            w->ends[w->end_count++] = (int32_t)i;
        }
    }
    w->allowed = tokens < vocabulary ? calloc((size_t)vocabulary / 32 + 1, sizeof *w->allowed) : NULL;
    if (tokens < vocabulary && w->allowed == NULL) {
        return carry_fail(w->g->ctx, CARRY_EMEMORY, "out of memory: a vocabulary of %" PRId64, vocabulary);
    }
    for (int64_t i = 0; i < tokens && w->allowed != NULL; i++) {
        w->allowed[i / 32] |= 1u << i % 32;
    }
    return CARRY_OK;
}

static carry_status encode_all(together *w, int64_t *longest) {
    carry_generation *g = w->g;
    *longest = 1;
    w->jobs = calloc((size_t)g->count, sizeof *w->jobs);
    w->prompts = calloc((size_t)g->count, sizeof *w->prompts);
    if (w->jobs == NULL || w->prompts == NULL) {
        return carry_fail(g->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " prompts", g->count);
    }
    for (int64_t i = 0; i < g->count; i++) {
        w->jobs[i] = (job){.all = w,
                           .prompt = i,
                           .text = {.tokenizer = g->model->tokenizer,
                                    .stops = g->options->stops,
                                    .stop_count = g->options->stop_count}};
        CARRY_TRY(carry_generation_encode(g, i, &w->prompts[i], &w->jobs[i].text.is_first));
        *longest = (int64_t)w->prompts[i].count > *longest ? (int64_t)w->prompts[i].count : *longest;
    }
    return CARRY_OK;
}

static void on_token(together *w, job *j, const carry_sequence *q, int64_t token) {
    carry_generation *g = w->g;
    carry_continuation *c = &g->results[j->prompt];
    c->first = q->first - q->started;
    const carry_status status = carry_generation_take(g, j->prompt, &j->text, token, &j->is_stopped);
    w->status = w->status == CARRY_OK ? status : w->status;
    j->is_complete = carry_text_rule_take(&j->rule, token);
    if (j->is_stopped || j->is_complete) {
        (void)carry_scheduler_cancel(w->scheduler, q->request);
    } else if (c->tokens < g->options->tokens && g->options->heard != NULL) {
        g->stopped = !g->options->heard(g->options->user, j->prompt) || g->stopped;
        w->has_called = true;
    }
}

static void on_end(together *w, job *j, const carry_sequence *q) {
    carry_continuation *c = &w->g->results[j->prompt];
    c->seconds = q->started > 0.0 ? q->ended - q->started : 0.0;
    c->first = q->written > 0 ? c->first : c->seconds;
    c->cached_tokens = q->cached;
    c->drafted_tokens = q->drafted;
    c->accepted_tokens = q->accepted;
    if (q->outcome == CARRY_OUTCOME_FAILED && w->status == CARRY_OK) {
        w->status = carry_fail(w->g->ctx, q->status, "%s", q->message);
    }
    if (q->outcome == CARRY_OUTCOME_FAILED || (q->outcome == CARRY_OUTCOME_CANCELLED && q->written == 0)) {
        carry_decoded_free(&j->text);
        return; /* it never began, or has no result */
    }
    carry_generation_end(w->g, j->prompt, &j->text,
                         j->is_stopped                           ? CARRY_ENDED_BY_STOP
                         : j->is_complete                        ? CARRY_ENDED_BY_TOKEN
                         : q->outcome == CARRY_OUTCOME_CANCELLED ? CARRY_INTERRUPTED
                         : q->outcome == CARRY_OUTCOME_TOKEN     ? CARRY_ENDED_BY_TOKEN
                                                                 : CARRY_ENDED_BY_LENGTH);
}

static void on_event(void *user, const carry_sequence_event *event) {
    job *j = event->sequence->options.user;
    if (event->result != NULL) {
        on_token(user, j, event->sequence, event->result->token);
    } else {
        ((together *)user)->kept = event->state;
        on_end(user, j, event->sequence);
    }
}

/* Gets the number of tokens of the state that prompts continue from. */
static carry_status measure_state(const together *w, int64_t *tokens) {
    const char *path = w->g->options->state_load;
    carry_state_file file;
    *tokens = 0;
    if (path == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_state_open(w->g->ctx, &file, path));
    const carry_tensor *ids = carry_safetensors_find(&file.file, "tokens");
    *tokens = ids != NULL && ids->rank == 2 && ids->shape[0] > file.about.tokens ? ids->shape[0] : file.about.tokens;
    carry_state_close(&file);
    return *tokens < INT64_MAX / 4 ? CARRY_OK : carry_fail(w->g->ctx, CARRY_EFORMAT, "%s has too many tokens", path);
}

static carry_status open_together(together *w) {
    carry_generation *g = w->g;
    carry_lm *lm = g->model->lm;
    const int device = lm->own.device;
    const carry_engine_options *e = &g->engine;
    carry_runner_sizes sizes = {.sequences = g->batch};
    carry_draft_plan draft;
    carry_state_types types;
    size_t available;
    size_t total;
    int64_t longest;
    int64_t before;
    CARRY_TRY(find_tokens(w));
    CARRY_TRY(encode_all(w, &longest));
    CARRY_TRY(measure_state(w, &before));
    if (g->options->tokens > INT64_MAX / 4) {
        return carry_fail(g->ctx, CARRY_ESIZE, "%" PRId64 " tokens: too many", g->options->tokens);
    }
    sizes.context = g->engine.context > 0 ? g->engine.context : before + longest + g->options->tokens;
    sizes.tokens = device == 0 ? STEP_CPU : STEP_GPU;
    sizes.tokens = sizes.tokens < longest + CARRY_PAGE_TOKENS ? sizes.tokens : longest + CARRY_PAGE_TOKENS;
    sizes.tokens = sizes.tokens > g->batch + CARRY_PAGE_TOKENS ? sizes.tokens : g->batch + CARRY_PAGE_TOKENS;
    CARRY_TRY(carry_draft_choose(g->ctx, &draft, e, g->batch));
    sizes.tokens += draft.runs;
    const bool has_state = before > 0 || g->options->state_save != NULL;
    carry_pool_demand demand = {.sequences = g->batch + has_state, .context = sizes.context};
    const bool has_cache = e->cache_device > 0 || e->cache_host > 0 || e->cache_dir != NULL;
    const bool is_cached = !e->no_cache && (g->count > 1 || has_cache);
    const int64_t snapshots = g->count < SNAPSHOTS ? g->count + 2 : SNAPSHOTS;
    demand.most_slots = demand.sequences + draft.runs + (is_cached ? snapshots : 0);
    demand.spare = is_cached ? g->batch : 0;
    CARRY_TRY(draft.by_heads ? carry_lm_heads_open(lm, &w->heads) : CARRY_OK);
    CARRY_TRY(carry_state_types_parse(&types, lm, g->options->dtype, e->kv_type, e->state_type));
    carry_model_runner_measure(lm, w->heads, g->options->dtype, &types, &demand.slot_bytes, &demand.page_bytes);
    const carry_model_runner_options runner = {.same_bits = e->same_bits, .heads = w->heads, .types = &types};
    demand.slot_bytes += carry_model_runner_ring_bytes(lm, &runner, sizes.sequences + draft.runs);
    CARRY_TRY(carry_device_memory(g->ctx, &available, &total, device));
    CARRY_TRY(
        carry_state_pool_fit(g->ctx, &sizes.slots, &sizes.pages, e->memory > 0 ? e->memory : available / 2, &demand));
    const int64_t texts = sizes.slots < sizes.sequences ? sizes.slots : sizes.sequences;
    sizes.sequences = texts + draft.runs < sizes.slots ? texts + draft.runs : sizes.slots;
    CARRY_TRY(carry_model_runner_new_with(lm, &w->runner, &sizes, g->options->dtype, &runner));
    const carry_scheduler_options options = {
        .cache = {.device_bytes = !is_cached            ? 0
                                  : e->cache_device > 0 ? e->cache_device
                                                        : SIZE_MAX,
                  .host_bytes = e->cache_host,
                  .folder = e->cache_dir,
                  .folder_bytes = e->cache_dir_bytes > 0 ? e->cache_dir_bytes : CACHE_DIR_BYTES},
        .queue = g->count,
        .same_bits = e->same_bits,
        .texts = texts,
        .draft = draft.function,
        .heads_draft = draft.by_heads,
        .draft_tokens = draft.tokens,
        .on_event = on_event,
        .user = w};
    CARRY_TRY(carry_scheduler_new(g->ctx, &w->scheduler, w->runner, &options));
    return before > 0 ? carry_scheduler_state_load(w->scheduler, &w->loaded, g->options->state_load) : CARRY_OK;
}

static carry_status submit_all(together *w) {
    const carry_generation *g = w->g;
    for (int64_t i = 0; i < g->count; i++) {
        carry_sequence *q;
        job *j = &w->jobs[i];
        CARRY_TRY(carry_text_rule_open(g->ctx, &j->rule, g->model->tokenizer, g->options->regex,
                                       g->options->json_schema, w->runner->sizes.vocabulary));
        const bool has_rule = j->rule.cursor != NULL;
        j->text.is_first = j->text.is_first && !has_rule;
        if (has_rule) {
            CARRY_TRY(carry_text_rule_set_ends(g->ctx, &j->rule, w->ends, w->end_count));
        }
        const carry_sequence_options o = {.ids = (const int32_t *)w->prompts[i].id,
                                          .count = (int64_t)w->prompts[i].count,
                                          .tokens = g->options->tokens,
                                          .sampling = g->options->sampling,
                                          .stream = carry_generation_stream(g, i),
                                          .allowed = w->allowed,
                                          .ends = w->ends,
                                          .end_count = w->end_count,
                                          .logprobs = -1,
                                          .state = w->loaded,
                                          .keeps = g->options->state_save != NULL,
                                          .user = j,
                                          .constrain = has_rule ? carry_text_rule_allow : NULL,
                                          .constraint = &j->rule};
        CARRY_TRY(carry_sequence_new(g->ctx, &q, &w->runner->sizes, &o));
        const carry_status status = carry_scheduler_add(w->scheduler, q, (uint64_t)i);
        if (status != CARRY_OK) {
            carry_sequence_free(q);
            return status;
        }
        carry_ids_free(&w->prompts[i]);
    }
    return CARRY_OK;
}

static carry_status run_together(together *w) {
    carry_generation *g = w->g;
    CARRY_TRY(open_together(w));
    CARRY_TRY(submit_all(w));
    for (bool is_busy = true; is_busy;) {
        w->has_called = false;
        CARRY_TRY(carry_scheduler_step(w->scheduler, &is_busy));
        if (is_busy && !w->has_called && !g->stopped && g->options->heard != NULL) { /* prompts are being read */
            g->stopped = !g->options->heard(g->options->user, 0);
        }
        if (is_busy && (g->stopped || w->status != CARRY_OK)) {
            carry_scheduler_cancel_all(w->scheduler);
        }
    }
    if (w->status == CARRY_OK && w->kept != 0 && !g->stopped && g->options->state_save != NULL) {
        w->status = carry_scheduler_state_save(w->scheduler, w->kept, g->options->state_save);
    }
    return w->status;
}

carry_status carry_generate_together(carry_generation *g) {
    together w = {.g = g};
    const carry_status status = run_together(&w);
    close_together(&w);
    return status;
}
