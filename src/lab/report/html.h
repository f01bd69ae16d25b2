/* Writing HTML: text is escaped, figures are set as a typographer would.

   Whatever comes from a store is hostile: markup characters become entities; control characters, bytes that are not
   UTF-8 and the characters that turn the direction of a line around become U+FFFD. */
#ifndef CARRY_LAB_HTML_H
#define CARRY_LAB_HTML_H

#include <stdint.h>
#include <stdio.h>

#define CARRY_HTML_FIGURE 64

/* Markup of our own: nothing is escaped, so %s is for what this program wrote itself. */
void carry_html_raw(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Safe between tags and inside a quoted attribute. Line feeds and tabs stay. */
void carry_html_text(FILE *to, const char *text);
/* before and after are markup, text is escaped. */
void carry_html_around(FILE *to, const char *before, const char *text, const char *after);

/* Plain text in UTF-8, no markup; a dash when the figure is not finite. Each returns text. */
const char *carry_figure_time(char text[CARRY_HTML_FIGURE], double seconds); /* 41.2 µs */
const char *carry_figure_plain(char text[CARRY_HTML_FIGURE], double value);  /* three digits: 0.123, 12.3, 12 300 */
const char *carry_figure_given(char text[CARRY_HTML_FIGURE], double value); /* as a person wrote it: 1.5, 0.8, 1×10⁻⁵ */
const char *carry_figure_small(char text[CARRY_HTML_FIGURE], double value);  /* 1.2×10⁻⁵ */
const char *carry_figure_count(char text[CARRY_HTML_FIGURE], int64_t value); /* 12 345 */
const char *carry_figure_bytes(char text[CARRY_HTML_FIGURE], double bytes);  /* 1.5 MiB */
const char *carry_figure_share(char text[CARRY_HTML_FIGURE], double share);  /* 81 % */
const char *carry_figure_date(char text[CARRY_HTML_FIGURE], double seconds); /* 2026-01-31 14:05 UTC */

#endif
