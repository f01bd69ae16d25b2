/* Small files: a replaced file reads back the same, bad paths and sizes are refused at once, and no temporary file is
   left. */
#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/rng.h"
#include "support.h"

#define PATH_ROOM 1024

typedef struct place {
    carry_ctx *ctx;
    char folder[PATH_ROOM / 4];
} place;

static int place_make(void **state) {
    static place p;
    const char *base = getenv("TMPDIR");
    (void)snprintf(p.folder, sizeof p.folder, "%s/carry-file-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    if (mkdtemp(p.folder) == NULL || carry_ctx_new(&p.ctx, NULL) != CARRY_OK) {
        return -1;
    }
    *state = &p;
    return 0;
}

static void remove_below(const char *folder) {
    DIR *opened = opendir(folder);
    struct dirent *entry;
    while (opened != NULL && (entry = readdir(opened)) != NULL) {
        char path[2 * PATH_ROOM];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (unlink(path) != 0) {
            remove_below(path);
        }
    }
    if (opened != NULL) {
        (void)closedir(opened);
    }
    (void)rmdir(folder);
}

static int place_empty(void **state) {
    place *p = *state;
    remove_below(p->folder);
    carry_ctx_free(p->ctx);
    return 0;
}

static void test_temporary_folders_are_where_the_user_has_them(void **state) {
    place *p = *state;
    char made[CARRY_FILE_PATH], again[CARRY_FILE_PATH];
    assert_int_equal(setenv("TMPDIR", p->folder, 1), 0);
    assert_ok(p->ctx, carry_file_temporary_folder(p->ctx, made, "thing"));
    assert_ok(p->ctx, carry_file_temporary_folder(p->ctx, again, "thing"));
    assert_int_equal(strncmp(made, p->folder, strlen(p->folder)), 0);
    assert_non_null(strstr(made, "/thing-"));
    assert_string_not_equal(made, again);
    assert_int_equal(setenv("TMPDIR", "/nowhere/at/all", 1), 0);
    assert_int_equal(carry_file_temporary_folder(p->ctx, made, "thing"), CARRY_EIO);
    assert_non_null(strstr(carry_ctx_error(p->ctx), "/nowhere/at/all/thing-"));
    assert_int_equal(setenv("TMPDIR", "not/whole", 1), 0);
    assert_ok(p->ctx, carry_file_temporary_folder(p->ctx, made, "thing"));
    assert_int_equal(strncmp(made, "/tmp/", 5), 0);
    assert_int_equal(rmdir(made), 0);
    assert_int_equal(unsetenv("TMPDIR"), 0);
}

static int entries(const char *folder) {
    int count = 0;
    DIR *opened = opendir(folder);
    assert_non_null(opened);
    while (readdir(opened) != NULL) {
        count++;
    }
    (void)closedir(opened);
    return count - 2; /* . and .. */
}

static const char *inside(const place *p, char path[PATH_ROOM], const char *name) {
    (void)snprintf(path, PATH_ROOM, "%s/%s", p->folder, name);
    return path;
}

static void expect_bytes(place *p, const char *path, const void *bytes, size_t length) {
    char *text = NULL;
    size_t got = SIZE_MAX;
    assert_ok(p->ctx, carry_file_read(p->ctx, &text, &got, path, length));
    assert_int_equal(got, length);
    assert_memory_equal(text, bytes, length);
    assert_int_equal(text[length], '\0');
    free(text);
}

/* Reading is refused, with the path in the message and nothing to free. */
static void expect_unreadable(place *p, carry_status expected, const char *path, size_t limit) {
    char nothing;
    char *text = &nothing;
    size_t length;
    assert_refused(p->ctx, expected, path, carry_file_read(p->ctx, &text, &length, path, limit));
    assert_null(text);
}

