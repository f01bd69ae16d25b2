/* Generation from and to files of states (model/lm/lm.h): a row of places, each with a text under way. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "engine/generate_inside.h"
#include "engine/generator.h"

#define PIECE 2048 /* tokens of a prompt between two looks at whether to stop */
#define NONE (-1)

typedef struct place {
    int64_t prompt; /* NONE: nothing is under way here */
    uint64_t stream;
    double started;
    carry_decoded text;
    carry_ids seen;         /* for the repetition penalty: each token of prompt and text once */
    unsigned char *is_seen; /* a bit for each token; NULL without the penalty */
} place;

typedef struct rows {
    carry_generation *g;
    carry_lm_generator *generator;
    carry_sampler *sampler;
    carry_ids ids; /* of the prompt being read */
    int64_t *piece;
    float *logits; /* [batch, vocabulary] */
    int64_t *next; /* the token of each place that the next step reads */
    place *places;
    int64_t begun; /* prompts */
} rows;

static void close_rows(rows *w) {
    carry_lm_generator_free(w->generator);
    carry_sampler_free(w->sampler);
    carry_ids_free(&w->ids);
    for (int64_t i = 0; i < w->g->batch && w->places != NULL; i++) {
        carry_ids_free(&w->places[i].seen);
        free(w->places[i].is_seen);
    }
    free(w->piece);
    free(w->logits);
    free(w->next);
    free(w->places);
}

static carry_status open_rows(rows *w) {
    const carry_model *m = w->g->model;
    const carry_sampling *sampling = &w->g->options->sampling;
    const bool has_penalty = sampling->repetition > 0.0 && sampling->repetition != 1.0;
    const int64_t tokens = m->tokenizer != NULL ? carry_tokenizer_size(m->tokenizer) : m->lm->config.vocab_size;
    CARRY_TRY(carry_sampler_new(w->g->ctx, &w->sampler, tokens, sampling));
    CARRY_TRY(carry_lm_generator_new(m->lm, &w->generator, w->g->batch, w->g->options->dtype));
    const int64_t sizes[] = {w->g->batch, m->lm->config.vocab_size};
    size_t bytes;
    w->logits = carry_size_product(&bytes, sizes, 2, sizeof(float)) ? malloc(bytes) : NULL;
    w->piece = malloc(PIECE * sizeof *w->piece);
    w->next = calloc((size_t)w->g->batch, sizeof *w->next);
    w->places = calloc((size_t)w->g->batch, sizeof *w->places);
    bool is_whole = true;
    for (int64_t i = 0; i < w->g->batch && w->places != NULL; i++) {
        w->places[i].prompt = NONE;
        if (has_penalty) {
            w->places[i].is_seen = malloc((size_t)m->lm->config.vocab_size / 8 + 1);
            is_whole = is_whole && w->places[i].is_seen != NULL;
        }
    }
    if (w->logits == NULL || w->piece == NULL || w->next == NULL || w->places == NULL || !is_whole) {
        return carry_fail(w->g->ctx, CARRY_EMEMORY, "out of memory: generating %" PRId64 " texts at once", w->g->batch);
    }
    return CARRY_OK;
}

static void end_text(rows *w, place *p, carry_ending ending) {
    const int64_t prompt = p->prompt;
    p->prompt = NONE;
    w->g->results[prompt].seconds = carry_seconds() - p->started;
    carry_generation_end(w->g, prompt, &p->text, ending);
}

static carry_status note_seen(const rows *w, place *p, uint32_t id) {
    if (p->is_seen == NULL || (p->is_seen[id / 8] >> id % 8 & 1) != 0) {
        return CARRY_OK;
    }
    p->is_seen[id / 8] |= (unsigned char)(1u << id % 8);
    return carry_generation_keep_id(w->g->ctx, &p->seen, id);
}

/* The next token of a place's text, from its logits. */
static carry_status take_token(rows *w, int64_t at, float *logits) {
    carry_generation *g = w->g;
    place *p = &w->places[at];
    carry_continuation *c = &g->results[p->prompt];
    int64_t token;
    bool is_stopped;
    if (p->is_seen != NULL) {
        carry_sample_penalize(logits, p->seen.id, p->seen.count, g->options->sampling.repetition);
    }
    CARRY_TRY(carry_sample(g->ctx, w->sampler, logits, p->stream, (uint64_t)c->tokens, &token));
    if (c->tokens == 0) {
        c->first = carry_seconds() - p->started;
    }
    w->next[at] = token;
    if (carry_model_ends_with(g->model, token)) {
        end_text(w, p, CARRY_ENDED_BY_TOKEN);
        return CARRY_OK;
    }
    CARRY_TRY(note_seen(w, p, (uint32_t)token));
    CARRY_TRY(carry_generation_take(g, p->prompt, &p->text, token, &is_stopped));
    if (is_stopped) {
        end_text(w, p, CARRY_ENDED_BY_STOP);
    } else if (c->tokens == g->options->tokens) {
        end_text(w, p, CARRY_ENDED_BY_LENGTH);
    } else if (g->options->heard != NULL && !g->options->heard(g->options->user, p->prompt)) {
        g->stopped = true;
    }
    return CARRY_OK;
}

