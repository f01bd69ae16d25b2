/* Kept states and the tiers of cached prefixes, over a runner of hashes. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/file.h"
#include "engine/scheduler_internal.h"
#include "engine_support.h"

#define SLOTS 24
#define PAGES 120
#define SEQUENCES 4
#define CONTEXT 2048

typedef struct bench {
    carry_ctx *ctx;
    fake_runner *runner;
    carry_scheduler *scheduler;
    int warnings;
} bench;

static void count_warnings(void *user, carry_log_level level, const char *line) {
    (void)line;
    ((bench *)user)->warnings += level == CARRY_LOG_WARNING;
}

static void open_bench(bench *b, bool has_pages, bool overlaps, const carry_prefix_options *cache) {
    *b = (bench){0};
    assert_int_equal(carry_ctx_new(&b->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                 .log = count_warnings, .log_user = b}),
                     CARRY_OK);
    b->runner = fake_runner_new(b->ctx, SLOTS, has_pages ? PAGES : 0, SEQUENCES, 256, CONTEXT, overlaps);
    const carry_scheduler_options options = {.cache = *cache, .snapshot_every = 128, .on_event = engine_collect};
    assert_ok(b->ctx, carry_scheduler_new(b->ctx, &b->scheduler, &b->runner->head, &options));
}

static void close_bench(bench *b) {
    carry_scheduler_free(b->scheduler);
    b->runner->head.ops->close(&b->runner->head);
    carry_ctx_free(b->ctx);
}

static const carry_sampling sampling = {.temperature = 0.5, .top_p = 1.0, .seed = 9};

/* Runs one request, which continues from `state` if that is not 0. */
static engine_text run(bench *b, const int32_t *ids, int64_t count, int64_t tokens, uint64_t state, bool keeps) {
    engine_text text = {0};
    const carry_sequence_options o = {.ids = ids,
                                      .count = count,
                                      .tokens = tokens,
                                      .sampling = sampling,
                                      .logprobs = -1,
                                      .state = state,
                                      .keeps = keeps,
                                      .user = &text};
    engine_add(b->scheduler, b->ctx, &b->runner->head.sizes, &o, 1);
    engine_run(b->scheduler);
    assert_true(text.has_ended);
    return text;
}

static void assert_text(const bench *b, const engine_text *text, const int32_t *ids, int64_t count) {
    int32_t expected[CONTEXT];
    engine_expected(ids, count, &sampling, 0, b->runner->head.sizes.page_bytes > 0, expected, text->count);
    assert_memory_equal(text->ids, expected, (size_t)text->count * sizeof *expected);
}

static const carry_prefix_options cached = {.device_bytes = SIZE_MAX};

static void test_states_are_forked_rolled_back_and_continued(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bench b;
        open_bench(&b, (variant & 1) != 0, (variant & 2) != 0, &cached);
        int32_t ids[CONTEXT];
        uint64_t random = 5;
        uint64_t fork;
        int64_t length;
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        for (int64_t prompt = 50; prompt < 300; prompt += 37) {
            for (int64_t back = 0; back <= CARRY_ROLL_BACK; back += 4) {
                int32_t all[CONTEXT];
                engine_text text = run(&b, ids, prompt, 40, 0, true);
                assert_true(text.state != 0);
                assert_ok(b.ctx, carry_scheduler_state_length(b.scheduler, text.state, &length));
                assert_int_equal(length, prompt + 40);
                assert_ok(b.ctx, carry_scheduler_state_fork(b.scheduler, text.state, &fork));
                assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, text.state, back));
                const uint64_t states[] = {text.state, fork};
                const int64_t kept[] = {40 - back, 40};
                for (int i = 0; i < 2; i++) { /* the state that was rolled back, and the fork, which was not */
                    memcpy(all, ids, (size_t)prompt * sizeof *all);
                    memcpy(all + prompt, text.ids, (size_t)kept[i] * sizeof *all);
                    memcpy(all + prompt + kept[i], ids + 900, 5 * sizeof *all);
                    engine_text more = run(&b, ids + 900, 5, 30, states[i], false);
                    assert_int_equal(more.count, 30);
                    assert_text(&b, &more, all, prompt + kept[i] + 5);
                    engine_text_free(&more);
                }
                assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, text.state));
                assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, fork));
                engine_text_free(&text);
            }
        }
        const carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.states, 0);
        assert_int_equal(stats.free_slots + stats.cache.snapshots, SLOTS);
        assert_int_equal(stats.free_pages + stats.cache.pages, stats.pages);
        close_bench(&b);
    }
}

