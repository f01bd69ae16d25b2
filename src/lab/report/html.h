/* Writes HTML: text is escaped, and figures are formatted with typographic spaces and units.

   All text from a store is untrusted: markup characters become entities; control characters other than line feeds
   and tabs, bytes that are not UTF-8, and characters that change the direction of a line become U+FFFD. */
#ifndef CARRY_LAB_HTML_H
#define CARRY_LAB_HTML_H

#include <stdint.h>
#include <stdio.h>

#define CARRY_HTML_FIGURE 64

/* Writes markup without escaping: %s is only for text that this program made itself. */
void carry_html_raw(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes escaped text, safe between tags and inside a quoted attribute. Line feeds and tabs are kept. */
void carry_html_text(FILE *to, const char *text);
/* Writes `before` and `after` as markup, and `text` escaped between them. */
void carry_html_around(FILE *to, const char *before, const char *text, const char *after);

/* Format a figure as plain UTF-8 text without markup; a dash if it is not finite. Each returns text. */
const char *carry_figure_time(char text[CARRY_HTML_FIGURE], double seconds); /* 41.2 µs */
const char *carry_figure_plain(char text[CARRY_HTML_FIGURE], double value);  /* three digits: 0.123, 12.3, 12 300 */
/* As a person would write it: 1.5, 0.8, 1×10⁻⁵. */
const char *carry_figure_given(char text[CARRY_HTML_FIGURE], double value);
const char *carry_figure_small(char text[CARRY_HTML_FIGURE], double value);  /* 1.2×10⁻⁵ */
const char *carry_figure_count(char text[CARRY_HTML_FIGURE], int64_t value); /* 12 345 */
const char *carry_figure_bytes(char text[CARRY_HTML_FIGURE], double bytes);  /* 1.5 MiB */
const char *carry_figure_share(char text[CARRY_HTML_FIGURE], double share);  /* 81 % */
const char *carry_figure_date(char text[CARRY_HTML_FIGURE], double seconds); /* 2026-01-31 14:05 UTC */

#endif
