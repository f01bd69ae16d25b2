/* carry runs import: an exported run is the same run in another store; damaged files change nothing. */
#include <math.h>
#include <sys/stat.h>

#include "core/file.h"
#include "lab/export.h"
#include "store.h"

#define EXPORTED "run.json"

static int open_here(void **state) {
    return open_folder(state) != 0 || chdir(folder) != 0;
}

static int leave(void **state) {
    return chdir("/") != 0 || remove_folder(state) != 0;
}

static void write_text(const char *name, const char *text, size_t length) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Exports a run with an entry in every list from a separate store. */
static void export_a_run(void) {
    carry_store *store = open_store();
    int64_t run;
    const double samples[] = {3e-3, 1e-3, 2e-3};
    assert_ok(ctx, carry_store_begin(store, &run,
                                     &(carry_run_start){.kind = "experiment",
                                                        .name = "n'a\"me \xc3\xa4",
                                                        .command = "carry run 'a b'",
                                                        .spec = "name: x\n"}));
    const carry_stored_result r = {.problem = "scan:dense:t8",
                                   .method = "cyclic",
                                   .device = "cpu",
                                   .reason = "",
                                   .planned = true,
                                   .products = 17,
                                   .median = 2e-3,
                                   .spread = 0.5,
                                   .share = NAN,
                                   .error = 1e-7};
    assert_ok(ctx, carry_store_result(store, run, &r, samples, 3));
    assert_ok(ctx, carry_store_criterion(store, run,
                                         &(carry_stored_criterion){.side = "success",
                                                                   .text = "time(cyclic) < 1",
                                                                   .value = 2e-3,
                                                                   .bound = 1.0,
                                                                   .verdict = "met",
                                                                   .reason = ""}));
    assert_ok(ctx, carry_store_metric(store, run, 4, "loss:cyclic", 1.5));
    assert_ok(ctx, carry_store_artefact(store, run, "text", "text: docs", 10));
    assert_ok(ctx, carry_store_artefact(store, run, "trace.json.gz", "a\0b", 3));
    assert_ok(ctx, carry_store_end(store, run, "done", "proceed", "a note"));
    carry_run *got;
    assert_ok(ctx, carry_store_load(store, &got, run));
    FILE *file = fopen(EXPORTED, "w");
    assert_non_null(file);
    assert_ok(ctx, carry_export_json(ctx, file, got));
    assert_int_equal(fclose(file), 0);
    carry_run_free(got);
    carry_store_close(store);
}

static carry_store *other_store(void) {
    carry_store *store;
    assert_ok(ctx, carry_store_open(ctx, &store, "other.db"));
    return store;
}

static int runs_in(carry_store *store) {
    carry_run_line *lines;
    int count;
    assert_ok(ctx, carry_store_lines(store, &lines, &count, NULL, NULL, 0));
    free(lines);
    return count;
}

static void test_an_exported_run_is_imported_once(void **state) {
    (void)state;
    export_a_run();
    carry_store *store = other_store();
    carry_imported *all;
    int count;
    assert_ok(ctx, carry_store_import(store, EXPORTED, &all, &count));
    assert_int_equal(count, 1);
    assert_true(all[0].is_new && all[0].results == 1);
    carry_run *got;
    assert_ok(ctx, carry_store_load(store, &got, all[0].run));
    free(all);
    assert_string_equal(got->name, "n'a\"me \xc3\xa4");
    assert_string_equal(got->command, "carry run 'a b'");
    assert_string_equal(got->spec, "name: x\n");
    assert_string_equal(got->decision, "proceed");
    assert_string_equal(got->note, "a note");
    assert_true(got->results == 1 && got->criteria == 1 && got->metrics == 1 && got->facts > 0);
    assert_true(got->result[0].samples == 3 && got->result[0].sample[2] == 2e-3 && got->result[0].is.products == 17);
    assert_true(got->result[0].is.planned && isnan(got->result[0].is.share) && got->result[0].is.error == 1e-7);
    assert_string_equal(got->criterion[0].verdict, "met");
    assert_true(got->metric[0].step == 4 && got->metric[0].value == 1.5);
    assert_int_equal(got->artefacts, 1); /* short texts are exported, a trace is not */
    assert_string_equal(got->artefact[0].text, "text: docs");
    carry_run_free(got);
    assert_ok(ctx, carry_store_import(store, EXPORTED, &all, &count));
    assert_true(count == 1 && !all[0].is_new);
    free(all);
    assert_int_equal(runs_in(store), 1);
    carry_store_close(store);
}

