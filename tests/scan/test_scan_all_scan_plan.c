/* All-Scan's plans: refusals and their messages, counts, the planner's choice, and the state after a failure. */
#include "all_scan_support.h"

#include "comm/rates.h"
#include "core/clock.h"

static const carry_all_scan_problem usual = {
    .kind = CARRY_ALL_SCAN_DENSE, .heads = 3, .key = 8, .value = 10, .wire = CARRY_F32};

typedef struct told {
    carry_status status[RANKS];
    char message[RANKS][512];
} told;

static void tell(told *t, carry_comm *comm, carry_status status) {
    const int rank = carry_comm_rank(comm);
    t->status[rank] = status;
    (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", carry_ctx_error(carry_comm_ctx(comm)));
}

typedef struct disagreeing {
    int what;
    told told;
} disagreeing;

/* Rank 2 has other options; the communicator stays usable. */
static carry_status disagree(void *user, carry_comm *comm) {
    disagreeing *d = user;
    const bool odd = carry_comm_rank(comm) == 2;
    carry_all_scan_problem p = usual;
    carry_all_scan_options o = {CARRY_INIT(carry_all_scan_options), .algorithm = "chain", .blocks = 2, .tag = 5};
    if (odd) {
        p.heads += d->what == 0;
        p.value += d->what == 1;
        p.wire = d->what == 2 ? CARRY_BF16 : p.wire;
        p.reversed = d->what == 3;
        p.transposed = d->what == 4;
        p.kind = d->what == 5 ? CARRY_ALL_SCAN_DIAGONAL : p.kind;
        p.key = d->what == 6 ? -1 : p.key;
        o.algorithm = d->what == 7 ? "gather" : d->what == 8 ? NULL : o.algorithm;
        o.blocks += d->what == 9;
        o.tag += d->what == 10;
    }
    carry_all_scan_plan *plan;
    tell(&d->told, comm, carry_all_scan_plan_new_on(comm, &plan, &p, &o, &some_machine));
    EXPECT(comm, plan == NULL, "a plan of ranks that differ");
    return carry_barrier(comm);
}

static void test_ranks_that_differ_are_told_apart_everywhere(void **state) {
    (void)state;
    for (int what = 0; what < 11; what++) {
        disagreeing d = {.what = what};
        assert_int_equal(run_ranks(4, &world, disagree, &d, NULL), CARRY_OK);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(d.told.status[r], CARRY_EARGUMENT);
            assert_string_equal(d.told.message[r], d.told.message[0]);
            assert_non_null(strstr(d.told.message[r], "rank 0 has 'dense h3 k8 v10"));
            assert_non_null(strstr(d.told.message[r], ", rank 2 '"));
            assert_null(strstr(d.told.message[r], "rank 1"));
        }
    }
}

static void expect_refused(carry_comm *comm, carry_status expected, const char *words, carry_all_scan_problem p,
                           carry_all_scan_options o) {
    carry_all_scan_plan *plan;
    assert_refused(carry_comm_ctx(comm), expected, words,
                   carry_all_scan_plan_new_on(comm, &plan, &p, &o, &some_machine));
    assert_null(plan);
}

static void refuse_problems(carry_comm *comm) {
    carry_all_scan_problem p = usual;
    const carry_all_scan_options none = {CARRY_INIT(carry_all_scan_options)};
    p.heads = 0;
    expect_refused(comm, CARRY_ESIZE, "heads is 0", p, none);
    p = usual;
    p.key = p.value = p.heads = (int64_t)1 << 30;
    expect_refused(comm, CARRY_ESIZE, "more than memory", p, none);
    p = usual;
    p.kind = (carry_all_scan_kind)3;
    expect_refused(comm, CARRY_EARGUMENT, "no kind 3", p, none);
    p = usual;
    p.wire = CARRY_F16;
    expect_refused(comm, CARRY_EDTYPE, "not as f16", p, none);
    p = usual;
    p.rows = 2;
    expect_refused(comm, CARRY_EARGUMENT, "only factors", p, none);
    p.kind = CARRY_ALL_SCAN_FACTORS;
    p.rows = 0;
    expect_refused(comm, CARRY_ESIZE, "rows is 0", p, none);
    expect_refused(comm, CARRY_ENOTFOUND, "\"ring\"", usual,
                   (carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = "ring"});
    expect_refused(comm, CARRY_EARGUMENT, "31 blocks: there are 30", usual,
                   (carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .blocks = 31});
    expect_refused(comm, CARRY_EARGUMENT, "-1 blocks", usual,
                   (carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .blocks = -1});
    expect_refused(comm, CARRY_EARGUMENT, "tag 1024", usual,
                   (carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .tag = CARRY_MAX_COMM_TAGS});
}

