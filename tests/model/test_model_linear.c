/* The layer without the delta rule: its results, that no model is run by the other's recurrence, and that such a model
   generates. */
#include "recurrence_support.h"

#include "engine/generator.h"

/* The recurrence without the delta rule, in float64 from the inputs: the sum of grad_o o, and the final states. A nudge
   moves one number of one input by `by`. The tensors are numbered Q..G, followed by A_log and dt_bias. */
typedef struct nudge {
    int tensor; /* Q..G, then A_log, dt_bias */
    int64_t at;
    double by;
} nudge;

static double input_of(const layer *l, int tensor, int64_t at, nudge n) {
    const float *from = tensor < TENSORS ? l->x[tensor] : tensor == TENSORS ? l->A_log : l->dt_bias;
    return (double)from[at] + (n.tensor == tensor && n.at == at ? n.by : 0.0);
}

/* Row t of head h of q or k, divided by its norm. */
static void row_of(const layer *l, int tensor, int64_t t, int64_t head, nudge n, double *row) {
    const carry_delta_problem *p = &l->problem;
    double squares = 1e-6;
    for (int64_t i = 0; i < p->key; i++) {
        row[i] = input_of(l, tensor, (t * p->heads + head) * p->key + i, n);
        squares += row[i] * row[i];
    }
    for (int64_t i = 0; i < p->key && p->l2norm; i++) {
        row[i] /= sqrt(squares);
    }
}

static double linear_token(const layer *l, int64_t t, int64_t head, nudge n, double *S, double *o) {
    const carry_delta_problem *p = &l->problem;
    double q[32], k[32], sum = 0.0;
    const int64_t at = t * p->value_heads + head;
    row_of(l, Q, t, head / (p->value_heads / p->heads), n, q);
    row_of(l, K, t, head / (p->value_heads / p->heads), n, k);
    const double a = input_of(l, G, at, n) + input_of(l, TENSORS + 1, head, n);
    const double g = -exp(input_of(l, TENSORS, head, n)) * log1p(exp(a));
    const double beta = (double)p->beta_factor / (1.0 + exp(-input_of(l, BETA, at, n)));
    for (int64_t j = 0; j < p->value; j++) {
        const double v = input_of(l, V, at * p->value + j, n);
        o[j] = 0.0;
        for (int64_t r = 0; r < p->key; r++) {
            double *s = &S[r * p->value + j];
            *s = exp(g) * *s + beta * k[r] * v;
            o[j] += *s * q[r] / sqrt((double)p->key);
        }
        sum += o[j] * (double)((float *)l->grad_o)[at * p->value + j];
    }
    return sum;
}

static double linear_sum(const layer *l, nudge n, double *outputs) {
    const carry_delta_problem *p = &l->problem;
    double sum = 0.0, S[32 * 32], o[32];
    for (int64_t b = 0; b < p->batch * p->value_heads; b++) {
        const int64_t head = b % p->value_heads, row = b / p->value_heads;
        for (int64_t i = 0; i < p->key * p->value; i++) {
            S[i] = l->with_initial ? (double)l->initial[b * p->key * p->value + i] : 0.0;
        }
        for (int64_t t = 0; t < p->tokens; t++) {
            sum += linear_token(l, row * p->tokens + t, head, n, S, o);
            const int64_t at = ((row * p->tokens + t) * p->value_heads + head) * p->value;
            memcpy(outputs + at, o, (size_t)p->value * sizeof *o);
        }
    }
    return sum;
}

