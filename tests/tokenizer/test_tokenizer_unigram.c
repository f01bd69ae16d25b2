/* Unigram tokenizers against ids that SentencePiece made (tests/make_unigram.py), from both kinds of files; damaged
   files, and texts that are not UTF-8 or too long. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "tokenizer/unigram.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/unigram/"
enum { MOST = 1024 };

static int compare_cases(carry_ctx *ctx, const char *folder, const char *cases) {
    carry_unigram *u;
    char *text;
    size_t length;
    char *rest = NULL;
    int count = 0;
    assert_ok(ctx, carry_unigram_open(ctx, &u, folder));
    assert_ok(ctx, carry_file_read(ctx, &text, &length, cases, 1 << 20));
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest), count++) {
        char *tab = strchr(line, '\t');
        carry_json *wanted;
        int64_t ids[MOST];
        int64_t n, left_out;
        assert_non_null(tab);
        *tab = '\0';
        assert_ok(ctx, carry_json_parse(ctx, &wanted, line, strlen(line), "case"));
        assert_ok(ctx,
                  carry_unigram_encode(u, ids, MOST, &n, &left_out, wanted->as.text.bytes, wanted->as.text.length));
        assert_int_equal(left_out, 0);
        char *at = tab + 1;
        for (int64_t i = 0; i < n; i++) {
            char *end;
            const long long id = strtoll(at, &end, 10);
            if (end == at || id != ids[i]) {
                fail_msg("%s: %s: token %lld is %lld where %s is wanted", folder, line, (long long)i, (long long)ids[i],
                         at);
            }
            at = end;
        }
        assert_int_equal(*at, '\0');
        carry_json_free(wanted);
    }
    free(text);
    carry_unigram_free(u);
    return count;
}

static void test_ids_are_those_of_sentencepiece(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    assert_int_equal(compare_cases(ctx, GOLDEN "bytes", GOLDEN "bytes/cases.txt"), 19);
    assert_int_equal(compare_cases(ctx, GOLDEN "bytes/json", GOLDEN "bytes/cases.txt"), 19);
    assert_int_equal(compare_cases(ctx, GOLDEN "unknown", GOLDEN "unknown/cases.txt"), 19);
    carry_ctx_free(ctx);
}

static void test_what_does_not_fit_is_left_out_before_the_end(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_unigram *u;
    int64_t all[MOST], ids[MOST], n, m, left_out;
    static const char text[] = "a cinematic shot of a fox";
    assert_ok(ctx, carry_unigram_open(ctx, &u, GOLDEN "bytes"));
    assert_ok(ctx, carry_unigram_encode(u, all, MOST, &n, NULL, text, sizeof text - 1));
    for (int64_t most = 1; most < n; most++) {
        assert_ok(ctx, carry_unigram_encode(u, ids, most, &m, &left_out, text, sizeof text - 1));
        assert_int_equal(m, most);
        assert_int_equal(left_out, n - most);
        assert_int_equal(ids[m - 1], all[n - 1]);
        assert_memory_equal(ids, all, (size_t)(m - 1) * sizeof *ids);
    }
    static const char bytes[] = "\xff\xfe\x80 ok \xe2\x96";
    assert_ok(ctx, carry_unigram_encode(u, ids, MOST, &n, NULL, bytes, sizeof bytes - 1));
    assert_true(n > 1);
    assert_refused(ctx, CARRY_ESIZE, "1 token", carry_unigram_encode(u, ids, 0, &n, NULL, text, 1));
    carry_unigram_free(u);
    carry_ctx_free(ctx);
}

/* A file cut at any byte, or with one changed, is refused or read, and nothing else happens (asan checks). */
static void test_damaged_files_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char folder[] = "/tmp/carry-unigram-XXXXXX";
    char path[128];
    char *bytes;
    size_t length;
    carry_unigram *u;
    assert_non_null(mkdtemp(folder));
    assert_refused(ctx, CARRY_ENOTFOUND, "neither tokenizer.json nor spiece.model",
                   carry_unigram_open(ctx, &u, folder));
    (void)snprintf(path, sizeof path, "%s/spiece.model", folder);
    assert_ok(ctx, carry_file_read(ctx, &bytes, &length, GOLDEN "unknown/spiece.model", 1 << 20));
    int refused = 0;
    for (size_t i = 0; i < 200; i++) {
        const bool cuts = i % 2 == 0;
        const size_t at = cuts ? length * i / 200 : (i * 7919) % length;
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        bytes[at] = (char)(bytes[at] ^ (cuts ? 0 : 1 << i % 8));
        assert_int_equal(fwrite(bytes, 1, cuts ? at : length, file), cuts ? at : length);
        assert_int_equal(fclose(file), 0);
        bytes[at] = (char)(bytes[at] ^ (cuts ? 0 : 1 << i % 8));
        if (carry_unigram_open(ctx, &u, folder) == CARRY_OK) {
            int64_t ids[64], n;
            assert_ok(ctx, carry_unigram_encode(u, ids, 64, &n, NULL, "red \xc3\xa9t\xc3\xa9 circle", 16));
        } else {
            assert_non_null(strstr(carry_ctx_error(ctx), "spiece.model"));
            refused++;
        }
        carry_unigram_free(u);
    }
    assert_true(refused >= 95); /* a cut file has an incomplete map, or only pieces */
    free(bytes);
    (void)unlink(path);
    (void)rmdir(folder);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_are_those_of_sentencepiece),
        cmocka_unit_test(test_what_does_not_fit_is_left_out_before_the_end),
        cmocka_unit_test(test_damaged_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
