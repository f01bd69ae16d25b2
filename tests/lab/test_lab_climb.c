/* The climb log: a written log reads back the same, an edit at any place is found, figures that do not agree are
   refused; and the figures of profile commands. */
#include <math.h>

#include "core/file.h"
#include "lab/climb/climb_internal.h"
#include "support.h"

#define HASH_A "1111111111111111111111111111111111111111"
#define HASH_B "2222222222222222222222222222222222222222"

static const carry_climb_head head = {
    .metric = "throughput", .profile = "sh -c 'echo `date`'", .tests = "make check", .repeats = "3", .threshold = "1"};

static carry_climb_entry entry_with(const char *title, const char *decision, double *samples, double *best_samples,
                                    double share) {
    bool refused = strcmp(decision, "refused") == 0;
    return (carry_climb_entry){.title = title,
                               .date = "2026-03-01T12:00:00Z",
                               .commit = refused ? "none" : HASH_A,
                               .hypothesis = "it should be faster",
                               .change = "1 file, +1 -1: a.c",
                               .tests = "make check",
                               .result = "passed in 1.0 s",
                               .profile = head.profile,
                               .decision = decision,
                               .reason = "because",
                               .on = HASH_B,
                               .run = "7",
                               .sample = samples,
                               .count = samples != NULL ? 3 : 0,
                               .best_sample = best_samples,
                               .best_count = best_samples != NULL ? 3 : 0,
                               .share = share,
                               .best_share = best_samples != NULL ? 0.25 : (double)NAN};
}

/* Appends an entry to *log, which is replaced, and to *text, the file, which is freed and allocated again. */
static void append(carry_ctx *ctx, carry_climb_log **log, char **text, size_t *length, const carry_climb_entry *entry) {
    char *grown;
    assert_ok(ctx, carry_climb_log_append(ctx, &grown, length, *log, &head, entry));
    carry_climb_log_free(*log);
    free(*text);
    *text = grown;
    assert_ok(ctx, carry_climb_log_parse(ctx, log, grown, *length, "climb.md"));
}

/* A baseline of 100; one kept at 1.2 times the best, which measured 100 that day; one refused; one without figures; one
   kept at 1.5 times a best that measured 240 instead of 120: the machine is twice as fast as before. */
static carry_climb_log *sample_log(carry_ctx *ctx, char **text, size_t *length) {
    double baseline[] = {99.0, 100.0, 101.0};
    double faster[] = {121.0, 119.0, 120.0};
    double slower[] = {80.0, 81.0, 82.0};
    double today[] = {360.0, 360.0, 360.0};
    double best_today[] = {240.0, 239.0, 241.0};
    carry_climb_log *log = NULL;
    *text = NULL;
    carry_climb_entry entries[] = {
        entry_with("Baseline", "baseline", baseline, NULL, 0.25),
        entry_with("Faster", "kept", faster, baseline, 0.3),
        entry_with("Slower", "refused", slower, faster, (double)NAN),
        entry_with("Broken", "refused", NULL, NULL, (double)NAN),
        entry_with("Much faster", "kept", today, best_today, 0.5),
    };
    entries[3].result = "failed with exit 1 in 0.2 s";
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        append(ctx, &log, text, length, &entries[i]);
    }
    return log;
}

static void test_what_is_written_is_read(void **state) {
    carry_ctx *ctx = *state;
    char *text;
    size_t length;
    carry_climb_log *log = sample_log(ctx, &text, &length);
    assert_ok(ctx, carry_climb_log_check(ctx, log, "climb.md"));
    assert_int_equal(log->count, 5);
    assert_int_equal(log->best, 4);
    assert_string_equal(log->head.profile, head.profile); /* with backticks inside */
    assert_string_equal(log->head.build, "none");
    assert_string_equal(log->entry[1].title, "Faster");
    assert_string_equal(log->entry[1].job, "none");
    assert_int_equal(log->entry[1].count, 3);
    assert_true(log->entry[1].sample[1] == 119.0);
    assert_int_equal(log->entry[3].count, 0);
    assert_true(isnan(log->entry[3].share));
    carry_climb_log_free(log);
    free(text);
}