static void linear_is_the_recurrence_without_its_correction(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < 6; i++) { /* but for the widest */
        carry_delta_problem p = problem_of(&shapes[i]);
        p.gate = CARRY_DELTA_HEAD_GATE;
        p.gate_inside = p.beta_sigmoid = true;
        p.l2norm = i != 1;
        p.beta_factor = i % 2 == 0 ? 2.0f : 1.0f;
        layer l = layer_new(&p, false, i % 3 == 1);
        assert_ok(ctx, run(ctx, &l, &carry_lm_recurrence_linear, NULL));
        double *o = malloc((size_t)l.count[V] * sizeof *o);
        assert_non_null(o);
        (void)linear_sum(&l, (nudge){.tensor = -1}, o);
        for (int64_t j = 0; j < l.count[V]; j++) { /* sums over 64 tokens and 32 keys with terms near 1, in f32 */
            assert_true(fabs((double)((float *)l.o)[j] - o[j]) <= 2e-5);
        }
        const float *got[] = {l.dx[Q], l.dx[K], l.dx[V], l.dx[BETA], l.dx[G], l.dA_log, l.ddt_bias};
        for (int tensor = 0; tensor < TENSORS + 2; tensor++) {
            const int64_t count = tensor < TENSORS ? l.count[tensor] : p.value_heads;
            for (int64_t k = 0; k < support_cases(12, 2); k++) {
                const nudge n = {tensor, (k * 7919 + 3) % count, 1e-5};
                const double up = linear_sum(&l, n, o);
                const double wanted = (up - linear_sum(&l, (nudge){tensor, n.at, -1e-5}, o)) / 2e-5;
                /* The difference itself is accurate to 1e-9; f32 sums of up to 64 x 32 products to some 1e-5. */
                if (!(fabs((double)got[tensor][n.at] - wanted) <= 1e-4 * (1.0 + fabs(wanted)))) {
                    fail_msg("shape %zu, tensor %d, %lld: %.9g, and by differences %.9g", i, tensor, (long long)n.at,
                             (double)got[tensor][n.at], wanted);
                }
            }
        }
        free(o);
        layer_free(&l);
    }
    carry_ctx_free(ctx);
}

/* The layer without the delta rule is a separate kind of model: each kind refuses the other's method and uses its own
   by default. */
static void linear_and_the_delta_rule_are_not_mixed_up(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int k = 0; k < 2; k++) {
        carry_lm_config config = small(&carry_lm_family_gated_deltanet);
        config.delta.use_delta_rule = k == 0;
        carry_lm *lm = model(ctx, config);
        carry_lm_pass *pass;
        carry_lm_pass_options options = {.batch = 1, .tokens = 3};
        assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
        assert_non_null(strstr(carry_lm_pass_about(pass), k == 0 ? "by chunk" : "by linear"));
        carry_lm_pass_free(pass);
        options.recurrence = k == 0 ? &carry_lm_recurrence_linear : &carry_lm_recurrence_chunk;
        assert_refused(ctx, CARRY_EUNSUPPORTED, "use_delta_rule", carry_lm_pass_new(lm, &pass, &options));
        carry_lm_free(lm);
    }
    assert_null(carry_lm_recurrence_named("linear")); /* the list has only methods of the delta rule */
    carry_ctx_free(ctx);
}

/* A prompt and then token after token: the logits of each equal those of one pass over the whole row. */
static void a_model_without_the_delta_rule_generates_what_it_computes(void **unused) {
    (void)unused;
    enum { T = 9, PROMPT = 4, N = SUPPORT_VOCABULARY };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.delta.use_delta_rule = false;
    carry_lm *lm = model(ctx, config);
    int64_t ids[T];
    float whole[T * N], one[N];
    for (int64_t i = 0; i < T; i++) {
        ids[i] = (3 * i + 1) % N;
    }
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, T),
                                .logits = carry_view_3d(whole, CARRY_F32, 1, T, N)};
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = T, .forward_only = true}, &args));
    carry_lm_generator *g;
    assert_ok(ctx, carry_lm_generator_new(lm, &g, 1, CARRY_F32));
    assert_ok(ctx, carry_lm_generator_prompt(g, 0, ids, PROMPT, one));
    for (int64_t t = PROMPT; t < T; t++) {
        for (int64_t i = 0; i < N; i++) { /* the same sums, some in another order */
            assert_true(fabsf(one[i] - whole[(t - 1) * N + i]) <= 1e-4f * (1.0f + fabsf(one[i])));
        }
        assert_ok(ctx, carry_lm_generator_step(g, &ids[t], one));
    }
    carry_lm_generator_free(g);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_the_recurrence_without_its_correction),
        cmocka_unit_test(linear_and_the_delta_rule_are_not_mixed_up),
        cmocka_unit_test(a_model_without_the_delta_rule_generates_what_it_computes),
    };
    return cmocka_run_group_tests_name("model/linear", tests, NULL, NULL);
}
