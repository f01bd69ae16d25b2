/* Writes HTML text and figures. */
#include "lab/report/html.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPLACEMENT "\xEF\xBF\xBD"
#define THIN "\xE2\x80\xAF" /* narrow no-break space: a figure and its unit stay on one line */
#define DASH "\xE2\x80\x93"

/* Length of the UTF-8 sequence at `at` and its character, or 0 if it is invalid (overlong, surrogate, cut short). */
static int utf8_length(const unsigned char *at, uint32_t *character) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int length = *at < 0x80 ? 1 : (*at & 0xE0) == 0xC0 ? 2 : (*at & 0xF0) == 0xE0 ? 3 : (*at & 0xF8) == 0xF0 ? 4 : 0;
    if (length < 2) {
        *character = *at;
        return length;
    }
    *character = *at & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) { /* this also stops at the terminating 0 */
            return 0;
        }
        *character = *character << 6 | (at[i] & 0x3Fu);
    }
    bool surrogate = *character >= 0xD800 && *character <= 0xDFFF;
    return *character < least[length] || *character > 0x10FFFF || surrogate ? 0 : length;
}

/* Control characters, noncharacters, and characters that change the reading direction of a line. */
static bool is_unwanted(uint32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F || (c & 0xFFFE) == 0xFFFE ||
           (c >= 0xFDD0 && c <= 0xFDEF) || c == 0xFEFF;
}

static const char *entity_of(uint32_t character) {
    switch (character) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

static const char *put(char text[CARRY_HTML_FIGURE], const char *words) {
    (void)snprintf(text, CARRY_HTML_FIGURE, "%s", words);
    return text;
}

void carry_html_raw(FILE *to, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(to, format, arguments);
    va_end(arguments);
}

void carry_html_text(FILE *to, const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0';) {
        uint32_t character;
        int length = utf8_length(at, &character);
        const char *entity = entity_of(character);
        if (length == 0 || is_unwanted(character)) {
            (void)fputs(REPLACEMENT, to);
        } else if (entity != NULL) {
            (void)fputs(entity, to);
        } else {
            (void)fwrite(at, 1, (size_t)length, to);
        }
        at += length > 0 ? length : 1;
    }
}

void carry_html_around(FILE *to, const char *before, const char *text, const char *after) {
    (void)fputs(before, to);
    carry_html_text(to, text);
    (void)fputs(after, to);
}

const char *carry_figure_small(char text[CARRY_HTML_FIGURE], double value) {
    static const char *const raised[] = {"\xE2\x81\xB0", "\xC2\xB9",     "\xC2\xB2",     "\xC2\xB3",
                                         "\xE2\x81\xB4", "\xE2\x81\xB5", "\xE2\x81\xB6", "\xE2\x81\xB7",
                                         "\xE2\x81\xB8", "\xE2\x81\xB9"};
    char digits[32];
    if (!isfinite(value)) {
        return put(text, DASH);
    }
    if (value == 0.0) {
        return put(text, "0");
    }
    (void)snprintf(digits, sizeof digits, "%.1e", value);
    char *mark = strchr(digits, 'e');
    if (mark == NULL) {
        return put(text, DASH);
    }
    *mark = '\0';
    int exponent = atoi(mark + 1); /* NOLINT: what printf wrote just now is a number */
    char *to = text + snprintf(text, CARRY_HTML_FIGURE,
                               "%s\xC3\x97"
                               "10%s",
                               digits, exponent < 0 ? "\xE2\x81\xBB" : "");
    (void)snprintf(digits, sizeof digits, "%d", abs(exponent));
    for (const char *at = digits; *at != '\0'; at++) {
        to = stpcpy(to, raised[*at - '0']);
    }
    return text;
}

const char *carry_figure_time(char text[CARRY_HTML_FIGURE], double seconds) {
    static const char *const units[] = {"s", "ms", "\xC2\xB5s", "ns"};
    if (!isfinite(seconds)) {
        return put(text, DASH);
    }
    if (fabs(seconds) >= 1e6) {
        char figure[CARRY_HTML_FIGURE];
        (void)snprintf(text, CARRY_HTML_FIGURE, "%.40s" THIN "s", carry_figure_small(figure, seconds));
        return text;
    }
    int i = 0;
    while (i < 3 && fabs(seconds) < 0.9995) {
        seconds *= 1000.0;
        i++;
    }
    int decimals = fabs(seconds) < 9.995 ? 2 : fabs(seconds) < 99.95 ? 1 : 0;
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.*f" THIN "%s", decimals, seconds, units[i]);
    return text;
}

const char *carry_figure_count(char text[CARRY_HTML_FIGURE], int64_t value) {
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%lld", (long long)value);
    size_t length = strlen(digits);
    size_t figures = length - (digits[0] == '-');
    char *to = text;
    for (size_t i = 0; i < length; i++) {
        size_t left = length - i;
        /* Numbers of four digits are easy to read without separators. */
        if (figures > 4 && left % 3 == 0 && left < figures) {
            to = stpcpy(to, THIN);
        }
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

const char *carry_figure_plain(char text[CARRY_HTML_FIGURE], double value) {
    double size = fabs(value);
    if (!isfinite(value)) {
        return put(text, DASH);
    }
    if (size >= 1e9 || (size < 1e-3 && size > 0.0)) {
        return carry_figure_small(text, value);
    }
    if (size >= 999.5) {
        return carry_figure_count(text, (int64_t)llround(value));
    }
    int decimals = size < 0.0995 ? 4 : size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.*f", value == 0.0 ? 0 : decimals, value);
    return text;
}

const char *carry_figure_given(char text[CARRY_HTML_FIGURE], double value) {
    double size = fabs(value);
    if (size >= 9999.5 || !(size >= 1e-3)) { /* also true for NaN */
        return carry_figure_plain(text, value);
    }
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.4g", value);
    return text;
}

const char *carry_figure_bytes(char text[CARRY_HTML_FIGURE], double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    if (!isfinite(bytes)) {
        return put(text, DASH);
    }
    int i = 0;
    while (i < 4 && bytes >= 1023.5) {
        bytes /= 1024.0;
        i++;
    }
    if (bytes >= 1e6) {
        char figure[CARRY_HTML_FIGURE];
        (void)snprintf(text, CARRY_HTML_FIGURE, "%.40s" THIN "%s", carry_figure_small(figure, bytes), units[i]);
        return text;
    }
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.*f" THIN "%s", i > 0 && bytes < 9.95 ? 1 : 0, bytes, units[i]);
    return text;
}

const char *carry_figure_share(char text[CARRY_HTML_FIGURE], double share) {
    if (!isfinite(share)) {
        return put(text, DASH);
    }
    if (fabs(share) >= 1e6) {
        return carry_figure_small(text, share);
    }
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.*f" THIN "%%", share < 0.0995 ? 1 : 0, 100.0 * share);
    return text;
}

const char *carry_figure_date(char text[CARRY_HTML_FIGURE], double seconds) {
    time_t when = (time_t)seconds;
    struct tm parts;
    if (!isfinite(seconds) || seconds <= 0.0 || seconds > 4e11 || gmtime_r(&when, &parts) == NULL ||
        strftime(text, CARRY_HTML_FIGURE, "%Y-%m-%d %H:%M UTC", &parts) == 0) {
        return put(text, DASH);
    }
    return text;
}
