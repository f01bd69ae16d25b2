/* Generation: a row of places, each with a text under way. */
#include "train/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

#define BATCH 16
#define PIECE 2048 /* tokens of a prompt between two looks at whether to stop */
#define NONE (-1)

typedef struct place {
    int64_t prompt; /* NONE: nothing is under way here */
    uint64_t stream;
    double started;
    carry_unfold unfold;
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
    *continuation = (carry_continuation){0};
}

static void close_work(work *w) {
    carry_lm_generator_free(w->generator);
    carry_sampler_free(w->sampler);
    carry_encoder_free(w->encoder);
    carry_ids_free(&w->ids);
    free(w->piece);
    free(w->logits);
    free(w->next);
    free(w->places);
}

static carry_status open_work(work *w) {
    const carry_model *m = w->model;
    CARRY_TRY(carry_sampler_new(w->ctx, &w->sampler, carry_tokenizer_size(m->tokenizer), &w->options->sampling));
    CARRY_TRY(carry_encoder_new(w->ctx, &w->encoder, m->tokenizer));
    CARRY_TRY(carry_lm_generator_new(m->lm, &w->generator, w->batch, CARRY_F32));
    const int64_t sizes[] = {w->batch, m->lm->config.vocab_size};
    size_t bytes;
    w->logits = carry_size_product(&bytes, sizes, 2, sizeof(float)) ? malloc(bytes) : NULL;
    w->piece = malloc(PIECE * sizeof *w->piece);
    w->next = calloc((size_t)w->batch, sizeof *w->next);
    w->places = calloc((size_t)w->batch, sizeof *w->places);
    for (int64_t i = 0; i < w->batch && w->places != NULL; i++) {
        w->places[i].prompt = NONE;
    }
    if (w->logits == NULL || w->piece == NULL || w->next == NULL || w->places == NULL) {
        return carry_fail(w->ctx, CARRY_EMEMORY, "no memory to generate %" PRId64 " texts at once", w->batch);
    }
    return CARRY_OK;
}

/* How many of the same prompt came before: each gets random numbers of its own, and the first the ones it has alone. */
static uint64_t stream_of(const work *w, int64_t prompt) {
    const carry_prompt *p = &w->prompts[prompt];
    uint64_t same = 0;
    for (int64_t i = 0; i < prompt; i++) {
        same += w->prompts[i].length == p->length && memcmp(w->prompts[i].text, p->text, p->length) == 0;
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
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a text of %zu bytes", room);
    }
    c->text = grown;
    c->room = room;
    return CARRY_OK;
}

/* Looks for the stop text in what is new since `before`, and settles what cannot be its beginning. */
static bool find_stop(carry_continuation *c, const char *stop, size_t before) {
    size_t length = stop != NULL ? strlen(stop) : 0;
    c->settled = c->length;
    if (length == 0) {
        return false;
    }
    size_t from = before >= length ? before - length + 1 : 0;
    const char *found = from < c->length ? memmem(c->text + from, c->length - from, stop, length) : NULL;
    if (found != NULL) {
        c->length = (size_t)(found - c->text);
        c->settled = c->length;
        return true;
    }
    size_t held = length - 1 < c->length ? length - 1 : c->length;
    while (held > 0 && memcmp(c->text + c->length - held, stop, held) != 0) {
        held--;
    }
    c->settled = c->length - held;
    return false;
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

/* The next token of a place's text, from its logits. */
static carry_status take_token(work *w, int64_t at, const float *logits) {
    place *p = &w->places[at];
    carry_continuation *c = &w->results[p->prompt];
    int64_t token;
    CARRY_TRY(carry_sample(w->ctx, w->sampler, logits, p->stream, (uint64_t)c->tokens, &token));
    if (c->tokens == 0) {
        c->first = carry_seconds() - p->started;
    }
    w->next[at] = token;
    if (token == w->model->end || token == w->model->other_end) {
        end_text(w, p, CARRY_ENDED_BY_TOKEN);
        return CARRY_OK;
    }
    c->tokens++;
    size_t length;
    const char *bytes = carry_tokenizer_token(w->model->tokenizer, token, &length);
    size_t before = c->length;
    if (bytes != NULL && !carry_tokenizer_is_special(w->model->tokenizer, token)) {
        CARRY_TRY(make_room(w->ctx, c, length));
        c->length += carry_unfold_bytes(&p->unfold, c->text + c->length, bytes, length);
    }
    if (find_stop(c, w->options->stop, before)) {
        end_text(w, p, CARRY_ENDED_BY_STOP);
    } else if (c->tokens == w->options->tokens) {
        end_text(w, p, CARRY_ENDED_BY_LENGTH);
    } else if (w->options->heard != NULL && !w->options->heard(w->options->user, p->prompt)) {
        w->stopped = true;
    }
    return CARRY_OK;
}

static carry_status encode_prompt(work *w, const carry_prompt *prompt) {
    w->ids.count = 0;
    CARRY_TRY(carry_encode(w->ctx, w->encoder, &w->ids, prompt->text, prompt->length, CARRY_SPECIALS_FOUND));
    if (w->ids.count == 0 && w->model->start < 0) {
        return carry_fail(w->ctx, CARRY_EARGUMENT,
                          "an empty prompt needs a token to start from, and the tokenizer of %s has none",
                          w->model->folder);
    }
    return CARRY_OK;
}

/* Reads the next prompt and takes the first token after it. */
static carry_status begin_text(work *w, int64_t at) {
    place *p = &w->places[at];
    int64_t prompt = w->begun++;
    carry_continuation *c = &w->results[prompt];
    *p = (place){.prompt = prompt, .stream = stream_of(w, prompt), .started = carry_seconds()};
    CARRY_TRY(encode_prompt(w, &w->prompts[prompt]));
    CARRY_TRY(carry_lm_state_clear(carry_lm_generator_state(w->generator), at));
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
    return w->stopped ? CARRY_OK : take_token(w, at, w->logits);
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
    if (options->tokens < 1 || count < 1) {
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
