/* Generation: prompts become tokens, tokens become texts. generate_together.c runs them through the engine. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "engine/generate_inside.h"
#include "tokenizer/tokenizer_internal.h"

#define BATCH 16

const char *carry_ending_name(carry_ending ending) {
    static const char *const names[] = {"under way", "length", "end", "stop", "interrupted"};
    return names[ending];
}

void carry_continuation_free(carry_continuation *continuation) {
    free(continuation->text);
    carry_ids_free(&continuation->ids);
    *continuation = (carry_continuation){0};
}

uint64_t carry_generation_stream(const carry_generation *g, int64_t prompt) {
    const carry_prompt *p = &g->prompts[prompt];
    uint64_t same = 0;
    for (int64_t i = 0; i < prompt; i++) {
        const carry_prompt *other = &g->prompts[i];
        same += p->ids != NULL
                    ? other->id_count == p->id_count && memcmp(other->ids, p->ids, p->id_count * sizeof *p->ids) == 0
                    : other->length == p->length && memcmp(other->text, p->text, p->length) == 0;
    }
    return same;
}

carry_status carry_generation_keep_id(carry_ctx *ctx, carry_ids *ids, uint32_t id) {
    if (!carry_list_grow(&ids->id, &ids->room, ids->count, 1, sizeof *ids->id)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %zu tokens", ids->count);
    }
    ids->id[ids->count++] = id;
    return CARRY_OK;
}

/* Copies a prompt that is given as ids. */
static carry_status copy_prompt(const carry_generation *g, const carry_prompt *prompt, carry_ids *ids) {
    for (size_t i = 0; i < prompt->id_count; i++) {
        if (prompt->ids[i] >= g->model->lm->config.vocab_size) {
            return carry_fail(g->ctx, CARRY_ERANGE,
                              "token %zu of the prompt is %u: the model has ids from 0 to %" PRId64, i, prompt->ids[i],
                              g->model->lm->config.vocab_size - 1);
        }
        CARRY_TRY(carry_generation_keep_id(g->ctx, ids, prompt->ids[i]));
    }
    return CARRY_OK;
}

carry_status carry_generation_encode(const carry_generation *g, int64_t number, carry_ids *ids, bool *is_empty) {
    const carry_prompt *prompt = &g->prompts[number];
    const bool goes_on = g->options->state_load != NULL;
    ids->count = 0;
    *is_empty = prompt->length == 0 && !goes_on;
    if (prompt->ids != NULL) {
        CARRY_TRY(copy_prompt(g, prompt, ids));
        *is_empty = prompt->id_count == 0;
    } else if (g->model->tokenizer == NULL) {
        return carry_fail(g->ctx, CARRY_EARGUMENT, "%s was opened without a tokenizer: prompts are tokens' numbers",
                          g->model->folder);
    } else {
        if (!prompt->bare && !goes_on) {
            CARRY_TRY(carry_encode_start(g->ctx, g->model->tokenizer, ids));
        }
        CARRY_TRY(carry_encode(g->ctx, g->encoder, ids, prompt->text, prompt->length,
                               goes_on ? CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND));
    }
    if (ids->count == 0 && goes_on) {
        return carry_fail(g->ctx, CARRY_EARGUMENT,
                          "a text that goes on from a state needs a prompt of a token or more");
    }
    if (ids->count == 0 && g->model->start < 0) {
        return carry_fail(g->ctx, CARRY_EARGUMENT,
                          "an empty prompt needs a start token, which the tokenizer of %s does not have",
                          g->model->folder);
    }
    g->results[number].prompt_tokens = (int64_t)ids->count;
    return ids->count > 0 ? CARRY_OK : carry_generation_keep_id(g->ctx, ids, (uint32_t)g->model->start);
}

/* Until the end, the result of a prompt points to the memory of the text in progress. */
static void show_text(carry_continuation *c, const carry_decoded *t) {
    c->text = t->text;
    c->length = t->length;
    c->room = t->room;
    c->settled = t->settled;
}

carry_status carry_generation_take(const carry_generation *g, int64_t prompt, carry_decoded *text, int64_t token,
                                   bool *is_stopped) {
    carry_continuation *c = &g->results[prompt];
    c->tokens++;
    CARRY_TRY(carry_generation_keep_id(g->ctx, &c->ids, (uint32_t)token));
    const carry_status status = carry_decoded_add(g->ctx, text, token, is_stopped);
    show_text(c, text);
    return status;
}

void carry_generation_end(carry_generation *g, int64_t prompt, carry_decoded *text, carry_ending ending) {
    carry_continuation *c = &g->results[prompt];
    carry_decoded_end(text, ending == CARRY_ENDED_BY_STOP);
    show_text(c, text);
    text->text = NULL; /* the result owns it now */
    carry_decoded_free(text);
    c->ending = ending;
    if (g->options->heard != NULL && !g->options->heard(g->options->user, prompt)) {
        g->stopped = true;
    }
}

static carry_status check_options(carry_ctx *ctx, const carry_generate_options *options, int64_t count) {
    if (options->state_save != NULL && count != 1) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the state after a text is saved of one prompt, and %" PRId64 " are given", count);
    }
    if ((options->state_save != NULL || options->state_load != NULL) &&
        (options->regex != NULL || options->json_schema != NULL)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "regular expressions and JSON schemas are not supported with files of states");
    }
    if (options->tokens < (options->state_save != NULL ? 0 : 1) || count < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%" PRId64 " tokens for %" PRId64 " prompts: 1 or more is needed",
                          options->tokens, count);
    }
    return CARRY_OK;
}

carry_status carry_generate(carry_ctx *ctx, const carry_model *model, const carry_prompt *prompts, int64_t count,
                            const carry_generate_options *options, carry_continuation *results) {
    carry_engine_options engine = {CARRY_INIT(carry_engine_options)};
    CARRY_TRY(check_options(ctx, options, count));
    if (options->engine != NULL) {
        CARRY_TRY(CARRY_SIZED_READ(ctx, carry_engine_options, &engine, options->engine));
    }
    if (engine.sequences < 0 || engine.context < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "sequences %" PRId64 ", context %" PRId64 ": expected 0 (the default) or more",
                          engine.sequences, engine.context);
    }
    const int64_t most = engine.sequences > 0 ? engine.sequences : BATCH;
    carry_generation g = {.ctx = ctx,
                          .model = model,
                          .prompts = prompts,
                          .count = count,
                          .batch = count < most ? count : most,
                          .options = options,
                          .engine = engine,
                          .results = results};
    carry_status status = model->tokenizer != NULL ? carry_encoder_new(ctx, &g.encoder, model->tokenizer) : CARRY_OK;
    if (status == CARRY_OK) {
        status = carry_generate_together(&g);
    }
    for (int64_t i = 0; i < count && status == CARRY_OK; i++) {
        results[i].ending = results[i].ending == CARRY_UNDER_WAY ? CARRY_INTERRUPTED : results[i].ending;
    }
    carry_encoder_free(g.encoder);
    return status;
}