static void test_gains_are_chained_and_not_taken_across_days(void **state) {
    carry_ctx *ctx = *state;
    char *text;
    size_t length;
    carry_climb_log *log = sample_log(ctx, &text, &length);
    assert_string_equal(log->entry[0].against_baseline, "throughput +0.00 %, MFU +0.00 points");
    assert_string_equal(log->entry[1].against_baseline, "throughput +20.00 %, MFU +5.00 points");
    assert_string_equal(log->entry[1].against_best, "throughput +20.00 %, MFU +5.00 points");
    assert_string_equal(log->entry[2].against_best, "throughput -32.50 %, MFU none");
    assert_string_equal(log->entry[2].against_baseline, "throughput -19.00 %, MFU none");
    assert_string_equal(log->entry[3].against_baseline, "throughput none, MFU none");
    assert_string_equal(log->entry[4].against_best, "throughput +50.00 %, MFU +25.00 points");
    assert_string_equal(log->entry[4].against_baseline, "throughput +80.00 %, MFU +25.00 points"); /* 1.2 * 1.5 */
    carry_climb_log_free(log);
    free(text);
}

static void expect_edited(carry_ctx *ctx, const char *text, size_t length) {
    carry_climb_log *log;
    carry_status status = carry_climb_log_parse(ctx, &log, text, length, "climb.md");
    assert_null(log);
    assert_int_equal(status, CARRY_EFORMAT);
    assert_non_null(strstr(carry_ctx_error(ctx), "climb.md"));
}

static void test_a_changed_byte_is_found_wherever_it_is(void **state) {
    carry_ctx *ctx = *state;
    char *text;
    size_t length;
    carry_climb_log_free(sample_log(ctx, &text, &length));
    for (size_t i = 0; i < length; i++) {
        char kept = text[i];
        for (const char *with = "x0\n "; *with != '\0'; with++) {
            if (*with != kept) {
                text[i] = *with;
                expect_edited(ctx, text, length);
            }
        }
        text[i] = kept;
    }
    free(text);
}

static void test_lines_that_go_or_come_or_change_places_are_found(void **state) {
    carry_ctx *ctx = *state;
    char *text;
    size_t length;
    carry_climb_log_free(sample_log(ctx, &text, &length));
    char *edited = malloc(2 * length + 16);
    assert_non_null(edited);
    for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        size_t before = (size_t)(line - text);
        size_t size = (size_t)(strchr(line, '\n') + 1 - line);
        memcpy(edited, text, before); /* without the line; without the last line, the log is not closed */
        memcpy(edited + before, line + size, length - before - size);
        expect_edited(ctx, edited, length - size);
        memcpy(edited + before, line, size); /* twice */
        memcpy(edited + before + size, line, length - before);
        expect_edited(ctx, edited, length + size);
        memcpy(edited + before, "added\n", 6);
        memcpy(edited + before + 6, line, length - before);
        expect_edited(ctx, edited, length + 6);
    }
    memcpy(edited, text, length);
    memcpy(edited + length, "more\n", 5); /* after the end */
    expect_edited(ctx, edited, length + 5);
    free(edited);
    free(text);
}

/* A cut at the end of an entry leaves a shorter valid log (git shows that one); any other cut is found. */
static void test_a_cut_is_found_at_every_byte(void **state) {
    carry_ctx *ctx = *state;
    char *text;
    size_t length;
    carry_climb_log_free(sample_log(ctx, &text, &length));
    int whole = 0;
    for (size_t i = 0; i < length; i++) {
        carry_climb_log *log;
        if (carry_climb_log_parse(ctx, &log, text, i, "climb.md") == CARRY_OK) {
            whole++;
            assert_int_equal(log->count, whole);
            carry_climb_log_free(log);
        }
    }
    assert_int_equal(whole, 4);
    free(text);
}

/* Corrects all checksums, so that a forged figure must be found by its own contradiction. */
static void resign(char *text, size_t length) {
    for (char *at = text; (at = strstr(at, "- checksum: ")) != NULL; at += 12) {
        char crc[16];
        (void)snprintf(crc, sizeof crc, "%08x", (unsigned)carry_crc32c(0, text, (size_t)(at - text)));
        memcpy(at + 12, crc, 8);
    }
    (void)length;
}

