/* Checkpoints: a damaged one is skipped in favour of the previous one, and a failed write loses nothing. */
#include "train_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "train/checkpoint.h"

static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "train.json"};

/* A run of 8 steps with checkpoints at 4 and 8; on a text, so that there is a tokenizer. */
static void make_run(const char *out) {
    told t;
    carry_train_options o = tiny(out);
    o.steps = 8;
    train_ok(1, &o, false, &t);
}

static void find_step(const char *out, int64_t wanted, int notes) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_found found;
    told t = {0};
    const carry_sink sink = {.user = &t, .note = on_note};
    if (wanted < 0) {
        assert_int_equal(carry_checkpoint_find(ctx, &found, out, &sink), CARRY_ENOTFOUND);
    } else {
        assert_ok(ctx, carry_checkpoint_find(ctx, &found, out, &sink));
        assert_int_equal(found.step, wanted);
        carry_found_free(&found);
    }
    assert_int_equal(t.notes, notes);
    if (notes > 0) {
        assert_non_null(strstr(t.note, "is incomplete"));
    }
    carry_ctx_free(ctx);
}

/* Writes the first `length` bytes to the file, with byte `flipped` changed if it is among them. */
static void damage(const char *path, const char *bytes, size_t length, size_t flipped) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char *other = malloc(length + 1);
    assert_non_null(other);
    memcpy(other, bytes, length);
    if (flipped < length) {
        other[flipped] = (char)(other[flipped] ^ 0x10);
    }
    assert_ok(ctx, carry_file_replace(ctx, path, other, length));
    free(other);
    carry_ctx_free(ctx);
}

static void test_the_newest_whole_checkpoint_is_found(void **state) {
    char out[256];
    make_run(below(out, state, "newest"));
    find_step(out, 8, 0);
}

static void test_truncated_files_make_the_one_before_be_used(void **state) {
    char out[256];
    char path[600];
    make_run(below(out, state, "truncated"));
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        size_t length;
        char name[64];
        (void)snprintf(name, sizeof name, "step-8/%s", files[f]);
        char *bytes = bytes_of(out, name, &length);
        (void)snprintf(path, sizeof path, "%s/%s", out, name);
        const size_t cuts[] = {0, 1, 7, length / 3, length / 2, length - 2};
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            damage(path, bytes, cuts[c], SIZE_MAX);
            find_step(out, 4, 1);
        }
        assert_int_equal(unlink(path), 0);
        find_step(out, 4, 1);
        damage(path, bytes, length, SIZE_MAX);
        find_step(out, 8, 0);
        free(bytes);
    }
}

static void test_changed_bytes_make_the_one_before_be_used(void **state) {
    char out[256];
    char path[600];
    make_run(below(out, state, "changed"));
    for (size_t f = 0; f < 3; f++) { /* train.json vouches for the others */
        size_t length;
        char name[64];
        (void)snprintf(name, sizeof name, "step-8/%s", files[f]);
        char *bytes = bytes_of(out, name, &length);
        (void)snprintf(path, sizeof path, "%s/%s", out, name);
        for (size_t at = 0; at < length; at += length / 5 + 1) {
            damage(path, bytes, length, at);
            find_step(out, 4, 1);
        }
        damage(path, bytes, length, SIZE_MAX);
        free(bytes);
    }
    find_step(out, 8, 0);
}

static void test_a_changed_note_makes_the_one_before_be_used(void **state) {
    char out[256];
    char path[600];
    size_t length;
    make_run(below(out, state, "note"));
    (void)snprintf(path, sizeof path, "%s/step-8/train.json", out);
    char *bytes = bytes_of(out, "step-8/train.json", &length);
    size_t end = length;
    while (end > 0 && memcmp(bytes + end - 1, "]", 1) != 0) { /* the checksum follows the list of files */
        end--;
    }
    for (size_t at = 0; at < end; at += 3) {
        damage(path, bytes, length, at);
        find_step(out, 4, 1);
    }
    damage(path, bytes, length, SIZE_MAX);
    free(bytes);
    find_step(out, 8, 0);
}

static void test_resuming_goes_on_from_the_one_before(void **state) {
    char a[256];
    char b[256];
    char path[600];
    told t;
    carry_train_options o = tiny(below(a, state, "before-a"));
    o.steps = 8;
    train_ok(1, &o, false, &t);
    const double wanted = t.loss[8];
    (void)below(o.out, state, "before-b");
    (void)below(b, state, "before-b");
    train_ok(1, &o, false, &t);
    (void)snprintf(path, sizeof path, "%s/step-8/model.safetensors", b);
    assert_int_equal(truncate(path, 100), 0);
    train_ok(1, &o, true, &t);
    assert_int_equal(t.notes, 1);
    assert_int_equal(t.last, 8);
    assert_true(t.loss[8] == wanted);
    find_step(b, 8, 0); /* written again over the damaged one */
    strcat(a, "/latest");
    strcat(b, "/latest");
    assert_true(same_file(a, b, "model.safetensors"));
}

