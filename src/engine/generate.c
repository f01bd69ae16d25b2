/* Generation: a row of places, each with a text under way. */
#include "engine/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "engine/generator.h"
#include "tokenizer/tokenizer_internal.h"

#define BATCH 16
#define PIECE 2048 /* tokens of a prompt between two looks at whether to stop */
#define NONE (-1)

typedef struct place {
    int64_t prompt; /* NONE: nothing is under way here */
    uint64_t stream;
    double started;
    bool is_first; /* nothing was decoded yet, and the prompt is empty */
    carry_unfold unfold;
    carry_ids seen;         /* for the repetition penalty: each token of prompt and text once */
    unsigned char *is_seen; /* a bit for each token; NULL without the penalty */
} place;

typedef struct work {
    carry_ctx *ctx;
    const carry_model *model;
    const carry_prompt *prompts;
    int64_t count, batch;
    const carry_generate_options *options;
    carry_continuation *results;
    carry_lm_generator *generator;
    carry_sampler *sampler;
    carry_encoder *encoder;
    carry_ids ids; /* of the prompt being read */
    int64_t *piece;
    float *logits; /* [batch, vocabulary] */
    int64_t *next; /* the token of each place that the next step reads */
    place *places;
    int64_t begun; /* prompts */
    bool stopped;
} work;

const char *carry_ending_name(carry_ending ending) {
    static const char *const names[] = {"under way", "length", "end", "stop", "interrupted"};
    return names[ending];
}

void carry_continuation_free(carry_continuation *continuation) {
    free(continuation->text);
    carry_ids_free(&continuation->ids);
    *continuation = (carry_continuation){0};
}

static void close_work(work *w) {
    carry_lm_generator_free(w->generator);
    carry_sampler_free(w->sampler);
    carry_encoder_free(w->encoder);
    carry_ids_free(&w->ids);
    for (int64_t i = 0; i < w->batch && w->places != NULL; i++) {
        carry_ids_free(&w->places[i].seen);
        free(w->places[i].is_seen);
    }
    free(w->piece);
    free(w->logits);
    free(w->next);
    free(w->places);
}

static bool has_penalty(const work *w) {
    return w->options->sampling.repetition > 0.0 && w->options->sampling.repetition != 1.0;
}

static carry_status open_work(work *w) {
    const carry_model *m = w->model;
    int64_t tokens = m->tokenizer != NULL ? carry_tokenizer_size(m->tokenizer) : m->lm->config.vocab_size;
    CARRY_TRY(carry_sampler_new(w->ctx, &w->sampler, tokens, &w->options->sampling));
    if (m->tokenizer != NULL) {
        CARRY_TRY(carry_encoder_new(w->ctx, &w->encoder, m->tokenizer));
    }
    CARRY_TRY(carry_lm_generator_new(m->lm, &w->generator, w->batch, w->options->dtype));
    const int64_t sizes[] = {w->batch, m->lm->config.vocab_size};
    size_t bytes;
    w->logits = carry_size_product(&bytes, sizes, 2, sizeof(float)) ? malloc(bytes) : NULL;
    w->piece = malloc(PIECE * sizeof *w->piece);
    w->next = calloc((size_t)w->batch, sizeof *w->next);
    w->places = calloc((size_t)w->batch, sizeof *w->places);
    bool is_whole = true;
    for (int64_t i = 0; i < w->batch && w->places != NULL; i++) {
        w->places[i].prompt = NONE;
        if (has_penalty(w)) {
            w->places[i].is_seen = malloc((size_t)m->lm->config.vocab_size / 8 + 1);
            is_whole = is_whole && w->places[i].is_seen != NULL;
        }
    }
    if (w->logits == NULL || w->piece == NULL || w->next == NULL || w->places == NULL || !is_whole) {
        return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: generating %" PRId64 " texts at once", w->batch);
    }
    return CARRY_OK;
}

