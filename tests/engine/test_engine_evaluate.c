/* Evaluation equals one pass over the whole text, or one over each window; the folder of a model is found, or
   refused. */
#include "text_model_support.h"

#include "hybrid_support.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/evaluate.h"
#include "engine/model_runner.h"
#include "ops/product/bf16.h"

typedef struct place {
    carry_ctx *ctx;
    char folder[64];
} place;

static void path_in(const place *p, char path[256], const char *name) {
    (void)snprintf(path, 256, "%s/%s", p->folder, name);
}

static int make_place(void **state) {
    static place p;
    p.ctx = support_ctx(2, NULL, NULL);
    (void)snprintf(p.folder, sizeof p.folder, "/tmp/carry-evaluate-XXXXXX");
    assert_non_null(mkdtemp(p.folder));
    *state = &p;
    return 0;
}

static int leave_place(void **state) {
    const place *p = *state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", p->folder);
    assert_int_equal(system(command), 0);
    carry_ctx_free(p->ctx);
    return 0;
}

/* Writes a file of `length` letters with some structure. */
static char *write_text(const place *p, char path[256], const char *name, size_t length) {
    path_in(p, path, name);
    char *text = malloc(length + 1);
    FILE *to = fopen(path, "wb");
    assert_true(text != NULL && to != NULL);
    for (size_t i = 0; i < length; i++) {
        text[i] = "the state of\na rule "[(i * i / 3 + i / 7) % 20];
    }
    text[length] = '\0';
    assert_int_equal(fwrite(text, 1, length, to), length);
    assert_int_equal(fclose(to), 0);
    return text;
}

/* The sum of losses of ids[1..count-1], all in one pass. */
static double loss_of(carry_ctx *ctx, carry_lm *lm, int64_t *ids, int64_t count) {
    double loss = 0.0;
    int64_t counted = 0;
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, count - 1),
                                .labels = carry_view_2d(ids + 1, CARRY_I64, 1, count - 1),
                                .loss = &loss,
                                .counted = &counted};
    assert_ok(ctx,
              run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = count - 1, .forward_only = true}, &args));
    assert_int_equal(counted, count - 1);
    return loss;
}

/* The loss by windows of `length` inputs; 0: one window. */
static double loss_by_windows(carry_ctx *ctx, carry_lm *lm, int64_t *ids, int64_t count, int64_t length) {
    double loss = 0.0;
    length = length > 0 ? length : count;
    for (int64_t at = 0; at + 1 < count; at += length) {
        int64_t some = count - 1 - at < length ? count - 1 - at : length;
        loss += loss_of(ctx, lm, ids + at, some + 1);
    }
    return loss;
}

/* Sums of thousands of losses with 6e-8 of rounding each, over chunks that are split elsewhere: 1e-5 is enough. */
static void evaluation_is_that_of_one_pass(void **state) {
    const place *p = *state;
    static const size_t sizes[] = {2, 17, 1023, 1024, 1025, 2600};
    static const int64_t lengths[] = {0, 1, 7, 100, 1500, 4000};
    for (int turn = 0; turn < 3; turn++) { /* counted as Hugging Face does; and from a start token, if there is one */
        const int64_t vocabulary = turn == 1 ? 256 : 257;
        const bool from_start = turn > 0;
        carry_model m = byte_model(p->ctx, vocabulary);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char path[256];
            char *text = write_text(p, path, "text", sizes[i]);
            int64_t *ids = malloc((sizes[i] + 1) * sizeof *ids);
            assert_non_null(ids);
            int64_t count = 0;
            if (vocabulary == 257 && from_start) {
                ids[count++] = 256;
            }
            for (size_t j = 0; j < sizes[i]; j++) {
                ids[count++] = (unsigned char)text[j];
            }
            for (size_t j = (size_t)support_cases(0, ((int)i + 4 * turn + 5) % 6);
                 j < sizeof lengths / sizeof lengths[0];
                 j += (size_t)support_cases(1, 6)) { /* few: 3 lengths of each size, among them 1500 of 2600 */
                carry_evaluation got;
                const carry_evaluate_options options = {.length = lengths[j], .from_start = from_start};
                assert_ok(p->ctx, carry_evaluate(p->ctx, &m, path, &options, &got));
                double wanted = loss_by_windows(p->ctx, m.lm, ids, count, lengths[j]);
                assert_int_equal(got.tokens, count - 1);
                assert_int_equal(got.bytes, count - 1);
                assert_true(got.files == 1 && got.words == 0);
                assert_true(fabs(got.nll - wanted) <= 1e-5 * wanted);
                assert_true(fabs(carry_evaluation_bits_per_byte(&got) - got.nll / log(2.0) / (double)got.bytes) < 1e-9);
            }
            free(ids);
            free(text);
        }
        carry_model_close(&m);
    }
}

