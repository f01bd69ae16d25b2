/* Wisdom: what is printed is read back, anything damaged is refused, and contexts share a file without losing plans. */
#include <math.h>
#include <unistd.h>

#include "core/file.h"
#include "core/rng.h"
#include "scan/wisdom.h"
#include "support.h"

#define MACHINE "a machine of this test, 2 cores, plain, carry 0.1.0"
#define PATH_ROOM 512

static const carry_scan_problem small_diagonal = {
    .kind = CARRY_SCAN_DIAGONAL, .batch = 2, .steps = 33, .n = 4, .width = 2};
static const carry_scan_problem small_dense = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = 17, .n = 4, .width = 1};
static const carry_scan_options by_measuring = {.effort = CARRY_PLAN_MEASURE};

/* A folder of its own, with a file in it and a path below that file, where nothing can ever be written. */
typedef struct place {
    char folder[PATH_ROOM / 4], file[PATH_ROOM], below[PATH_ROOM];
    carry_ctx *ctx; /* for parsing and printing; has no file */
} place;

typedef struct heard {
    int ignored, not_kept, other;
} heard;

static void hear(void *user, carry_log_level level, const char *line) {
    heard *h = user;
    if (level > CARRY_LOG_WARNING) {
        return;
    }
    h->ignored += strstr(line, "ignored") != NULL;
    h->not_kept += strstr(line, "not kept") != NULL;
    h->other += strstr(line, "ignored") == NULL && strstr(line, "not kept") == NULL;
}

static int place_make(void **state) {
    static place p;
    const char *base = getenv("TMPDIR");
    (void)snprintf(p.folder, sizeof p.folder, "%s/carry-wisdom-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    if (mkdtemp(p.folder) == NULL || carry_ctx_new(&p.ctx, &(carry_ctx_options){.threads = 1}) != CARRY_OK) {
        return -1;
    }
    (void)snprintf(p.file, sizeof p.file, "%s/wisdom", p.folder);
    (void)snprintf(p.below, sizeof p.below, "%s/wisdom/below", p.folder);
    *state = &p;
    return 0;
}

static int place_end(void **state) {
    place *p = *state;
    char aside[sizeof p->file + 8];
    (void)snprintf(aside, sizeof aside, "%s.old", p->file); /* where damaged files were put */
    (void)unlink(aside);
    (void)unlink(p->file);
    carry_ctx_free(p->ctx);
    return rmdir(p->folder); /* fails the group when something is left beside */
}

static carry_wisdom *wisdom_new(const char *machine) {
    carry_wisdom *wisdom = calloc(1, sizeof *wisdom);
    assert_non_null(wisdom);
    (void)snprintf(wisdom->machine, sizeof wisdom->machine, "%s", machine);
    return wisdom;
}

/* Between 1e-9 and 1e9, or 0. */
static double random_number(uint64_t seed, uint64_t index) {
    carry_words words = carry_philox(seed, 0, index);
    return words.word[0] % 50 == 0 ? 0.0 : pow(10.0, -9.0 + 18.0 * (double)words.word[1] * 0x1p-32);
}

static void fill_table(carry_rates_table *table, uint64_t seed) {
    char name[32];
    const char *unit;
    double *number;
    for (int i = 0; (number = carry_rates_number(table, i, name, &unit)) != NULL; i++) {
        *number = random_number(seed, (uint64_t)i);
    }
}

static carry_wisdom *random_wisdom(uint64_t seed, int plans, int rates) {
    carry_wisdom *wisdom = wisdom_new(MACHINE);
    wisdom->plans = plans;
    wisdom->rates = rates;
    for (int i = 0; i < plans; i++) {
        carry_wisdom_plan *plan = &wisdom->plan[i];
        plan->threads = i % 7 == 0 ? 1024 : i % 5 + 1;
        (void)snprintf(plan->kernels, sizeof plan->kernels, "%s", i % 3 == 0 ? "plain" : "neon");
        plan->seconds = random_number(seed, 1000 + (uint64_t)i);
        (void)snprintf(plan->key, sizeof plan->key, "scan:dense:f32:b1:t%d:n%d:w1", i + 1, i * i + 1);
        (void)snprintf(plan->algorithm, sizeof plan->algorithm, "%s", i % 2 == 0 ? "sequential" : "cyclic");
    }
    for (int i = 0; i < rates; i++) {
        wisdom->rate[i].threads = i / 2 + 1;
        (void)snprintf(wisdom->rate[i].kernels, sizeof wisdom->rate[i].kernels, "%s", i % 2 == 0 ? "plain" : "neon");
        fill_table(&wisdom->rate[i].table, seed + 100 + (uint64_t)i);
    }
    return wisdom;
}

