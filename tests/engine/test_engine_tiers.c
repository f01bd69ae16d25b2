/* The tiers of cached prefixes: host memory and files, over a runner of hashes. */
#include <signal.h>
#include <sys/resource.h>

#include "state_bench.h"

/* Three texts of 10 pages each in turn, with a cache for less than two of them. */
static void run_rounds(bench *b, const int32_t *ids, int64_t *cached_tokens) {
    *cached_tokens = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            engine_text text = run(b, ids + 10 * i, 640, 20, 0, false);
            assert_text(b, &text, ids + 10 * i, 640);
            *cached_tokens += round > 0 ? text.cached : 0;
            engine_text_free(&text);
        }
    }
}

static void test_prefixes_move_to_host_memory_and_files(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 37;
    char path[CARRY_FILE_PATH];
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        const size_t little = 15 * sizeof(fake_page);
        bench b;
        int64_t found;
        open_bench(&b, true, overlaps != 0, &(carry_prefix_options){.device_bytes = little});
        run_rounds(&b, ids, &found);
        assert_int_equal(found, 0); /* the next text has always just been evicted */
        temporary(&b, path, "cache");
        close_bench(&b);
        open_bench(&b, true, overlaps != 0, &(carry_prefix_options){.device_bytes = little, .host_bytes = 1 << 20});
        run_rounds(&b, ids, &found);
        assert_int_equal(found, 6 * 576); /* all but the last block */
        close_bench(&b);
        const carry_prefix_options files = {.device_bytes = little, .folder = path, .folder_bytes = 1 << 20};
        open_bench(&b, true, overlaps != 0, &files);
        run_rounds(&b, ids, &found);
        assert_int_equal(found, 6 * 576);
        assert_true(carry_scheduler_statistics(b.scheduler).cache.file_snapshots >= 3);
        close_bench(&b);
        open_bench(&b, true, overlaps != 0, &files); /* another start finds them all */
        engine_text text = run(&b, ids, 640, 20, 0, false);
        assert_int_equal(text.cached, 576);
        assert_text(&b, &text, ids, 640);
        engine_text_free(&text);
        assert_int_equal(b.warnings, 0);
        close_bench(&b);
    }
}

/* The files of a conversation contain each page once, or twice if a turn ends inside it, and not once for every
   turn. */
static void test_the_files_of_a_conversation_grow_with_its_tokens(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 43;
    char path[CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    const carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 1 << 20};
    open_bench(&b, true, false, &files);
    for (int64_t count = 200; count <= 1400; count += 100) {
        engine_text text = run(&b, ids, count, 4, 0, false);
        assert_text(&b, &text, ids, count);
        assert_true(count == 200 || text.cached >= count - 100 - 2 * CARRY_PAGE_TOKENS);
        engine_text_free(&text);
    }
    close_bench(&b);
    open_bench(&b, true, false, &files);
    const carry_prefix_stats stats = carry_scheduler_statistics(b.scheduler).cache;
    const size_t pages = 2 * 1400 / CARRY_PAGE_TOKENS + 2 * (size_t)stats.file_snapshots;
    assert_true(stats.file_snapshots >= 13);
    assert_true(stats.file_bytes <= pages * sizeof(fake_page) + (size_t)stats.file_snapshots * 2560); /* their heads */
    engine_text text = run(&b, ids, 1450, 4, 0, false);
    assert_true(text.cached >= 1400 - 2 * CARRY_PAGE_TOKENS);
    assert_text(&b, &text, ids, 1450);
    engine_text_free(&text);
    close_bench(&b);
}

/* Of a conversation with a damaged file, the turns before it are still found. */
static void test_a_damaged_file_loses_only_the_turns_after_it(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 47;
    char path[CARRY_FILE_PATH];
    char command[2 * CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    const carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 1 << 20};
    open_bench(&b, true, false, &files);
    for (int64_t count = 200; count <= 1400; count += 100) {
        engine_text text = run(&b, ids, count, 4, 0, false);
        engine_text_free(&text);
    }
    close_bench(&b);
    /* Names are MODEL-LENGTH-HASH, and the last bytes of a file are its keys and values. Of the files of 701 to 800
       tokens at least one is on the way to later turns. */
    (void)snprintf(command, sizeof command,
                   "cd %s; for f in $(ls | awk -F- '$2 > 700 && $2 <= 800'); do "
                   "printf '\\377' | dd of=$f bs=1 seek=$(($(stat -c %%s $f) - 9)) conv=notrunc status=none; done",
                   path);
    assert_int_equal(system(command), 0);
    open_bench(&b, true, false, &files);
    const int64_t stored = carry_scheduler_statistics(b.scheduler).cache.file_snapshots;
    engine_text text = run(&b, ids, 1450, 4, 0, false);
    assert_true(text.cached >= 700 - 2 * CARRY_PAGE_TOKENS);
    assert_true(text.cached <= 700);
    assert_text(&b, &text, ids, 1450);
    assert_int_equal(b.warnings, 1);
    assert_true(carry_scheduler_statistics(b.scheduler).cache.file_snapshots < stored);
    engine_text_free(&text);
    close_bench(&b);
}