/* How many of the same prompt came before: each gets random numbers of its own, and the first the ones it has alone. */
static uint64_t stream_of(const work *w, int64_t prompt) {
    const carry_prompt *p = &w->prompts[prompt];
    uint64_t same = 0;
    for (int64_t i = 0; i < prompt; i++) {
        const carry_prompt *other = &w->prompts[i];
        same += p->ids != NULL
                    ? other->id_count == p->id_count && memcmp(other->ids, p->ids, p->id_count * sizeof *p->ids) == 0
                    : other->length == p->length && memcmp(other->text, p->text, p->length) == 0;
    }
    return same;
}

/* Room for the text of `length` more bytes, and a 0. */
static carry_status make_room(carry_ctx *ctx, carry_continuation *c, size_t length) {
    size_t needed = c->length + CARRY_UNFOLD_GROWTH * (length + 4) + 1;
    if (needed <= c->room) {
        return CARRY_OK;
    }
    size_t room = needed < 256 ? 256 : 2 * needed;
    char *grown = realloc(c->text, room);
    if (grown == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text of %zu bytes", room);
    }
    c->text = grown;
    c->room = room;
    return CARRY_OK;
}

/* Looks for the stop texts in what is new since `before`, and settles what cannot be the beginning of one. The first
   place at which one starts ends the text. */
static bool find_stop(carry_continuation *c, const carry_generate_options *options, size_t before) {
    size_t end = c->length;
    size_t held = 0;
    for (int i = 0; i < options->stop_count; i++) {
        const char *stop = options->stops[i];
        size_t length = strlen(stop);
        size_t from = before >= length ? before - length + 1 : 0;
        const char *found =
            length > 0 && from < c->length ? memmem(c->text + from, c->length - from, stop, length) : NULL;
        if (found != NULL && (size_t)(found - c->text) < end) {
            end = (size_t)(found - c->text);
        }
        size_t some = length > c->length ? c->length : length > 0 ? length - 1 : 0;
        while (some > held && memcmp(c->text + c->length - some, stop, some) != 0) {
            some--;
        }
        held = some > held ? some : held;
    }
    bool is_found = end < c->length;
    c->length = end;
    c->settled = is_found ? end : c->length - held;
    return is_found;
}

static void end_text(work *w, place *p, carry_ending ending) {
    carry_continuation *c = &w->results[p->prompt];
    if (ending != CARRY_ENDED_BY_STOP && c->text != NULL) {
        c->length += carry_unfold_end(&p->unfold, c->text + c->length);
    }
    if (c->text != NULL) {
        c->text[c->length] = '\0';
    }
    c->settled = c->length;
    c->ending = ending;
    c->seconds = carry_seconds() - p->started;
    int64_t prompt = p->prompt;
    p->prompt = NONE;
    if (w->options->heard != NULL && !w->options->heard(w->options->user, prompt)) {
        w->stopped = true;
    }
}

static carry_status keep_id(carry_ctx *ctx, carry_ids *ids, uint32_t id) {
    if (!carry_list_grow(&ids->id, &ids->room, ids->count, 1, sizeof *ids->id)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %zu tokens", ids->count);
    }
    ids->id[ids->count++] = id;
    return CARRY_OK;
}

static carry_status note_seen(const work *w, place *p, uint32_t id) {
    if (p->is_seen == NULL || (p->is_seen[id / 8] >> id % 8 & 1) != 0) {
        return CARRY_OK;
    }
    p->is_seen[id / 8] |= (unsigned char)(1u << id % 8);
    return keep_id(w->ctx, &p->seen, id);
}

/* Appends what a token is decoded to. */
static carry_status show_token(const work *w, place *p, carry_continuation *c, int64_t token) {
    const carry_tokenizer *t = w->model->tokenizer;
    size_t length;
    if (t == NULL || carry_tokenizer_token(t, token, &length) == NULL || carry_tokenizer_is_special(t, token)) {
        return CARRY_OK;
    }
    char few[64];
    char *bytes = length <= sizeof few ? few : malloc(length);
    if (bytes == NULL) {
        return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: a token of %zu bytes", length);
    }
    size_t shown = carry_decode_token(t, token, p->is_first, bytes);
    p->is_first = false;
    carry_status status = make_room(w->ctx, c, shown);
    if (status == CARRY_OK) {
        c->length += carry_unfold_bytes(&p->unfold, c->text + c->length, bytes, shown);
    }
    if (bytes != few) {
        free(bytes);
    }
    return status;
}