static void test_crc32c_gives_the_published_answers(void **state) {
    (void)state;
    unsigned char bytes[32];
    assert_int_equal(carry_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(carry_crc32c(0, "", 0), 0);
    memset(bytes, 0x00, sizeof bytes); /* RFC 3720, B.4 */
    assert_int_equal(carry_crc32c(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(carry_crc32c(0, bytes, sizeof bytes), 0x62a8ab43);
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)i;
    }
    assert_int_equal(carry_crc32c(0, bytes, sizeof bytes), 0x46dd794e);
}

/* Long inputs go through tables; the same bytes in short parts do not. */
static void test_crc32c_of_long_inputs_is_that_of_their_parts(void **state) {
    (void)state;
    static unsigned char bytes[20011];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * i / 7 + 3 * i);
    }
    static const size_t lengths[] = {4095, 4096, 4097, 4103, 8192, 20011};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        uint32_t crc = 0;
        for (size_t at = 0; at < lengths[l]; at += 997) {
            crc = carry_crc32c(crc, bytes + at, lengths[l] - at < 997 ? lengths[l] - at : 997);
        }
        assert_int_equal(carry_crc32c(0, bytes, lengths[l]), crc);
    }
}

static void test_crc32c_of_parts_is_that_of_the_whole(void **state) {
    (void)state;
    for (size_t cut = 0; cut <= 9; cut++) {
        uint32_t crc = carry_crc32c(0, "123456789", cut);
        assert_int_equal(carry_crc32c(crc, &"123456789"[cut], 9 - cut), 0xe3069283);
    }
}

static void test_what_is_written_is_read(void **state) {
    place *p = *state;
    static const size_t lengths[] = {0, 1, 4095, 4096, 4097, 300000};
    char path[PATH_ROOM];
    inside(p, path, "file");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char *bytes = malloc(lengths[i] + 1);
        assert_non_null(bytes);
        for (size_t j = 0; j < lengths[i]; j++) {
            bytes[j] = (unsigned char)carry_philox(i, 0, j).word[0]; /* 0 bytes among them */
        }
        assert_ok(p->ctx, carry_file_replace(p->ctx, path, bytes, lengths[i]));
        expect_bytes(p, path, bytes, lengths[i]);
        assert_int_equal(entries(p->folder), 1);
        free(bytes);
    }
    /* A shorter file replaces a longer one entirely. */
    assert_ok(p->ctx, carry_file_replace(p->ctx, path, "short", 5));
    expect_bytes(p, path, "short", 5);
    assert_int_equal(unlink(path), 0);
}

static void test_a_reader_of_the_old_file_keeps_it(void **state) {
    place *p = *state;
    char path[PATH_ROOM];
    char old[8] = "";
    inside(p, path, "file");
    assert_ok(p->ctx, carry_file_replace(p->ctx, path, "before", 6));
    FILE *reader = fopen(path, "r");
    assert_non_null(reader);
    assert_ok(p->ctx, carry_file_replace(p->ctx, path, "after", 5));
    assert_int_equal(fread(old, 1, sizeof old, reader), 6);
    assert_memory_equal(old, "before", 6);
    (void)fclose(reader);
    assert_int_equal(unlink(path), 0);
}

static void test_missing_folders_are_made(void **state) {
    place *p = *state;
    char path[PATH_ROOM];
    inside(p, path, "one/two//three/file");
    assert_ok(p->ctx, carry_file_replace(p->ctx, path, "deep", 4));
    expect_bytes(p, path, "deep", 4);
    inside(p, path, "one/two/three");
    assert_int_equal(entries(path), 1);
    remove_below(inside(p, path, "one"));
}

static void test_a_relative_path_needs_no_folder(void **state) {
    place *p = *state;
    char before[PATH_ROOM];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(p->folder), 0);
    carry_status status = carry_file_replace(p->ctx, "plain-name", "here", 4);
    int left = entries(".");
    int removed = unlink("plain-name");
    assert_int_equal(chdir(before), 0);
    assert_ok(p->ctx, status);
    assert_int_equal(left, 1);
    assert_int_equal(removed, 0);
}

