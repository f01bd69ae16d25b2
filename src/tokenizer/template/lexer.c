/* Splits a template into tokens, with Jinja's rules for white space. `-` strips all white space on its side. Unless `+`
   turns it off on that side, a block tag or comment removes one line break after it (trim_blocks) and, if only white
   space precedes it on its line, that white space (lstrip_blocks). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "tokenizer/template/node.h"
#include "tokenizer/template/unicode.h"

#define TOKENS_MOST ((size_t)1 << 20)
#define NESTED_MOST 200

typedef struct lexer {
    jinja_parser *parser;
    const char *at, *end;
    uint32_t line;
    bool starts_line; /* the last match ended with a line break, or there was no match yet */
} lexer;

static void add_token(lexer *lex, jinja_token_kind kind, jinja_text *text, jinja_value value) {
    jinja_parser *p = lex->parser;
    if (p->count == TOKENS_MOST) {
        jinja_syntax(p, lex->line, "more than %zu tokens", TOKENS_MOST);
    }
    if (p->count == p->room) {
        size_t room = p->room > 0 ? 2 * p->room : 256;
        jinja_token *grown = jinja_new(p->arena, room, sizeof *grown);
        if (p->count > 0) {
            memcpy(grown, p->token, p->count * sizeof *grown);
        }
        p->token = grown;
        p->room = room;
    }
    p->token[p->count++] = (jinja_token){kind, lex->line, text, value};
}

static void add_plain(lexer *lex, jinja_token_kind kind, const char *start, size_t length) {
    add_token(lex, kind, jinja_text_over(lex->parser->arena, start, length), (jinja_value){0});
}

static bool starts(const lexer *lex, const char *at, const char *with) {
    size_t length = strlen(with);
    return (size_t)(lex->end - at) >= length && memcmp(at, with, length) == 0;
}

/* Advances to `to` and counts the lines. */
static void move(lexer *lex, const char *to) {
    for (const char *at = lex->at; at < to; at++) {
        lex->line += *at == '\n';
    }
    lex->starts_line = to > lex->at ? to[-1] == '\n' : lex->starts_line;
    lex->at = to;
}

static const char *skip_spaces(const char *at, const char *end) {
    int bytes;
    while (at < end && jinja_code_is_space(jinja_code_at(at, &bytes))) {
        at += bytes;
    }
    return at;
}

static const char *strip_spaces(const char *start, const char *end) {
    int bytes;
    while (end > start && jinja_code_is_space(jinja_code_before(start, end, &bytes))) {
        end -= bytes;
    }
    return end;
}

/* Returns the end of the text before a tag, after stripping. */
static const char *text_end(const lexer *lex, const char *start, const char *tag, char sign, bool is_output) {
    if (sign == '-') {
        return strip_spaces(start, tag);
    }
    if (sign == '+' || is_output) {
        return tag;
    }
    const char *line = tag;
    while (line > start && line[-1] != '\n') {
        line--;
    }
    bool begins = line > start || lex->starts_line;
    return begins && skip_spaces(line, tag) == tag ? line : tag;
}

static char sign_at(const lexer *lex, const char *at) {
    return at < lex->end && (*at == '-' || *at == '+') ? *at : '\0';
}

/* Matches `{%[+-]? NAME [+-]?%}` at a position. Returns the position after it, or NULL. trims: a following line break
   is part of it. */
static const char *whole_tag(const lexer *lex, const char *at, const char *name, bool trims) {
    if (!starts(lex, at, "{%")) {
        return NULL;
    }
    at += 2 + (sign_at(lex, at + 2) != '\0');
    at = skip_spaces(at, lex->end);
    if (!starts(lex, at, name)) {
        return NULL;
    }
    at = skip_spaces(at + strlen(name), lex->end);
    if (starts(lex, at, "-%}")) {
        return skip_spaces(at + 3, lex->end);
    }
    if (trims && starts(lex, at, "+%}")) {
        return at + 3;
    }
    if (!starts(lex, at, "%}")) {
        return NULL;
    }
    at += 2;
    return at + (trims && at < lex->end && *at == '\n');
}

static void add_data(lexer *lex, const char *start, const char *end) {
    if (end > start) {
        add_plain(lex, TOKEN_DATA, start, (size_t)(end - start));
    }
}