static void test_folders_and_files_that_cannot_be_used_are_skipped(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 41;
    char path[CARRY_FILE_PATH];
    char command[2 * CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 1 << 20};
    open_bench(&b, true, false, &files);
    engine_text text = run(&b, ids, 640, 20, 0, false);
    engine_text_free(&text);
    close_bench(&b); /* writes what it has */
    (void)snprintf(command, sizeof command,
                   "for f in %s/*; do printf x | dd of=$f bs=1 seek=3000 conv=notrunc status=none; done", path);
    assert_int_equal(system(command), 0);
    open_bench(&b, true, false, &files);
    assert_true(carry_scheduler_statistics(b.scheduler).cache.file_snapshots > 0);
    text = run(&b, ids, 640, 20, 0, false);
    assert_int_equal(text.cached, 0);
    assert_text(&b, &text, ids, 640);
    assert_true(b.warnings > 0);
    engine_text_free(&text);
    close_bench(&b);
    files.folder_bytes = 1000; /* less than one file: nothing is written, nothing fails */
    open_bench(&b, true, false, &files);
    text = run(&b, ids, 640, 20, 0, false);
    assert_text(&b, &text, ids, 640);
    engine_text_free(&text);
    close_bench(&b);
    files = (carry_prefix_options){.device_bytes = SIZE_MAX, .folder = "/proc/self/none", .folder_bytes = 1 << 20};
    open_bench(&b, true, false, &files);
    assert_int_equal(b.warnings, 1);
    text = run(&b, ids, 640, 20, 0, false);
    assert_text(&b, &text, ids, 640);
    engine_text_free(&text);
    close_bench(&b);
    files.folder = "/proc/self/fd"; /* readable but not writable */
    files.device_bytes = 15 * sizeof(fake_page);
    open_bench(&b, true, false, &files);
    int64_t found;
    run_rounds(&b, ids, &found);
    assert_int_equal(b.warnings, 1);
    close_bench(&b);
}

/* A limit on the size of files stands for a full disk: writing fails in the middle of a file. */
static void test_a_full_folder_leaves_texts_right(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 47;
    char path[CARRY_FILE_PATH];
    struct rlimit before;
    int64_t found;
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    const carry_prefix_options files = {
        .device_bytes = 15 * sizeof(fake_page), .folder = path, .folder_bytes = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    open_bench(&b, true, false, &files);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max}), 0);
    run_rounds(&b, ids, &found);
    assert_int_equal(found, 0);
    assert_int_equal(b.warnings, 1);
    close_bench(&b);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    open_bench(&b, true, false, &files); /* no part of a file was left; there is space again */
    assert_int_equal(carry_scheduler_statistics(b.scheduler).cache.file_snapshots, 0);
    run_rounds(&b, ids, &found);
    assert_int_equal(found, 6 * 576);
    assert_int_equal(b.warnings, 0);
    close_bench(&b);
    (void)signal(SIGXFSZ, SIG_DFL);
}

