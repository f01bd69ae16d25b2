/* Characters as sequences of byte ranges. */
#include "tokenizer/constraint/characters.h"

#include <stdlib.h>

bool carry_characters_add(carry_characters *set, uint32_t low, uint32_t high) {
    if (set->count == set->room) {
        const size_t room = set->room > 0 ? 2 * set->room : 8;
        carry_range *grown = realloc(set->range, room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        set->range = grown;
        set->room = room;
    }
    set->range[set->count++] = (carry_range){low, high};
    return true;
}

void carry_characters_free(carry_characters *set) {
    free(set->range);
    *set = (carry_characters){0};
}

static int by_low(const void *a, const void *b) {
    const carry_range *x = a;
    const carry_range *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

void carry_characters_sort(carry_characters *set) {
    size_t kept = 0;
    if (set->count > 1) {
        qsort(set->range, set->count, sizeof *set->range, by_low);
    }
    for (size_t i = 0; i < set->count; i++) {
        carry_range *last = kept > 0 ? &set->range[kept - 1] : NULL;
        if (last != NULL && set->range[i].low <= last->high + 1) {
            last->high = set->range[i].high > last->high ? set->range[i].high : last->high;
        } else {
            set->range[kept++] = set->range[i];
        }
    }
    set->count = kept;
}

bool carry_characters_negate(carry_characters *set) {
    carry_characters other = {0};
    uint32_t from = 0;
    bool is_whole = true;
    carry_characters_sort(set);
    for (size_t i = 0; i < set->count; i++) {
        if (set->range[i].low > from) {
            is_whole = is_whole && carry_characters_add(&other, from, set->range[i].low - 1);
        }
        from = set->range[i].high + 1;
    }
    if (from <= CARRY_LAST_CHARACTER) {
        is_whole = is_whole && carry_characters_add(&other, from, CARRY_LAST_CHARACTER);
    }
    carry_characters_free(set);
    *set = other;
    return is_whole;
}

/* Adds an alternative to those collected in `ways`. CARRY_GRAMMAR_END means that `ways` is empty. */
static uint32_t also(carry_grammar *g, uint32_t ways, uint32_t way) {
    return ways == CARRY_GRAMMAR_END ? way : carry_grammar_split(g, way, ways);
}

static int encode(uint32_t c, unsigned char bytes[4]) {
    if (c < 0x80) {
        bytes[0] = (unsigned char)c;
        return 1;
    }
    const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        bytes[i] = (unsigned char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    bytes[0] = (unsigned char)((length == 2 ? 0xC0 : length == 3 ? 0xE0 : 0xF0) | c);
    return length;
}

/* Adds a range of characters whose encodings all have the same length. The range is split until, in each part, every
   byte varies independently between its first and last value. */
static uint32_t add_range(carry_grammar *g, uint32_t ways, uint32_t low, uint32_t high, uint32_t next) {
    unsigned char from[4] = {0};
    unsigned char to[4] = {0};
    const int length = encode(low, from);
    for (int i = 1; i < length; i++) {
        const uint32_t rest = ((uint32_t)1 << 6 * i) - 1;
        if ((low | rest) < high && (low & rest) != 0) {
            ways = add_range(g, ways, low, low | rest, next);
            return add_range(g, ways, (low | rest) + 1, high, next);
        }
        if ((low | rest) < high && (high & rest) != rest) {
            ways = add_range(g, ways, low, (high & ~rest) - 1, next);
            return add_range(g, ways, high & ~rest, high, next);
        }
    }
    (void)encode(high, to);
    for (int i = length - 1; i >= 0; i--) {
        next = carry_grammar_bytes(g, from[i], to[i], next);
    }
    return also(g, ways, next);
}

/* Adds the part of r between low and high, if it is not empty. */
static uint32_t add_within(carry_grammar *g, uint32_t ways, carry_range r, uint32_t low, uint32_t high, uint32_t next) {
    const uint32_t from = r.low > low ? r.low : low;
    const uint32_t to = r.high < high ? r.high : high;
    return from <= to ? add_range(g, ways, from, to, next) : ways;
}

static uint32_t add_utf8(carry_grammar *g, uint32_t ways, carry_range r, uint32_t next) {
    static const carry_range same_length[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, CARRY_LAST_CHARACTER}};
    for (size_t i = 0; i < sizeof same_length / sizeof *same_length; i++) {
        ways = add_within(g, ways, r, same_length[i].low, same_length[i].high, next);
    }
    return ways;
}

uint32_t carry_characters_utf8(carry_grammar *g, const carry_range *range, size_t count, uint32_t next) {
    uint32_t ways = CARRY_GRAMMAR_END;
    for (size_t i = 0; i < count; i++) {
        ways = add_utf8(g, ways, range[i], next);
    }
    return ways == CARRY_GRAMMAR_END ? carry_grammar_never(g) : ways;
}

static uint32_t escape(carry_grammar *g, uint32_t c, uint32_t next) {
    static const char digits[2][17] = {"0123456789abcdef", "0123456789ABCDEF"};
    const char letter = c == '"' || c == '\\' ? (char)c
                        : c == '\b'           ? 'b'
                        : c == '\f'           ? 'f'
                        : c == '\n'           ? 'n'
                        : c == '\r'           ? 'r'
                        : c == '\t'           ? 't'
                                              : '\0';
    const char last[2] = {digits[0][c & 15], digits[1][c & 15]};
    if (letter != '\0') {
        const char text[2] = {'\\', letter};
        return carry_grammar_literal(g, text, 2, next);
    }
    const char head[5] = {'\\', 'u', '0', '0', digits[0][c >> 4]};
    next =
        carry_grammar_split(g, carry_grammar_literal(g, &last[0], 1, next),
                            last[0] == last[1] ? carry_grammar_never(g) : carry_grammar_literal(g, &last[1], 1, next));
    return carry_grammar_literal(g, head, sizeof head, next);
}

uint32_t carry_characters_json(carry_grammar *g, const carry_range *range, size_t count, uint32_t next) {
    static const carry_range plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, CARRY_LAST_CHARACTER}};
    uint32_t ways = CARRY_GRAMMAR_END;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
            const carry_range r = {range[i].low > plain[k].low ? range[i].low : plain[k].low,
                                   range[i].high < plain[k].high ? range[i].high : plain[k].high};
            ways = r.low <= r.high ? add_utf8(g, ways, r, next) : ways;
        }
        for (uint32_t c = range[i].low; c <= range[i].high && c <= '\\'; c++) {
            if (c < 0x20 || c == '"' || c == '\\') {
                ways = also(g, ways, escape(g, c, next));
            }
        }
    }
    return ways == CARRY_GRAMMAR_END ? carry_grammar_never(g) : ways;
}
