/* Rewrites gnuplot's SVG for a page: ids, colours, texts. Empty groups are removed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/plot.h"

typedef struct rewrite {
    FILE *to;
    const carry_plot *plot;
    const char (*texts)[96];
    int count;
} rewrite;

static bool starts(const char *at, const char *words) {
    return strncmp(at, words, strlen(words)) == 0;
}

/* If `at` is an empty group, "<g ...>" and "</g>" with only blanks between, returns the end of it, else NULL.
   gnuplot writes two of them for each group that draws. */
static const char *past_empty_group(const char *at) {
    const char *end = starts(at, "<g ") ? strchr(at, '>') : NULL;
    if (end == NULL) {
        return NULL;
    }
    end += 1 + strspn(end + 1, " \t\n");
    return starts(end, "</g>") ? end + 4 : NULL;
}

/* The colours that plot.c asked for are codes: 1,i,0 is series i, and 0,i,0 is a part of the frame. */
static const char *past_colour(rewrite *r, const char *at) {
    static const char *const parts[] = {"ink", "grid", "soft", "paper"};
    int red;
    int green;
    int blue;
    int length = 0;
    if (sscanf(at, "rgb(%d,%d,%d)%n", &red, &green, &blue, &length) != 3 || length == 0) { /* NOLINT: range below */
        return NULL;
    }
    if (red == 1 && green >= 0 && green < CARRY_PLOT_COLOURS) {
        carry_html_raw(r->to, "var(--s%d)", green);
    } else {
        carry_html_raw(r->to, "var(--%s)", parts[green >= 0 && green < 4 ? green : 0]);
    }
    return at + length;
}

static const char *past_text(rewrite *r, const char *at) {
    char *end;
    long index = strtol(at + 1, &end, 10);
    if (end == at + 1 || *end != '@' || index < 0 || index >= r->count) {
        return NULL;
    }
    carry_html_text(r->to, r->texts[index]);
    return end + 1;
}

/* Writes the replacement for the text at `at`, if it has one. Returns where to continue; NULL: copy one character. */
static const char *past_replaced(rewrite *r, const char *at) {
    static const struct {
        const char *from, *to;
        bool id;
    } words[] = {
        {" id='", " id='", true},
        {" id=\"", " id=\"", true},
        {"href='#", "href='#", true},
        {"\"black\"", "\"var(--ink)\"", false},
        {"'black'", "'var(--ink)'", false},
        {"\"white\"", "\"var(--paper)\"", false},
        {"'white'", "'var(--paper)'", false},
        {"\"gray\"", "\"var(--grid)\"", false},
        {" font-family=\"x\"", "", false},
    };
    const char *past = past_empty_group(at);
    if (past != NULL) {
        return past;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (starts(at, words[i].from)) {
            carry_html_raw(r->to, "%s%s%s", words[i].to, words[i].id ? r->plot->id : "", words[i].id ? "-" : "");
            return at + strlen(words[i].from);
        }
    }
    return starts(at, "rgb(") ? past_colour(r, at) : *at == '@' ? past_text(r, at) : NULL;
}

/* gnuplot writes none of these; another program with that name in the PATH might. */
static bool is_suspect(const char *drawing) {
    static const char *const words[] = {"<script", "<foreignObject", "<image", "<iframe", "<a ", "<style", "http:"};
    const char *body = strstr(drawing, "<defs>");
    for (size_t i = 0; body != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcasestr(body, words[i]) != NULL) {
            return true;
        }
    }
    return body == NULL || strcasestr(body, " on") != NULL;
}

carry_status carry_plot_adopt(carry_ctx *ctx, char **svg, const char *drawing, const carry_plot *plot,
                              const char (*texts)[96], int count) {
    const char *at = strstr(drawing, "<defs>");
    const char *end = at != NULL ? strstr(at, "</g>\n</svg>") : NULL;
    double width;
    double height;
    const char *box = strstr(drawing, "viewBox=\"0 0 ");
    *svg = NULL;
    if (end == NULL || box == NULL || sscanf(box, "viewBox=\"0 0 %lf %lf\"", &width, &height) != 2 || /* NOLINT */
        is_suspect(drawing)) {
        return carry_fail(ctx, CARRY_EFORMAT, "gnuplot answered with something that is not the SVG it was asked for");
    }
    size_t length = 0;
    rewrite r = {open_memstream(svg, &length), plot, texts, count};
    if (r.to == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plot");
    }
    carry_html_raw(r.to,
                   "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-labelledby=\"%s-title %s-about\">\n"
                   "<title id=\"%s-title\">",
                   width, height, plot->id, plot->id, plot->id);
    carry_html_text(r.to, plot->title);
    carry_html_raw(r.to, "</title>\n<desc id=\"%s-about\">", plot->id);
    carry_html_text(r.to, plot->about);
    carry_html_raw(r.to, "</desc>\n");
    while (at < end) {
        const char *past = past_replaced(&r, at);
        if (past == NULL) {
            (void)fputc(*at, r.to);
        }
        at = past != NULL ? past : at + 1;
    }
    carry_html_raw(r.to, "</svg>");
    bool lost = ferror(r.to) != 0;
    if (fclose(r.to) != 0 || lost) {
        free(*svg);
        *svg = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plot");
    }
    return CARRY_OK;
}