static void expect_same(const carry_wisdom *read, const carry_wisdom *written) {
    assert_int_equal(read->plans, written->plans);
    assert_int_equal(read->rates, written->rates);
    for (int i = 0; i < written->plans; i++) {
        assert_int_equal(read->plan[i].threads, written->plan[i].threads);
        assert_string_equal(read->plan[i].kernels, written->plan[i].kernels);
        assert_string_equal(read->plan[i].key, written->plan[i].key);
        assert_string_equal(read->plan[i].algorithm, written->plan[i].algorithm);
        assert_true(read->plan[i].seconds == written->plan[i].seconds);
    }
    for (int i = 0; i < written->rates; i++) {
        carry_rates_table a = read->rate[i].table;
        carry_rates_table b = written->rate[i].table;
        char name[32];
        const char *unit;
        assert_int_equal(read->rate[i].threads, written->rate[i].threads);
        assert_string_equal(read->rate[i].kernels, written->rate[i].kernels);
        for (int j = 0; carry_rates_number(&a, j, name, &unit) != NULL; j++) {
            assert_true(*carry_rates_number(&a, j, name, &unit) == *carry_rates_number(&b, j, name, &unit));
        }
    }
}

static void test_what_is_printed_is_read(void **state) {
    place *p = *state;
    static const int sizes[][2] = {{0, 0}, {1, 0}, {0, 1}, {5, 2}, {100, 3}, {CARRY_WISDOM_PLANS, CARRY_WISDOM_RATES}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        carry_wisdom *written = random_wisdom(i, sizes[i][0], sizes[i][1]);
        carry_wisdom *read = wisdom_new(MACHINE);
        char *text;
        char *again;
        size_t length;
        size_t again_length;
        assert_ok(p->ctx, carry_wisdom_print(p->ctx, written, &text, &length));
        assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
        expect_same(read, written);
        assert_ok(p->ctx, carry_wisdom_print(p->ctx, read, &again, &again_length));
        assert_int_equal(length, again_length);
        assert_memory_equal(text, again, length);
        free(text);
        free(again);
        free(written);
        free(read);
    }
}

/* A text whose checksum is right, whatever its lines say. */
static char *sealed(const char *lines, size_t *length) {
    char *text = malloc(strlen(lines) + 400);
    assert_non_null(text);
    int used = sprintf(text, "carry-wisdom 1\nmachine %s\n%s", MACHINE, lines);
    used += sprintf(text + used, "end %08x\n", carry_crc32c(0, text, (size_t)used));
    *length = (size_t)used;
    return text;
}

/* Rounding to the digits of the file must not make a number unreadable: 2.22507e-308, say, is subnormal. */
static void test_every_number_that_is_read_can_be_written_and_read_again(void **state) {
    place *p = *state;
    static const char *const numbers[] = {"0",  "1e-300", "1.7976931348623157e308", "2.2250738585072014e-308",
                                          "-0", "0x1p-3"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        carry_wisdom *read = wisdom_new(MACHINE);
        char line[128];
        size_t length;
        (void)snprintf(line, sizeof line, "plan 1 neon scan:dense sequential %s\n", numbers[i]);
        char *text = sealed(line, &length);
        if (carry_wisdom_parse(p->ctx, read, text, length) == CARRY_OK) {
            free(text);
            assert_ok(p->ctx, carry_wisdom_print(p->ctx, read, &text, &length));
            if (carry_wisdom_parse(p->ctx, read, text, length) != CARRY_OK) {
                fail_msg("%s was read, but as it was written anew it is refused: %s", numbers[i],
                         carry_ctx_error(p->ctx));
            }
        }
        free(text);
        free(read);
    }
}

