/* Implements carry/tokenizer.h: encoding and decoding into the caller's memory. */
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "tokenizer/tokenizer_internal.h"

struct carry_decoder {
    carry_ctx *ctx;
    const carry_tokenizer *tokenizer;
    carry_unfold unfold;
    char *bytes, *text; /* buffers for the bytes of a token, and for a piece of text */
    size_t capacity;    /* size of bytes */
    bool with_specials, is_begun;
};

static carry_status encode_whole(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *found, const char *text,
                                 size_t length, const carry_encode_options *o) {
    carry_encoder *encoder;
    unsigned specials = o->specials_as_text ? CARRY_SPECIALS_AS_TEXT : CARRY_SPECIALS_FOUND;
    specials |= o->is_continuation ? CARRY_TEXT_GOES_ON : 0u;
    CARRY_TRY(carry_encoder_new(ctx, &encoder, tokenizer));
    const bool starts = !o->is_bare && !o->is_continuation, ends = !o->is_bare && !o->is_unfinished;
    carry_status status = starts ? carry_encode_start(ctx, tokenizer, found) : CARRY_OK;
    status = status == CARRY_OK ? carry_encode(ctx, encoder, found, text, length, (carry_specials)specials) : status;
    status = status == CARRY_OK && ends ? carry_encode_end(ctx, tokenizer, found) : status;
    carry_encoder_free(encoder);
    return status;
}

carry_status carry_tokenizer_encode(carry_ctx *ctx, const carry_tokenizer *tokenizer, int64_t *ids, int64_t capacity,
                                    int64_t *count, const char *text, size_t length,
                                    const carry_encode_options *options) {
    carry_encode_options own;
    carry_ids found = {0};
    *count = 0;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_encode_options, &own, options));
    const carry_status status = encode_whole(ctx, tokenizer, &found, text, length, &own);
    if (status == CARRY_OK) {
        *count = (int64_t)found.count;
        for (int64_t i = 0; i < *count && i < capacity; i++) {
            ids[i] = found.id[i];
        }
    }
    carry_ids_free(&found);
    return status;
}

carry_status carry_decoder_new(carry_ctx *ctx, carry_decoder **decoder, const carry_tokenizer *tokenizer,
                               bool with_specials) {
    *decoder = calloc(1, sizeof **decoder);
    if (*decoder == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a decoder");
    }
    (*decoder)->ctx = ctx;
    (*decoder)->tokenizer = tokenizer;
    (*decoder)->with_specials = with_specials;
    return CARRY_OK;
}

void carry_decoder_free(carry_decoder *decoder) {
    if (decoder != NULL) {
        free(decoder->bytes);
        free(decoder->text);
        free(decoder);
    }
}

static carry_status reserve(carry_decoder *d, size_t length) {
    if (d->text != NULL && length <= d->capacity) {
        return CARRY_OK;
    }
    free(d->bytes);
    free(d->text);
    d->bytes = malloc(length + 1);
    d->text = malloc(CARRY_UNFOLD_GROWTH * (length + 4) + 1); /* cannot overflow: a token has at most 2^32 bytes */
    d->capacity = d->bytes != NULL && d->text != NULL ? length : 0;
    return d->bytes != NULL && d->text != NULL
               ? CARRY_OK
               : carry_fail(d->ctx, CARRY_EMEMORY, "out of memory: a token of %zu bytes", length);
}

static carry_status give(carry_decoder *d, size_t written, const char **text, size_t *length) {
    d->text[written] = '\0';
    *text = d->text;
    if (length != NULL) {
        *length = written;
    }
    return CARRY_OK;
}

carry_status carry_decoder_put(carry_decoder *decoder, int64_t id, const char **text, size_t *length) {
    carry_decoder *d = decoder;
    size_t bytes = 0;
    *text = "";
    if (carry_tokenizer_token(d->tokenizer, id, &bytes) == NULL) {
        return carry_fail(d->ctx, CARRY_ERANGE, "token %lld: expected 0 to %lld", (long long)id,
                          (long long)carry_tokenizer_size(d->tokenizer) - 1);
    }
    CARRY_TRY(reserve(d, bytes));
    if (!d->with_specials && carry_tokenizer_is_special(d->tokenizer, id)) {
        return give(d, 0, text, length);
    }
    bytes = carry_decode_token(d->tokenizer, id, !d->is_begun, d->bytes);
    d->is_begun = true;
    return give(d, carry_unfold_bytes(&d->unfold, d->text, d->bytes, bytes), text, length);
}

carry_status carry_decoder_end(carry_decoder *decoder, const char **text, size_t *length) {
    *text = "";
    CARRY_TRY(reserve(decoder, 0));
    decoder->is_begun = false;
    return give(decoder, carry_unfold_end(&decoder->unfold, decoder->text), text, length);
}

/* Appends a piece at *at, cut to fit before the NUL; *at counts the whole piece. */
static void append(char *to, size_t capacity, size_t *at, const char *piece, size_t length) {
    if (capacity > 0 && *at < capacity - 1) {
        const size_t left = capacity - 1 - *at;
        memcpy(to + *at, piece, length < left ? length : left);
        to[*at + (length < left ? length : left)] = '\0';
    }
    *at += length;
}

carry_status carry_tokenizer_decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, char *text, size_t capacity,
                                    size_t *length, const int64_t *ids, int64_t count, bool with_specials) {
    carry_decoder d = {.ctx = ctx, .tokenizer = tokenizer, .with_specials = with_specials};
    carry_status status = CARRY_OK;
    const char *piece;
    size_t some;
    *length = 0;
    if (capacity > 0) {
        text[0] = '\0';
    }
    for (int64_t i = 0; i < count && status == CARRY_OK; i++) {
        status = carry_decoder_put(&d, ids[i], &piece, &some);
        if (status == CARRY_OK) {
            append(text, capacity, length, piece, some);
        }
    }
    status = status == CARRY_OK ? carry_decoder_end(&d, &piece, &some) : status;
    if (status == CARRY_OK) {
        append(text, capacity, length, piece, some);
    }
    free(d.bytes);
    free(d.text);
    return status;
}
