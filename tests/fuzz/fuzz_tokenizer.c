/* Arbitrary bytes as a tokenizer.json, and as a text: a file is refused with an error message, or is a tokenizer that
   encodes and decodes, and is the same after it is written and read. The first byte is the mode: 0, the file alone; 1,
   a token, a merge and then the text, where the first two are inserted into a small valid file; 2, the regular
   expression of a Split, and a text. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static void expect(int holds) {
    if (!holds) {
        abort();
    }
}

static carry_ctx *context(void) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    return ctx;
}

static void use(carry_ctx *ctx, const carry_tokenizer *tokenizer, const uint8_t *text, size_t length) {
    carry_encoder *encoder;
    carry_ids ids = {0};
    char *decoded;
    size_t decoded_length;
    expect(carry_encoder_new(ctx, &encoder, tokenizer) == CARRY_OK);
    expect(carry_encode(ctx, encoder, &ids, text, length, CARRY_SPECIALS_AS_TEXT) == CARRY_OK);
    expect(carry_decode(ctx, tokenizer, &decoded, &decoded_length, ids.id, ids.count, false) == CARRY_OK);
    carry_unfold unfold = {0};
    char *shown = malloc(CARRY_UNFOLD_GROWTH * (decoded_length + 4));
    expect(shown != NULL);
    size_t written = carry_unfold_bytes(&unfold, shown, decoded, decoded_length);
    (void)carry_unfold_end(&unfold, shown + written);
    free(shown);
    free(decoded);
    size_t cut = carry_tokenizer_last_cut(tokenizer, text, length);
    carry_ids parts = {0};
    expect(carry_encode(ctx, encoder, &parts, text, cut, CARRY_SPECIALS_AS_TEXT) == CARRY_OK);
    const carry_specials rest =
        (carry_specials)(CARRY_SPECIALS_AS_TEXT | (cut > 0 ? CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND));
    expect(carry_encode(ctx, encoder, &parts, text + cut, length - cut, rest) == CARRY_OK);
    expect(parts.count == ids.count && (ids.count == 0 || memcmp(parts.id, ids.id, ids.count * sizeof *ids.id) == 0));
    carry_ids_free(&parts);
    carry_ids_free(&ids);
    carry_encoder_free(encoder);
}

static void check(carry_ctx *ctx, const char *file, size_t file_length, const uint8_t *text, size_t length) {
    carry_tokenizer *tokenizer;
    if (carry_tokenizer_parse(ctx, &tokenizer, file, file_length, "fuzz") != CARRY_OK) {
        expect(tokenizer == NULL && carry_ctx_error(ctx)[0] != '\0');
        for (const char *at = carry_ctx_error(ctx); *at != '\0'; at++) {
            expect(!iscntrl((unsigned char)*at));
        }
        return;
    }
    use(ctx, tokenizer, text, length);
    char *written;
    size_t written_length;
    carry_tokenizer *again;
    expect(carry_tokenizer_write(ctx, tokenizer, &written, &written_length) == CARRY_OK);
    expect(carry_tokenizer_parse(ctx, &again, written, written_length, "again") == CARRY_OK);
    expect(carry_tokenizer_crc(again) == carry_tokenizer_crc(tokenizer));
    carry_tokenizer_close(again);
    free(written);
    carry_tokenizer_close(tokenizer);
}

/* The byte tokenizer's file with tokens and merges added at the end of each list. */
static void check_inserted(carry_ctx *ctx, const uint8_t *data, size_t size) {
    carry_tokenizer *bytes;
    char *written;
    size_t length;
    expect(carry_tokenizer_bytes(ctx, &bytes, NULL, 0) == CARRY_OK);
    expect(carry_tokenizer_write(ctx, bytes, &written, &length) == CARRY_OK);
    carry_tokenizer_close(bytes);
    size_t vocabulary = size > 0 ? data[0] % size : 0; /* the division of the input into parts */
    size_t merges = size > 0 ? (size - vocabulary) / 2 : 0;
    char *middle = strstr(written, "\n    },\n    \"merges\": [");
    char *end = strstr(written, "]\n  }\n}\n");
    expect(middle != NULL && end != NULL);
    char *file = malloc(length + size + 1);
    expect(file != NULL);
    int used =
        sprintf(file, "%.*s%.*s%.*s%.*s%s", (int)(middle - written), written, (int)vocabulary, (const char *)data,
                (int)(end - middle), middle, (int)merges, (const char *)data + vocabulary, end);
    check(ctx, file, (size_t)used, data + vocabulary + merges, size - vocabulary - merges);
    free(file);
    free(written);
}

/* The byte tokenizer's file with another pattern. */
static void check_pattern(carry_ctx *ctx, const uint8_t *data, size_t size) {
    static const char start[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"";
    static const char end[] =
        "\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": false}]},\n  \"post_processor";
    carry_tokenizer *bytes;
    char *written;
    size_t length;
    expect(carry_tokenizer_bytes(ctx, &bytes, NULL, 0) == CARRY_OK);
    expect(carry_tokenizer_write(ctx, bytes, &written, &length) == CARRY_OK);
    carry_tokenizer_close(bytes);
    char *from = strstr(written, "{\"type\": \"ByteLevel\"");
    char *to = strstr(written, "\"post_processor");
    expect(from != NULL && to != NULL);
    char *file = malloc(length + sizeof start + sizeof end + 6 * size);
    expect(file != NULL);
    size_t at = (size_t)sprintf(file, "%.*s%s", (int)(from - written), written, start);
    size_t pattern = size / 2 < 200 ? size / 2 : 200;
    for (size_t i = 0; i < pattern; i++) {
        bool is_plain = data[i] >= 0x20 && data[i] < 0x7f && data[i] != '"' && data[i] != '\\';
        at += (size_t)sprintf(file + at, is_plain ? "%c" : "\\u%04x", data[i]);
    }
    at += (size_t)sprintf(file + at, "%s%s", end, to + strlen("\"post_processor"));
    check(ctx, file, at, data + pattern, size - pattern);
    free(file);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        check(ctx, (const char *)data + 1, size - 1, data + 1, size - 1);
        break;
    case 1:
        check_inserted(ctx, data + 1, size - 1);
        break;
    default:
        check_pattern(ctx, data + 1, size - 1);
    }
    return 0;
}
