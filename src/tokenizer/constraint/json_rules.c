/* JSON without a schema: strings, numbers, any value. */
#include "tokenizer/constraint/characters.h"
#include "tokenizer/constraint/schema_inside.h"

#define INDENT 20 /* at most this many spaces or tabs after a line end */
#define DIGITS 15 /* at most this many after the first: as precise as a double */
#define FRACTION 16
#define EXPONENT 2

static uint32_t literal(carry_grammar *g, const char *text, uint32_t next) {
    size_t length = 0;
    while (text[length] != '\0') {
        length++;
    }
    return carry_grammar_literal(g, text, length, next);
}

static uint32_t maybe(carry_grammar *g, uint32_t entry, uint32_t next) {
    return carry_grammar_split(g, entry, next);
}

/* Reads least to most digits. */
static uint32_t digits(carry_grammar *g, int least, int most, uint32_t next) {
    uint32_t entry = next;
    for (int i = most; i > 0; i--) {
        entry = carry_grammar_bytes(g, '0', '9', entry);
        entry = i > least ? maybe(g, entry, next) : entry;
    }
    return entry;
}

static uint32_t space(carry_grammar *g) {
    uint32_t indent = CARRY_GRAMMAR_END;
    for (int i = 0; i < INDENT; i++) {
        indent = maybe(g, carry_grammar_split(g, literal(g, " ", indent), carry_grammar_bytes(g, '\t', '\t', indent)),
                       CARRY_GRAMMAR_END);
    }
    const uint32_t line = literal(g, "\n", maybe(g, literal(g, "\n", indent), indent));
    return maybe(g, carry_grammar_split(g, literal(g, " ", CARRY_GRAMMAR_END), line), CARRY_GRAMMAR_END);
}

static uint32_t hex(carry_grammar *g, const char *ranges, uint32_t next) {
    uint32_t entry = CARRY_GRAMMAR_END;
    for (; ranges[0] != '\0'; ranges += 2) {
        const uint32_t way = carry_grammar_bytes(g, (unsigned char)ranges[0], (unsigned char)ranges[1], next);
        entry = entry == CARRY_GRAMMAR_END ? way : carry_grammar_split(g, way, entry);
    }
    return entry;
}

/* After \u: four hexadecimal digits of a character, or a surrogate pair. */
static uint32_t code(carry_grammar *g, uint32_t next) {
    static const char any[] = "09afAF";
    const uint32_t two = hex(g, any, hex(g, any, next));
    const uint32_t plain =
        carry_grammar_split(g, hex(g, "09acACefEF", hex(g, any, two)), hex(g, "ddDD", hex(g, "07", two)));
    const uint32_t low = literal(g, "\\u", hex(g, "ddDD", hex(g, "cfCF", two)));
    const uint32_t high = hex(g, "ddDD", hex(g, "89abAB", hex(g, any, hex(g, any, low))));
    return carry_grammar_split(g, plain, high);
}

static uint32_t character(carry_grammar *g) {
    static const carry_range plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, CARRY_LAST_CHARACTER}};
    uint32_t escaped = literal(g, "u", code(g, CARRY_GRAMMAR_END));
    for (const char *letter = "\"\\/bfnrt"; *letter != '\0'; letter++) {
        escaped = carry_grammar_split(g, carry_grammar_literal(g, letter, 1, CARRY_GRAMMAR_END), escaped);
    }
    return carry_grammar_split(g, carry_characters_utf8(g, plain, 3, CARRY_GRAMMAR_END), literal(g, "\\", escaped));
}

static uint32_t integer(carry_grammar *g, uint32_t next) {
    const uint32_t number = carry_grammar_bytes(g, '1', '9', digits(g, 0, DIGITS, next));
    return maybe(g, literal(g, "-", carry_grammar_split(g, number, literal(g, "0", next))),
                 carry_grammar_split(g, number, literal(g, "0", next)));
}

static uint32_t number(carry_grammar *g) {
    const uint32_t end = CARRY_GRAMMAR_END;
    const uint32_t some = digits(g, 1, EXPONENT, end);
    const uint32_t sign = maybe(g, carry_grammar_split(g, literal(g, "+", some), literal(g, "-", some)), some);
    const uint32_t exponent = maybe(g, carry_grammar_split(g, literal(g, "e", sign), literal(g, "E", sign)), end);
    return integer(g, maybe(g, literal(g, ".", digits(g, 1, FRACTION, exponent)), exponent));
}

/* open space (item (space , space item)* space)? close */
static uint32_t listed(carry_grammar *g, uint32_t spaces, uint32_t item, const char *open, const char *close) {
    const uint32_t end = literal(g, close, CARRY_GRAMMAR_END);
    const uint32_t loop = carry_grammar_loop(g, carry_grammar_call(g, spaces, end));
    const uint32_t one = carry_grammar_call(g, item, loop);
    carry_grammar_close_loop(g, loop,
                             carry_grammar_call(g, spaces, literal(g, ",", carry_grammar_call(g, spaces, one))));
    return literal(g, open, carry_grammar_call(g, spaces, carry_grammar_split(g, one, end)));
}

void carry_json_rules_build(carry_grammar *g, carry_json_rules *r) {
    const uint32_t end = CARRY_GRAMMAR_END;
    *r = (carry_json_rules){carry_grammar_rule(g), carry_grammar_rule(g), carry_grammar_rule(g), carry_grammar_rule(g),
                            carry_grammar_rule(g), carry_grammar_rule(g), carry_grammar_rule(g), carry_grammar_rule(g)};
    const uint32_t member = carry_grammar_rule(g);
    carry_grammar_define(g, r->space, space(g));
    carry_grammar_define(g, r->character, character(g));
    const uint32_t characters = carry_grammar_loop(g, literal(g, "\"", end));
    carry_grammar_close_loop(g, characters, carry_grammar_call(g, r->character, characters));
    carry_grammar_define(g, r->string, literal(g, "\"", characters));
    carry_grammar_define(g, r->integer, integer(g, end));
    carry_grammar_define(g, r->number, number(g));
    carry_grammar_define(
        g, member,
        carry_grammar_call(g, r->string,
                           literal(g, ":", carry_grammar_call(g, r->space, carry_grammar_call(g, r->value, end)))));
    carry_grammar_define(g, r->object, listed(g, r->space, member, "{", "}"));
    carry_grammar_define(g, r->array, listed(g, r->space, r->value, "[", "]"));
    uint32_t value = carry_grammar_split(g, literal(g, "true", end), literal(g, "false", end));
    value = carry_grammar_split(g, literal(g, "null", end), value);
    const uint32_t rules[] = {r->number, r->string, r->array, r->object};
    for (int i = 0; i < 4; i++) {
        value = carry_grammar_split(g, carry_grammar_call(g, rules[i], end), value);
    }
    carry_grammar_define(g, r->value, value);
}