/* bf16 has 8 bits. The loss, a mean over hundreds of tokens, is close to that of f32 but not equal. */
static void narrow_types_have_nearly_the_same_loss(void **state) {
    const place *p = *state;
    carry_model m = byte_model(p->ctx, 257);
    char path[256];
    free(write_text(p, path, "narrow", 1700));
    carry_evaluation wide;
    carry_evaluation narrow;
    assert_ok(p->ctx, carry_evaluate(p->ctx, &m, path, &(carry_evaluate_options){.dtype = CARRY_F32}, &wide));
    assert_ok(p->ctx, carry_evaluate(p->ctx, &m, path, &(carry_evaluate_options){.dtype = CARRY_BF16}, &narrow));
    assert_int_equal(wide.tokens, narrow.tokens);
    assert_true(fabs(wide.nll - narrow.nll) < 1e-2 * wide.nll);
    assert_true(wide.nll != narrow.nll);
    carry_model_close(&m);
}

/* Each file is evaluated separately. WikiText's words are counted if all files are of that kind. */
static void a_folder_is_the_sum_of_its_files(void **state) {
    const place *p = *state;
    carry_model m = byte_model(p->ctx, 257);
    const carry_evaluate_options options = {.from_start = true};
    carry_evaluation one[2];
    carry_evaluation both;
    char path[256];
    char folder[256];
    path_in(p, folder, "both");
    assert_int_equal(mkdir(folder, 0700), 0);
    static const char *const names[] = {"both/wiki.a.tokens", "both/wiki.b.tokens"};
    for (int i = 0; i < 2; i++) {
        free(write_text(p, path, names[i], 1300 + 100 * (size_t)i));
        assert_ok(p->ctx, carry_evaluate(p->ctx, &m, path, &options, &one[i]));
        assert_true(one[i].words > 100);
    }
    assert_ok(p->ctx, carry_evaluate(p->ctx, &m, folder, &options, &both));
    assert_true(both.files == 2 && both.tokens == 2700 && both.words == one[0].words + one[1].words);
    assert_true(fabs(both.nll - one[0].nll - one[1].nll) <= 1e-9 * both.nll);
    carry_model_close(&m);
}

/* More files than are read at once, two of them without a token to predict; the model has attention. */
static void texts_at_once_have_the_losses_of_texts_alone(void **state) {
    const place *p = *state;
    static const int64_t lengths[] = {0, 7, 300};
    carry_model m = byte_model(p->ctx, 257);
    carry_lm_config config = hybrid(0);
    char folder[256];
    char path[256];
    config.vocab_size = 257;
    carry_lm_free(m.lm);
    m.lm = model(p->ctx, config);
    path_in(p, folder, "many");
    assert_int_equal(mkdir(folder, 0700), 0);
    const int files = support_cases(20, 10);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        double nll = 0.0;
        int64_t tokens = 0;
        carry_evaluation got;
        const carry_evaluate_options options = {.length = lengths[i], .at_once = 200};
        for (int j = 0; j < files; j++) {
            char name[32];
            (void)snprintf(name, sizeof name, "many/%02d", j);
            free(write_text(p, path, name, j % 9 == 4 ? 1 : (size_t)(17 + 59 * ((7 * j) % 20))));
            assert_ok(p->ctx, carry_evaluate(p->ctx, &m, path, &options, &got));
            assert_int_equal(got.files, 1);
            nll += got.nll;
            tokens += got.tokens;
        }
        assert_ok(p->ctx, carry_evaluate(p->ctx, &m, folder, &options, &got));
        assert_true(got.files == files && got.tokens == tokens && got.bytes == tokens);
        assert_true(fabs(got.nll - nll) <= 1e-5 * nll);
    }
    carry_model_close(&m);
}

