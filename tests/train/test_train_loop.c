/* Training: it learns, ranks and parts agree, and a resumed run equals one that was not stopped. */
#include "train_support.h"

#include "model/lm/families/fla.h"
#include "train/optimizer.h"
#include "train/schedule.h"

static void test_schedules_have_the_values_of_their_formula(void **state) {
    (void)state;
    carry_schedule s = {.kind = CARRY_SCHEDULE_COSINE, .rate = 2.0, .final = 0.1, .warmup = 10, .steps = 110};
    assert_near(carry_schedule_rate(&s, 1), 0.2, 1e-15);
    assert_near(carry_schedule_rate(&s, 10), 2.0, 1e-15);
    assert_near(carry_schedule_rate(&s, 60), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
    assert_near(carry_schedule_rate(&s, 110), 0.2, 1e-15);
    assert_near(carry_schedule_rate(&s, 500), 0.2, 1e-15);
    s.kind = CARRY_SCHEDULE_LINEAR;
    assert_near(carry_schedule_rate(&s, 35), 2.0 * (0.1 + 0.9 * 0.75), 1e-12);
    assert_near(carry_schedule_rate(&s, 110), 0.2, 1e-15);
    s.kind = CARRY_SCHEDULE_CONSTANT;
    assert_near(carry_schedule_rate(&s, 5), 1.0, 1e-15);
    assert_near(carry_schedule_rate(&s, 110), 2.0, 1e-15);
    s = (carry_schedule){.kind = CARRY_SCHEDULE_COSINE, .rate = 1.0, .final = 0.0, .warmup = 0, .steps = 1};
    assert_near(carry_schedule_rate(&s, 1), 0.0, 1e-15);
}

static void test_the_loss_falls_on_the_copying_task(void **state) {
    char out[256];
    told t;
    carry_train_options o = tiny(below(out, state, "falls"));
    o.length = 8;
    o.hidden = 32;
    o.head_dim = 16;
    o.batch = 16;
    o.steps = support_cases(60, 10);
    o.rate = 0.01;
    o.eval_every = o.steps;
    train_ok(1, &o, false, &t);
    /* ln 5 = 1.61 is chance, one in five right; 60 steps end at about half of it, also on rows that were not trained
       on. */
    const bool whole = o.steps == 60;
    assert_true(t.loss[1] > 1.6 && t.loss[o.steps] < (whole ? 1.1 : t.loss[1]));
    assert_true(t.evaluation < (whole ? 1.1 : t.loss[1]));
    assert_true(t.accuracy > (whole ? 0.5 : 0.0) && t.accuracy <= 1.0);
}

/* Sums in another order: each of some 1e4 sums of f32 is off by about 1e-7 of itself, and because Adam divides by the
   root of v, a step's direction depends on that where a gradient is nearly 0. Over 12 steps losses of about 1.6 stay
   within 2e-4 of each other; a rank that is left out or counted twice changes them by more than 1e-2. */
static void agree(const told *a, const told *b) {
    for (int i = 1; i <= 12; i++) {
        assert_near(a->loss[i], b->loss[i], 2e-4);
        assert_near(a->norm[i], b->norm[i], 2e-3 * a->norm[i] + 1e-4);
    }
}

static void test_ranks_of_every_kind_agree_with_one(void **state) {
    static const struct {
        int ranks, parts, accumulate;
    } grids[] = {{2, 1, 1}, {4, 1, 2}, {2, 2, 1}, {4, 4, 1}, {4, 2, 2}, {1, 1, 4}, {1, 1, 8}};
    char out[256];
    told one;
    told many;
    carry_train_options o = tiny(below(out, state, "one"));
    o.eval_every = 12;
    train_ok(1, &o, false, &one);
    /* few: two that accumulate, the second of them with sequences on two ranks */
    for (size_t i = (size_t)support_cases(0, 1); i < sizeof grids / sizeof grids[0]; i += (size_t)support_cases(1, 3)) {
        char name[32];
        (void)snprintf(name, sizeof name, "many-%zu", i);
        (void)below(o.out, state, name);
        o.sequence_ranks = grids[i].parts;
        o.accumulate = grids[i].accumulate;
        train_ok(grids[i].ranks, &o, false, &many);
        agree(&one, &many);
        assert_near(one.evaluation, many.evaluation, 2e-4);
        assert_near(one.accuracy, many.accuracy, 0.02);
    }
}

static void test_the_same_ranks_give_the_same_bits(void **state) {
    char a[256];
    char b[256];
    told t;
    carry_train_options o = tiny(below(a, state, "bits-a"));
    o.sequence_ranks = 2;
    train_ok(4, &o, false, &t);
    (void)below(o.out, state, "bits-b");
    train_ok(4, &o, false, &t);
    (void)below(a, state, "bits-a/latest");
    (void)below(b, state, "bits-b/latest");
    assert_true(same_file(a, b, "model.safetensors"));
    assert_true(same_file(a, b, "optimizer.safetensors"));
}

static _Atomic int steps_allowed;

static bool stop_later(void) {
    return --steps_allowed < 0;
}

static void resume_on(void **state, int ranks, int parts) {
    char a[256];
    char b[256];
    char name[32];
    told whole;
    told part;
    told rest;
    (void)snprintf(name, sizeof name, "whole-%d-%d", ranks, parts);
    carry_train_options o = tiny(below(a, state, name));
    o.sequence_ranks = parts;
    train_ok(ranks, &o, false, &whole);
    (void)snprintf(name, sizeof name, "parts-%d-%d", ranks, parts);
    (void)below(o.out, state, name);
    steps_allowed = 6 * ranks; /* every rank asks, once a step */
    assert_int_equal(train_on(ranks, &o, false, stop_later, &part), CARRY_EINTERRUPTED);
    assert_non_null(strstr(part.error, "--resume"));
    assert_in_range(part.last, 5, 8);
    train_ok(ranks, &o, true, &rest);
    for (int64_t i = part.last + 1; i <= 12; i++) {
        assert_true(rest.loss[i] == whole.loss[i] && rest.norm[i] == whole.norm[i]);
    }
    (void)snprintf(name, sizeof name, "whole-%d-%d/latest", ranks, parts);
    (void)below(a, state, name);
    (void)snprintf(name, sizeof name, "parts-%d-%d/latest", ranks, parts);
    (void)below(b, state, name);
    assert_true(same_file(a, b, "model.safetensors"));
    assert_true(same_file(a, b, "optimizer.safetensors"));
}

static void test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(void **state) {
    resume_on(state, 1, 1);
}

static void test_a_resumed_run_on_ranks_has_the_same_bits(void **state) {
    resume_on(state, 2, 1);
}

static void test_a_run_is_resumed_on_another_number_of_ranks(void **state) {
    char out[256];
    told whole;
    told part;
    told rest;
    carry_train_options o = tiny(below(out, state, "others-whole"));
    train_ok(1, &o, false, &whole);
    (void)below(o.out, state, "others");
    steps_allowed = 4;
    assert_int_equal(train_on(1, &o, false, stop_later, &part), CARRY_EINTERRUPTED);
    train_ok(4, &o, true, &rest);
    for (int64_t i = part.last + 1; i <= 12; i++) {
        assert_near(rest.loss[i], whole.loss[i], 2e-4); /* as in agree */
    }
}

/* At most 1/1000 of the norm reaches AdamW's m: with clipping, m after the first step is (1 - b1) g clip / norm. */
static void test_gradients_are_clipped_to_their_norm(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_comm *comm;
    carry_lm_config config = carry_lm_config_default(&carry_lm_family_gated_deltanet);
    config.vocab_size = 7;
    config.hidden_size = 16;
    config.num_hidden_layers = 1;
    config.delta.heads = 2;
    carry_lm_fla_of(&config)->head_dim = 8;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    carry_lm *lm;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &config, 0));
    assert_ok(ctx, carry_lm_init(lm, 3));
    assert_ok(ctx, carry_lm_want_gradients(lm));
    carry_optimizer *optimizer;
    const carry_optimizer_options options = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = 0.5, .clip = 0.25};
    assert_ok(ctx, carry_optimizer_new(ctx, &optimizer, &lm->own, comm, &options));
    double squares = 0.0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        for (int64_t j = 0; j < lm->own.parameter[i].count; j++) {
            float g = (float)((i + 3 * j) % 11) - 5.0f;
            lm->own.gradients[lm->own.parameter[i].offset + j] = g;
            squares += (double)g * (double)g;
        }
    }
    double got;
    assert_ok(ctx, carry_optimizer_collect(optimizer, carry_view_1d(&got, CARRY_F64, 1)));
    assert_near(got, squares, 1e-9 * squares); /* whole numbers: only the order of f64 sums differs */
    const double norm = sqrt(squares);
    const carry_lm_parameter *p = carry_parameters_find(&lm->own, "model.layers.0.mlp.up_proj.weight");
    const carry_lm_parameter *n = carry_parameters_find(&lm->own, "model.layers.0.attn.dt_bias");
    const float before = lm->own.weights[p->offset];
    const float norm_before = lm->own.weights[n->offset + 1];
    const float g = lm->own.gradients[p->offset];
    const float norm_g = lm->own.gradients[n->offset + 1];
    assert_ok(ctx, carry_optimizer_set(optimizer, 1, 1e-3));
    assert_ok(ctx, carry_optimizer_step(optimizer, carry_view_1d(&got, CARRY_F64, 1)));
    assert_near(((const float *)optimizer->m.data)[p->offset], 0.1 * (double)g * 0.25 / norm,
                1e-6 * fabs((double)g) / norm);
    /* At the first step Adam's direction is g / |g|; parameters in the list also decay, dt_bias does not. */
    const double direction = g > 0.0f ? 1.0 : g < 0.0f ? -1.0 : 0.0;
    assert_near(lm->own.weights[p->offset], (double)before - 1e-3 * (direction + 0.5 * (double)before), 2e-6);
    const double norm_direction = norm_g > 0.0f ? 1.0 : norm_g < 0.0f ? -1.0 : 0.0;
    assert_near(lm->own.weights[n->offset + 1], (double)norm_before - 1e-3 * norm_direction, 2e-6);
    carry_optimizer_free(optimizer);
    carry_lm_free(lm);
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

