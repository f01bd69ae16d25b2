/* Evaluation on a GPU: losses equal those of the CPU, and bad input is refused, also if it is found a step later.
   Without a GPU all of it is reported as skipped. */
/* labels: gpu */
#include "text_model_support.h"

#include <unistd.h>

#include "carry/device.h"
#include "hybrid_support.h"
#include "engine/evaluate.h"

#define LETTERS 90
#define AT_ONCE 12 /* tokens of a call: several calls of one shape, and a shorter one */

typedef struct place {
    carry_ctx *ctx;
    char path[64];
    carry_model cpu, gpu;
} place;

/* The same weights on device 1. */
static carry_lm *on_gpu(carry_ctx *ctx, const carry_lm *from) {
    carry_lm *lm;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &from->config, 1));
    for (int64_t i = 0; i < from->own.parameters; i++) { /* their order in the buffers is not the CPU's */
        const carry_parameter *p = &from->own.parameter[i];
        assert_ok(ctx, carry_parameters_put(&lm->own, i, from->own.weights + p->offset, CARRY_F32));
    }
    return lm;
}

static int make_place(void **state) {
    static place p;
    p.ctx = support_ctx(1, NULL, NULL);
    (void)snprintf(p.path, sizeof p.path, "/tmp/carry-evaluate-XXXXXX");
    const int file = mkstemp(p.path);
    assert_true(file >= 0);
    char text[LETTERS];
    for (int i = 0; i < LETTERS; i++) {
        text[i] = "the state of\na rule "[(i * i / 3 + i / 7) % 20];
    }
    assert_int_equal(write(file, text, LETTERS), LETTERS);
    assert_int_equal(close(file), 0);
    p.cpu = byte_model(p.ctx, 257);
    p.gpu = p.cpu;
    p.gpu.lm = on_gpu(p.ctx, p.cpu.lm);
    p.gpu.device = 1;
    *state = &p;
    return 0;
}

static int leave_place(void **state) {
    place *p = *state;
    assert_int_equal(unlink(p->path), 0);
    carry_lm_free(p->gpu.lm);
    carry_model_close(&p->cpu);
    carry_ctx_free(p->ctx);
    return 0;
}

static carry_evaluation evaluate(const place *p, const carry_model *m, carry_evaluate_options options) {
    carry_evaluation got;
    options.at_once = AT_ONCE;
    assert_ok(p->ctx, carry_evaluate(p->ctx, m, p->path, &options, &got));
    assert_int_equal(got.tokens, LETTERS - 1);
    assert_int_equal(got.bytes, LETTERS - 1);
    return got;
}

/* Sums of some hundred losses with roundings of 1e-7 each; bf16 has 8 bits. */
static void losses_are_those_of_the_cpu(void **state) {
    const place *p = *state;
    static const struct {
        carry_dtype dtype;
        int64_t length;
        double apart;
    } cases[] = {{CARRY_F32, 0, 1e-5}, {CARRY_F32, 4, 1e-5}, {CARRY_BF16, 0, 2e-2}, {CARRY_BF16, 5, 2e-2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const carry_evaluate_options wide = {.length = cases[i].length};
        const carry_evaluate_options options = {.length = cases[i].length, .dtype = cases[i].dtype};
        const carry_evaluation cpu = evaluate(p, &p->cpu, wide);
        const carry_evaluation gpu = evaluate(p, &p->gpu, options);
        assert_true(fabs(gpu.nll - cpu.nll) <= cases[i].apart * cpu.nll);
    }
}

/* Five files of different lengths in steps of 12 tokens, by a model with attention: their pages differ. */
static void texts_at_once_have_the_losses_of_the_cpu(void **state) {
    const place *p = *state;
    char folder[] = "/tmp/carry-evaluate-XXXXXX";
    char path[64];
    carry_lm_config config = hybrid(0);
    carry_model cpu = p->cpu;
    carry_model gpu = p->gpu;
    carry_evaluation wanted;
    carry_evaluation got;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/%d", folder, i);
        FILE *to = fopen(path, "wb");
        assert_non_null(to);
        for (int j = 0; j < 10 + 30 * ((3 * i) % 5); j++) {
            assert_true(fputc("the state of\na rule "[(j * j / 3 + i) % 20], to) != EOF);
        }
        assert_int_equal(fclose(to), 0);
    }
    config.vocab_size = 257;
    cpu.lm = model(p->ctx, config);
    gpu.lm = on_gpu(p->ctx, cpu.lm);
    const carry_evaluate_options options = {.at_once = AT_ONCE};
    assert_ok(p->ctx, carry_evaluate(p->ctx, &cpu, folder, &options, &wanted));
    assert_ok(p->ctx, carry_evaluate(p->ctx, &gpu, folder, &options, &got));
    assert_true(got.files == 5 && got.tokens == 345 && got.bytes == 345);
    assert_true(fabs(got.nll - wanted.nll) <= 1e-5 * wanted.nll);
    carry_lm_free(gpu.lm);
    carry_lm_free(cpu.lm);
    for (int i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static int calls_left;

static bool stop_later(void *user, int64_t done, int64_t total) {
    (void)user;
    assert_true(done <= total);
    return calls_left-- > 0;
}

static void what_cannot_be_evaluated_is_refused(void **state) {
    place *p = *state;
    carry_evaluation got;
    carry_evaluate_options options = {.at_once = AT_ONCE, .progress = stop_later};
    calls_left = 2;
    assert_refused(p->ctx, CARRY_EINTERRUPTED, "36", carry_evaluate(p->ctx, &p->gpu, p->path, &options, &got));
    assert_true(got.tokens == 36 && got.nll > 0.0); /* three calls were counted, a fourth may have begun */
    const carry_parameters *own = &p->gpu.lm->own;
    const int64_t at = own->parameter[p->gpu.lm->norm].offset;
    float was;
    const float bad = NAN;
    assert_ok(p->ctx, carry_parameters_download(own, &was, own->weights, at, 1));
    assert_ok(p->ctx, carry_parameters_upload(own, own->weights, at, &bad, 1));
    options.progress = NULL;
    assert_refused(p->ctx, CARRY_ERANGE, "tokens 0 to 11", carry_evaluate(p->ctx, &p->gpu, p->path, &options, &got));
    assert_ok(p->ctx, carry_parameters_upload(own, own->weights, at, &was, 1));
    (void)evaluate(p, &p->gpu, (carry_evaluate_options){0}); /* and all is well again */
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_evaluated_is_refused), /* in f32: runs before the model's weights are 16-bit */
        cmocka_unit_test(losses_are_those_of_the_cpu),
        cmocka_unit_test(texts_at_once_have_the_losses_of_the_cpu),
    };
    return cmocka_run_group_tests_name("train/evaluate_gpu", tests, make_place, leave_place);
}