/* Every start continues from the newest turn of a conversation, in a folder that has too little space for all files. */
static void test_a_full_folder_keeps_what_the_newest_turn_builds_on(void **state) {
    (void)state;
    static const size_t limits[] = {30000, 45000, 70000, 120000};
    int32_t ids[CONTEXT];
    uint64_t random = 53;
    char path[CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        open_bench(&b, true, false, &cached);
        temporary(&b, path, "cache");
        close_bench(&b);
        const carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = limits[i]};
        for (int64_t count = 200; count <= 1400; count += 100) {
            open_bench(&b, true, false, &files);
            for (int other = 1; other <= 2; other++) { /* prompts that are not asked again */
                engine_text text = run(&b, ids + count / 100 + other, 300, 4, 0, false);
                engine_text_free(&text);
            }
            engine_text text = run(&b, ids, count, 4, 0, false);
            assert_text(&b, &text, ids, count);
            assert_true(count == 200 || text.cached >= count - 100 - 2 * CARRY_PAGE_TOKENS);
            engine_text_free(&text);
            assert_int_equal(b.warnings, 0);
            close_bench(&b);
        }
        open_bench(&b, true, false, &files);
        assert_true(carry_scheduler_statistics(b.scheduler).cache.file_bytes <= limits[i]);
        close_bench(&b);
    }
}

/* Files are evicted by their last use, also if that was before the last start. */
static void test_a_full_folder_keeps_what_was_used_last(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 59;
    char path[CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    const carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 26000};
    const int order[] = {0, 1, 0, 2}; /* text 1 is evicted, not text 0 */
    for (int i = 0; i < 4; i++) {
        (void)usleep(20000); /* the times of files differ */
        open_bench(&b, true, false, &files);
        engine_text text = run(&b, ids + order[i], 300, 4, 0, false);
        assert_int_equal(text.cached > 0, i == 2);
        engine_text_free(&text);
        close_bench(&b);
    }
    open_bench(&b, true, false, &files);
    engine_text text = run(&b, ids, 300, 4, 0, false);
    assert_true(text.cached > 0);
    engine_text_free(&text);
    close_bench(&b);
}

/* A conversation of two turns is least recently used, and space is needed for one other turn: the end of the
   conversation is evicted, not its beginning, which is older, but on which the rest builds. */
static void test_a_full_folder_evicts_the_end_of_a_conversation(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 67;
    char path[CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 1 << 20};
    static const struct {
        int64_t from, count;
        bool is_known;
    } texts[] = {{0, 300, false}, {0, 600, true}, {1000, 300, false}, {0, 300, true}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        (void)usleep(20000); /* the times of files differ */
        open_bench(&b, true, false, &files);
        if (i == 2) {
            files.folder_bytes = carry_scheduler_statistics(b.scheduler).cache.file_bytes;
            close_bench(&b);
            open_bench(&b, true, false, &files);
        }
        engine_text text = run(&b, ids + texts[i].from, texts[i].count, 4, 0, false);
        assert_int_equal(text.cached > 0, texts[i].is_known);
        engine_text_free(&text);
        close_bench(&b);
    }
}

/* A killed process leaves an unfinished file, which the next start deletes if it is old. Files whose names are not
   those of this model stay. */
static void test_unfinished_files_are_deleted(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 61;
    char path[CARRY_FILE_PATH];
    char command[4 * CARRY_FILE_PATH];
    bench b;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "cache");
    close_bench(&b);
    const carry_prefix_options files = {.device_bytes = SIZE_MAX, .folder = path, .folder_bytes = 1 << 20};
    open_bench(&b, true, false, &files);
    engine_text text = run(&b, ids, 200, 4, 0, false);
    engine_text_free(&text);
    close_bench(&b);
    (void)snprintf(command, sizeof command,
                   "cd %s && f=$(ls | head -n 1) && touch -d '2 hours ago' $f.abcdef notes.abcdef && touch $f.ghijkl",
                   path);
    assert_int_equal(system(command), 0);
    open_bench(&b, true, false, &files);
    close_bench(&b);
    (void)snprintf(command, sizeof command,
                   "cd %s && test -e notes.abcdef && ! ls | grep -q 'prefix.abcdef' && ls | grep -q 'prefix.ghijkl'",
                   path);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes_move_to_host_memory_and_files),
        cmocka_unit_test(test_the_files_of_a_conversation_grow_with_its_tokens),
        cmocka_unit_test(test_a_damaged_file_loses_only_the_turns_after_it),
        cmocka_unit_test(test_folders_and_files_that_cannot_be_used_are_skipped),
        cmocka_unit_test(test_a_full_folder_leaves_texts_right),
        cmocka_unit_test(test_a_full_folder_keeps_what_the_newest_turn_builds_on),
        cmocka_unit_test(test_a_full_folder_keeps_what_was_used_last),
        cmocka_unit_test(test_a_full_folder_evicts_the_end_of_a_conversation),
        cmocka_unit_test(test_unfinished_files_are_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