/* An empty text, in which only the tokens of the prompt were seen. */
static carry_status empty_place(rows *w, place *p, int64_t prompt) {
    const carry_generation *g = w->g;
    p->prompt = prompt;
    p->stream = carry_generation_stream(g, prompt);
    p->started = carry_seconds();
    p->text = (carry_decoded){
        .tokenizer = g->model->tokenizer, .stops = g->options->stops, .stop_count = g->options->stop_count};
    p->seen.count = 0;
    if (p->is_seen != NULL) {
        memset(p->is_seen, 0, (size_t)g->model->lm->config.vocab_size / 8 + 1);
    }
    CARRY_TRY(carry_generation_encode(g, prompt, &w->ids, &p->text.is_first));
    for (size_t i = 0; i < w->ids.count && g->results[prompt].prompt_tokens > 0; i++) {
        CARRY_TRY(note_seen(w, p, w->ids.id[i]));
    }
    return CARRY_OK;
}

static carry_status read_prompt(rows *w, int64_t at, int64_t prompt) {
    const int64_t count = (int64_t)w->ids.count;
    for (int64_t done = 0; done < count && !w->g->stopped;) {
        const int64_t some = count - done < PIECE ? count - done : PIECE;
        for (int64_t i = 0; i < some; i++) {
            w->piece[i] = (int64_t)w->ids.id[done + i];
        }
        CARRY_TRY(carry_lm_generator_prompt(w->generator, at, w->piece, some, w->logits));
        done += some;
        if (done < count && w->g->options->heard != NULL) {
            w->g->stopped = !w->g->options->heard(w->g->options->user, prompt);
        }
    }
    return CARRY_OK;
}

/* Reads the next prompt and takes the first token after it. */
static carry_status begin_text(rows *w, int64_t at) {
    const carry_generate_options *o = w->g->options;
    place *p = &w->places[at];
    const int64_t prompt = w->begun++;
    CARRY_TRY(empty_place(w, p, prompt));
    carry_lm_state *state = carry_lm_generator_state(w->generator);
    CARRY_TRY(o->state_load != NULL ? carry_lm_state_load(state, at, o->state_load) : carry_lm_state_clear(state, at));
    CARRY_TRY(read_prompt(w, at, prompt));
    if (w->g->stopped) {
        return CARRY_OK;
    }
    if (o->state_save != NULL) {
        CARRY_TRY(carry_lm_state_save(state, at, o->state_save));
    }
    if (o->tokens == 0) {
        w->g->results[prompt].first = carry_seconds() - p->started;
        end_text(w, p, CARRY_ENDED_BY_LENGTH);
        return CARRY_OK;
    }
    return take_token(w, at, w->logits);
}

/* Places without a text get the next prompts; false when no text is under way any more. */
static carry_status fill_places(rows *w, bool *busy) {
    *busy = false;
    for (int64_t at = 0; at < w->g->batch; at++) {
        while (w->places[at].prompt == NONE && w->begun < w->g->count && !w->g->stopped) {
            CARRY_TRY(begin_text(w, at));
        }
        *busy = *busy || w->places[at].prompt != NONE;
    }
    return CARRY_OK;
}

static carry_status run_rows(rows *w) {
    bool busy;
    CARRY_TRY(open_rows(w));
    CARRY_TRY(fill_places(w, &busy));
    while (busy && !w->g->stopped) {
        CARRY_TRY(carry_lm_generator_step(w->generator, w->next, w->logits));
        for (int64_t at = 0; at < w->g->batch && !w->g->stopped; at++) {
            if (w->places[at].prompt != NONE) {
                CARRY_TRY(take_token(w, at, w->logits + at * w->g->model->lm->config.vocab_size));
            }
        }
        CARRY_TRY(fill_places(w, &busy));
    }
    return CARRY_OK;
}

carry_status carry_generate_rows(carry_generation *g) {
    rows w = {.g = g};
    const carry_status status = run_rows(&w);
    for (int64_t i = 0; i < g->batch && w.places != NULL; i++) {
        if (w.places[i].prompt != NONE && status == CARRY_OK) {
            end_text(&w, &w.places[i], CARRY_INTERRUPTED);
        }
    }
    close_rows(&w);
    return status;
}