static void test_slices_cover_the_parameters_once(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 15, 16, 17, 160, 12345, 99984};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int ranks = 1; ranks <= 9; ranks++) {
            int64_t next = 0;
            for (int r = 0; r < ranks; r++) {
                int64_t first;
                int64_t count;
                carry_optimizer_slice(counts[c], r, ranks, &first, &count);
                assert_true(count >= 0 && (count == 0 || first == next));
                next += count;
            }
            assert_int_equal(next, counts[c]);
        }
    }
}

/* A learning rate so high that weights leave the range of f32: the run ends, names the step, and saves its state. */
static void test_a_loss_that_is_not_finite_ends_the_run_and_saves(void **state) {
    char out[256];
    told t;
    carry_train_options o = tiny(below(out, state, "nan"));
    o.rate = 1e3;
    o.warmup = 0;
    o.decay = 1e3;
    o.steps = 60;
    o.save_every = 1000;
    o.skip_limit = 0;
    carry_status status = train_on(2, &o, false, NULL, &t);
    assert_int_equal(status, CARRY_ERANGE);
    assert_non_null(strstr(t.error, "the first tensor that was not finite"));
    char folder[300];
    (void)snprintf(folder, sizeof folder, "%s/step-%lld", out, (long long)t.last);
    size_t length;
    free(bytes_of(folder, "train.json", &length));
}

