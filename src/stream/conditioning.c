/* Converts prompts to conditioning, with transitions. */
#include "stream/conditioning.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "model/dit/words.h"

struct carry_conditioning {
    carry_ctx *ctx;
    carry_prompts *prompts; /* NULL: fixed word vectors */
    int64_t text_len, text_dim;
    float *from, *target, *one; /* [text_len, text_dim]; one: the vectors of one prompt while make_target runs */
    uint16_t *shown;            /* bf16 conditioning of the last chunk */
    int64_t from_rows, target_rows, shown_rows;
    bool any;            /* `shown` has been set */
    uint64_t version;    /* prompt_version for which the target was made */
    int64_t step, steps; /* progress of the transition; step == steps: the target is reached */
};

carry_status carry_conditioning_new(carry_ctx *ctx, carry_conditioning **made, int64_t text_len, int64_t text_dim,
                                    carry_prompts *prompts) {
    size_t floats = 0;
    *made = NULL;
    const int64_t shape[] = {text_len, text_dim};
    if (text_len < 1 || text_dim < 1 || !carry_size_product(&floats, shape, 2, sizeof(float))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "conditioning of %" PRId64 " rows of %" PRId64 " numbers is empty",
                          text_len, text_dim);
    }
    carry_conditioning *c = calloc(1, sizeof *c);
    if (c != NULL) {
        *c = (carry_conditioning){.ctx = ctx, .text_len = text_len, .text_dim = text_dim, .prompts = prompts};
        c->from = carry_aligned_new(floats);
        c->target = carry_aligned_new(floats);
        c->one = carry_aligned_new(floats);
        c->shown = carry_aligned_new(floats / 2);
    }
    if (c == NULL || c->from == NULL || c->target == NULL || c->one == NULL || c->shown == NULL) {
        carry_conditioning_free(c);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: conditioning of %" PRId64 " rows of %" PRId64 " numbers",
                          text_len, text_dim);
    }
    *made = c;
    return CARRY_OK;
}

void carry_conditioning_free(carry_conditioning *c) {
    if (c != NULL) {
        free(c->from);
        free(c->target);
        free(c->one);
        free(c->shown);
        free(c);
    }
}

/* target = sum of weight / total * vectors. Rows from target_rows on are zero. */
static carry_status make_target(carry_conditioning *c, const carry_control_state *state) {
    const int64_t count = c->text_len * c->text_dim;
    double total = 0;
    for (int i = 0; i < state->prompts; i++) {
        total += state->prompt[i].weight;
    }
    memset(c->target, 0, (size_t)count * sizeof *c->target);
    c->target_rows = 1;
    for (int i = 0; i < state->prompts; i++) {
        const carry_prompt *prompt = &state->prompt[i];
        const float share = total > 0 ? (float)(prompt->weight / total) : 0;
        int64_t rows = 0;
        int64_t left_out = 0;
        const carry_tensor one = carry_view_2d(c->one, CARRY_F32, c->text_len, c->text_dim);
        CARRY_TRY(c->prompts != NULL
                      ? carry_prompts_encode(c->prompts, one, &rows, &left_out, prompt->text, prompt->length)
                      : carry_words_encode(c->ctx, one, &rows, &left_out, prompt->text, prompt->length));
        if (left_out > 0) {
            carry_log(c->ctx, CARRY_LOG_WARNING, "prompt %d has %" PRId64 " %s more than the %" PRId64 " that fit",
                      i + 1, left_out, c->prompts != NULL ? "tokens" : "words", c->text_len);
        }
        for (int64_t j = 0; j < rows * c->text_dim; j++) {
            c->target[j] += share * c->one[j];
        }
        c->target_rows = rows > c->target_rows && share > 0 ? rows : c->target_rows;
    }
    return CARRY_OK;
}

/* Element i of the mixture: from + step / steps * (target - from). The last step gives the target exactly. */
static float mixture(const carry_conditioning *c, int64_t step, int64_t i) {
    if (step == c->steps) {
        return c->target[i];
    }
    const float part = (float)((double)step / (double)c->steps);
    return c->from[i] + part * (c->target[i] - c->from[i]);
}

static int64_t mixture_rows(const carry_conditioning *c, int64_t step) {
    return step == c->steps || c->target_rows > c->from_rows ? c->target_rows : c->from_rows;
}

/* Starts the next transition from the current conditioning, in full precision. */
static void start_from_shown(carry_conditioning *c) {
    const int64_t count = c->text_len * c->text_dim;
    const int64_t rows = mixture_rows(c, c->step);
    for (int64_t i = 0; i < count; i++) {
        c->from[i] = mixture(c, c->step, i);
    }
    c->from_rows = rows;
}

/* Writes the conditioning of the current step to `shown`. Returns false if that changes nothing. */
static bool show(carry_conditioning *c) {
    const int64_t rows = mixture_rows(c, c->step);
    bool differs = !c->any || rows != c->shown_rows;
    for (int64_t i = 0; i < rows * c->text_dim; i++) {
        const uint16_t bits = carry_bf16_from_f32(mixture(c, c->step, i));
        differs = differs || bits != c->shown[i];
        c->shown[i] = bits;
    }
    c->shown_rows = rows;
    c->any = true;
    return differs;
}

carry_status carry_conditioning_next(carry_conditioning *c, const carry_control_state *state, carry_tensor *rows,
                                     bool *is_new) {
    *is_new = false;
    if (!c->any || state->prompt_version != c->version) {
        if (c->any) {
            start_from_shown(c);
        }
        CARRY_TRY(make_target(c, state));
        c->version = state->prompt_version;
        c->steps = c->any && state->transition > 1 ? state->transition : 1;
        c->step = 0;
    }
    if (c->step < c->steps) {
        c->step++;
        *is_new = show(c);
    }
    *rows = carry_view_2d(c->shown, CARRY_BF16, c->shown_rows, c->text_dim);
    return CARRY_OK;
}
