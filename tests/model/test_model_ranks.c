/* A model whose tokens are split over ranks: loss and gradients, summed over ranks, equal those of one rank that holds
   all tokens. */
#include "comm_support.h"
#include "lm_support.h"

enum { MOST_RANKS = 4, BATCH = 2, TOKENS = 53 };

/* Bounds of the ranks' parts of 53 tokens: some longer than a chunk, some shorter than the halo of a convolution. */
static const int64_t splits[][MOST_RANKS + 1] = {{0, 53}, {0, 20, 53}, {0, 33, 35, 53}, {0, 2, 3, 29, 53}};
/* Sequences that end inside a rank, at a rank's border, inside the halo of the rank after it; one without tokens. */
static const int64_t whole_cuts[] = {0, 5, 20, 20, 33, 50, 53};
enum { SEQUENCES = sizeof whole_cuts / sizeof whole_cuts[0] - 1 };

typedef struct job {
    carry_lm_config config;
    bool packed, recompute;
    carry_dtype dtype;
    int64_t batch;
    const int64_t *bounds;
    carry_lm_ranks_options ranks;
    int64_t ids[BATCH][TOKENS], labels[BATCH][TOKENS];
    /* Results: the gradients of every rank. */
    float *gradients[MOST_RANKS];
    double loss[MOST_RANKS], loss_alone[MOST_RANKS]; /* without backward, too */
    int64_t counted[MOST_RANKS];
} job;

static void fill(job *j) {
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t t = 0; t < TOKENS; t++) {
            j->ids[b][t] = draw(31, (uint64_t)b, (uint64_t)t) % SUPPORT_VOCABULARY;
            const int64_t label = draw(32, (uint64_t)b, (uint64_t)t) % (SUPPORT_VOCABULARY + 1);
            j->labels[b][t] = label == SUPPORT_VOCABULARY ? -100 : label;
        }
    }
}

static int64_t all_counted(const job *j) {
    int64_t counted = 0;
    for (int64_t i = 0; i < j->batch * TOKENS; i++) {
        counted += j->labels[i / TOKENS][i % TOKENS] != -100;
    }
    return counted;
}

/* cu_seqlens of tokens first..last-1. An empty sequence at the front says that the next one starts at the first
   token. */
static int64_t cut(int64_t *cuts, int64_t first, int64_t last) {
    int64_t count = 0;
    cuts[count++] = 0;
    for (int64_t i = 0; i < SEQUENCES; i++) {
        if (whole_cuts[i] >= first && whole_cuts[i] < last) {
            cuts[count++] = whole_cuts[i] - first;
        }
    }
    cuts[count++] = last - first;
    return count;
}

/* Runs the tokens of one rank; with comm NULL all tokens, by the recurrence without ranks. */
static carry_status run_part(job *j, carry_lm *lm, carry_comm *comm, int rank) {
    const int64_t first = comm != NULL ? j->bounds[rank] : 0;
    const int64_t last = comm != NULL ? j->bounds[rank + 1] : TOKENS;
    const int64_t n = last - first;
    int64_t ids[BATCH * TOKENS], labels[BATCH * TOKENS];
    int64_t whole[SEQUENCES + 1], cuts[SEQUENCES + 2];
    for (int64_t i = 0; i < j->batch * n; i++) {
        ids[i] = j->ids[i / n][first + i % n];
        labels[i] = j->labels[i / n][first + i % n];
    }
    memcpy(whole, whole_cuts, sizeof whole);
    carry_lm_ranks_options over = j->ranks;
    over.comm = comm;
    const carry_lm_pass_options options = {.batch = j->batch,
                                           .tokens = n,
                                           .sequences = j->packed ? SEQUENCES : 0,
                                           .recompute = j->recompute,
                                           .dtype = j->dtype,
                                           .recurrence = comm != NULL ? &carry_lm_recurrence_ranks : NULL,
                                           .recurrence_options = comm != NULL ? &over : NULL};
    carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, j->batch, n),
                          .labels = carry_view_2d(labels, CARRY_I64, j->batch, n),
                          .scale = 1.0f / (float)all_counted(j),
                          .loss = &j->loss_alone[rank],
                          .counted = &j->counted[rank]};
    if (j->packed) {
        args.cu_seqlens = carry_view_1d(whole, CARRY_I64, SEQUENCES + 1);
        if (comm != NULL) {
            args.cuts = carry_view_1d(cuts, CARRY_I64, cut(cuts, first, last));
        }
    }
    TRY(run_once(lm, &options, &args));
    args.backward = true;
    args.loss = &j->loss[rank];
    return run_once(lm, &options, &args);
}