static void expect_wrong(carry_ctx *ctx, const char *from, const char *to, const char *words) {
    char *text;
    size_t length;
    carry_climb_log_free(sample_log(ctx, &text, &length));
    char *place = strstr(text, from);
    assert_non_null(place);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(place, to, strlen(to));
    resign(text, length);
    carry_climb_log *log = NULL;
    carry_status status = carry_climb_log_parse(ctx, &log, text, length, "climb.md");
    status = status == CARRY_OK ? carry_climb_log_check(ctx, log, "climb.md") : status;
    if (status == CARRY_OK || strstr(carry_ctx_error(ctx), words) == NULL) {
        fail_msg("'%s' for '%s': expected '%s', got %s", to, from, words,
                 status == CARRY_OK ? "no complaint" : carry_ctx_error(ctx));
    }
    carry_climb_log_free(log);
    free(text);
}

static void test_figures_that_do_not_agree_are_refused(void **state) {
    carry_ctx *ctx = *state;
    expect_wrong(ctx, "throughput: 120\n", "throughput: 130\n", "the median of its samples is 120");
    expect_wrong(ctx, "samples: 121, 119, 120\n", "samples: 221, 219, 220\n", "the median of its samples is 220");
    expect_wrong(ctx, "baseline: throughput +20.00 %", "baseline: throughput +40.00 %", "'throughput +20.00 %");
    expect_wrong(ctx, "best: throughput +20.00 %", "best: throughput +21.00 %", "against the best");
    expect_wrong(ctx, "MFU +5.00 points", "MFU +9.00 points", "MFU +5.00 points");
    expect_wrong(ctx, "decision: refused", "decision: awesome", "baseline, kept or refused");
    expect_wrong(ctx, "best samples: 99, 100, 101", "best samples: 990000000000", "no faster than the best");
    expect_wrong(ctx, "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z", "before that of the entry above");
    expect_wrong(ctx, "2026-03-01T12:00:00Z", "2026-03-01 12:00:00Z", "the date is not of the form");
    expect_wrong(ctx, "commit: 1111", "commit: none", "must have a commit");
    expect_wrong(ctx, "on: 2222", "on: 222x", "'on' must name the commit");
    expect_wrong(ctx, "## 2. ", "## 3. ", "'## 2. ' and a title");
    expect_wrong(ctx, "- change: ", "- chance: ", "- change: ");
    expect_wrong(ctx, "samples: 121, ", "samples: 1e999", "samples above 0");
    expect_wrong(ctx, "- mfu: 0.3\n", "- mfu: abc\n", "MFU");
    expect_wrong(ctx, "- tests: `make", "- tests: 'make", "between backticks");
    expect_wrong(ctx, "# Climb\n", "# Crimb\n", "line 1 should be '# Climb'");
}

static void test_texts_become_one_line(void **state) {
    (void)state;
    char line[12];
    assert_string_equal(carry_climb_line(line, sizeof line, " a\n\tb  c\r\n"), "a b c");
    assert_string_equal(carry_climb_line(line, sizeof line, " \n"), "");
    for (size_t size = 3; size <= sizeof line; size++) { /* never half a character */
        carry_climb_line(line, size, "h\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4");
        assert_int_equal(strlen(line) % 2, 1);
        assert_true(strlen(line) < size);
    }
}

static climb_figure figure_of(carry_ctx *ctx, const char *output) {
    climb_figure figure;
    assert_ok(ctx, climb_figure_parse(ctx, &figure, output, strlen(output)));
    return figure;
}

