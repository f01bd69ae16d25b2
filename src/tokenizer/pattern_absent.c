/* Replaces pattern.c in a build without PCRE2: every pattern is refused, so tokenizers that need one cannot be
   opened. */
#include "core/error.h"
#include "tokenizer/pattern.h"

static carry_status refuse(carry_ctx *ctx, carry_pattern **pattern, const char *name) {
    *pattern = NULL;
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s: this build of Carry has no PCRE2, which the tokenizer's pattern needs", name);
}

carry_status carry_pattern_new(carry_ctx *ctx, carry_pattern **pattern) {
    return refuse(ctx, pattern, "the GPT-2 pattern");
}

carry_status carry_pattern_parse(carry_ctx *ctx, carry_pattern **pattern, const char *regex, size_t length,
                                 bool drops_gaps, const char *name) {
    (void)regex, (void)length, (void)drops_gaps;
    return refuse(ctx, pattern, name);
}

carry_status carry_pattern_digits(carry_ctx *ctx, carry_pattern **pattern, bool each) {
    (void)each;
    return refuse(ctx, pattern, "digits");
}

/* No pattern exists, so these are never reached. */
carry_cut_rule carry_pattern_rule(const carry_pattern *pattern) {
    (void)pattern;
    return CARRY_CUT_NOWHERE;
}

void carry_pattern_free(carry_pattern *pattern) {
    (void)pattern;
}

bool carry_pattern_is_compiled(const carry_pattern *pattern) {
    (void)pattern;
    return false;
}

carry_cutter *carry_cutter_new(const carry_pattern *pattern) {
    (void)pattern;
    return NULL;
}

void carry_cutter_free(carry_cutter *cutter) {
    (void)cutter;
}

void carry_cutter_start(carry_cutter *cutter, const void *text, size_t length) {
    (void)cutter, (void)text, (void)length;
}

size_t carry_cutter_next(carry_cutter *cutter, const unsigned char **piece) {
    (void)cutter;
    *piece = NULL;
    return 0;
}