static void test_bad_options_are_refused(void **state) {
    char out[256];
    told t;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_options o = tiny(below(out, state, "bad"));
    assert_refused(ctx, CARRY_EARGUMENT, "finite", carry_train_set(ctx, &o, "rate", "nan"));
    assert_refused(ctx, CARRY_EARGUMENT, "finite", carry_train_set(ctx, &o, "rate", "inf"));
    assert_refused(ctx, CARRY_ERANGE, "steps", carry_train_set(ctx, &o, "steps", "0"));
    assert_refused(ctx, CARRY_EARGUMENT, "whole", carry_train_set(ctx, &o, "steps", "1.5"));
    assert_refused(ctx, CARRY_ENOTFOUND, "no key 'stepz'", carry_train_set(ctx, &o, "stepz", "1"));
    o.batch = 6;
    assert_int_equal(train_on(4, &o, false, NULL, &t), CARRY_EARGUMENT);
    assert_non_null(strstr(t.error, "batch of 6 rows"));
    o.batch = 8;
    o.length = 15;
    o.sequence_ranks = 2;
    assert_int_equal(train_on(2, &o, false, NULL, &t), CARRY_EARGUMENT);
    assert_non_null(strstr(t.error, "sequence of 15 tokens"));
    assert_int_equal(train_on(3, &o, false, NULL, &t), CARRY_EARGUMENT);
    assert_non_null(strstr(t.error, "3 ranks"));
    o = tiny(out);
    (void)snprintf(o.method, sizeof o.method, "magic");
    assert_int_equal(train_on(1, &o, false, NULL, &t), CARRY_ENOTFOUND);
    o = tiny(out);
    (void)snprintf(o.task, sizeof o.task, "magic");
    assert_int_equal(train_on(1, &o, false, NULL, &t), CARRY_ENOTFOUND);
    o = tiny(out);
    o.pairs = 0;
    o.epochs = 2.0;
    o.steps = 0;
    assert_int_equal(train_on(1, &o, false, NULL, &t), CARRY_EARGUMENT); /* a task has no end */
    carry_ctx_free(ctx);
}