/* In host memory a state takes no slot and no page; its next use, in this engine or another, continues from it. */
static void test_states_move_to_host_memory_and_other_engines(void **state) {
    (void)state;
    int32_t ids[CONTEXT];
    uint64_t random = 5;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    for (int variant = 0; variant < 2; variant++) {
        bench b;
        bench other;
        const carry_prefix_options none = {0};
        open_bench(&b, variant == 1, false, &none);
        open_bench(&other, variant == 1, false, &none);
        const carry_scheduler_stats before = carry_scheduler_statistics(b.scheduler);
        engine_text text = run(&b, ids, 200, 30, 0, true);
        uint64_t fork;
        uint64_t made;
        assert_ok(b.ctx, carry_scheduler_state_fork(b.scheduler, text.state, &fork)); /* shares its pages */
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, text.state));
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, fork));
        assert_ok(b.ctx, carry_scheduler_state_to_host(b.scheduler, fork)); /* it is there */
        carry_scheduler_stats stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.states, 2);
        assert_int_equal(stats.free_slots, before.free_slots);
        assert_int_equal(stats.free_pages, before.free_pages);
        int32_t whole[235];
        memcpy(whole, ids, 200 * sizeof *ids);
        memcpy(whole + 200, text.ids, 30 * sizeof *ids);
        memcpy(whole + 230, ids + 900, 5 * sizeof *ids);
        engine_text more = run(&b, ids + 900, 5, 30, text.state, false);
        assert_text(&b, &more, whole, 235);
        engine_text_free(&more);
        assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, fork, 7));
        memcpy(whole + 223, ids + 900, 5 * sizeof *ids);
        more = run(&b, ids + 900, 5, 30, fork, false);
        assert_text(&b, &more, whole, 228);
        engine_text_free(&more);
        assert_ok(b.ctx, carry_scheduler_state_move(b.scheduler, fork, other.scheduler, &made));
        assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state", carry_scheduler_state_drop(b.scheduler, fork));
        more = run(&other, ids + 900, 5, 30, made, false);
        assert_text(&other, &more, whole, 228);
        engine_text_free(&more);
        other.runner->model = 43;
        assert_refused(b.ctx, CARRY_EARGUMENT, "another model",
                       carry_scheduler_state_move(b.scheduler, text.state, other.scheduler, &made));
        assert_ok(b.ctx, carry_scheduler_state_drop(b.scheduler, text.state));
        stats = carry_scheduler_statistics(b.scheduler);
        assert_int_equal(stats.free_slots, before.free_slots);
        assert_int_equal(stats.free_pages, before.free_pages);
        engine_text_free(&text);
        close_bench(&other);
        close_bench(&b);
    }
}

static void test_a_state_with_no_text_is_kept(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, true, &cached);
    int32_t ids[CONTEXT];
    uint64_t random = 7;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    engine_text text = run(&b, ids, 200, 0, 0, true);
    assert_int_equal(text.outcome, CARRY_OUTCOME_LENGTH);
    engine_text more = run(&b, ids + 200, 100, 20, text.state, false);
    assert_text(&b, &more, ids, 300);
    engine_text_free(&more);
    engine_text_free(&text);
    close_bench(&b);
}