static carry_status on_rank(void *user, carry_comm *comm) {
    job *j = user;
    const int rank = carry_comm_rank(comm);
    carry_lm *lm = model(carry_comm_ctx(comm), j->config);
    carry_status status = run_part(j, lm, comm, rank);
    if (status == CARRY_OK) {
        j->gradients[rank] = lm->own.gradients;
        lm->own.gradients = NULL;
    }
    carry_lm_free(lm);
    return status;
}

/* f32 sums in another order: chunks end elsewhere, and states are combined in another order, so a layer's outputs
   differ by some roundings of 6e-8 times the length of a chunk's sums, 16: 1e-6. Two layers with weights twenty times
   as large as at the start enlarge that some ten times, and the sums over tokens in the gradients of A_log and dt_bias
   cancel to a tenth of their terms: 1e-4. A lost halo, state or rank gives 1e-2 and more. */
static void compare_gradients(const char *name, const carry_lm *lm, const float *wanted, const job *j, int ranks) {
    float *sum = calloc((size_t)lm->own.count, sizeof(float));
    assert_non_null(sum);
    for (int64_t i = 0; i < lm->own.count; i++) {
        double total = 0.0;
        for (int r = 0; r < ranks; r++) {
            total += (double)j->gradients[r][i];
        }
        sum[i] = (float)total;
    }
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        double error = apart_f32(sum + p->offset, wanted + p->offset, p->count);
        if (!(error <= (j->dtype == CARRY_F32 ? 2e-4 : 0.1))) {
            fail_msg("%s, %d ranks: the gradient of %s is %g apart", name, ranks, p->name, error);
        }
    }
    free(sum);
}

static void compare_in(carry_dtype dtype, const char *name, carry_lm_config config, bool packed, bool recompute,
                       const carry_delta_ranks_options *delta) {
    const double loss_bound = dtype == CARRY_F32 ? 1e-5 : 1e-2;
    job whole = {.config = config, .packed = packed, .batch = packed ? 1 : BATCH, .dtype = dtype};
    fill(&whole);
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, config);
    assert_ok(ctx, run_part(&whole, lm, NULL, 0));
    assert_true(whole.counted[0] == all_counted(&whole) && whole.counted[0] < whole.batch * TOKENS);
    for (int ranks = support_cases(1, 2); ranks <= MOST_RANKS; ranks += support_cases(1, 2)) {
        job j = {.config = config, .packed = packed, .recompute = recompute, .batch = whole.batch, .dtype = dtype};
        fill(&j);
        j.bounds = splits[ranks - 1];
        if (delta != NULL) {
            j.ranks.delta = *delta;
        }
        char message[512];
        if (run_ranks_of(ranks, 1 + ranks % 2, &world, on_rank, &j, message) != CARRY_OK) {
            fail_msg("%s, %d ranks: %s", name, ranks, message);
        }
        double loss = 0.0, alone = 0.0;
        int64_t counted = 0;
        for (int r = 0; r < ranks; r++) {
            loss += j.loss[r];
            alone += j.loss_alone[r];
            counted += j.counted[r];
        }
        assert_int_equal(counted, whole.counted[0]);
        if (!(fabs(loss - whole.loss[0]) <= loss_bound * whole.loss[0]) || !(fabs(alone - loss) <= loss_bound * loss)) {
            fail_msg("%s, %d ranks: the loss is %.9g, %.9g without backward, and should be %.9g", name, ranks, loss,
                     alone, whole.loss[0]);
        }
        compare_gradients(name, lm, lm->own.gradients, &j, ranks);
        for (int r = 0; r < ranks; r++) {
            free(j.gradients[r]);
        }
    }
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void compare(const char *name, carry_lm_config config, bool packed, bool recompute,
                    const carry_delta_ranks_options *delta) {
    compare_in(CARRY_F32, name, config, packed, recompute, delta);
}