/* The next token of a place's text, from its logits. */
static carry_status take_token(work *w, int64_t at, float *logits) {
    place *p = &w->places[at];
    carry_continuation *c = &w->results[p->prompt];
    int64_t token;
    if (p->is_seen != NULL) {
        carry_sample_penalize(logits, p->seen.id, p->seen.count, w->options->sampling.repetition);
    }
    CARRY_TRY(carry_sample(w->ctx, w->sampler, logits, p->stream, (uint64_t)c->tokens, &token));
    if (c->tokens == 0) {
        c->first = carry_seconds() - p->started;
    }
    w->next[at] = token;
    if (carry_model_ends_with(w->model, token)) {
        end_text(w, p, CARRY_ENDED_BY_TOKEN);
        return CARRY_OK;
    }
    c->tokens++;
    CARRY_TRY(note_seen(w, p, (uint32_t)token));
    CARRY_TRY(keep_id(w->ctx, &c->ids, (uint32_t)token));
    size_t before = c->length;
    CARRY_TRY(show_token(w, p, c, token));
    if (find_stop(c, w->options, before)) {
        end_text(w, p, CARRY_ENDED_BY_STOP);
    } else if (c->tokens == w->options->tokens) {
        end_text(w, p, CARRY_ENDED_BY_LENGTH);
    } else if (w->options->heard != NULL && !w->options->heard(w->options->user, p->prompt)) {
        w->stopped = true;
    }
    return CARRY_OK;
}

/* Tokens that were given. */
static carry_status copy_prompt(work *w, const carry_prompt *prompt) {
    for (size_t i = 0; i < prompt->id_count; i++) {
        if (prompt->ids[i] >= w->model->lm->config.vocab_size) {
            return carry_fail(w->ctx, CARRY_ERANGE, "token %zu of the prompt is %u: the model has %" PRId64, i,
                              prompt->ids[i], w->model->lm->config.vocab_size);
        }
        CARRY_TRY(keep_id(w->ctx, &w->ids, prompt->ids[i]));
    }
    return CARRY_OK;
}

static carry_status encode_prompt(work *w, const carry_prompt *prompt, bool *is_empty) {
    w->ids.count = 0;
    *is_empty = prompt->length == 0 && w->options->state_load == NULL;
    if (prompt->ids != NULL) {
        CARRY_TRY(copy_prompt(w, prompt));
        *is_empty = prompt->id_count == 0;
    } else if (w->model->tokenizer == NULL) {
        return carry_fail(w->ctx, CARRY_EARGUMENT, "%s was opened without a tokenizer: prompts are tokens' numbers",
                          w->model->folder);
    } else {
        if (!prompt->bare && w->options->state_load == NULL) {
            CARRY_TRY(carry_encode_start(w->ctx, w->model->tokenizer, &w->ids));
        }
        CARRY_TRY(carry_encode(w->ctx, w->encoder, &w->ids, prompt->text, prompt->length,
                               w->options->state_load != NULL ? CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND));
    }
    if (w->ids.count == 0 && w->options->state_load != NULL) {
        return carry_fail(w->ctx, CARRY_EARGUMENT,
                          "a text that goes on from a state needs a prompt of a token or more");
    }
    if (w->ids.count == 0 && w->model->start < 0) {
        return carry_fail(w->ctx, CARRY_EARGUMENT,
                          "an empty prompt needs a token to start from, and the tokenizer of %s has none",
                          w->model->folder);
    }
    return CARRY_OK;
}

/* An empty text, in which only the tokens of the prompt were seen. */
static carry_status empty_place(work *w, place *p, int64_t prompt) {
    carry_ids seen = p->seen;
    unsigned char *is_seen = p->is_seen;
    *p = (place){.prompt = prompt, .stream = stream_of(w, prompt), .started = carry_seconds()};
    p->seen = seen;
    p->is_seen = is_seen;
    p->seen.count = 0;
    if (is_seen != NULL) {
        memset(is_seen, 0, (size_t)w->model->lm->config.vocab_size / 8 + 1);
    }
    CARRY_TRY(encode_prompt(w, &w->prompts[prompt], &p->is_first));
    for (size_t i = 0; i < w->ids.count; i++) {
        CARRY_TRY(note_seen(w, p, w->ids.id[i]));
    }
    return CARRY_OK;
}