static void test_lines_that_say_nothing_sensible_are_refused(void **state) {
    place *p = *state;
    static const char *const lines[] = {
        "\n",
        "hello\n",
        "plan\n",
        "plan \n",
        "plan 1\n",
        "plan 1 neon key\n",
        "plan 1 neon key sequential\n",
        "plan 1 neon key sequential \n",
        "plan 1 neon key sequential x\n",
        "plan 1 neon key sequential 1x\n",
        "plan 1 neon key sequential nan\n",
        "plan 1 neon key sequential inf\n",
        "plan 1 neon key sequential -1\n",
        "plan 1 neon key sequential 1e999\n",
        "plan 1 neon key chunkwise, 1\n",
        "plan 1 neon key chunkwise,chunk= 1\n",
        "plan 1 neon key chunkwise,chunk=0 1\n",
        "plan 1 neon key chunkwise,chunk=-4 1\n",
        "plan 1 neon key chunkwise,chunk=99999999999999999999 1\n",
        "plan 1 neon key chunkwise,threads=1025 1\n",
        "plan 1 neon key chunkwise,threads=1,chunk=4 1\n",
        "plan 1 neon key ,chunk=4 1\n",
        "plan 0 neon key sequential 1\n",
        "plan -1 neon key sequential 1\n",
        "plan 1025 neon key sequential 1\n",
        "plan 99999999999999999999 neon key sequential 1\n",
        "plan x neon key sequential 1\n",
        "plan 1 neon  sequential 1\n",
        "plan 1 neon key anamethatislongerthananyalgorithm 1\n",
        "rate 1 neon fork\n",
        "rate 1 neon fork x\n",
        "rate 1 neon nothing 1\n",
        "rate 0 neon fork 1\n",
        "rate 1 neon fork -1\n",
        "carry-wisdom 1\n",
    };
    carry_wisdom *read = wisdom_new(MACHINE);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        size_t length;
        char *text = sealed(lines[i], &length);
        if (carry_wisdom_parse(p->ctx, read, text, length) != CARRY_EFORMAT) {
            fail_msg("the line '%s' is not refused", lines[i]);
        }
        assert_non_null(strstr(carry_ctx_error(p->ctx), "line 3"));
        assert_int_equal(read->plans + read->rates, 0);
        free(text);
    }
    free(read);
}

static void test_more_than_there_is_room_for_is_refused(void **state) {
    place *p = *state;
    char *lines = malloc((CARRY_WISDOM_PLANS + 1) * 32);
    assert_non_null(lines);
    carry_wisdom *read = wisdom_new(MACHINE);
    for (int more = 0; more <= 1; more++) {
        size_t used = 0;
        for (int i = 0; i < CARRY_WISDOM_PLANS + more; i++) {
            used += (size_t)sprintf(lines + used, "plan 1 neon k%d cyclic 1\n", i);
        }
        size_t length;
        char *text = sealed(lines, &length);
        assert_int_equal(carry_wisdom_parse(p->ctx, read, text, length), more == 0 ? CARRY_OK : CARRY_EFORMAT);
        assert_int_equal(read->plans, more == 0 ? CARRY_WISDOM_PLANS : 0);
        free(text);
        used = 0;
        for (int i = 1; i <= CARRY_WISDOM_RATES + more; i++) {
            used += (size_t)sprintf(lines + used, "rate %d neon fork 1\n", i);
        }
        text = sealed(lines, &length);
        assert_int_equal(carry_wisdom_parse(p->ctx, read, text, length), more == 0 ? CARRY_OK : CARRY_EFORMAT);
        free(text);
    }
    free(lines);
    free(read);
}

/* Copied to a block of just its size, so that the sanitizer sees a read beyond it. */
static void expect_refused(place *p, carry_wisdom *read, const char *text, size_t length, const char *what, size_t at) {
    char *exact = malloc(length > 0 ? length : 1);
    assert_non_null(exact);
    memcpy(exact, text, length);
    carry_status status = carry_wisdom_parse(p->ctx, read, exact, length);
    free(exact);
    if ((status != CARRY_EFORMAT && status != CARRY_EUNSUPPORTED) || read->plans != 0 || read->rates != 0) {
        fail_msg("%s at byte %zu: %s, %d plans, %d rates", what, at, carry_status_name(status), read->plans,
                 read->rates);
    }
}