static void test_states_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, false, &cached);
    int32_t ids[CONTEXT] = {0};
    uint64_t made;
    int64_t length;
    assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state 7",
                   carry_scheduler_state_length(b.scheduler, 7, &length));
    assert_refused(b.ctx, CARRY_ENOTFOUND, "there is no state 7", carry_scheduler_state_drop(b.scheduler, 7));
    engine_text text = run(&b, ids, 5, 5, 7, false);
    assert_int_equal(text.outcome, CARRY_OUTCOME_FAILED);
    assert_non_null(strstr(text.message, "there is no state 7"));
    engine_text_free(&text);
    text = run(&b, ids, 30, 20, 0, true);
    assert_refused(b.ctx, CARRY_ERANGE, "cannot go back 17",
                   carry_scheduler_state_roll_back(b.scheduler, text.state, 17));
    engine_text more = run(&b, ids, CONTEXT - 20, 5, text.state, false);
    assert_int_equal(more.outcome, CARRY_OUTCOME_FAILED);
    assert_non_null(strstr(more.message, "exceed the context of 2048"));
    engine_text_free(&more);
    for (int i = 0; carry_scheduler_state_fork(b.scheduler, text.state, &made) == CARRY_OK; i++) {
        assert_true(i < SLOTS);
    }
    assert_refused(b.ctx, CARRY_EMEMORY, "slots are in use",
                   carry_scheduler_state_fork(b.scheduler, text.state, &made));
    engine_text_free(&text);
    text = run(&b, ids, 5, 5, 0, false); /* a request without a free slot fails instead of waiting for ever */
    assert_int_equal(text.status, CARRY_EMEMORY);
    assert_non_null(strstr(text.message, "kept states hold"));
    engine_text_free(&text);
    close_bench(&b);
}

static void test_a_failed_roll_back_leaves_the_state(void **state) {
    (void)state;
    bench b;
    open_bench(&b, true, true, &cached);
    int32_t ids[CONTEXT];
    uint64_t random = 19;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    engine_text text = run(&b, ids, 100, 37, 0, true);
    for (int64_t at = 0; at < 3; at++) {
        b.runner->fail_step = b.runner->steps + at;
        assert_refused(b.ctx, CARRY_EMEMORY, "injected", carry_scheduler_state_roll_back(b.scheduler, text.state, 10));
    }
    memcpy(ids + 100, text.ids, 37 * sizeof *ids);
    engine_text more = run(&b, ids + 137, 3, 30, text.state, false);
    assert_text(&b, &more, ids, 140);
    engine_text_free(&text);
    engine_text_free(&more);
    close_bench(&b);
}

static void temporary(bench *b, char path[CARRY_FILE_PATH], const char *name) {
    char folder[CARRY_FILE_PATH];
    assert_ok(b->ctx, carry_file_temporary_folder(b->ctx, folder, "carry-engine"));
    assert_ok(b->ctx, carry_file_in(b->ctx, path, folder, name));
}