/* Reads {% raw %} ... {% endraw %} after its first tag. */
static void read_raw(lexer *lex) {
    const char *start = lex->at;
    for (const char *at = start; (at = memmem(at, (size_t)(lex->end - at), "{%", 2)) != NULL; at += 2) {
        const char *after = whole_tag(lex, at, "endraw", true);
        if (after != NULL) {
            add_data(lex, start, text_end(lex, start, at, sign_at(lex, at + 2), false));
            move(lex, after);
            return;
        }
    }
    jinja_syntax(lex->parser, lex->line, "{%% raw %%} without {%% endraw %%}");
}

static void read_comment(lexer *lex) {
    const char *close = memmem(lex->at, (size_t)(lex->end - lex->at), "#}", 2);
    if (close == NULL) {
        jinja_syntax(lex->parser, lex->line, "a comment without its end");
    }
    char sign = close > lex->at ? close[-1] : '\0';
    const char *after = close + 2;
    if (sign == '-') {
        after = skip_spaces(after, lex->end);
    } else if (sign != '+') {
        after += after < lex->end && *after == '\n';
    }
    move(lex, after);
}

/* If the end of the tag is here, closes the tag and moves past it. */
static bool close_tag(lexer *lex, bool is_output) {
    const char *after = NULL;
    if (is_output) {
        after = starts(lex, lex->at, "-}}")  ? skip_spaces(lex->at + 3, lex->end)
                : starts(lex, lex->at, "}}") ? lex->at + 2
                                             : NULL;
    } else if (starts(lex, lex->at, "+%}")) {
        after = lex->at + 3;
    } else if (starts(lex, lex->at, "-%}")) {
        after = skip_spaces(lex->at + 3, lex->end);
    } else if (starts(lex, lex->at, "%}")) {
        after = lex->at + 2 + (lex->at + 2 < lex->end && lex->at[2] == '\n');
    }
    if (after != NULL) {
        add_plain(lex, is_output ? TOKEN_CLOSE_OUTPUT : TOKEN_CLOSE_TAG, lex->at, 2);
        move(lex, after);
    }
    return after != NULL;
}

/* Skips digits of a base, with single underscores between them. Returns the position after them. */
static const char *skip_digits(const lexer *lex, const char *at, const char *digits) {
    while (at < lex->end && (strchr(digits, *at) != NULL || (*at == '_' && at + 1 < lex->end && at[1] != '_'))) {
        if (*at == '\0' || (*at == '_' && (at[1] == '\0' || strchr(digits, at[1]) == NULL))) {
            break;
        }
        at++;
    }
    return at;
}

static bool is_digit(const lexer *lex, const char *at) {
    return at < lex->end && *at >= '0' && *at <= '9';
}

static void read_number(lexer *lex) {
    static const char decimal[] = "0123456789";
    const char *start = lex->at;
    char digits[512];
    int base = 10;
    const char *end;
    if (*start == '0' && start + 1 < lex->end && strchr("bBoOxX", start[1]) != NULL && start[1] != '\0') {
        base = strchr("bB", start[1]) != NULL ? 2 : strchr("oO", start[1]) != NULL ? 8 : 16;
        const char *set = base == 2 ? "01" : base == 8 ? "01234567" : "0123456789abcdefABCDEF";
        end = skip_digits(lex, start + 2, set);
        start += 2;
    } else {
        end = skip_digits(lex, start, decimal);
    }
    bool is_float = false;
    if (base == 10 && !(lex->at[-1] == '.')) {
        if (end < lex->end && *end == '.' && is_digit(lex, end + 1)) {
            end = skip_digits(lex, end + 1, decimal);
            is_float = true;
        }
        const char *power = end + 1 + (end + 1 < lex->end && (end[1] == '+' || end[1] == '-'));
        if (end < lex->end && (*end == 'e' || *end == 'E') && is_digit(lex, power)) {
            end = skip_digits(lex, power, decimal);
            is_float = true;
        }
    }
    size_t count = 0;
    for (const char *at = start; at < end; at++) {
        if (*at != '_' && count + 1 < sizeof digits) {
            digits[count++] = *at;
        }
    }
    digits[count] = '\0';
    if (count == 0 || count + 1 == sizeof digits ||
        (!is_float && base == 10 && digits[0] == '0' && strspn(digits, "0") != count)) {
        jinja_syntax(lex->parser, lex->line, "a number is malformed");
    }
    errno = 0;
    jinja_value value = is_float ? jinja_float(strtod(digits, NULL)) : jinja_integer(strtoll(digits, NULL, base));
    if (!is_float && errno == ERANGE) {
        jinja_unsupported(lex->parser, lex->line, "an integer of more than 64 bits");
    }
    add_token(lex, is_float ? TOKEN_FLOAT : TOKEN_INTEGER,
              jinja_text_over(lex->parser->arena, lex->at, (size_t)(end - lex->at)), value);
    move(lex, end);
}

