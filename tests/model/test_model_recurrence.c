/* A pass with another recurrence: its arguments, and that the halo reaches the first tokens of a rank and no others. */
#include "lm_support.h"

#define B 1
#define T 23
#define VOCABULARY SUPPORT_VOCABULARY
#define LAYERS 2

/* The chunk recurrence, watched. */
typedef struct watch {
    int forwards, backwards, halos, halo_backwards;
    float before; /* value of the halo before this rank's tokens */
    double dbefore;
} watch;

typedef struct watched {
    void *inner;
    watch *seen;
} watched;

static carry_status watch_open(carry_ctx *ctx, void **running, const carry_delta_problem *problem,
                               const void *options) {
    watched *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->seen = (watch *)(uintptr_t)options;
    *running = w;
    return carry_lm_recurrence_chunk.open(ctx, &w->inner, problem, NULL);
}

static void watch_close(void *running) {
    carry_lm_recurrence_chunk.close(((watched *)running)->inner);
    free(running);
}

static const char *watch_plan(const void *running) {
    return carry_lm_recurrence_chunk.plan(((const watched *)running)->inner);
}

static size_t watch_workspace(const void *running) {
    return carry_lm_recurrence_chunk.workspace(((const watched *)running)->inner);
}

static size_t watch_kept(const void *running) {
    return carry_lm_recurrence_chunk.kept(((const watched *)running)->inner);
}

static carry_status watch_forward(void *running, const carry_delta_forward_args *args, void *workspace, size_t bytes) {
    ((watched *)running)->seen->forwards++;
    assert_true(args->g.data != NULL && args->A_log.data != NULL && args->initial_state.data == NULL);
    return carry_lm_recurrence_chunk.forward(((watched *)running)->inner, args, workspace, bytes);
}

static carry_status watch_backward(void *running, const carry_delta_backward_args *args, void *workspace,
                                   size_t bytes) {
    ((watched *)running)->seen->backwards++;
    return carry_lm_recurrence_chunk.backward(((watched *)running)->inner, args, workspace, bytes);
}

static carry_status watch_halo(void *running, carry_tensor before, carry_tensor x, carry_tensor cu_seqlens) {
    (void)cu_seqlens;
    watched *w = running;
    w->seen->halos++;
    assert_true(before.rank == 3 && before.shape[0] == B && before.shape[1] == 3 && before.shape[2] == x.shape[2]);
    for (int64_t i = 0; i < B * 3 * x.shape[2]; i++) {
        ((float *)before.data)[i] = w->seen->before;
    }
    return CARRY_OK;
}

static carry_status watch_halo_backward(void *running, carry_tensor dx, carry_tensor dbefore, carry_tensor cu_seqlens) {
    (void)cu_seqlens;
    watched *w = running;
    w->seen->halo_backwards++;
    assert_true(dbefore.shape[1] == 3 && dbefore.shape[2] == dx.shape[2] && dx.shape[1] == T);
    for (int64_t i = 0; i < B * 3 * dx.shape[2]; i++) {
        w->seen->dbefore += fabs((double)((float *)dbefore.data)[i]);
    }
    return CARRY_OK;
}

static const carry_lm_recurrence watching = {.name = "watched",
                                             .about = "chunk, watched",
                                             .open = watch_open,
                                             .close = watch_close,
                                             .plan = watch_plan,
                                             .workspace = watch_workspace,
                                             .kept = watch_kept,
                                             .forward = watch_forward,
                                             .backward = watch_backward,
                                             .halo = watch_halo,
                                             .halo_backward = watch_halo_backward};

/* The loss of one call; afterwards the model holds the gradients of this call alone. */
static double loss_of(carry_ctx *ctx, carry_lm *lm, carry_lm_pass_options options, bool cut) {
    int64_t ids[T];
    int64_t labels[T];
    int64_t cuts[] = {0, 0, T};
    double loss = 0.0;
    for (int64_t i = 0; i < T; i++) {
        ids[i] = (3 * i + i * i) % VOCABULARY;
        labels[i] = (5 * i + 1) % VOCABULARY;
    }
    carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, B, T),
                          .labels = carry_view_2d(labels, CARRY_I64, B, T),
                          .backward = true,
                          .loss = &loss};
    if (cut) {
        args.cuts = carry_view_1d(cuts, CARRY_I64, 3);
    }
    options.batch = B;
    options.tokens = T;
    assert_ok(lm->ctx, carry_parameters_zero_gradients(&lm->own));
    assert_ok(ctx, run_once(lm, &options, &args));
    return loss;
}

static void a_recurrence_is_called_once_a_layer(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    double plain = loss_of(ctx, lm, (carry_lm_pass_options){0}, false);
    size_t bytes = (size_t)lm->own.count * sizeof(float);
    float *gradients = malloc(bytes);
    assert_non_null(gradients);
    memcpy(gradients, lm->own.gradients, bytes);
    for (int recompute = 0; recompute < 2; recompute++) {
        watch seen = {0};
        const carry_lm_pass_options options = {
            .recurrence = &watching, .recurrence_options = &seen, .recompute = recompute != 0};
        double loss = loss_of(ctx, lm, options, false); /* a halo of zeros equals no halo */
        assert_true(loss == plain);
        assert_memory_equal(lm->own.gradients, gradients, bytes);
        assert_int_equal(seen.forwards, LAYERS * (1 + recompute));
        assert_int_equal(seen.backwards, LAYERS);
        assert_int_equal(seen.halos, 3 * LAYERS * (1 + recompute));
        assert_int_equal(seen.halo_backwards, 3 * LAYERS);
        assert_true(seen.dbefore > 0.0); /* the first tokens depend on the halo */
    }
    free(gradients);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void a_sequence_that_starts_here_hears_nothing_before_it(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    watch seen = {.before = 5.0f};
    const carry_lm_pass_options options = {.recurrence = &watching, .recurrence_options = &seen};
    double plain = loss_of(ctx, lm, (carry_lm_pass_options){0}, false);
    assert_true(fabs(loss_of(ctx, lm, options, false) - plain) > 1e-3);
    seen.dbefore = 0.0;
    assert_true(fabs(loss_of(ctx, lm, options, true) - plain) <= 1e-6 * plain);
    assert_true(seen.dbefore == 0.0);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recurrence_is_called_once_a_layer),
        cmocka_unit_test(a_sequence_that_starts_here_hears_nothing_before_it),
    };
    return cmocka_run_group_tests_name("model/recurrence", tests, NULL, NULL);
}
