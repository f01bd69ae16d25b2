/* Sampling rules that depend on the text: penalties, biases, constraints. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "engine/sequence.h"

static bool is_marked(const unsigned char *bits, int32_t id) {
    return (bits[id / 8] >> id % 8 & 1) != 0;
}

static void mark(unsigned char *bits, int32_t id) {
    bits[id / 8] |= (unsigned char)(1u << id % 8);
}

static void note_seen(carry_sequence *s, int32_t id) {
    if (s->seen != NULL && !is_marked(s->is_seen, id)) {
        mark(s->is_seen, id);
        s->seen[s->seen_count++] = (uint32_t)id;
    }
}

static carry_status check_biases(carry_ctx *ctx, int64_t vocabulary, const carry_sequence_options *o) {
    if (!isfinite(o->frequency) || !isfinite(o->presence)) {
        return carry_fail(ctx, CARRY_ERANGE, "penalties of frequency and presence are %f and %f: expected numbers",
                          o->frequency, o->presence);
    }
    if (o->bias_count < 0 || (o->bias_count > 0 && (o->bias_ids == NULL || o->biases == NULL))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "bias_count is %" PRId64 " without ids or biases", o->bias_count);
    }
    for (int64_t i = 0; i < o->bias_count; i++) {
        if (o->bias_ids[i] < 0 || o->bias_ids[i] >= vocabulary || !isfinite(o->biases[i])) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "bias %f of token %" PRId64 ": expected a number and ids from 0 to %" PRId64,
                              (double)o->biases[i], o->bias_ids[i], vocabulary - 1);
        }
    }
    return CARRY_OK;
}

carry_status carry_sequence_open_rules(carry_ctx *ctx, carry_sequence *s, int64_t vocabulary,
                                       const carry_sequence_options *o) {
    const size_t count = (size_t)vocabulary;
    const double penalty = o->sampling.repetition;
    bool is_whole = true;
    CARRY_TRY(check_biases(ctx, vocabulary, o));
    s->last = -1;
    if (penalty > 0.0 && penalty != 1.0) {
        s->seen = malloc(count * sizeof *s->seen);
        s->is_seen = calloc(count / 8 + 1, 1);
        is_whole = s->seen != NULL && s->is_seen != NULL;
    }
    if (o->bias_count > 0 || o->frequency != 0.0 || o->presence != 0.0) {
        s->bias = calloc(count, sizeof *s->bias);
        s->is_used = calloc(count / 8 + 1, 1);
        is_whole = is_whole && s->bias != NULL && s->is_used != NULL;
    }
    if (o->constrain != NULL) {
        s->mask_words = (vocabulary + 31) / 32;
        s->mask = calloc((size_t)s->mask_words, sizeof *s->mask);
        is_whole = is_whole && s->mask != NULL;
    }
    if (!is_whole) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a request");
    }
    for (int64_t i = 0; i < o->bias_count; i++) {
        s->bias[o->bias_ids[i]] += o->biases[i];
    }
    for (int64_t i = 0; i < o->count; i++) {
        note_seen(s, o->ids[i]);
    }
    return CARRY_OK;
}

void carry_sequence_close_rules(carry_sequence *s) {
    free(s->seen);
    free(s->is_seen);
    free(s->bias);
    free(s->is_used);
    free(s->mask);
}

void carry_sequence_note(carry_sequence *s, int32_t id) {
    const carry_sequence_options *o = &s->options;
    note_seen(s, id);
    s->last = id;
    if (s->bias != NULL) {
        s->bias[id] -= (float)(o->frequency + (is_marked(s->is_used, id) ? 0.0 : o->presence));
        mark(s->is_used, id);
    }
}

bool carry_sequence_needs_last(const carry_sequence *s) {
    return s->seen != NULL || s->mask != NULL || s->options.frequency != 0.0 || s->options.presence != 0.0;
}

bool carry_sequence_allow(carry_sequence *s, const uint32_t **allowed) {
    *allowed = s->options.allowed;
    if (s->mask == NULL) {
        return true;
    }
    if (s->options.allowed != NULL) {
        memcpy(s->mask, s->options.allowed, (size_t)s->mask_words * sizeof *s->mask);
    } else {
        memset(s->mask, 0xff, (size_t)s->mask_words * sizeof *s->mask);
    }
    *allowed = s->mask;
    return s->options.constrain(s->options.constraint, s->last, s->mask);
}