static void runs_that_cannot_be_scored_are_refused(void **state) {
    const place *p = *state;
    static const int32_t ids[] = {1, 2, 3};
    static const int32_t targets[] = {2, -1, 4};
    static const int32_t beyond[] = {2, 257, 4};
    const carry_runner_sizes sizes = {.slots = 2, .sequences = 2, .tokens = 8, .context = 16};
    carry_model m = byte_model(p->ctx, 257);
    carry_runner *r;
    double losses[2];
    carry_run run = {.ids = ids, .count = 3, .targets = targets};
    assert_ok(p->ctx,
              carry_model_runner_new_with(m.lm, &r, &sizes, CARRY_F32, &(carry_model_runner_options){.scores = true}));
    assert_refused(p->ctx, CARRY_EARGUMENT, "scores of 1 runs", r->ops->scores(r, losses, 1));
    assert_ok(p->ctx, r->ops->step(r, &run, 1));
    assert_refused(p->ctx, CARRY_EARGUMENT, "scores of 2 runs", r->ops->scores(r, losses, 2));
    assert_ok(p->ctx, r->ops->scores(r, losses, 1));
    assert_true(losses[0] > 0.0);
    run.targets = beyond;
    assert_refused(p->ctx, CARRY_ERANGE, "target 1: id 257, expected 0 to 256", r->ops->step(r, &run, 1));
    run.targets = NULL;
    assert_refused(p->ctx, CARRY_EARGUMENT, "needs ids and targets", r->ops->step(r, &run, 1));
    r->ops->close(r);
    assert_ok(p->ctx, carry_model_runner_new(m.lm, &r, &sizes, CARRY_F32));
    run.targets = targets;
    assert_refused(p->ctx, CARRY_EARGUMENT, "a runner that scores", r->ops->step(r, &run, 1));
    r->ops->close(r);
    carry_model_close(&m);
}

static bool stop_at_once(void *user, int64_t done, int64_t total) {
    (void)user;
    assert_true(done <= total);
    return false;
}

static void what_cannot_be_evaluated_is_refused(void **state) {
    const place *p = *state;
    carry_model m = byte_model(p->ctx, 257);
    carry_evaluation got;
    char path[256];
    carry_evaluate_options options = {.length = -1};
    free(write_text(p, path, "refused", 5000));
    assert_refused(p->ctx, CARRY_ESIZE, "-1", carry_evaluate(p->ctx, &m, path, &options, &got));
    options = (carry_evaluate_options){.progress = stop_at_once};
    assert_refused(p->ctx, CARRY_EINTERRUPTED, "1024", carry_evaluate(p->ctx, &m, path, &options, &got));
    assert_true(got.tokens == 1024 && got.nll > 0.0);
    options = (carry_evaluate_options){0};
    m.lm->own.weights[m.lm->own.parameter[m.lm->norm].offset] = NAN;
    assert_refused(p->ctx, CARRY_ERANGE, "not finite", carry_evaluate(p->ctx, &m, path, &options, &got));
    carry_model_close(&m);
    assert_refused(p->ctx, CARRY_ENOTFOUND, "gone", carry_evaluate(p->ctx, &m, "gone", &options, &got));
}

static void save_model(const place *p, const char *name, int64_t vocabulary, char path[256]) {
    carry_lm *lm = model(p->ctx, byte_config(vocabulary));
    path_in(p, path, name);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    assert_ok(p->ctx, carry_lm_save(lm, path, CARRY_F32));
    carry_lm_free(lm);
}

