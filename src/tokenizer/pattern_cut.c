/* Positions at which a text can be split without changing its pieces. Needs no regular expression. */
#include "tokenizer/pattern.h"
#include "tokenizer/utf8.h"

static bool follows_a_space(const unsigned char *text, size_t at) {
    size_t start = at - 1;
    while (start > 0 && at - start < CARRY_UTF8_LONGEST && (text[start] & 0xC0) == 0x80) {
        start--;
    }
    int length = carry_utf8_at(text + start, at - start);
    return length > 0 && (size_t)length == at - start && carry_utf8_is_space(carry_utf8_code(text + start, length));
}

size_t carry_cut_last(carry_cut_rule rule, const void *text, size_t length) {
    /* Finds the last white space (of the kinds that `rule` covers) that does not follow white space. No piece extends
       across that position, since a piece with such white space after its first character is white space only. */
    const unsigned char *bytes = text;
    for (size_t at = length; at-- > 1 && rule != CARRY_CUT_NOWHERE;) {
        bool is_blank = bytes[at] == ' ' || (rule >= CARRY_CUT_BLANKS && (bytes[at] == '\t' || bytes[at] == '\v'));
        bool is_line = bytes[at] == '\n' || bytes[at] == '\f' || bytes[at] == '\r';
        if ((is_blank || (is_line && rule == CARRY_CUT_BLANKS_AND_LINES)) && !follows_a_space(bytes, at)) {
            return at;
        }
    }
    return 0;
}

size_t carry_pattern_last_cut(const void *text, size_t length) {
    return carry_cut_last(CARRY_CUT_BLANKS_AND_LINES, text, length);
}
