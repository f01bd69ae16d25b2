/* The parts of a report: escaped texts, figures, groups of problems, drawings. */
#include "support.h"

#include <math.h>

#include "lab/report/html.h"
#include "lab/report/plot.h"
#include "lab/report/report.h"

static const char *escaped(char to[512], const char *text) {
    FILE *stream = fmemopen(to, 512, "w");
    assert_non_null(stream);
    carry_html_text(stream, text);
    (void)fclose(stream);
    return to;
}

static void test_text_cannot_be_markup(void **unused) {
    (void)unused;
    char to[512];
    assert_string_equal(escaped(to, "<a b=\"c\" d='e'>&amp;"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;amp;");
    assert_string_equal(escaped(to, "T\xC3\xA9 \xE2\x88\x91 \xF0\x9F\x99\x82\n\t"),
                        "T\xC3\xA9 \xE2\x88\x91 \xF0\x9F\x99\x82\n\t");
    static const char *const bad[] = {"\x01",
                                      "\x7f",
                                      "\xff",
                                      "\xc0\x80" /* overlong: two bytes */,
                                      "\xed\xa0\x80" /* surrogate */,
                                      "\xe2\x80\xae" /* right to left */,
                                      "\xf4\x90\x80\x80" /* past the last */,
                                      "\xe2\x82" /* cut */,
                                      "\xc2\x85"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        (void)escaped(to, bad[i]);
        for (const char *at = to; *at != '\0'; at += 3) {
            assert_memory_equal(at, "\xEF\xBF\xBD", 3);
        }
        assert_true(to[0] != '\0');
    }
}

static void test_figures_are_short(void **unused) {
    (void)unused;
    char to[CARRY_HTML_FIGURE];
    assert_string_equal(carry_figure_time(to, 41.2e-6), "41.2\xE2\x80\xAF\xC2\xB5s");
    assert_string_equal(carry_figure_time(to, 0.99999), "1.00\xE2\x80\xAFs");
    assert_string_equal(carry_figure_time(to, NAN), "\xE2\x80\x93");
    assert_string_equal(carry_figure_small(to, 1.23e-5), "1.2\xC3\x97"
                                                         "10\xE2\x81\xBB\xE2\x81\xB5");
    assert_string_equal(carry_figure_small(to, 0.0), "0");
    assert_string_equal(carry_figure_count(to, 1024), "1024");
    assert_string_equal(carry_figure_count(to, -1234567), "-1\xE2\x80\xAF"
                                                          "234\xE2\x80\xAF"
                                                          "567");
    assert_string_equal(carry_figure_count(to, INT64_MIN), "-9\xE2\x80\xAF"
                                                           "223\xE2\x80\xAF"
                                                           "372\xE2\x80\xAF"
                                                           "036\xE2\x80\xAF"
                                                           "854\xE2\x80\xAF"
                                                           "775\xE2\x80\xAF"
                                                           "808");
    assert_string_equal(carry_figure_bytes(to, 1536.0), "1.5\xE2\x80\xAFKiB");
    assert_string_equal(carry_figure_plain(to, 3.519), "3.52");
    assert_string_equal(carry_figure_date(to, 0.0), "\xE2\x80\x93");
    assert_string_equal(carry_figure_date(to, 86400.0 * 365), "1971-01-01 00:00 UTC");
    for (int exponent = -320; exponent <= 308; exponent++) { /* no figure overruns its buffer */
        double value = -pow(10.0, exponent) * 9.99;
        assert_true(strlen(carry_figure_plain(to, value)) < CARRY_HTML_FIGURE);
        assert_true(strlen(carry_figure_time(to, value)) < CARRY_HTML_FIGURE);
        assert_true(strlen(carry_figure_bytes(to, -value)) < CARRY_HTML_FIGURE);
        assert_true(strlen(carry_figure_share(to, value)) < CARRY_HTML_FIGURE);
    }
}

static void test_problems_are_grouped_by_all_but_length_and_method(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report_place place;
    carry_report_place_of(ctx, &place, "scan:dense:f32:t1024:n32:w1", "cpu");
    assert_string_equal(place.group, "scan:dense:f32:n32:w1");
    assert_string_equal(place.type, "f32");
    assert_int_equal(place.steps, 1024);
    carry_report_place_of(ctx, &place, "scan:t7:dense:bf16:n32:algo=cyclic:device=cuda:mode=a", "cuda");
    assert_string_equal(place.group, "scan:dense:bf16:n32:mode=a on cuda");
    assert_int_equal(place.steps, 7);
    carry_report_place_of(ctx, &place, "matmul:b4096:n32", "cpu");
    assert_string_equal(place.group, "matmul:b4096:n32");
    assert_int_equal(place.steps, -1);
    char long_text[2000];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    carry_report_place_of(ctx, &place, long_text, long_text);
    assert_int_equal(strlen(place.group), CARRY_PROBLEM_TEXT - 1);
    carry_ctx_free(ctx);
}

/* Uses a drawing as gnuplot might write it, so gnuplot is not needed. */
static void test_drawings_are_made_fit_for_a_page(void **unused) {
    (void)unused;
    static const char drawing[] =
        "<?xml?>\n<svg viewBox=\"0 0 440 320\">\n<title>Gnuplot</title><g id=\"gnuplot_canvas\">\n<defs>"
        "<path id='gpPt0'/></defs>\n<g fill=\"none\" color=\"white\">\n</g><use xlink:href='#gpPt0' "
        "color='rgb(  1,   3,   0)'/><text fill=\"rgb(0,2,0)\" stroke=\"black\">@1@</text>@7@\n</g>\n</svg>\n";
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_plot plot = {.id = "p1", .title = "<t>", .about = "a"};
    const char texts[2][96] = {"zero", "<one>"};
    char *svg;
    assert_ok(ctx, carry_plot_adopt(ctx, &svg, drawing, &plot, texts, 2));
    assert_non_null(strstr(svg, "viewBox=\"0 0 440 320\""));
    assert_non_null(strstr(svg, "<title id=\"p1-title\">&lt;t&gt;</title>"));
    assert_non_null(strstr(svg, "id='p1-gpPt0'"));
    assert_non_null(strstr(svg, "href='#p1-gpPt0' color='var(--s3)'"));
    assert_non_null(strstr(svg, "<text fill=\"var(--soft)\" stroke=\"var(--ink)\">&lt;one&gt;</text>@7@"));
    assert_null(strstr(svg, "color=\"white\"")); /* the empty group is gone */
    free(svg);
    static const char *const bad[] = {"",
                                      "junk",
                                      "<svg viewBox=\"0 0 1 1\"></svg>",
                                      "<svg viewBox=\"0 0 1 1\"><defs></g>",
                                      "<svg viewBox=\"0 0 1 1\"><defs><SCRIPT>x</SCRIPT></g>\n</svg>",
                                      "<svg viewBox=\"0 0 1 1\"><defs><g onload='x'></g>\n</svg>"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(ctx, CARRY_EFORMAT, "not the SVG", carry_plot_adopt(ctx, &svg, bad[i], &plot, texts, 2));
        assert_null(svg);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_cannot_be_markup),
        cmocka_unit_test(test_figures_are_short),
        cmocka_unit_test(test_problems_are_grouped_by_all_but_length_and_method),
        cmocka_unit_test(test_drawings_are_made_fit_for_a_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
