/* Words as fixed random vectors. A word is hashed while it is read, so prompts of any length need no memory. The
   constants here (hash, seeds, scale of the position's part) must not change: trained models depend on them. */
#include "model/dit/words.h"

#include <stdbool.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"

#define WORD_SEED 0x776F726473ULL
#define PLACE_SEED 0x706C616365ULL
#define PLACE_PART 0.25F /* scale of the position's vector, relative to 1 for the word's */
#define BLOCK 256        /* numbers of the position's vector generated at a time */
#define WHOLE_DIGITS 4   /* maximum digits of a weight, before the point and after it */

#define FNV_START 0xCBF29CE484222325ULL
#define FNV_PRIME 0x100000001B3ULL

typedef enum sort { SPACE, LETTER, OTHER } sort;

typedef struct writer {
    carry_ctx *ctx;
    carry_tensor to;
    int64_t words;
    uint64_t hash; /* hash of the current word */
    sort sort;     /* kind of its bytes; SPACE: no word has begun */
    float weight;
} writer;

static sort sort_of(unsigned char byte) {
    if (byte == ' ' || (byte >= '\t' && byte <= '\r')) {
        return SPACE;
    }
    const unsigned char low = byte | 0x20;
    return (low >= 'a' && low <= 'z') || (byte >= '0' && byte <= '9') ? LETTER : OTHER;
}

/* A word has the same vector at every position, plus a vector of the position, which is not weighted. */
static carry_status write_row(const writer *w, int64_t row) {
    const int64_t width = w->to.shape[1];
    float *at = (float *)w->to.data + row * width;
    CARRY_TRY(carry_random_normal(w->ctx, carry_view_1d(at, CARRY_F32, width), WORD_SEED, w->hash, 0, 1));
    for (int64_t start = 0, block = 0; start < width; start += BLOCK, block++) {
        float place[BLOCK];
        const int64_t count = width - start < BLOCK ? width - start : BLOCK;
        CARRY_TRY(carry_random_normal(w->ctx, carry_view_1d(place, CARRY_F32, count), PLACE_SEED,
                                      (uint64_t)row << 32 | (uint64_t)block, 0, PLACE_PART));
        for (int64_t i = 0; i < count; i++) {
            at[start + i] = w->weight * at[start + i] + place[i];
        }
    }
    return CARRY_OK;
}

static carry_status end_word(writer *w) {
    if (w->sort != SPACE) {
        if (w->words < w->to.shape[0]) {
            CARRY_TRY(write_row(w, w->words));
        }
        w->words++;
        w->sort = SPACE;
    }
    return CARRY_OK;
}

static carry_status take_byte(writer *w, unsigned char byte) {
    const sort s = sort_of(byte);
    if (s != w->sort) {
        CARRY_TRY(end_word(w));
        w->sort = s;
        w->hash = FNV_START;
    }
    w->hash = (w->hash ^ (byte >= 'A' && byte <= 'Z' ? (unsigned char)(byte | 0x20) : byte)) * FNV_PRIME;
    return CARRY_OK;
}

/* Reads a weight such as "1.5", with up to 4 digits before the point and 4 after it. */
static bool read_weight(float *weight, const char *at, size_t length) {
    double value = 0;
    double unit = 1;
    size_t digits[2] = {0, 0};
    int part = 0;
    for (size_t i = 0; i < length; i++) {
        if (at[i] == '.' && part == 0) {
            part = 1;
        } else if (at[i] >= '0' && at[i] <= '9' && digits[part] < WHOLE_DIGITS) {
            digits[part]++;
            unit = part == 1 ? unit / 10 : 1;
            value = part == 1 ? value + unit * (at[i] - '0') : value * 10 + (at[i] - '0');
        } else {
            return false;
        }
    }
    *weight = (float)value;
    return digits[0] > 0;
}

/* Returns true if "(...:number)" starts here. *inside: the number of bytes between the parenthesis and the colon;
   *whole: the length up to and including the closing one. The search stops at another opening parenthesis, so that all
   searches together read the prompt once. */
static bool find_group(float *weight, size_t *inside, size_t *whole, const char *at, size_t length) {
    size_t colon = 0;
    for (size_t i = 1; i < length && at[i] != '('; i++) {
        if (at[i] == '\\') {
            i++;
        } else if (at[i] == ':') {
            colon = i;
        } else if (at[i] == ')') {
            *inside = colon - 1;
            *whole = i + 1;
            return colon > 0 && read_weight(weight, at + colon + 1, i - colon - 1);
        }
    }
    return false;
}

static carry_status take_text(writer *w, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        const bool is_escape =
            text[i] == '\\' && i + 1 < length && (text[i + 1] == '(' || text[i + 1] == ')' || text[i + 1] == '\\');
        i += is_escape;
        CARRY_TRY(take_byte(w, (unsigned char)text[i]));
    }
    return CARRY_OK;
}

static carry_status take_prompt(writer *w, const char *prompt, size_t length) {
    size_t plain = 0; /* where text outside of groups starts */
    for (size_t i = 0; i < length;) {
        size_t inside = 0;
        size_t whole = 1;
        float weight = 1;
        if (prompt[i] == '\\') {
            i += 2;
            continue;
        }
        if (prompt[i] != '(' || !find_group(&weight, &inside, &whole, prompt + i, length - i)) {
            i++;
            continue;
        }
        CARRY_TRY(take_text(w, prompt + plain, i - plain));
        CARRY_TRY(end_word(w));
        w->weight = weight;
        CARRY_TRY(take_text(w, prompt + i + 1, inside));
        CARRY_TRY(end_word(w));
        w->weight = 1;
        i += whole;
        plain = i;
    }
    CARRY_TRY(take_text(w, prompt + plain, length - plain));
    return end_word(w);
}

carry_status carry_words_encode(carry_ctx *ctx, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                const char *prompt, size_t length) {
    if (conditioning.rank != 2 || conditioning.dtype != CARRY_F32 || conditioning.device != 0 ||
        !carry_tensor_is_packed(&conditioning, 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "conditioning is %s of rank %d: it must be f32 [text_len, text_dim], packed, on the CPU",
                          carry_dtype_name(conditioning.dtype), conditioning.rank);
    }
    CARRY_TRY(carry_tensor_expect(ctx, "conditioning", &conditioning, 2, conditioning.shape));
    writer w = {.ctx = ctx, .to = conditioning, .weight = 1};
    memset(conditioning.data, 0, (size_t)carry_tensor_count(&conditioning) * sizeof(float));
    CARRY_TRY(take_prompt(&w, prompt, length));
    const int64_t fit = w.words < conditioning.shape[0] ? w.words : conditioning.shape[0];
    if (rows != NULL) {
        *rows = fit;
    }
    if (left_out != NULL) {
        *left_out = w.words - fit;
    }
    return CARRY_OK;
}