/* Sums that differ by 1e-6 sometimes round to neighbouring numbers, 2^-8 apart. After two layers that is a few percent
   of a gradient. */
static void activations_in_bf16_are_split_too(void **unused) {
    (void)unused;
    compare_in(CARRY_BF16, "bf16", small(&carry_lm_family_gated_deltanet), false, false, NULL);
    compare_in(CARRY_BF16, "bf16, packed", small(&carry_lm_family_delta_net), true, true, NULL);
}

static void every_split_is_one_rank(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 4; variant += support_cases(1, 3)) {
        const bool packed = variant % 2 != 0, recompute = variant / 2 != 0;
        compare("gated", small(&carry_lm_family_gated_deltanet), packed, recompute, NULL);
        compare("delta", small(&carry_lm_family_delta_net), packed, recompute, NULL);
    }
}

static void variants_of_a_model_are_split_too(void **unused) {
    (void)unused;
    carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    carry_lm_fla_of(&c)->num_v_heads = 4;
    c.delta.allow_neg_eigval = true;
    c.tie_word_embeddings = true;
    c.delta.conv_size = 7; /* a halo over more than one rank */
    compare("grouped value heads, conv 7", c, false, false, NULL);
    c.delta.use_short_conv = false;
    compare("without convolutions", c, true, false, NULL);
    c = small(&carry_lm_family_delta_net);
    c.delta.use_beta = false;
    compare("without beta", c, true, true, NULL);
}

static void heads_wider_than_the_delta_rule_are_split_too(void **unused) {
    (void)unused;
    carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    c.delta.heads = 1;
    carry_lm_fla_of(&c)->num_v_heads = 2;
    carry_lm_fla_of(&c)->expand_v = 60.0; /* 300 wide: two slices of 150 */
    compare("wide", c, false, false, NULL);
    compare("wide, packed", c, true, true, NULL);
}

static void methods_of_the_exchange_agree(void **unused) {
    (void)unused;
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        const carry_delta_ranks_options delta = {CARRY_INIT(carry_delta_ranks_options), .algorithm = "chunk16",
                                                 .all_scan_algorithm = carry_all_scan_name(i), .groups = 2};
        compare(delta.all_scan_algorithm, small(&carry_lm_family_gated_deltanet), i % 2 == 0, false, &delta);
    }
}

static carry_status empty_part(void *user, carry_comm *comm) {
    job *j = user;
    carry_lm *lm = model(carry_comm_ctx(comm), j->config);
    const carry_lm_ranks_options over = {.comm = comm};
    const carry_lm_pass_options options = {.batch = 1,
                                           .tokens = carry_comm_rank(comm) == 1 ? 0 : 4,
                                           .recurrence = &carry_lm_recurrence_ranks,
                                           .recurrence_options = &over};
    carry_lm_pass *pass = NULL;
    carry_status status = carry_lm_pass_new(lm, &pass, &options);
    carry_lm_pass_free(pass);
    carry_lm_free(lm);
    return status;
}

/* A pass needs tokens. The ranks that have some do not wait for the rank that was refused. */
static void a_rank_without_tokens_is_refused_everywhere(void **unused) {
    (void)unused;
    job j = {.config = small(&carry_lm_family_gated_deltanet)};
    char message[512];
    assert_int_equal(run_ranks(3, &world, empty_part, &j, message), CARRY_ESIZE);
    assert_non_null(strstr(message, "0 tokens"));
}

static void a_communicator_is_needed(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    carry_lm_pass *pass;
    const carry_lm_pass_options options = {.batch = 1, .tokens = 4, .recurrence = &carry_lm_recurrence_ranks};
    assert_refused(ctx, CARRY_EARGUMENT, "needs a communicator", carry_lm_pass_new(lm, &pass, &options));
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_is_one_rank),
        cmocka_unit_test(variants_of_a_model_are_split_too),
        cmocka_unit_test(heads_wider_than_the_delta_rule_are_split_too),
        cmocka_unit_test(activations_in_bf16_are_split_too),
        cmocka_unit_test(methods_of_the_exchange_agree),
        cmocka_unit_test(a_rank_without_tokens_is_refused_everywhere),
        cmocka_unit_test(a_communicator_is_needed),
    };
    return cmocka_run_group_tests_name("model/ranks", tests, NULL, NULL);
}