static void the_newest_whole_step_is_taken(void **state) {
    const place *p = *state;
    char run[256];
    char path[256];
    carry_model m;
    path_in(p, run, "run");
    assert_int_equal(mkdir(run, 0700), 0);
    assert_refused(p->ctx, CARRY_ENOTFOUND, "step-N", carry_model_open(p->ctx, &m, run, 0));
    save_model(p, "run/step-9", 257, path);
    save_model(p, "run/step-100", 257, path);
    save_model(p, "run/step-20x", 257, path);
    assert_ok(p->ctx, carry_model_open(p->ctx, &m, run, 0));
    assert_string_equal(strrchr(m.folder, '/'), "/step-100");
    assert_true(m.end == 256 && m.start == 256 && m.other_end == -1);
    carry_model_close(&m);
    path_in(p, path, "run/step-100/model.safetensors");
    assert_int_equal(truncate(path, 5000), 0);
    assert_ok(p->ctx, carry_model_open(p->ctx, &m, run, 0));
    assert_string_equal(strrchr(m.folder, '/'), "/step-9");
    carry_model_close(&m);
    path_in(p, path, "run/step-9/model.safetensors");
    assert_int_equal(unlink(path), 0);
    carry_status status = carry_model_open(p->ctx, &m, run, 0);
    assert_true(status != CARRY_OK && strstr(carry_ctx_error(p->ctx), "no complete step") != NULL);
    assert_true(m.lm == NULL && m.tokenizer == NULL);
}

static void the_type_is_that_of_weights_with_fast_products(void **state) {
    const place *p = *state;
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    for (size_t i = 0; i < 3; i++) {
        char why[CARRY_MODEL_WHY];
        char path[256];
        carry_model m;
        carry_lm *lm = model(p->ctx, byte_config(257));
        path_in(p, path, "typed");
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        assert_ok(p->ctx, carry_lm_save(lm, path, types[i]));
        carry_lm_free(lm);
        assert_ok(p->ctx, carry_model_open(p->ctx, &m, path, 0));
        const carry_dtype chosen = carry_model_dtype(p->ctx, &m, why);
        assert_int_equal(chosen, types[i] == CARRY_BF16 && carry_bf16_of(p->ctx) != NULL ? CARRY_BF16 : CARRY_F32);
        assert_non_null(strstr(why, carry_dtype_name(types[i])));
        carry_model_close(&m);
    }
}

static void a_tokenizer_must_belong_to_its_model(void **state) {
    const place *p = *state;
    char folder[256];
    carry_model m;
    carry_tokenizer *tokenizer;
    static const char *const added[] = {"<|a|>", "<|b|>", CARRY_END_OF_TEXT};
    static const struct {
        int64_t vocabulary;
        int added; /* -1: no tokenizer.json */
        const char *refusal;
    } cases[] = {{256, -1, NULL}, {257, -1, NULL}, {384, -1, NULL}, {255, -1, "255"}, {385, -1, "385"}, {259, 3, NULL},
                 {320, 3, NULL},  {384, 3, NULL},  {258, 3, "259"}, {385, 3, NULL},   {256, 0, NULL},   {257, 0, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "pair-%d", (int)i);
        save_model(p, name, cases[i].vocabulary, folder);
        if (cases[i].added >= 0) {
            char path[256];
            path_in(p, path, name);
            (void)strcat(path, "/tokenizer.json");
            assert_ok(p->ctx, carry_tokenizer_bytes(p->ctx, &tokenizer, added, cases[i].added));
            assert_ok(p->ctx, carry_tokenizer_save(p->ctx, tokenizer, path));
            carry_tokenizer_close(tokenizer);
        }
        carry_status status = carry_model_open(p->ctx, &m, folder, 0);
        if (cases[i].refusal == NULL) {
            assert_ok(p->ctx, status);
            assert_int_equal(m.end, cases[i].added == 3                                 ? 258
                                    : cases[i].added == 0 || cases[i].vocabulary == 256 ? -1
                                                                                        : 256);
            carry_model_close(&m);
        } else {
            assert_true(status != CARRY_OK && strstr(carry_ctx_error(p->ctx), cases[i].refusal) != NULL);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_is_that_of_one_pass),
        cmocka_unit_test(narrow_types_have_nearly_the_same_loss),
        cmocka_unit_test(a_folder_is_the_sum_of_its_files),
        cmocka_unit_test(texts_at_once_have_the_losses_of_texts_alone),
        cmocka_unit_test(runs_that_cannot_be_scored_are_refused),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused),
        cmocka_unit_test(the_type_is_that_of_weights_with_fast_products),
        cmocka_unit_test(the_newest_whole_step_is_taken),
        cmocka_unit_test(a_tokenizer_must_belong_to_its_model),
    };
    return cmocka_run_group_tests_name("train/evaluate", tests, make_place, leave_place);
}