static void test_all_damaged_is_said(void **state) {
    char out[256];
    char path[600];
    make_run(below(out, state, "all"));
    for (int step = 4; step <= 8; step += 4) {
        (void)snprintf(path, sizeof path, "%s/step-%d/train.json", out, step);
        assert_int_equal(unlink(path), 0);
    }
    find_step(out, -1, 2);
    told t;
    carry_train_options o = tiny(out);
    assert_int_equal(train_on(2, &o, true, NULL, &t), CARRY_ENOTFOUND);
    assert_non_null(strstr(t.error, "no whole checkpoint"));
}

static int count_in(const char *folder, const char *start) {
    int count = 0;
    DIR *opened = opendir(folder);
    assert_non_null(opened);
    for (struct dirent *entry = readdir(opened); entry != NULL; entry = readdir(opened)) {
        count += strncmp(entry->d_name, start, strlen(start)) == 0;
    }
    (void)closedir(opened);
    return count;
}

static void test_the_last_ones_are_kept_and_leftovers_swept(void **state) {
    char out[256];
    char path[600];
    told t;
    carry_train_options o = tiny(below(out, state, "kept"));
    o.save_every = 2;
    o.keep = 3;
    train_ok(1, &o, false, &t);
    assert_int_equal(count_in(out, "step-"), 3);
    (void)snprintf(path, sizeof path, "%s/.step-99", out);
    assert_int_equal(mkdir(path, 0777), 0);
    strcat(path, "/model.safetensors.AbCdEf");
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    assert_ok(ctx, carry_file_replace(ctx, path, "x", 1));
    (void)snprintf(path, sizeof path, "%s/.latest", out); /* a temporary link, left by a killed process */
    assert_int_equal(symlink("step-12", path), 0);
    o.steps = 14;
    train_ok(1, &o, true, &t);
    assert_int_equal(count_in(out, ".step-"), 0);
    assert_int_equal(count_in(out, "step-"), 3);
    find_step(out, 14, 0);
    char newest[600];
    (void)snprintf(path, sizeof path, "%s/latest", out);
    ssize_t length = readlink(path, newest, sizeof newest - 1);
    assert_true(length > 0);
    newest[length] = '\0';
    assert_string_equal(newest, "step-14");
    carry_ctx_free(ctx);
}

/* A full disk, imitated by a limit on the size of files: the old checkpoint stays, and the error message names it. */
static void test_a_write_that_fails_keeps_the_old_one(void **state) {
    char out[256];
    told t;
    carry_train_options o = tiny(below(out, state, "full"));
    o.steps = 4;
    train_ok(1, &o, false, &t);
    struct rlimit was;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small = {.rlim_cur = 8192, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    o.steps = 8;
    carry_status status = train_on(2, &o, true, NULL, &t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(status, CARRY_EIO);
    assert_non_null(strstr(t.error, "that of step 4 is kept"));
    assert_int_equal(count_in(out, ".step-"), 0);
    find_step(out, 4, 0);
    train_ok(1, &o, true, &t); /* and room again */
    find_step(out, 8, 0);
}

static void test_a_folder_belongs_to_one_run(void **state) {
    char out[256];
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_run_folder first;
    carry_run_folder second;
    (void)below(out, state, "ours");
    assert_ok(ctx, carry_run_folder_open(ctx, &first, out));
    assert_refused(ctx, CARRY_EIO, "another process", carry_run_folder_open(ctx, &second, out));
    carry_run_folder_close(&first);
    assert_ok(ctx, carry_run_folder_open(ctx, &second, out));
    carry_run_folder_close(&second);
    assert_refused(ctx, CARRY_EIO, "/proc/nothing", carry_run_folder_open(ctx, &first, "/proc/nothing"));
    carry_ctx_free(ctx);
}

static void test_another_text_is_not_resumed(void **state) {
    char text[256];
    char out[256];
    told t;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_options o = tiny(below(out, state, "text"));
    (void)below(text, state, "text.txt");
    char *words = calloc(1, 6001);
    assert_non_null(words);
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(words + 6 * i, 7, "w%04d\n", (i * i) % 97);
    }
    assert_ok(ctx, carry_file_replace(ctx, text, words, 6000));
    o.task[0] = '\0';
    (void)snprintf(o.data, sizeof o.data, "%s", text);
    o.vocab = 280;
    o.eval_every = 4;
    o.steps = 4;
    train_ok(1, &o, false, &t);
    assert_true(isfinite(t.evaluation) && t.evaluation > 0.0);
    o.steps = 8;
    train_ok(1, &o, true, &t);
    assert_ok(ctx, carry_file_replace(ctx, text, words, 5000));
    o.steps = 12;
    assert_int_equal(train_on(1, &o, true, NULL, &t), CARRY_EARGUMENT);
    assert_non_null(strstr(t.error, "--model"));
    free(words);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_newest_whole_checkpoint_is_found),
        cmocka_unit_test(test_truncated_files_make_the_one_before_be_used),
        cmocka_unit_test(test_changed_bytes_make_the_one_before_be_used),
        cmocka_unit_test(test_a_changed_note_makes_the_one_before_be_used),
        cmocka_unit_test(test_resuming_goes_on_from_the_one_before),
        cmocka_unit_test(test_all_damaged_is_said),
        cmocka_unit_test(test_the_last_ones_are_kept_and_leftovers_swept),
        cmocka_unit_test(test_a_write_that_fails_keeps_the_old_one),
        cmocka_unit_test(test_a_folder_belongs_to_one_run),
        cmocka_unit_test(test_another_text_is_not_resumed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