static void test_a_file_cut_off_at_any_byte_is_refused(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(5, 4, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    for (size_t cut = 0; cut < length; cut++) {
        expect_refused(p, read, text, cut, "cut off", cut);
    }
    assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
    free(text);
    free(wisdom);
    free(read);
}

static void test_any_changed_byte_is_refused(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(6, 4, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    for (size_t at = 0; at < length; at++) {
        static const char changes[] = {1, 0x20};
        for (int i = 0; i < 2; i++) {
            text[at] = (char)(text[at] ^ changes[i]);
            expect_refused(p, read, text, length, "changed", at);
            text[at] = (char)(text[at] ^ changes[i]);
        }
    }
    assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
    free(text);
    free(wisdom);
    free(read);
}

/* A 0 byte ends strings, not lines: what follows it must not go unseen. */
static void test_any_inserted_byte_is_refused(void **state) {
    place *p = *state;
    static const char bytes[] = {'\0', ' ', '0', '\n', '\r'};
    carry_wisdom *wisdom = random_wisdom(8, 2, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    char *longer = malloc(length + 1);
    assert_non_null(longer);
    for (size_t at = 0; at <= length; at++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            memcpy(longer, text, at);
            longer[at] = bytes[i];
            memcpy(longer + at + 1, text + at, length - at);
            expect_refused(p, read, longer, length + 1, "a byte more", at);
        }
    }
    free(longer);
    free(text);
    free(wisdom);
    free(read);
}

static void test_anything_after_the_end_is_refused(void **state) {
    place *p = *state;
    static const char *const tails[] = {"\n", " ", "x", "plan 1 neon key cyclic 1\n", "end 00000000\n"};
    carry_wisdom *read = wisdom_new(MACHINE);
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        size_t length;
        char *text = sealed("rate 1 neon fork 1e-6\n", &length);
        assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
        strcat(text, tails[i]);
        expect_refused(p, read, text, length + strlen(tails[i]), "continued", length);
        free(text);
    }
    free(read);
}

static void test_the_file_of_another_machine_is_told_apart(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(7, 3, 1);
    carry_wisdom *read = wisdom_new("another machine");
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    assert_refused(p->ctx, CARRY_EUNSUPPORTED, MACHINE, carry_wisdom_parse(p->ctx, read, text, length));
    assert_non_null(strstr(carry_ctx_error(p->ctx), "another machine"));
    assert_int_equal(read->plans + read->rates, 0);
    free(text);
    free(wisdom);
    free(read);
}

static carry_ctx *listening(heard *h, const char *wisdom) {
    carry_ctx *ctx = NULL;
    *h = (heard){0};
    carry_ctx_options options = {.threads = 1, .wisdom = wisdom, .log = hear, .log_user = h};
    assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_OK);
    return ctx;
}

/* Plans, and says whether it was remembered. */
static bool plan_is_remembered(carry_ctx *ctx, const carry_scan_problem *problem, const carry_scan_options *options) {
    carry_scan_plan *plan = NULL;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, problem, options));
    assert_true(strlen(carry_scan_plan_algorithm(plan)) > 0);
    assert_true(carry_scan_plan_seconds(plan) > 0.0);
    bool remembered = strstr(carry_scan_plan_about(plan), "wisdom") != NULL;
    carry_scan_plan_free(plan);
    return remembered;
}

static void test_a_damaged_file_is_a_warning_and_is_replaced(void **state) {
    place *p = *state;
    static const char *const damaged[] = {"", "garbage", "carry-wisdom 1\n",
                                          "carry-wisdom 2\nmachine x\nend 00000000\n"};
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        heard h;
        assert_ok(p->ctx, carry_file_replace(p->ctx, p->file, damaged[i], strlen(damaged[i])));
        carry_ctx *ctx = listening(&h, p->file);
        assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
        assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
        assert_int_equal(h.ignored, 1);
        assert_int_equal(h.not_kept + h.other, 0);
        carry_ctx_free(ctx);
        ctx = listening(&h, p->file);
        assert_true(plan_is_remembered(ctx, &small_diagonal, NULL));
        assert_int_equal(h.ignored + h.not_kept + h.other, 0);
        carry_ctx_free(ctx);
    }
    assert_int_equal(unlink(p->file), 0);
}

/* A path through a file, and a file whose name is too long for a second one beside it. */
static void test_a_path_that_cannot_be_read_or_written_is_a_warning(void **state) {
    place *p = *state;
    heard h;
    assert_ok(p->ctx, carry_file_replace(p->ctx, p->file, "in the way", 10));
    carry_ctx *ctx = listening(&h, p->below);
    assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
    assert_int_equal(h.not_kept, 1);
    assert_int_equal(h.ignored + h.other, 0);
    assert_true(plan_is_remembered(ctx, &small_diagonal, NULL)); /* in memory it is */
    carry_ctx_free(ctx);
    assert_int_equal(unlink(p->file), 0);
    char name[512];
    (void)snprintf(name, sizeof name, "%s/%0250d", p->folder, 1);
    ctx = listening(&h, name);
    assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
    assert_int_equal(h.not_kept, 1);
    assert_int_equal(h.other, 0);
    assert_true(plan_is_remembered(ctx, &small_diagonal, NULL)); /* in memory it is */
    carry_ctx_free(ctx);
}