/* Another process saves a state and is killed; this one loads it and continues. */
static void test_a_state_is_saved_by_a_killed_process(void **state) {
    (void)state;
    bench b;
    char path[CARRY_FILE_PATH];
    int32_t ids[CONTEXT];
    uint64_t random = 29;
    uint64_t made;
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    temporary(&b, path, "state");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bench other;
        open_bench(&other, true, false, &cached);
        engine_text text = run(&other, ids, 333, 21, 0, true);
        if (carry_scheduler_state_save(other.scheduler, text.state, path) == CARRY_OK) {
            (void)kill(getpid(), SIGKILL);
        }
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    engine_expected(ids, 333, &sampling, 0, true, ids + 333, 21);
    assert_ok(b.ctx, carry_scheduler_state_load(b.scheduler, &made, path));
    engine_text more = run(&b, ids + 500, 7, 40, made, false);
    memmove(ids + 354, ids + 500, 7 * sizeof *ids);
    assert_text(&b, &more, ids, 361);
    engine_text_free(&more);
    assert_ok(b.ctx, carry_scheduler_state_roll_back(b.scheduler, made, 16));
    more = run(&b, ids + 600, 7, 40, made, false);
    memmove(ids + 338, ids + 600, 7 * sizeof *ids);
    assert_text(&b, &more, ids, 345);
    engine_text_free(&more);
    b.runner->model++;
    assert_refused(b.ctx, CARRY_EARGUMENT, "is a state of another model",
                   carry_scheduler_state_load(b.scheduler, &made, path));
    b.runner->model--;
    assert_refused(b.ctx, CARRY_ENOTFOUND, "nowhere", carry_scheduler_state_load(b.scheduler, &made, "/nowhere"));
    int file = open(path, O_RDWR);
    assert_int_equal(pwrite(file, "\x7f", 1, 4000), 1);
    (void)close(file);
    assert_refused(b.ctx, CARRY_EFORMAT, "is damaged", carry_scheduler_state_load(b.scheduler, &made, path));
    assert_int_equal(made, 0);
    close_bench(&b);
}

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

/* A request that is cancelled at any step leaves either a state that has read its prompt, and continues from it, or
   none. The cache has only prefixes that were read. Half of the requests wait for another one to read their prompt. */
static void test_cancelled_requests_keep_only_whole_states(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        int64_t kept = 0;
        for (int steps = 0; steps < 16; steps++) {
            bench b;
            int32_t ids[CONTEXT];
            uint64_t random = 67;
            engine_text texts[2] = {0};
            bool is_busy = true;
            engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
            open_bench(&b, (variant & 1) != 0, (variant & 2) != 0, &cached);
            for (int i = 0; i < 2; i++) {
                const carry_sequence_options o = {.ids = ids,
                                                  .count = 900,
                                                  .tokens = (variant & 4) != 0 ? 0 : 6,
                                                  .sampling = sampling,
                                                  .logprobs = -1,
                                                  .shares = (uint64_t)i,
                                                  .keeps = true,
                                                  .user = &texts[i]};
                engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, (uint64_t)i + 1);
            }
            for (int i = 0; i < steps && is_busy; i++) {
                assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
            }
            for (uint64_t i = 2; i > 0; i--) { /* first the one that waits */
                (void)carry_scheduler_cancel(b.scheduler, i);
            }
            engine_run(b.scheduler);
            for (int i = 0; i < 2; i++) {
                assert_true(texts[i].has_ended);
                if (texts[i].state != 0) {
                    int64_t length;
                    assert_ok(b.ctx, carry_scheduler_state_length(b.scheduler, texts[i].state, &length));
                    assert_in_range(length, 900, 900 + texts[i].count);
                    const carry_kept *k = carry_scheduler_state(b.scheduler, texts[i].state);
                    assert_true(k->track.length >= 900);
                    for (int64_t j = 0; j < texts[i].count; j++) {
                        ids[900 + j] = texts[i].ids[j];
                    }
                    memcpy(ids + length, ids + 1800, 5 * sizeof *ids);
                    engine_text more = run(&b, ids + 1800, 5, 10, texts[i].state, false);
                    assert_text(&b, &more, ids, length + 5);
                    engine_text_free(&more);
                    kept++;
                }
                engine_text_free(&texts[i]);
            }
            engine_text more = run(&b, ids, 880, 10, 0, false);
            assert_text(&b, &more, ids, 880);
            engine_text_free(&more);
            close_bench(&b);
        }
        assert_true(kept > 0);
    }
}