static void test_options_survive_their_json(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_options o = tiny("some/\"where\"");
    carry_train_options back = carry_train_options_default();
    carry_json_text text = {0};
    carry_json *document;
    o.rate = 0.1 + 0.2;
    o.neg_eigval = true;
    (void)snprintf(o.data, sizeof o.data, "a\nb c");
    carry_train_options_write(&text, &o);
    assert_false(text.failed);
    assert_ok(ctx, carry_json_parse(ctx, &document, text.bytes, text.length, "options"));
    assert_ok(ctx, carry_train_options_read(ctx, &back, document));
    assert_true(back.rate == o.rate && back.neg_eigval && back.steps == o.steps && back.warmup == -1);
    assert_string_equal(back.out, o.out);
    assert_string_equal(back.data, o.data);
    assert_string_equal(back.task, o.task);
    carry_json_free(document);
    carry_json_text_free(&text);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_have_the_values_of_their_formula),
        cmocka_unit_test(test_slices_cover_the_parameters_once),
        cmocka_unit_test(test_gradients_are_clipped_to_their_norm),
        cmocka_unit_test(test_options_survive_their_json),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_the_loss_falls_on_the_copying_task),
        cmocka_unit_test(test_ranks_of_every_kind_agree_with_one),
        cmocka_unit_test(test_the_same_ranks_give_the_same_bits),
        cmocka_unit_test(test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped),
        cmocka_unit_test(test_a_resumed_run_on_ranks_has_the_same_bits),
        cmocka_unit_test(test_a_run_is_resumed_on_another_number_of_ranks),
        cmocka_unit_test(test_a_loss_that_is_not_finite_ends_the_run_and_saves),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