static void test_measured_plans_are_remembered_across_contexts(void **state) {
    place *p = *state;
    heard h;
    carry_ctx *ctx = listening(&h, p->file);
    carry_scan_plan *plan = NULL;
    char measured[64];
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &small_dense, &by_measuring));
    assert_null(strstr(carry_scan_plan_about(plan), "wisdom"));
    (void)snprintf(measured, sizeof measured, "%s", carry_scan_plan_algorithm(plan));
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    ctx = listening(&h, p->file);
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &small_dense, NULL));
    assert_non_null(strstr(carry_scan_plan_about(plan), "wisdom"));
    assert_string_equal(carry_scan_plan_algorithm(plan), measured);
    carry_scan_plan_free(plan);
    /* Another problem, or another number of threads, is not remembered. */
    carry_scan_problem reversed = small_dense;
    reversed.reversed = true;
    assert_false(plan_is_remembered(ctx, &reversed, &by_measuring));
    carry_ctx_free(ctx);
    ctx = support_ctx(2, NULL, p->file);
    assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
    carry_ctx_free(ctx);
    assert_int_equal(h.ignored + h.not_kept + h.other, 0);
    assert_int_equal(unlink(p->file), 0);
}

static void test_rates_are_measured_once_for_all_contexts(void **state) {
    place *p = *state;
    heard h;
    char first[128];
    carry_ctx *ctx = listening(&h, p->file);
    assert_ok(ctx, carry_rates(ctx, false));
    (void)snprintf(first, sizeof first, "%s", carry_rate_line(ctx, 0));
    int lines = 0;
    while (carry_rate_line(ctx, lines) != NULL) {
        lines++;
    }
    assert_true(lines > 10);
    carry_ctx_free(ctx);
    ctx = listening(&h, p->file);
    assert_ok(ctx, carry_rates(ctx, false));
    assert_string_equal(carry_rate_line(ctx, 0), first);
    assert_null(carry_rate_line(ctx, lines));
    assert_null(carry_rate_line(ctx, -1));
    carry_ctx_free(ctx);
    assert_int_equal(unlink(p->file), 0);
}

static void test_two_contexts_keep_each_others_plans(void **state) {
    place *p = *state;
    heard h[3];
    carry_ctx *first = listening(&h[0], p->file);
    carry_ctx *second = listening(&h[1], p->file);
    assert_null(carry_wisdom_find(first, "nothing")); /* both have read the file, which is not there yet */
    assert_null(carry_wisdom_find(second, "nothing"));
    assert_false(plan_is_remembered(first, &small_diagonal, &by_measuring));
    assert_false(plan_is_remembered(second, &small_dense, &by_measuring));
    carry_ctx *third = listening(&h[2], p->file);
    assert_true(plan_is_remembered(third, &small_diagonal, NULL));
    assert_true(plan_is_remembered(third, &small_dense, NULL));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h[i].ignored + h[i].not_kept + h[i].other, 0);
    }
    carry_ctx_free(first);
    carry_ctx_free(second);
    carry_ctx_free(third);
    assert_int_equal(unlink(p->file), 0);
}

/* An algorithm that this build does not have is no reason to fail. */
static void test_a_plan_that_cannot_be_used_is_passed_over(void **state) {
    (void)state;
    heard h;
    carry_ctx *ctx = listening(&h, NULL);
    char key[CARRY_SCAN_KEY];
    carry_scan_key(key, &small_dense);
    assert_ok(ctx, carry_wisdom_remember(ctx, key, "of_the_future", 1e-9));
    assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
    assert_true(plan_is_remembered(ctx, &small_dense, NULL));
    carry_ctx_free(ctx);
}

static carry_ctx *of_threads(int threads, const char *wisdom) {
    carry_ctx *ctx = NULL;
    assert_int_equal(carry_ctx_new(&ctx, &(carry_ctx_options){.threads = threads, .wisdom = wisdom}), CARRY_OK);
    return ctx;
}

enum { STEPS = 257 };

static void scan_into(carry_ctx *ctx, carry_scan_plan *plan, float *h, float *A, float *b) {
    const size_t bytes = carry_scan_workspace(plan);
    void *workspace = malloc(bytes + 1);
    assert_non_null(workspace);
    assert_ok(ctx, carry_scan_run(plan,
                                  &(carry_scan_args){.h = carry_view_4d(h, CARRY_F32, 1, STEPS, 3, 2),
                                                     .A = carry_view_4d(A, CARRY_F32, 1, STEPS, 3, 3),
                                                     .b = carry_view_4d(b, CARRY_F32, 1, STEPS, 3, 2)},
                                  workspace, bytes));
    free(workspace);
}