static const char *read_hex(lexer *lex, const char *at, const char *end, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, at++) {
        int value = at < end && *at >= '0' && *at <= '9'   ? *at - '0'
                    : at < end && *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                    : at < end && *at >= 'A' && *at <= 'F' ? *at - 'A' + 10
                                                           : -1;
        if (value < 0) {
            jinja_syntax(lex->parser, lex->line, "an escape in a string has too few digits");
        }
        *code = *code << 4 | (uint32_t)value;
    }
    return at;
}

/* Reads one escape after its backslash, as Python's unicode-escape does. Returns the position after it. */
static const char *read_escape(lexer *lex, const char *at, const char *end, char **to) {
    static const char letters[] = "\\'\"abfnrtv";
    static const char meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char kind = *at++;
    const char *letter = kind != '\0' ? strchr(letters, kind) : NULL;
    uint32_t code = 0;
    if (letter != NULL) {
        *(*to)++ = meanings[letter - letters];
        return at;
    }
    if (kind == '\n') {
        return at;
    }
    if (kind == 'x' || kind == 'u' || kind == 'U') {
        at = read_hex(lex, at, end, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, &code);
    } else if (kind >= '0' && kind <= '7') {
        code = (uint32_t)(kind - '0');
        for (int i = 0; i < 2 && at < end && *at >= '0' && *at <= '7'; i++) {
            code = code << 3 | (uint32_t)(*at++ - '0');
        }
    } else if (kind == 'N') {
        jinja_unsupported(lex->parser, lex->line, "the escape \\N in a string");
    } else { /* not an escape: both characters are kept */
        *(*to)++ = '\\';
        return at - 1;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        jinja_syntax(lex->parser, lex->line, "an escape in a string is not a character");
    }
    *to += jinja_code_put(*to, code);
    return at;
}

static void read_string(lexer *lex) {
    char quote = *lex->at;
    const char *end = lex->at + 1;
    while (end < lex->end && *end != quote) {
        end += *end == '\\' && end + 1 < lex->end ? 2 : 1;
    }
    if (end >= lex->end) {
        jinja_syntax(lex->parser, lex->line, "a string without its end");
    }
    char *bytes = jinja_new(lex->parser->arena, (size_t)(end - lex->at) * 2 + 4, 1);
    char *to = bytes;
    for (const char *at = lex->at + 1; at < end;) {
        if (*at == '\\') {
            at = read_escape(lex, at + 1, end, &to);
        } else {
            *to++ = *at++;
        }
    }
    add_plain(lex, TOKEN_STRING, bytes, (size_t)(to - bytes));
    move(lex, end + 1);
}

static bool is_word(const char *at, int *bytes) {
    uint32_t code = jinja_code_at(at, bytes);
    return code == '_' || jinja_code_is_alnum(code);
}

