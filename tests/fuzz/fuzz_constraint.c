/* Any bytes as a regular expression, a JSON schema or a list of tools to call (first byte 0, 1 or 2, modulo 3): refused
   with an error message, or a random walk through its masks in which a token is always allowed until the text may end.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "tokenizer/constraint/constraint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { END = 256, WORDS = 9, STEPS = 60 };

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
    if (ctx == NULL) {
        expect(carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log = silent}) ==
               CARRY_OK);
    }
    return ctx;
}

static const carry_tokenizer *tokenizer(carry_ctx *ctx) {
    static const char *const added[] = {CARRY_END_OF_TEXT};
    static carry_tokenizer *made;
    if (made == NULL) {
        expect(carry_tokenizer_bytes(ctx, &made, added, 1) == CARRY_OK);
    }
    return made;
}

/* False if the walk has ended, or if the constraint needs too much work. */
static int step(carry_cursor *cursor, uint64_t seed, uint64_t at) {
    static const int32_t ends[] = {END};
    uint32_t mask[WORDS];
    memset(mask, 0xff, sizeof mask);
    if (!carry_cursor_allow(cursor, ends, 1, mask, WORDS)) {
        return 0;
    }
    const uint32_t start = carry_philox(seed, 0, at).word[0] % (END + 1);
    uint32_t token = start;
    while ((mask[token / 32] >> token % 32 & 1u) == 0) {
        token = (token + 1) % (END + 1);
        expect(token != start); /* some token is allowed */
    }
    if (token == END) {
        expect(carry_cursor_is_whole(cursor));
        return 0;
    }
    return carry_cursor_take(cursor, token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    carry_cursor *cursor;
    if (size == 0) {
        return 0;
    }
    static const carry_constraint_kind kinds[] = {CARRY_CONSTRAINT_REGEX, CARRY_CONSTRAINT_SCHEMA,
                                                  CARRY_CONSTRAINT_CALLS};
    if (carry_cursor_new(ctx, &cursor, tokenizer(ctx), kinds[data[0] % 3], (const char *)data + 1, size - 1) !=
        CARRY_OK) {
        expect(carry_ctx_error(ctx)[0] != '\0');
        return 0;
    }
    for (uint64_t at = 0; at < STEPS && step(cursor, size, at); at++) {
    }
    carry_cursor_free(cursor);
    return 0;
}