static void test_a_file_over_the_limit_is_refused(void **state) {
    place *p = *state;
    char path[PATH_ROOM];
    inside(p, path, "file");
    assert_ok(p->ctx, carry_file_replace(p->ctx, path, "123456789", 9));
    expect_bytes(p, path, "123456789", 9); /* with a limit of 9 */
    expect_unreadable(p, CARRY_ESIZE, path, 8);
    expect_unreadable(p, CARRY_ESIZE, path, 0);
    /* A sparse file of 1 TiB: refused by its size, not read. */
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    expect_unreadable(p, CARRY_ESIZE, path, (size_t)1 << 20);
    assert_int_equal(unlink(path), 0);
}

static void test_what_is_no_file_is_refused_without_waiting(void **state) {
    place *p = *state;
    char path[PATH_ROOM];
    alarm(600); /* ends the test program if opening blocks */
    expect_unreadable(p, CARRY_ENOTFOUND, inside(p, path, "missing"), 100);
    expect_unreadable(p, CARRY_ENOTFOUND, inside(p, path, "missing/file"), 100);
    expect_unreadable(p, CARRY_EIO, p->folder, 100);
    expect_unreadable(p, CARRY_EIO, "/dev/zero", 100);
    inside(p, path, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0); /* it never has a writer */
    expect_unreadable(p, CARRY_EIO, path, 100);
    assert_int_equal(unlink(path), 0);
    inside(p, path, "loop");
    assert_int_equal(symlink("loop", path), 0);
    expect_unreadable(p, CARRY_EIO, path, 100);
    assert_int_equal(unlink(path), 0);
    alarm(0);
}

static void expect_unwritable(place *p, carry_status expected, const char *path, int entries_kept) {
    assert_refused(p->ctx, expected, "", carry_file_replace(p->ctx, path, "bytes", 5));
    assert_true(strlen(carry_ctx_error(p->ctx)) > 10);
    assert_int_equal(entries(p->folder), entries_kept);
}

/* Refusals that also apply to root. */
static void test_a_failed_replacement_leaves_nothing_beside(void **state) {
    place *p = *state;
    char path[PATH_ROOM];
    char file[PATH_ROOM];
    inside(p, file, "file");
    assert_ok(p->ctx, carry_file_replace(p->ctx, file, "kept", 4));
    expect_unwritable(p, CARRY_EIO, inside(p, path, "file/child"), 1);
    expect_unwritable(p, CARRY_EIO, inside(p, path, "file/child/below"), 1);
    char name[NAME_MAX + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_unwritable(p, CARRY_EIO, inside(p, path, name), 1);
    char endless[5000];
    memset(endless, 'e', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    expect_unwritable(p, CARRY_ESIZE, endless, 1);
    /* Here the temporary file is written, and only the renaming fails. */
    inside(p, path, "folder");
    assert_int_equal(mkdir(path, 0700), 0);
    expect_unwritable(p, CARRY_EIO, path, 2);
    assert_int_equal(entries(path), 0);
    assert_int_equal(rmdir(path), 0);
    expect_bytes(p, file, "kept", 4);
    assert_int_equal(unlink(file), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_gives_the_published_answers),
        cmocka_unit_test(test_crc32c_of_long_inputs_is_that_of_their_parts),
        cmocka_unit_test(test_crc32c_of_parts_is_that_of_the_whole),
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_a_reader_of_the_old_file_keeps_it),
        cmocka_unit_test(test_missing_folders_are_made),
        cmocka_unit_test(test_a_relative_path_needs_no_folder),
        cmocka_unit_test(test_a_file_over_the_limit_is_refused),
        cmocka_unit_test(test_what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(test_a_failed_replacement_leaves_nothing_beside),
        cmocka_unit_test(test_temporary_folders_are_where_the_user_has_them),
    };
    return cmocka_run_group_tests_name("core file", tests, place_make, place_empty);
}