static void read_operator(lexer *lex, char *nested, int *depth) {
    static const struct {
        const char *text;
        jinja_token_kind kind;
    } operators[] = {
        {"//", TOKEN_FLOOR_DIVIDE},
        {"**", TOKEN_POWER},
        {"==", TOKEN_EQUAL},
        {"!=", TOKEN_UNEQUAL},
        {">=", TOKEN_GREATER_EQUAL},
        {"<=", TOKEN_LESS_EQUAL},
        {"+", TOKEN_ADD},
        {"-", TOKEN_SUBTRACT},
        {"/", TOKEN_DIVIDE},
        {"*", TOKEN_MULTIPLY},
        {"%", TOKEN_MODULO},
        {"~", TOKEN_TILDE},
        {"[", TOKEN_OPEN_BRACKET},
        {"]", TOKEN_CLOSE_BRACKET},
        {"(", TOKEN_OPEN_PARENTHESIS},
        {")", TOKEN_CLOSE_PARENTHESIS},
        {"{", TOKEN_OPEN_BRACE},
        {"}", TOKEN_CLOSE_BRACE},
        {">", TOKEN_GREATER},
        {"<", TOKEN_LESS},
        {"=", TOKEN_ASSIGN},
        {".", TOKEN_DOT},
        {":", TOKEN_COLON},
        {"|", TOKEN_PIPE},
        {",", TOKEN_COMMA},
        {";", TOKEN_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!starts(lex, lex->at, operators[i].text)) {
            continue;
        }
        char first = *lex->at;
        if (first == '(' || first == '[' || first == '{') {
            if (*depth == NESTED_MOST) {
                jinja_syntax(lex->parser, lex->line, "more than %d nested brackets", NESTED_MOST);
            }
            nested[(*depth)++] = (char)(first == '(' ? ')' : first + 2);
        } else if (first == ')' || first == ']' || first == '}') {
            if (*depth == 0 || nested[--*depth] != first) {
                jinja_syntax(lex->parser, lex->line, "unexpected '%c'", first);
            }
        }
        add_plain(lex, operators[i].kind, lex->at, strlen(operators[i].text));
        move(lex, lex->at + strlen(operators[i].text));
        return;
    }
    jinja_syntax(lex->parser, lex->line, "unexpected character '%.1s'", lex->at);
}

static void read_tag(lexer *lex, bool is_output) {
    char nested[NESTED_MOST];
    int depth = 0, bytes;
    uint32_t line = lex->line;
    for (;;) {
        move(lex, skip_spaces(lex->at, lex->end));
        if (lex->at >= lex->end) {
            jinja_syntax(lex->parser, line, "a tag without its end");
        }
        if (depth == 0 && close_tag(lex, is_output)) {
            return;
        }
        if (is_digit(lex, lex->at)) {
            read_number(lex);
        } else if (is_word(lex->at, &bytes)) {
            const char *end = lex->at;
            while (end < lex->end && is_word(end, &bytes)) {
                end += bytes;
            }
            add_plain(lex, TOKEN_NAME, lex->at, (size_t)(end - lex->at));
            move(lex, end);
        } else if (*lex->at == '\'' || *lex->at == '"') {
            read_string(lex);
        } else {
            read_operator(lex, nested, &depth);
        }
    }
}

static void read_all(lexer *lex) {
    while (lex->at < lex->end) {
        const char *start = lex->at;
        const char *tag = start;
        while (tag < lex->end && !starts(lex, tag, "{%") && !starts(lex, tag, "{{") && !starts(lex, tag, "{#")) {
            tag++;
        }
        if (tag >= lex->end) {
            add_data(lex, start, lex->end);
            move(lex, lex->end);
            return;
        }
        char sign = sign_at(lex, tag + 2);
        add_data(lex, start, text_end(lex, start, tag, sign, tag[1] == '{'));
        const char *raw = whole_tag(lex, tag, "raw", false);
        if (raw != NULL) {
            move(lex, raw);
            read_raw(lex);
            continue;
        }
        move(lex, tag + 2 + (sign != '\0'));
        if (tag[1] == '#') {
            read_comment(lex);
            continue;
        }
        add_plain(lex, tag[1] == '{' ? TOKEN_OPEN_OUTPUT : TOKEN_OPEN_TAG, tag, 2);
        read_tag(lex, tag[1] == '{');
    }
}

void jinja_read_tokens(jinja_parser *parser, const char *text, size_t length) {
    /* As in Jinja, every line break becomes a line feed, and one at the end is dropped. The byte before the start may
       be read. */
    char *bytes = jinja_new(parser->arena, length + 2, 1);
    char *to = bytes + 1;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r') {
            *to++ = '\n';
            i += i + 1 < length && text[i + 1] == '\n';
        } else {
            *to++ = text[i];
        }
    }
    to -= to > bytes + 1 && to[-1] == '\n';
    *to = '\0';
    lexer lex = {.parser = parser, .at = bytes + 1, .end = to, .line = 1, .starts_line = true};
    for (const char *at = lex.at; at < lex.end;) {
        int bytes_here = carry_json_utf8_length(at, lex.end);
        if (bytes_here == 0) {
            jinja_syntax(parser, 1, "byte %zu is not UTF-8", (size_t)(at - lex.at));
        }
        at += bytes_here;
    }
    read_all(&lex);
    add_plain(&lex, TOKEN_END, lex.end, 0);
}