/* Chunk and threads of a remembered plan are those of its runs: on one of three threads it gives the bits of the same
   plan on a context of one, and says so; afterwards the context has all of its threads. */
static void test_a_tuned_plan_has_its_chunk_and_its_threads(void **state) {
    const place *p = *state;
    const carry_scan_problem problem = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = STEPS, .n = 3, .width = 2};
    char key[CARRY_SCAN_KEY];
    float A[STEPS * 9], b[STEPS * 6], tuned[STEPS * 6], asked[STEPS * 6];
    for (int i = 0; i < STEPS * 9; i++) {
        A[i] = 0.01f * (float)(i % 31 - 15);
    }
    for (int i = 0; i < STEPS * 6; i++) {
        b[i] = 0.1f * (float)(i % 17 - 8);
        tuned[i] = asked[i] = NAN;
    }
    (void)unlink(p->file); /* of the test before */
    carry_ctx *ctx = of_threads(3, p->file);
    assert_ok(ctx, carry_wisdom_remember_tuned(ctx, carry_scan_key(key, &problem), "chunkwise", 40, 1, 1e-5));
    carry_ctx_free(ctx);
    ctx = of_threads(3, p->file);
    carry_scan_plan *plan;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &problem, NULL));
    assert_non_null(strstr(carry_scan_plan_about(plan), "chunkwise on 1 thread "));
    assert_non_null(strstr(carry_scan_plan_about(plan), "chunk 40"));
    scan_into(ctx, plan, tuned, A, b);
    assert_int_equal(carry_ctx_threads(ctx), 3);
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    ctx = of_threads(1, NULL);
    assert_ok(ctx,
              carry_scan_plan_new(ctx, &plan, &problem, &(carry_scan_options){.algorithm = "chunkwise", .chunk = 40}));
    scan_into(ctx, plan, asked, A, b);
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    assert_memory_equal(tuned, asked, sizeof tuned);
    assert_int_equal(unlink(p->file), 0);
}

static void test_the_last_plans_are_kept_when_there_are_too_many(void **state) {
    (void)state;
    heard h;
    carry_ctx *ctx = listening(&h, NULL);
    char key[32];
    for (int i = 0; i < CARRY_WISDOM_PLANS + 10; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        assert_ok(ctx, carry_wisdom_remember(ctx, key, "cyclic", 1.0 + i));
    }
    for (int i = 0; i < CARRY_WISDOM_PLANS + 10; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        const carry_wisdom_plan *found = carry_wisdom_find(ctx, key);
        if ((found != NULL) != (i >= 10) || (found != NULL && found->seconds != 1.0 + i)) {
            fail_msg("of %d plans, number %d is %s", CARRY_WISDOM_PLANS + 10, i, found != NULL ? "kept" : "forgotten");
        }
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_printed_is_read),
        cmocka_unit_test(test_every_number_that_is_read_can_be_written_and_read_again),
        cmocka_unit_test(test_lines_that_say_nothing_sensible_are_refused),
        cmocka_unit_test(test_more_than_there_is_room_for_is_refused),
        cmocka_unit_test(test_a_file_cut_off_at_any_byte_is_refused),
        cmocka_unit_test(test_any_changed_byte_is_refused),
        cmocka_unit_test(test_any_inserted_byte_is_refused),
        cmocka_unit_test(test_anything_after_the_end_is_refused),
        cmocka_unit_test(test_the_file_of_another_machine_is_told_apart),
        cmocka_unit_test(test_a_damaged_file_is_a_warning_and_is_replaced),
        cmocka_unit_test(test_a_path_that_cannot_be_read_or_written_is_a_warning),
        cmocka_unit_test(test_measured_plans_are_remembered_across_contexts),
        cmocka_unit_test(test_rates_are_measured_once_for_all_contexts),
        cmocka_unit_test(test_two_contexts_keep_each_others_plans),
        cmocka_unit_test(test_a_plan_that_cannot_be_used_is_passed_over),
        cmocka_unit_test(test_a_tuned_plan_has_its_chunk_and_its_threads),
        cmocka_unit_test(test_the_last_plans_are_kept_when_there_are_too_many),
    };
    return cmocka_run_group_tests_name("scan wisdom", tests, place_make, place_end);
}