/* Reads the next prompt and takes the first token after it. */
static carry_status begin_text(work *w, int64_t at) {
    place *p = &w->places[at];
    int64_t prompt = w->begun++;
    carry_continuation *c = &w->results[prompt];
    CARRY_TRY(empty_place(w, p, prompt));
    carry_lm_state *state = carry_lm_generator_state(w->generator);
    CARRY_TRY(w->options->state_load != NULL ? carry_lm_state_load(state, at, w->options->state_load)
                                             : carry_lm_state_clear(state, at));
    c->prompt_tokens = (int64_t)w->ids.count;
    int64_t count = c->prompt_tokens > 0 ? c->prompt_tokens : 1;
    for (int64_t done = 0; done < count && !w->stopped;) {
        int64_t some = count - done < PIECE ? count - done : PIECE;
        for (int64_t i = 0; i < some; i++) {
            w->piece[i] = c->prompt_tokens > 0 ? (int64_t)w->ids.id[done + i] : w->model->start;
        }
        CARRY_TRY(carry_lm_generator_prompt(w->generator, at, w->piece, some, w->logits));
        done += some;
        if (done < count && w->options->heard != NULL) {
            w->stopped = !w->options->heard(w->options->user, prompt);
        }
    }
    if (w->stopped) {
        return CARRY_OK;
    }
    if (w->options->state_save != NULL) {
        CARRY_TRY(carry_lm_state_save(state, at, w->options->state_save));
    }
    if (w->options->tokens == 0) {
        c->first = carry_seconds() - p->started;
        end_text(w, p, CARRY_ENDED_BY_LENGTH);
        return CARRY_OK;
    }
    return take_token(w, at, w->logits);
}

/* Places without a text get the next prompts; false when no text is under way any more. */
static carry_status fill_places(work *w, bool *busy) {
    *busy = false;
    for (int64_t at = 0; at < w->batch; at++) {
        while (w->places[at].prompt == NONE && w->begun < w->count && !w->stopped) {
            CARRY_TRY(begin_text(w, at));
        }
        *busy = *busy || w->places[at].prompt != NONE;
    }
    return CARRY_OK;
}

static carry_status run_all(work *w) {
    bool busy;
    CARRY_TRY(open_work(w));
    CARRY_TRY(fill_places(w, &busy));
    while (busy && !w->stopped) {
        CARRY_TRY(carry_lm_generator_step(w->generator, w->next, w->logits));
        for (int64_t at = 0; at < w->batch && !w->stopped; at++) {
            if (w->places[at].prompt != NONE) {
                CARRY_TRY(take_token(w, at, w->logits + at * w->model->lm->config.vocab_size));
            }
        }
        CARRY_TRY(fill_places(w, &busy));
    }
    return CARRY_OK;
}

carry_status carry_generate(carry_ctx *ctx, const carry_model *model, const carry_prompt *prompts, int64_t count,
                            const carry_generate_options *options, carry_continuation *results) {
    if (options->state_save != NULL && count != 1) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the state after a prompt is saved of one prompt, and %" PRId64 " are given", count);
    }
    if (options->tokens < (options->state_save != NULL ? 0 : 1) || count < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%" PRId64 " tokens for %" PRId64 " prompts: 1 or more is needed",
                          options->tokens, count);
    }
    int64_t most = options->batch > 0 ? options->batch : BATCH;
    work w = {.ctx = ctx,
              .model = model,
              .prompts = prompts,
              .count = count,
              .batch = count < most ? count : most,
              .options = options,
              .results = results};
    carry_status status = run_all(&w);
    for (int64_t i = 0; i < w.batch && w.places != NULL; i++) {
        if (w.places[i].prompt != NONE && status == CARRY_OK) {
            end_text(&w, &w.places[i], CARRY_INTERRUPTED);
        }
    }
    for (int64_t i = w.begun; i < count; i++) {
        results[i].ending = CARRY_INTERRUPTED;
    }
    close_work(&w);
    return status;
}