static void refuse_args(carry_all_scan_plan *plan, carry_ctx *ctx, const part *mine, char *workspace) {
    const size_t bytes = carry_all_scan_run_workspace(plan);
    const carry_all_scan_args good = args_of(&usual, mine, true, true);
    carry_all_scan_args bad = good;
    int done;
    bad.state.shape[0] = 2;
    assert_refused(ctx, CARRY_ESHAPE, "state", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.M.dtype = CARRY_BF16;
    assert_refused(ctx, CARRY_EDTYPE, "M is bf16", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.L.data = NULL;
    assert_refused(ctx, CARRY_EARGUMENT, "L has no data", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.initial.device = 1;
    assert_refused(ctx, CARRY_EDEVICE, "initial is on device 1", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.L.stride[2] = 2;
    assert_refused(ctx, CARRY_ESTRIDE, "L is not packed", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.state = good.L;
    assert_refused(ctx, CARRY_EARGUMENT, "shares memory", carry_all_scan_run(plan, &bad, workspace, bytes));
    bad = good;
    bad.role = (carry_all_scan_role)7;
    assert_refused(ctx, CARRY_EARGUMENT, "role 7", carry_all_scan_run(plan, &bad, workspace, bytes));
    assert_refused(ctx, CARRY_EWORKSPACE, "needs", carry_all_scan_run(plan, &good, workspace, bytes - 1));
    assert_refused(ctx, CARRY_EARGUMENT, "begin one", carry_all_scan_end(plan));
    assert_refused(ctx, CARRY_EARGUMENT, "begin one", carry_all_scan_poll(plan, &done));
    assert_ok(ctx, carry_all_scan_begin(plan, &good, workspace, bytes));
    assert_refused(ctx, CARRY_EARGUMENT, "under way", carry_all_scan_begin(plan, &good, workspace, bytes));
    assert_ok(ctx, carry_all_scan_end(plan));
}

static void test_what_is_wrong_is_refused_with_an_error_message(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    carry_all_scan_plan *plan;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    refuse_problems(comm);
    assert_ok(ctx, carry_all_scan_plan_new_on(comm, &plan, &usual, NULL, &some_machine));
    part mine = make_part(&usual, 1, 0);
    char *workspace = malloc(carry_all_scan_run_workspace(plan));
    refuse_args(plan, ctx, &mine, workspace);
    free(workspace);
    free_part(&mine);
    carry_all_scan_plan_free(plan);
    carry_all_scan_plan_free(NULL);
    assert_ok(ctx,
              carry_all_scan_plan_new_on(
                  comm, &plan, &usual,
                  &(carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = "lasp2"}, &some_machine));
    assert_string_equal(carry_all_scan_plan_algorithm(plan), "gather");
    carry_all_scan_plan_free(plan);
    assert_ok(ctx,
              carry_all_scan_plan_new_on(
                  comm, &plan, &usual,
                  &(carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = "lasp1"}, &some_machine));
    assert_string_equal(carry_all_scan_plan_algorithm(plan), "serial");
    carry_all_scan_plan_free(plan);
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

typedef struct counting {
    const char *algorithm;
    carry_all_scan_counts counts[RANKS];
} counting;

static carry_status count(void *user, carry_comm *comm) {
    counting *c = user;
    const int rank = carry_comm_rank(comm);
    const carry_all_scan_options options = {CARRY_INIT(carry_all_scan_options), .algorithm = c->algorithm, .blocks = 3};
    carry_all_scan_plan *plan;
    TRY(carry_all_scan_plan_new_on(comm, &plan, &usual, &options, &some_machine));
    part mine = make_part(&usual, 1, rank);
    const carry_all_scan_args args = args_of(&usual, &mine, true, false);
    void *workspace = malloc(carry_all_scan_run_workspace(plan));
    carry_status status = carry_all_scan_run(plan, &args, workspace, carry_all_scan_run_workspace(plan));
    c->counts[rank] = (carry_all_scan_counts){CARRY_INIT(carry_all_scan_counts)};
    status = status == CARRY_OK ? carry_all_scan_counted(plan, &c->counts[rank]) : status;
    free(workspace);
    free_part(&mine);
    carry_all_scan_plan_free(plan);
    return status;
}

static void test_the_chain_does_not_send_more_to_more_ranks(void **state) {
    (void)state;
    const int64_t bytes = 3 * 8 * 10 * 4; /* a state */
    int64_t gathered = 0;
    for (size_t i = 1; i < sizeof sizes / sizeof sizes[0]; i++) {
        const int ranks = sizes[i];
        counting chain = {.algorithm = "chain"}, gather = {.algorithm = "gather"};
        assert_int_equal(run_ranks(ranks, &world, count, &chain, NULL), CARRY_OK);
        assert_int_equal(run_ranks(ranks, &world, count, &gather, NULL), CARRY_OK);
        for (int r = 0; r < ranks; r++) {
            const bool last = r == ranks - 1;
            assert_int_equal(chain.counts[r].bytes_received, r > 0 ? bytes : 0);
            assert_int_equal(chain.counts[r].bytes_sent, last ? 0 : bytes);
            assert_int_equal(chain.counts[r].messages, (r > 0 ? 3 : 0) + (last ? 0 : 3));
            assert_int_equal(chain.counts[r].products, last ? 0 : 3);
            assert_true(chain.counts[r].flops == (last ? 0.0 : 2.0 * 3 * 8 * 8 * 10));
            assert_int_equal(gather.counts[r].products, r == 0 ? 3 : 3 * (r - 1));
            assert_int_equal(gather.counts[r].messages, ranks - 1);
            assert_true(chain.counts[r].waited >= 0.0 && gather.counts[r].waited >= 0.0);
        }
        assert_true(gather.counts[ranks - 1].bytes_received > gathered);
        gathered = gather.counts[ranks - 1].bytes_received;
        assert_true(gathered >= (ranks - 2) * (bytes + 3 * 8 * 8 * 4) + bytes);
    }
}

/* Nodes are counted from the mean over pairs of neighbours: of these, nodes - 1 are far apart. */
static void test_nodes_are_counted_by_how_many_neighbours_are_far_apart(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 64; ranks++) {
        for (int nodes = 1; nodes <= ranks; nodes++) {
            const double crossing = nodes - 1.0, all = ranks - 1.0;
            const carry_all_scan_machine m = {.bandwidth = nodes > 1 ? 50e9 : 450e9,
                                              .near_bandwidth = nodes < ranks ? 450e9 : 50e9,
                                              .mean_bandwidth = all / ((all - crossing) / 450e9 + crossing / 50e9)};
            const double wanted = nodes < ranks ? nodes : 1.0; /* equal distances count as one node */
            assert_true(fabs(carry_all_scan_nodes(&m, ranks) - wanted) < 1e-9 * wanted);
        }
    }
    const carry_all_scan_machine noisy = {.bandwidth = 10e9, .near_bandwidth = 19e9, .mean_bandwidth = 15e9};
    assert_true(carry_all_scan_nodes(&noisy, 8) == 1.0);
    assert_true(carry_all_scan_nodes(&(carry_all_scan_machine){.bandwidth = 10e9}, 8) == 1.0);
}

/* The one rule of a planner: nothing else it could have taken is predicted to be faster. */
static void test_the_planner_takes_what_is_cheapest(void **state) {
    (void)state;
    int taken[5] = {0};
    for (uint64_t seed = 0; seed < 3000; seed++) {
        carry_all_scan_machine m = {.latency = pow(10, -5.5 + 2.5 * unit(seed, 0, 0)),
                                    .bandwidth = pow(10, 9.5 + 1.5 * unit(seed, 0, 1)),
                                    .product = pow(10, -5 + 2 * unit(seed, 0, 2)),
                                    .memory = 1e10};
        m.compose = m.product;
        m.overhead = m.latency / 8;
        carry_all_scan_problem p = {.kind = (carry_all_scan_kind)(seed % 2), .heads = 1 + draw(seed, 1, 0) % 64};
        p.key = p.value = 16 << draw(seed, 2, 0) % 4;
        p.wire = seed % 3 ? CARRY_BF16 : CARRY_F32;
        const int ranks = 2 << draw(seed, 3, 0) % 9;
        double best = INFINITY;
        int which = 0;
        for (int i = 0; i < 5; i++) {
            int64_t blocks = 0;
            const double seconds = carry_all_scan_predict(carry_all_scan_at(i), &p, ranks, &m, &blocks);
            assert_true(seconds > 0 && isfinite(seconds) && blocks >= 1 && blocks <= p.heads * p.value);
            which = seconds < best ? i : which;
            best = seconds < best ? seconds : best;
            for (int64_t b = 1; b <= p.heads * p.value && carry_all_scan_at(i)->cuts; b += b / 3 + 1) {
                int64_t given = b; /* other counts may be slightly better by rounding */
                assert_true(carry_all_scan_predict(carry_all_scan_at(i), &p, ranks, &m, &given) > 0.85 * seconds);
                assert_int_equal(given, b);
            }
            const carry_all_scan_machine slow = {.latency = 2 * m.latency,
                                                 .overhead = 2 * m.overhead,
                                                 .bandwidth = m.bandwidth / 2,
                                                 .product = 2 * m.product,
                                                 .compose = 2 * m.compose,
                                                 .memory = m.memory / 2};
            int64_t again = 0, further = 0;
            const double twice = carry_all_scan_predict(carry_all_scan_at(i), &p, ranks, &slow, &again);
            assert_true(fabs(twice / seconds - 2) < 1e-9 && again == blocks); /* all is linear in time */
            const bool shares = strcmp(carry_all_scan_name(i), "heads") == 0; /* more ranks have fewer heads each */
            assert_true(shares || carry_all_scan_predict(carry_all_scan_at(i), &p, ranks + 1, &m, &further) >= seconds);
        }
        taken[which]++;
    }
    assert_true(taken[0] > 0 && taken[1] > 0 && taken[2] > 0 &&
                taken[3] > 0); /* each is chosen somewhere; serial is the chain's worst */
}

static carry_status plan_measured(void *user, carry_comm *comm) {
    double *seconds = user;
    const int rank = carry_comm_rank(comm);
    carry_comm_rates first, second, third;
    carry_comm *half;
    carry_all_scan_plan *plan;
    TRY(carry_comm_rates_of(comm, &first));
    carry_comm_counts before = {CARRY_INIT(carry_comm_counts)}, after = before;
    TRY(carry_comm_counted(comm, &before));
    TRY(carry_comm_rates_of(comm, &second));
    TRY(carry_comm_counted(comm, &after));
    EXPECT(comm, after.messages_sent == before.messages_sent, "measured again");
    /* Where ranks outnumber cores the overhead may be more than the latency. */
    EXPECT(comm, first.overhead > 0 && first.overhead < 1 && first.latency < 1 && first.bandwidth > 1e5, "%g %g %g",
           first.overhead, first.latency, first.bandwidth);
    EXPECT(comm, memcmp(&first, &second, sizeof first) == 0, "other numbers");
    TRY(carry_comm_split(comm, &half, rank < 2, 0));
    carry_status status = carry_comm_rates_of(half, &third);
    carry_comm_close(half);
    TRY(status);
    EXPECT(comm, memcmp(&first, &third, sizeof first) == 0, "not inherited");
    TRY(carry_all_scan_plan_new(comm, &plan, &usual, NULL));
    seconds[rank] = carry_all_scan_plan_seconds(plan);
    const bool tells = strstr(carry_all_scan_plan_about(plan), carry_all_scan_plan_algorithm(plan)) != NULL &&
                       strstr(carry_all_scan_plan_about(plan), "over 4 ranks") != NULL &&
                       strstr(carry_all_scan_plan_about(plan), "; next ") != NULL;
    print_message("%s\n", rank == 0 ? carry_all_scan_plan_about(plan) : "");
    carry_all_scan_plan_free(plan);
    EXPECT(comm, tells, "about");
    return CARRY_OK;
}

static void test_all_ranks_measure_the_same(void **state) {
    (void)state;
    double seconds[RANKS] = {0};
    assert_int_equal(run_ranks(4, &world, plan_measured, seconds, NULL), CARRY_OK);
    for (int r = 0; r < 4; r++) {
        assert_true(seconds[r] == seconds[0] && seconds[r] > 0);
    }
}

typedef struct failing {
    const char *algorithm;
    int rank;
    bool begins;
    told told;
} failing;

/* One rank gives up before or after it began. The others free all memory as soon as they are notified. */
static carry_status fail_once(void *user, carry_comm *comm) {
    failing *f = user;
    const int rank = carry_comm_rank(comm);
    const carry_all_scan_options options = {CARRY_INIT(carry_all_scan_options), .algorithm = f->algorithm, .blocks = 7};
    carry_all_scan_plan *plan;
    carry_all_scan_args args;
    TRY(carry_all_scan_plan_new_on(comm, &plan, &usual, &options, &some_machine));
    part mine = make_part(&usual, 1, rank);
    args = args_of(&usual, &mine, true, true);
    void *workspace = malloc(carry_all_scan_run_workspace(plan));
    carry_status status = CARRY_ERANGE;
    if (rank != f->rank) {
        status = carry_all_scan_run(plan, &args, workspace, carry_all_scan_run_workspace(plan));
        tell(&f->told, comm, status);
        if (status != CARRY_OK &&
            carry_all_scan_begin(plan, &args, workspace, carry_all_scan_run_workspace(plan)) != CARRY_EARGUMENT) {
            status = CARRY_EFORMAT;
        }
    } else if (f->begins) {
        (void)carry_all_scan_begin(plan, &args, workspace, carry_all_scan_run_workspace(plan));
    }
    carry_all_scan_plan_free(plan);
    free(workspace);
    free_part(&mine);
    return rank == f->rank ? CARRY_ERANGE : status != CARRY_OK ? status : carry_barrier(comm);
}

static void test_a_rank_that_fails_ends_the_scans_of_the_others(void **state) {
    (void)state;
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        for (int rank = 0; rank < 4; rank++) {
            failing f = {.algorithm = carry_all_scan_name(i), .rank = rank, .begins = (i + rank) % 2};
            const double start = carry_seconds();
            for (int r = 0; r < 4; r++) {
                f.told.status[r] = CARRY_EPEER; /* one may still be planning when another gives up */
            }
            assert_int_equal(run_ranks(4, &world, fail_once, &f, NULL), CARRY_ERANGE);
            assert_true(carry_seconds() - start < world.deadline / 2); /* notified, not timed out */
            for (int r = 0; r < 4; r++) {                              /* those before it may have been done */
                assert_true(r == rank || f.told.status[r] == CARRY_EPEER || f.told.status[r] == CARRY_OK);
                assert_true(f.begins || r <= rank || f.told.status[r] == CARRY_EPEER);
            }
        }
    }
}

static carry_status never_come(void *user, carry_comm *comm) {
    told *t = user;
    carry_all_scan_plan *plan;
    const int rank = carry_comm_rank(comm);
    TRY(carry_all_scan_plan_new_on(comm, &plan, &usual, NULL, &some_machine));
    part mine = make_part(&usual, 1, rank);
    const carry_all_scan_args args = args_of(&usual, &mine, true, false);
    void *workspace = malloc(carry_all_scan_run_workspace(plan));
    carry_status status = carry_barrier(comm); /* ranks may start and plan slowly */
    status = status == CARRY_OK ? carry_comm_set_deadline(comm, 0.3) : status;
    if (status == CARRY_OK && rank == 0) { /* waits for the others instead of beginning */
        int64_t never;
        status = carry_recv(comm, &never, sizeof never, 0, 3);
    } else if (status == CARRY_OK) {
        status = carry_all_scan_run(plan, &args, workspace, carry_all_scan_run_workspace(plan));
    }
    tell(t, comm, status);
    carry_all_scan_plan_free(plan);
    free(workspace);
    free_part(&mine);
    return status;
}

static void test_a_scan_ends_at_the_deadline(void **state) {
    (void)state;
    told t = {0};
    const double start = carry_seconds();
    assert_int_equal(run_ranks(3, &world, never_come, &t, NULL), CARRY_ETIMEOUT);
    assert_true(carry_seconds() - start < world.deadline / 2); /* by its own deadline of 0.3 s */
    for (int r = 0; r < 3; r++) {
        assert_true(t.status[r] == CARRY_ETIMEOUT || t.status[r] == CARRY_EPEER);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_differ_are_told_apart_everywhere),
        cmocka_unit_test(test_what_is_wrong_is_refused_with_an_error_message),
        cmocka_unit_test(test_the_chain_does_not_send_more_to_more_ranks),
        cmocka_unit_test(test_nodes_are_counted_by_how_many_neighbours_are_far_apart),
        cmocka_unit_test(test_the_planner_takes_what_is_cheapest),
        cmocka_unit_test(test_all_ranks_measure_the_same),
        cmocka_unit_test(test_a_rank_that_fails_ends_the_scans_of_the_others),
        cmocka_unit_test(test_a_scan_ends_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