static void test_profile_lines_are_understood(void **state) {
    carry_ctx *ctx = *state;
    climb_figure f = figure_of(ctx, "hello\n{\"throughput\": 8, \"mfu\": 0.5, \"trace\": \"t.gz\"}\n{broken\n");
    assert_true(f.throughput == 8.0 && f.share == 0.5);
    assert_string_equal(f.trace, "t.gz");
    f = figure_of(ctx, "{\"samples\": [1, 5, 3]}");
    assert_true(f.throughput == 3.0 && isnan(f.share));
    f = figure_of(ctx, "{\"throughput\": 2}\n{\"throughput\": 8}\n"); /* the geometric mean */
    assert_true(fabs(f.throughput - 4.0) < 1e-8);
    /* A bench: the planned line of a, and the fastest line of b, which has no planned one. */
    f = figure_of(ctx, "{\"ceilings\": {\"gemm_gflops\": 100}}\n"
                       "{\"problem\": \"a\", \"median_s\": 0.1, \"gflops\": 90, \"planned\": false}\n"
                       "{\"problem\": \"a\", \"median_s\": 0.5, \"gflops\": 10, \"planned\": true}\n"
                       "{\"problem\": \"b\", \"median_s\": 0.25, \"gflops\": 30, \"planned\": false}\n"
                       "{\"problem\": \"b\", \"median_s\": 0.125, \"gflops\": 50, \"planned\": false}\n"
                       "{\"problem\": \"b\", \"algorithm\": \"x\", \"left_out\": \"no\"}\n");
    assert_true(fabs(f.throughput - 4.0) < 1e-8 && fabs(f.share - 0.3) < 1e-8);
    f = figure_of(ctx, "{\"step\": 1, \"tokens_per_s\": 10, \"mfu\": 0.1}\n{\"step\": 2, \"tokens_per_s\": 30}\n"
                       "{\"step\": 3, \"tokens_per_s\": 20}\n");
    assert_true(f.throughput == 20.0 && f.share == 0.1);
    f = figure_of(ctx, "{\"category\": \"walk\", \"share\": 0.61}\n{\"category\": \"copy\", \"share\": 0.2}\n"
                       "{\"throughput\": 1}");
    assert_string_equal(f.hotspots, "walk 61 %, copy 20 %");
    /* carry profile bench --json: the rates belong to spans; the line of the bench is the figure. */
    f = figure_of(ctx, "{\"problem\": \"a\", \"median_s\": 0.5, \"planned\": true}\n"
                       "{\"by\": \"category\", \"category\": \"scan\", \"share\": 0.9, \"tokens_per_s\": 5}\n"
                       "{\"by\": \"place\", \"category\": \"scan\", \"name\": \"walk\", \"place\": \"walk.c:30\","
                       " \"share\": 0.7, \"tokens_per_s\": 5, \"mfu\": 0.9}\n{\"trace\": \"t.json.gz\"}\n");
    assert_true(f.throughput == 2.0 && isnan(f.share));
    assert_string_equal(f.hotspots, "walk.c:30 70 %");
    assert_string_equal(f.trace, "t.json.gz");
}

static void test_output_without_a_figure_is_refused(void **state) {
    carry_ctx *ctx = *state;
    static const char *const outputs[] = {"",
                                          "\n",
                                          "{}",
                                          "{\"throughput\": \"fast\"}",
                                          "{\"throughput\": -1}",
                                          "{\"throughput\": 0}",
                                          "[1, 2]",
                                          "{\"throughput\": 1",
                                          "{\"median_s\": 0}",
                                          "{\"samples\": []}",
                                          "{\"samples\": 5}",
                                          "{\"throughput\": null}"};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        climb_figure figure;
        assert_refused(ctx, CARRY_EFORMAT, "printed no JSON line",
                       climb_figure_parse(ctx, &figure, outputs[i], strlen(outputs[i])));
    }
}

static int open_ctx(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    *state = ctx;
    return 0;
}

static int close_ctx(void **state) {
    carry_ctx_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_gains_are_chained_and_not_taken_across_days),
        cmocka_unit_test(test_a_changed_byte_is_found_wherever_it_is),
        cmocka_unit_test(test_lines_that_go_or_come_or_change_places_are_found),
        cmocka_unit_test(test_a_cut_is_found_at_every_byte),
        cmocka_unit_test(test_figures_that_do_not_agree_are_refused),
        cmocka_unit_test(test_texts_become_one_line),
        cmocka_unit_test(test_profile_lines_are_understood),
        cmocka_unit_test(test_output_without_a_figure_is_refused),
    };
    return cmocka_run_group_tests_name("lab climb", tests, open_ctx, close_ctx);
}
