/* Cutting by the GPT-2 pattern. The text is checked for UTF-8 run by run as it is reached, once; PCRE2 would check all
   that is left at every piece, which makes a long text quadratic. */
#include "train/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "train/utf8.h"

#define SPACE "\\t-\\r\\x{85}\\p{Z}" /* within brackets: White_Space */

static const char pattern_text[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

struct carry_pattern {
    pcre2_code *code;
    bool compiled;
};

struct carry_cutter {
    const carry_pattern *pattern;
    pcre2_match_data *match;
    const unsigned char *at, *run_end, *end; /* at..run_end is UTF-8 */
};

carry_status carry_pattern_new(carry_ctx *ctx, carry_pattern **pattern) {
    *pattern = NULL;
    int error;
    PCRE2_SIZE place;
    carry_pattern *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a pattern");
    }
    made->code = pcre2_compile((PCRE2_SPTR)pattern_text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &place, NULL);
    if (made->code == NULL) {
        free(made);
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "PCRE2 refuses the GPT-2 pattern (error %d at %zu): was it built without Unicode?", error,
                          (size_t)place);
    }
    made->compiled = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
    *pattern = made;
    return CARRY_OK;
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

/* Where UTF-8 that starts here ends. */
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
    /* The pattern looks at no character before a piece, so each match may start a subject of its own. */
    const pcre2_code *code = cutter->pattern->code;
    PCRE2_SIZE left = (PCRE2_SIZE)(cutter->run_end - cutter->at);
    int found = cutter->pattern->compiled
                    ? pcre2_jit_match(code, cutter->at, left, 0, 0, cutter->match, NULL)
                    : pcre2_match(code, cutter->at, left, 0, PCRE2_NO_UTF_CHECK, cutter->match, NULL);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(cutter->match);
    /* Every character starts some piece, so only a limit of PCRE2 can keep it from matching here: the rest of the run
       is then one piece, which is encoded and decoded as well as any. */
    size_t length = found > 0 && place[0] == 0 && place[1] > 0 ? place[1] : left;
    cutter->at += length;
    return length;
}

static bool follows_a_space(const unsigned char *text, size_t at) {
    size_t start = at - 1;
    while (start > 0 && at - start < CARRY_UTF8_LONGEST && (text[start] & 0xC0) == 0x80) {
        start--;
    }
    int length = carry_utf8_at(text + start, at - start);
    return length > 0 && (size_t)length == at - start && carry_utf8_is_space(carry_utf8_code(text + start, length));
}

size_t carry_pattern_last_cut(const void *text, size_t length) {
    /* A piece with a space after its first character is all spaces, so none reaches across such a place. */
    const unsigned char *bytes = text;
    for (size_t at = length; at-- > 1;) {
        if ((bytes[at] == ' ' || (bytes[at] >= '\t' && bytes[at] <= '\r')) && !follows_a_space(bytes, at)) {
            return at;
        }
    }
    return 0;
}