/* A file cut at every byte, of a newer format or of no format is refused, and the store stays as it was. */
static void test_damaged_files_change_nothing(void **state) {
    (void)state;
    export_a_run();
    char *text;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &text, &length, EXPORTED, (size_t)1 << 20));
    carry_store *store = other_store();
    carry_imported *all;
    int count;
    for (size_t cut = 0; cut + 1 < length; cut++) { /* the last byte is the end of the line */
        write_text("cut.json", text, cut);
        assert_int_equal(carry_store_import(store, "cut.json", &all, &count), CARRY_EFORMAT);
        assert_null(all);
    }
    /* Messages have the line of the file and the column. */
    char lines[16384];
    int bytes = snprintf(lines, sizeof lines, "%s\n{\"a\": 1,, 2}\n", text);
    assert_true(bytes > 0 && bytes < (int)sizeof lines);
    write_text("lines.json", lines, (size_t)bytes);
    assert_refused(ctx, CARRY_EFORMAT,
                   "lines.json, line 3, column 9: ", carry_store_import(store, "lines.json", &all, &count));
    write_text("lines.json", "\n\n [1, 2]\n", 10);
    assert_refused(ctx, CARRY_EFORMAT, "lines.json, line 3, column 2: not a run",
                   carry_store_import(store, "lines.json", &all, &count));
    assert_int_equal(runs_in(store), 0);
    static const struct {
        const char *from, *to, *message;
        carry_status status;
    } cases[] = {{"\"format\":1", "\"format\":2", "in format 2, and this carry knows format 1", CARRY_EUNSUPPORTED},
                 {"\"kind\":\"experiment\"", "\"kind\":3", "'kind' must be a text", CARRY_EFORMAT},
                 {"\"median_s\":0.002", "\"median_s\":[]", "'median_s' must be a number or null", CARRY_EFORMAT},
                 {"\"samples_s\":[0.003", "\"samples_s\":[\"3\"", "a sample must be a number", CARRY_EFORMAT},
                 {"\"criteria\":[{", "\"criteria\":[3,{", "'criteria' must be a list of objects", CARRY_EFORMAT},
                 {"\"step\":4", "\"step\":4.5", "'step' must be a whole number", CARRY_EFORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *at = strstr(text, cases[i].from);
        if (at == NULL) {
            fail_msg("the export has no %s", cases[i].from);
        }
        char changed[16384]; /* another run, then the damaged one: neither is imported */
        const char *start = strstr(text, "\"started\":") + strlen("\"started\":");
        const int written = snprintf(changed, sizeof changed, "%.*s1%s%.*s%s%s", (int)(start - text), text, start,
                                     (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        assert_true(written > 0 && written < (int)sizeof changed);
        write_text("changed.json", changed, (size_t)written);
        assert_refused(ctx, cases[i].status, cases[i].message, carry_store_import(store, "changed.json", &all, &count));
        assert_int_equal(runs_in(store), 0);
    }
    write_text("list.json", "[1, 2]\n", 7);
    assert_refused(ctx, CARRY_EFORMAT, "not a run that carry runs export wrote",
                   carry_store_import(store, "list.json", &all, &count));
    carry_store_close(store);
    free(text);
}

/* Without git the state of the sources is unknown: neither clean nor changed. */
static void test_an_unknown_commit_is_stored_as_unknown(void **state) {
    (void)state;
    char before[4096];
    (void)snprintf(before, sizeof before, "%s", getenv("PATH"));
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    carry_store *store = open_store();
    int64_t run;
    assert_ok(ctx, carry_store_begin(store, &run, &(carry_run_start){.kind = "bench", .name = "n", .command = "c"}));
    assert_int_equal(setenv("PATH", before, 1), 0);
    assert_ok(ctx, carry_store_end(store, run, "done", NULL, NULL));
    carry_run *got;
    assert_ok(ctx, carry_store_load(store, &got, run));
    assert_string_equal(got->commit, "");
    assert_int_equal(got->dirty, CARRY_CHANGES_UNKNOWN);
    FILE *file = fopen(EXPORTED, "w");
    assert_non_null(file);
    assert_ok(ctx, carry_export_json(ctx, file, got));
    assert_int_equal(fclose(file), 0);
    carry_run_free(got);
    char *text;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &text, &length, EXPORTED, (size_t)1 << 20));
    assert_non_null(strstr(text, "\"dirty\":null"));
    free(text);
    carry_store_close(store);
}

#define in_a_folder(test) cmocka_unit_test_setup_teardown(test, open_here, leave)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_a_folder(test_an_exported_run_is_imported_once),
        in_a_folder(test_damaged_files_change_nothing),
        in_a_folder(test_an_unknown_commit_is_stored_as_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
