/* Integers between two limits, as graphs over their digits. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/constraint/schema_inside.h"

#define DIGITS 16 /* at most this many in a number without a limit */

static uint32_t any_digits(carry_grammar *g, int count, uint32_t next) {
    for (int i = 0; i < count; i++) {
        next = carry_grammar_bytes(g, '0', '9', next);
    }
    return next;
}

/* Numbers of exactly `count` digits from low to high; leading zeros are allowed. */
static uint32_t between(carry_grammar *g, const char *low, const char *high, int count, uint32_t next) {
    if (strspn(low, "0") >= (size_t)count && strspn(high, "9") >= (size_t)count) {
        return any_digits(g, count, next);
    }
    if (low[0] == high[0]) {
        return carry_grammar_literal(g, low, 1, between(g, low + 1, high + 1, count - 1, next));
    }
    static const char zeros[] = "00000000000000000000";
    static const char nines[] = "99999999999999999999";
    uint32_t entry = carry_grammar_literal(g, low, 1, between(g, low + 1, nines, count - 1, next));
    entry =
        carry_grammar_split(g, carry_grammar_literal(g, high, 1, between(g, zeros, high + 1, count - 1, next)), entry);
    return high[0] - low[0] > 1
               ? carry_grammar_split(g,
                                     carry_grammar_bytes(g, (unsigned)low[0] + 1, (unsigned)high[0] - 1,
                                                         any_digits(g, count - 1, next)),
                                     entry)
               : entry;
}

/* Numbers from low to high, both at least 0. high is given as decimal digits. */
static uint32_t positives(carry_grammar *g, uint64_t low, const char *high, uint32_t next) {
    char digits[24];
    const int most = (int)strlen(high);
    int count = snprintf(digits, sizeof digits, "%" PRIu64, low);
    uint32_t entry = CARRY_GRAMMAR_END;
    for (; count <= most; count++) {
        static const char nines[] = "99999999999999999999";
        const uint32_t way = between(g, digits, count == most ? high : nines, count, next);
        entry = entry == CARRY_GRAMMAR_END ? way : carry_grammar_split(g, way, entry);
        (void)snprintf(digits, sizeof digits, "1%0*d", count, 0);
    }
    return entry == CARRY_GRAMMAR_END ? carry_grammar_never(g) : entry;
}

/* Writes the largest allowed number where the schema sets no limit: DIGITS nines, or more if low has more digits. */
static void no_limit(char digits[24], uint64_t low) {
    char text[24];
    const int count = snprintf(text, sizeof text, "%" PRIu64, low);
    const int most = count > DIGITS ? count : DIGITS;
    memset(digits, '9', (size_t)most);
    digits[most] = '\0';
}

static uint64_t magnitude(int64_t value) {
    return value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
}

uint32_t carry_schema_integers(carry_grammar *g, bool has_low, int64_t low, bool has_high, int64_t high,
                               uint32_t next) {
    char digits[24];
    uint32_t entry = carry_grammar_never(g);
    if (!has_high || high >= 0) {
        const uint64_t from = has_low && low > 0 ? (uint64_t)low : 0;
        if (has_high) {
            (void)snprintf(digits, sizeof digits, "%" PRId64, high);
        } else {
            no_limit(digits, from);
        }
        if (!has_high || from <= (uint64_t)high) {
            entry = carry_grammar_split(g, positives(g, from, digits, next), entry);
        }
    }
    if (!has_low || low < 0) {
        const uint64_t from = has_high && high < 0 ? magnitude(high) : 1;
        if (has_low) {
            (void)snprintf(digits, sizeof digits, "%" PRIu64, magnitude(low));
        } else {
            no_limit(digits, from);
        }
        if (!has_low || from <= magnitude(low)) {
            entry = carry_grammar_split(g, carry_grammar_literal(g, "-", 1, positives(g, from, digits, next)), entry);
        }
    }
    return entry;
}
