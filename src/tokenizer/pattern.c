/* Cutting a text into pieces by a pattern. The text is checked for UTF-8 only once, one run at a time as the cutter
   reaches it. PCRE2 itself would check the whole remaining text at every piece, which takes quadratic time on a long
   text. */
#include "tokenizer/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "tokenizer/pattern_regex.h"
#include "tokenizer/utf8.h"

/* GPT-2's pattern. In many texts most words are ASCII: the alternative with [A-Za-z] matches those with a byte table,
   unless a character beyond ASCII follows, and makes cutting about 1.3 times as fast. */
static const char pattern_text[] = "'s|'t|'re|'ve|'m|'ll|'d|"
                                   " ?[A-Za-z]++(?![\\x{80}-\\x{10FFFF}])|"
                                   " ?[" CARRY_REGEX_LETTERS "]+| ?[" CARRY_REGEX_DIGITS
                                   "]+| ?[^" CARRY_REGEX_SPACE CARRY_REGEX_LETTERS CARRY_REGEX_DIGITS "]+|"
                                   "[" CARRY_REGEX_SPACE "]+(?![^" CARRY_REGEX_SPACE "])|[" CARRY_REGEX_SPACE "]+";

struct carry_pattern {
    pcre2_code *code;
    bool compiled, drops_gaps;
    carry_cut_rule rule;
};

struct carry_cutter {
    const carry_pattern *pattern;
    pcre2_match_data *match;
    const unsigned char *at, *run_end, *end; /* at..run_end is UTF-8 */
};

static carry_status compile(carry_ctx *ctx, carry_pattern **pattern, const char *regex, const char *name) {
    int error;
    PCRE2_SIZE place;
    carry_pattern *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pattern");
    }
    made->code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &place, NULL);
    if (made->code == NULL) {
        char why[120] = "";
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        free(made);
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: PCRE2 refuses the pattern: %s", name, why);
    }
    made->compiled = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
    *pattern = made;
    return CARRY_OK;
}

carry_status carry_pattern_new(carry_ctx *ctx, carry_pattern **pattern) {
    *pattern = NULL;
    CARRY_TRY(compile(ctx, pattern, pattern_text, "the GPT-2 pattern"));
    (*pattern)->rule = CARRY_CUT_BLANKS_AND_LINES;
    return CARRY_OK;
}

/* True for published patterns in which white space other than line ends occurs only at the start of a piece or among
   other white space: those of GPT-4, Llama 3, OLMo and Qwen (before 3.5 and since). */
static bool is_cut_at_blanks(const char *regex, size_t length) {
    static const char head[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?";
    static const char tail[] = "]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char *const middles[] = {
        "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}",
        "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}",
        "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}",
    };
    const size_t around = sizeof head + sizeof tail - 2;
    if (length < around || memcmp(regex, head, sizeof head - 1) != 0 ||
        memcmp(regex + length - (sizeof tail - 1), tail, sizeof tail - 1) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof middles / sizeof middles[0]; i++) {
        if (strlen(middles[i]) == length - around &&
            memcmp(regex + sizeof head - 1, middles[i], strlen(middles[i])) == 0) {
            return true;
        }
    }
    return false;
}

carry_status carry_pattern_parse(carry_ctx *ctx, carry_pattern **pattern, const char *regex, size_t length,
                                 bool drops_gaps, const char *name) {
    *pattern = NULL;
    char *translated;
    CARRY_TRY(carry_regex_translate(ctx, &translated, regex, length, name));
    carry_status status = compile(ctx, pattern, translated, name);
    free(translated);
    CARRY_TRY(status);
    (*pattern)->drops_gaps = drops_gaps;
    (*pattern)->rule = is_cut_at_blanks(regex, length) ? CARRY_CUT_BLANKS : CARRY_CUT_NOWHERE;
    return CARRY_OK;
}

carry_status carry_pattern_digits(carry_ctx *ctx, carry_pattern **pattern, bool each) {
    *pattern = NULL;
#define DIGITS "[" CARRY_REGEX_DIGITS "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]" /* as in Rust, with Unicode 17 */
    CARRY_TRY(compile(ctx, pattern, each ? DIGITS : DIGITS "+", "digits"));
#undef DIGITS
    (*pattern)->rule = CARRY_CUT_BLANKS_AND_LINES;
    return CARRY_OK;
}

carry_cut_rule carry_pattern_rule(const carry_pattern *pattern) {
    return pattern->rule;
}

void carry_pattern_free(carry_pattern *pattern) {
    if (pattern != NULL) {
        pcre2_code_free(pattern->code);
        free(pattern);
    }
}

bool carry_pattern_is_compiled(const carry_pattern *pattern) {
    return pattern->compiled;
}

carry_cutter *carry_cutter_new(const carry_pattern *pattern) {
    carry_cutter *cutter = calloc(1, sizeof *cutter);
    if (cutter == NULL) {
        return NULL;
    }
    cutter->pattern = pattern;
    cutter->match = pcre2_match_data_create(1, NULL);
    if (cutter->match == NULL) {
        free(cutter);
        return NULL;
    }
    return cutter;
}

void carry_cutter_free(carry_cutter *cutter) {
    if (cutter != NULL) {
        pcre2_match_data_free(cutter->match);
        free(cutter);
    }
}

void carry_cutter_start(carry_cutter *cutter, const void *text, size_t length) {
    cutter->at = text;
    cutter->run_end = cutter->at;
    cutter->end = cutter->at + length;
}

/* Returns the end of the valid UTF-8 that starts here. */
static const unsigned char *end_of_valid(const unsigned char *at, const unsigned char *end) {
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        int length = carry_utf8_at(at, (size_t)(end - at));
        if (length == 0) {
            break;
        }
        at += length;
    }
    return at;
}

static const unsigned char *end_of_invalid(const unsigned char *at, const unsigned char *end) {
    while (at < end && carry_utf8_at(at, (size_t)(end - at)) == 0) {
        at++;
    }
    return at;
}

size_t carry_cutter_next(carry_cutter *cutter, const unsigned char **piece) {
    *piece = cutter->at;
    if (cutter->at == cutter->end) {
        return 0;
    }
    if (cutter->at == cutter->run_end) {
        cutter->run_end = end_of_valid(cutter->at, cutter->end);
        if (cutter->run_end == cutter->at) {
            cutter->at = cutter->run_end = end_of_invalid(cutter->at, cutter->end);
            return (size_t)(cutter->at - *piece);
        }
    }
    /* No pattern looks at characters before a piece, so each match may use a new subject that starts here. */
    const carry_pattern *pattern = cutter->pattern;
    PCRE2_SIZE left = (PCRE2_SIZE)(cutter->run_end - cutter->at);
    int found =
        pattern->compiled
            ? pcre2_jit_match(pattern->code, cutter->at, left, 0, PCRE2_NOTEMPTY, cutter->match, NULL)
            : pcre2_match(pattern->code, cutter->at, left, 0, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, cutter->match, NULL);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(cutter->match);
    /* Text that no match covers is one piece, or is dropped. If PCRE2 reaches a limit, the rest of the run is one
       piece, which is encoded and decoded like any other. */
    size_t gap = found > 0 ? place[0] : left;
    if (gap > 0 && pattern->drops_gaps && (found > 0 || found == PCRE2_ERROR_NOMATCH)) {
        cutter->at += gap;
        *piece = cutter->at;
        if (found <= 0) {
            return carry_cutter_next(cutter, piece);
        }
        cutter->at += place[1] - place[0];
        return place[1] - place[0];
    }
    size_t length = gap > 0 ? gap : place[1];
    cutter->at += length;
    return length;
}
