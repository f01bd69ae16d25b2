/* Cutting by the GPT-2 pattern. The text is checked for UTF-8 run by run as it is reached, once; PCRE2 would check all
   that is left at every piece, which makes a long text quadratic. */
#include "train/tokenizer/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "train/tokenizer/utf8.h"

/* Within brackets. White_Space; and letters and digits, with those that editions 15 to 16 of Unicode added, which older
   ones of PCRE2 do not know and `tokenizers` 0.23 does. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define LETTERS                                                                                           \
    "\\p{L}"                                                                                              \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}" \
    "\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}"      \
    "\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}"        \
    "\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"      \
    "\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"       \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"                 \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define DIGITS                                                                             \
    "\\p{N}"                                                                               \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

/* Words in ASCII are most of many texts: the first line after the contractions finds them by a table of bytes, unless a
   letter beyond ASCII goes on there. With it cutting is about 1.3 times as fast. */
static const char pattern_text[] = "'s|'t|'re|'ve|'m|'ll|'d|"
                                   " ?[A-Za-z]++(?![\\x{80}-\\x{10FFFF}])|"
                                   " ?[" LETTERS "]+| ?[" DIGITS "]+| ?[^" SPACE LETTERS DIGITS "]+|"
                                   "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

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
