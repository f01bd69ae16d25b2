/* Golden folders of video transformers: those made elsewhere, if they are beside the checkout, and those made here from
   the float64 reference, with a batch, a wrong number, and files that do not fit. */
#include "dit_support.h"

#include <unistd.h>

#include "bench/golden/golden.h"
#include "file/safetensors.h"

enum { BATCH = 2, FRAMES = 2, HEIGHT = 4, WIDTH = 6, COUNT = 16 * FRAMES * HEIGHT * WIDTH, TEXT = 3 };

static carry_ctx *ctx;
static char folder[64];
static float *latents, *text, velocity[BATCH * COUNT], t[BATCH] = {700.0f, 12.5f};
static int64_t whole_t[BATCH] = {700, 12};

static const char *in_folder(const char *name) {
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A model and the velocities of two videos. */
static int make_case(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    ctx = support_ctx(1, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-golden-XXXXXX");
    assert_non_null(mkdtemp(folder));
    carry_dit *dit = small_dit(ctx, &c);
    assert_ok(ctx, carry_dit_save(dit, folder, CARRY_F32));
    latents = random_floats(ctx, BATCH * COUNT, 1);
    text = random_floats(ctx, BATCH * TEXT * c.text_dim, 2);
    for (int b = 0; b < BATCH; b++) {
        const int64_t start[FRAMES] = {0}, end[FRAMES] = {FRAMES, FRAMES};
        const double times[FRAMES] = {(double)t[b], (double)t[b]};
        const reference_video video = {.latents = latents + b * COUNT,
                                       .text = text + b * TEXT * c.text_dim,
                                       .text_rows = TEXT,
                                       .frames = FRAMES,
                                       .height = HEIGHT,
                                       .width = WIDTH,
                                       .start = start,
                                       .end = end,
                                       .t = times,
                                       .window = FRAMES};
        double *wanted = reference_velocity(dit, &video);
        for (int i = 0; i < COUNT; i++) {
            velocity[b * COUNT + i] = (float)wanted[i];
        }
        free(wanted);
    }
    carry_dit_free(dit);
    return 0;
}

static int remove_case(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "expected.safetensors"};
    for (int i = 0; i < 3; i++) {
        (void)unlink(in_folder(names[i]));
    }
    assert_int_equal(rmdir(folder), 0);
    free(latents);
    free(text);
    carry_ctx_free(ctx);
    return 0;
}

typedef struct seen {
    int lines;
    double error;
} seen;

static void note(void *user, const carry_golden_line *line) {
    seen *s = user;
    s->lines++;
    s->error = line->error;
    assert_string_equal(line->tensor, "velocity");
    assert_true(line->bound == 1e-5);
}

/* Writes the case with a batch of `batch` videos; `bare` omits the batch dimension, which must be 1. Tensor `left_out`
   is missing. */
static carry_status golden(seen *s, int64_t batch, bool bare, int left_out) {
    const int64_t videos[] = {batch, 16, FRAMES, HEIGHT, WIDTH}, texts[] = {batch, TEXT, 7};
    carry_safetensors_item items[] = {
        {"latents", carry_view(latents, CARRY_F32, bare ? 4 : 5, videos + bare), CARRY_F32},
        {"context", carry_view(text, CARRY_F32, bare ? 2 : 3, texts + bare), CARRY_F32},
        {"velocity", carry_view(velocity, CARRY_F32, bare ? 4 : 5, videos + bare), CARRY_F32},
        {"t", carry_view_1d(t, CARRY_F32, batch), CARRY_F32}};
    if (left_out >= 0) {
        items[left_out] = items[3];
        items[left_out].name = "other";
    }
    memset(s, 0, sizeof *s);
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("expected.safetensors"), items, 4, NULL));
    return carry_golden(ctx, folder, 0, note, s);
}

static void test_batches_are_checked_and_a_wrong_number_shows(void **state) {
    (void)state;
    seen s;
    assert_ok(ctx, golden(&s, BATCH, false, -1));
    assert_true(s.lines == 1 && s.error <= 1e-6);
    assert_ok(ctx, golden(&s, 1, true, -1));
    assert_true(s.lines == 1 && s.error <= 1e-6);
    velocity[COUNT + 5] += 0.1f;
    assert_ok(ctx, golden(&s, 1, false, -1));
    assert_true(s.error <= 1e-6);
    assert_ok(ctx, golden(&s, BATCH, false, -1));
    assert_true(s.error > 1e-5);
    velocity[COUNT + 5] -= 0.1f;
}

static void test_times_may_be_whole_numbers(void **state) {
    (void)state;
    const carry_safetensors_item items[] = {
        {"latents", carry_view_4d(latents, CARRY_F32, 16, FRAMES, HEIGHT, WIDTH), CARRY_F32},
        {"context", carry_view_2d(text, CARRY_F32, TEXT, 7), CARRY_F32},
        {"velocity", carry_view_4d(velocity, CARRY_F32, 16, FRAMES, HEIGHT, WIDTH), CARRY_F32},
        {"t", carry_view_1d(whole_t, CARRY_I64, 1), CARRY_I64}};
    seen s = {0};
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("expected.safetensors"), items, 4, NULL));
    assert_ok(ctx, carry_golden(ctx, folder, 0, note, &s));
    assert_true(s.lines == 1 && s.error <= 1e-6);
}

static void test_cases_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"latents", "context", "velocity"};
    seen s;
    for (int i = 0; i < 3; i++) {
        assert_refused(ctx, CARRY_EFORMAT, names[i], golden(&s, BATCH, false, i));
        assert_int_equal(s.lines, 0);
    }
    const carry_safetensors_item odd[] = {
        {"latents", carry_view_4d(latents, CARRY_F32, 16, FRAMES, 3, WIDTH), CARRY_F32},
        {"context", carry_view_2d(text, CARRY_F32, TEXT, 7), CARRY_F32},
        {"velocity", carry_view_4d(velocity, CARRY_F32, 16, FRAMES, 3, WIDTH), CARRY_F32},
        {"t", carry_view_1d(t, CARRY_F32, 1), CARRY_F32}};
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("expected.safetensors"), odd, 4, NULL));
    assert_refused(ctx, CARRY_ESIZE, "2 x 6 is the nearest", carry_golden(ctx, folder, 0, note, &s));
    assert_int_equal(unlink(in_folder("expected.safetensors")), 0);
    assert_int_not_equal(carry_golden(ctx, folder, 0, note, &s), CARRY_OK);
}

static void test_vectors_made_elsewhere(void **state) {
    (void)state;
    char vectors[512];
    seen s = {0};
    assert_true(support_vectors(vectors, sizeof vectors, "dit"));
    assert_ok(ctx, carry_golden(ctx, vectors, 0, note, &s));
    assert_true(s.lines == 1 && s.error <= 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_checked_and_a_wrong_number_shows),
        cmocka_unit_test(test_times_may_be_whole_numbers),
        cmocka_unit_test(test_cases_that_do_not_fit_are_refused),
        cmocka_unit_test(test_vectors_made_elsewhere),
    };
    return cmocka_run_group_tests(tests, make_case, remove_case);
}