/* Requests that go on from a state without a limit of tokens wait until their pages are free. */
static void test_requests_without_a_limit_wait_for_pages(void **state) {
    (void)state;
    bench b;
    int32_t ids[CONTEXT];
    uint64_t random = 73;
    engine_text texts[4] = {0};
    engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
    open_bench(&b, true, false, &cached);
    engine_text text = run(&b, ids, 100, 1, 0, true);
    for (int i = 0; i < 4; i++) { /* of 33 of 120 pages each */
        const carry_sequence_options o = {.ids = ids,
                                          .count = 100,
                                          .tokens = INT64_MAX,
                                          .sampling = sampling,
                                          .logprobs = -1,
                                          .state = text.state,
                                          .user = &texts[i]};
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, (uint64_t)i + 2);
    }
    engine_run(b.scheduler);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(texts[i].outcome, CARRY_OUTCOME_CONTEXT);
        assert_int_equal(texts[i].count, CONTEXT - 201);
        engine_text_free(&texts[i]);
    }
    engine_text_free(&text);
    close_bench(&b);
}

/* Logits that are not numbers: the state is not kept, also if the request was cancelled in the same step. */
static void test_states_of_failed_tokens_are_not_kept(void **state) {
    (void)state;
    for (int is_cancelled = 0; is_cancelled < 2; is_cancelled++) {
        bench b;
        int32_t ids[CONTEXT];
        uint64_t random = 71;
        bool is_busy = true;
        engine_text text = {0};
        engine_random_ids(&random, ids, CONTEXT, FAKE_VOCABULARY);
        open_bench(&b, true, true, &cached);
        const carry_sequence_options o = {.ids = ids,
                                          .count = 200,
                                          .tokens = 20,
                                          .sampling = {.temperature = 0.5, .top_p = 1.0, .seed = FAKE_FAULT | 3},
                                          .logprobs = -1,
                                          .keeps = true,
                                          .user = &text};
        engine_add(b.scheduler, b.ctx, &b.runner->head.sizes, &o, 1);
        for (int after = 0; is_busy;) {
            assert_ok(b.ctx, carry_scheduler_step(b.scheduler, &is_busy));
            after += text.count == 3;
            if (is_cancelled != 0 && after == 2) { /* the failing step is enqueued */
                assert_true(carry_scheduler_cancel(b.scheduler, 1));
            }
        }
        assert_int_equal(text.outcome, is_cancelled != 0 ? CARRY_OUTCOME_CANCELLED : CARRY_OUTCOME_FAILED);
        assert_int_equal(text.state, 0);
        assert_int_equal(text.count, 3);
        assert_int_equal(carry_scheduler_statistics(b.scheduler).cache.snapshots, 0);
        engine_text_free(&text);
        close_bench(&b);
    }
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
        cmocka_unit_test(test_states_are_forked_rolled_back_and_continued),
        cmocka_unit_test(test_a_state_with_no_text_is_kept),
        cmocka_unit_test(test_states_move_to_host_memory_and_other_engines),
        cmocka_unit_test(test_states_that_cannot_be_used_are_refused),
        cmocka_unit_test(test_a_failed_roll_back_leaves_the_state),
        cmocka_unit_test(test_a_state_is_saved_by_a_killed_process),
        cmocka_unit_test(test_prefixes_move_to_host_memory_and_files),
        cmocka_unit_test(test_the_files_of_a_conversation_grow_with_its_tokens),
        cmocka_unit_test(test_a_damaged_file_loses_only_the_turns_after_it),
        cmocka_unit_test(test_folders_and_files_that_cannot_be_used_are_skipped),
        cmocka_unit_test(test_a_full_folder_leaves_texts_right),
        cmocka_unit_test(test_cancelled_requests_keep_only_whole_states),
        cmocka_unit_test(test_requests_without_a_limit_wait_for_pages),
        cmocka_unit_test(test_states_of_failed_tokens_are_not_kept),
        cmocka_unit_test(test_a_full_folder_keeps_what_the_newest_turn_builds_on),
        cmocka_unit_test(test_a_full_folder_keeps_what_was_used_last),
        cmocka_unit_test(test_unfinished_files_are_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
