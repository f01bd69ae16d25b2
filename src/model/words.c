/* Prompts as rows of fixed random numbers. The text is walked once; a bracket is looked ahead from to the next one, so
   that only what is whole, "(words:number)", weighs anything. */
#include "model/words.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"

#define PLACE_PART 0.25f /* of a row that depends on its place */
#define MOST_WEIGHT 10.0
#define WORD_STREAM 0x776f7264u /* "word" */
#define PLACE_STREAM 0x706c6163u

typedef struct reading {
    const unsigned char *text;
    size_t length, at;
    size_t colon, close; /* of the brackets we are in; close 0: none */
    double weight;
} reading;

static bool is_space(unsigned char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_letter(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_escape(const reading *r, size_t at) {
    return r->text[at] == '\\' && at + 1 < r->length &&
           (r->text[at + 1] == '(' || r->text[at + 1] == ')' || r->text[at + 1] == '\\');
}

/* A number from..to-1, or what looks like one. */
static bool read_weight(const reading *r, size_t from, size_t to, double *weight) {
    char number[32];
    char *end;
    while (from < to && is_space(r->text[from])) {
        from++;
    }
    while (to > from && is_space(r->text[to - 1])) {
        to--;
    }
    if (to == from || to - from >= sizeof number) {
        return false;
    }
    memcpy(number, r->text + from, to - from);
    number[to - from] = '\0';
    *weight = strtod(number, &end);
    if (end != number + (to - from)) {
        return false;
    }
    *weight = *weight >= 0.0 && *weight <= MOST_WEIGHT ? *weight : 1.0;
    return true;
}

/* Do brackets with a weight open here? */
static bool find_group(const reading *r, size_t at, size_t *colon, size_t *close, double *weight) {
    *colon = 0;
    if (r->text[at] != '(') {
        return false;
    }
    for (size_t i = at + 1; i < r->length && r->text[i] != '('; i++) {
        if (is_escape(r, i)) {
            i++;
        } else if (r->text[i] == ':') {
            *colon = i;
        } else if (r->text[i] == ')') {
            *close = i;
            return *colon > 0 && read_weight(r, *colon + 1, i, weight);
        }
    }
    return false;
}

/* Past spaces and brackets to the next word; false at the end. */
static bool find_word(reading *r) {
    while (r->at < r->length) {
        size_t colon;
        size_t close;
        double weight;
        if (r->close > 0 && r->at == r->colon) {
            r->at = r->close + 1;
            r->close = 0;
            r->weight = 1.0;
        } else if (is_space(r->text[r->at])) {
            r->at++;
        } else if (r->close == 0 && find_group(r, r->at, &colon, &close, &weight)) {
            r->colon = colon;
            r->close = close;
            r->weight = weight;
            r->at++;
        } else {
            return true;
        }
    }
    return false;
}

static uint64_t add_byte(uint64_t digest, unsigned char byte) {
    return (digest ^ byte) * 0x100000001b3u; /* FNV-1a */
}

/* The digest of the word here, and past it. */
static uint64_t take_word(reading *r) {
    uint64_t digest = 0xcbf29ce484222325u;
    const bool letters = is_letter(r->text[r->at]);
    while (r->at < r->length && !is_space(r->text[r->at]) && is_letter(r->text[r->at]) == letters) {
        unsigned char c = r->text[r->at];
        size_t colon;
        size_t close;
        double weight;
        if (r->close > 0 ? r->at == r->colon : find_group(r, r->at, &colon, &close, &weight)) {
            break;
        }
        if (is_escape(r, r->at)) {
            c = r->text[++r->at];
        }
        digest = add_byte(digest, c >= 'A' && c <= 'Z' ? (unsigned char)(c - 'A' + 'a') : c);
        r->at++;
    }
    digest ^= digest >> 32;
    return digest * 0x9e3779b97f4a7c15u;
}

static carry_status write_row(carry_ctx *ctx, carry_tensor row, float *place, uint64_t word, int64_t index,
                              double weight) {
    float *to = row.data;
    CARRY_TRY(carry_random_normal(ctx, row, word, WORD_STREAM, 0.0f, 1.0f));
    CARRY_TRY(carry_random_normal(ctx, carry_view_1d(place, CARRY_F32, row.shape[0]), (uint64_t)index, PLACE_STREAM,
                                  0.0f, PLACE_PART));
    for (int64_t i = 0; i < row.shape[0]; i++) {
        to[i] = (float)weight * to[i] + place[i];
    }
    return CARRY_OK;
}

carry_status carry_words_encode(carry_ctx *ctx, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                const char *prompt, size_t length) {
    const int64_t places = conditioning.shape[0];
    const int64_t dim = conditioning.shape[1];
    if (conditioning.rank != 2 || conditioning.data == NULL || conditioning.dtype != CARRY_F32 ||
        conditioning.device != 0 || !carry_tensor_is_packed(&conditioning, 0) || places < 0 || dim < 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "the conditioning must be packed f32 [text_len, text_dim] on the CPU");
    }
    float *place = malloc((size_t)dim * sizeof *place);
    if (place == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a row of %lld numbers", (long long)dim);
    }
    reading r = {.text = (const unsigned char *)prompt, .length = prompt != NULL ? length : 0, .weight = 1.0};
    memset(conditioning.data, 0, (size_t)(places * dim) * sizeof(float));
    carry_status status = CARRY_OK;
    int64_t words = 0;
    for (; status == CARRY_OK && find_word(&r); words++) {
        const double weight = r.weight;
        const uint64_t word = take_word(&r);
        if (words < places) {
            float *to = (float *)conditioning.data + words * dim;
            status = write_row(ctx, carry_view_1d(to, CARRY_F32, dim), place, word, words, weight);
        }
    }
    free(place);
    if (rows != NULL) {
        *rows = words < places ? words : places;
    }
    if (left_out != NULL) {
        *left_out = words > places ? words - places : 0;
    }
    return status;
}
