/* All-Scan is the recurrence over ranks: every algorithm, kind, wire, direction, role and odd size against a loop in
   f64; the same bits every time; several scans at once. */
#include "all_scan_support.h"

#include <sched.h>
#include <unistd.h>

static int64_t pick(uint64_t seed, uint64_t which, const int64_t *from, int count) {
    return from[draw(seed, 1000 + which, 0) % (unsigned)count];
}

typedef struct example {
    carry_all_scan_problem problem;
    carry_all_scan_options options;
    uint64_t seed;
    bool initial, leaving, polled;
} example;

static example draw_example(uint64_t seed, const char *algorithm, int kind, int wire, bool reversed, bool transposed) {
    static const int64_t heads[] = {1, 3}, keys[] = {1, 7, 33}, values[] = {1, 5, 40};
    example e = {.seed = seed,
                 .options = {CARRY_INIT(carry_all_scan_options), .algorithm = algorithm,
                             .tag = (int)(seed % CARRY_MAX_COMM_TAGS)}};
    e.problem = (carry_all_scan_problem){.kind = (carry_all_scan_kind)kind,
                                         .heads = pick(seed, 0, heads, 2),
                                         .key = pick(seed, 1, keys, 3),
                                         .value = pick(seed, 2, values, 3),
                                         .wire = wire ? CARRY_BF16 : CARRY_F32,
                                         .reversed = reversed,
                                         .transposed = transposed};
    const int64_t rows[] = {1, 3, e.problem.key}; /* travel as factors, or dense */
    e.problem.rows = kind == CARRY_ALL_SCAN_FACTORS ? pick(seed, 3, rows, 3) : 0;
    const int64_t columns = e.problem.heads * e.problem.value;
    const int64_t blocks[] = {0, 1, columns < 2 ? 1 : 2, columns < 7 ? 1 : 7, columns < 53 ? columns : 53, columns};
    e.options.blocks = pick(seed, 4, blocks, 6);
    e.initial = draw(seed, 5, 0) % 2;
    e.leaving = draw(seed, 6, 0) % 2;
    e.polled = draw(seed, 7, 0) % 2;
    return e;
}

static carry_status run_scan(carry_all_scan_plan *plan, const carry_all_scan_args *args, bool polled, uint64_t seed,
                             void *workspace, size_t bytes);

/* The same in memory of the plan's GPU: copies inputs there and outputs back. */
static carry_status scan_on_gpu(carry_all_scan_plan *plan, const carry_all_scan_args *args, bool polled,
                                uint64_t seed) {
    const size_t bytes = carry_all_scan_run_workspace(plan);
    carry_all_scan_args there = *args;
    carry_tensor *all[] = {&there.state, &there.leaving, &there.M, &there.W,
                           &there.Y,     &there.gamma,   &there.L, &there.initial};
    enum { TENSORS = sizeof all / sizeof all[0], WRITTEN = 2 };
    void *here[TENSORS], *workspace;
    size_t sizes_of[TENSORS];
    TRY(carry_device_alloc(plan->ctx, &workspace, plan->device, bytes));
    TRY(carry_device_fill(plan->ctx, workspace, plan->device, 0xff, bytes, NULL));
    for (int i = 0; i < TENSORS; i++) {
        here[i] = all[i]->data;
        if (here[i] != NULL) {
            sizes_of[i] = (size_t)carry_tensor_count(all[i]) * sizeof(float);
            all[i]->device = plan->device;
            TRY(carry_device_alloc(plan->ctx, &all[i]->data, plan->device, sizes_of[i]));
            TRY(carry_device_copy(plan->ctx, all[i]->data, plan->device, here[i], 0, sizes_of[i], NULL));
        }
    }
    carry_status status = run_scan(plan, &there, polled, seed, workspace, bytes);
    for (int i = 0; i < TENSORS; i++) {
        if (here[i] != NULL && i < WRITTEN && status == CARRY_OK) {
            status = carry_device_copy(plan->ctx, here[i], 0, all[i]->data, plan->device, sizes_of[i], NULL);
        }
        carry_device_free(plan->ctx, plan->device, here[i] != NULL ? all[i]->data : NULL);
    }
    carry_device_free(plan->ctx, plan->device, workspace);
    return status;
}

static carry_status scan(carry_all_scan_plan *plan, const carry_all_scan_args *args, bool polled, uint64_t seed) {
    if (plan->device > 0) {
        return scan_on_gpu(plan, args, polled, seed);
    }
    const size_t bytes = carry_all_scan_run_workspace(plan);
    void *workspace = malloc(bytes > 0 ? bytes : 1);
    memset(workspace, 0xff, bytes); /* NaN */
    const carry_status status = run_scan(plan, args, polled, seed, workspace, bytes);
    free(workspace);
    return status;
}

static carry_status run_scan(carry_all_scan_plan *plan, const carry_all_scan_args *args, bool polled, uint64_t seed,
                             void *workspace, size_t bytes) {
    carry_status status;
    if (!polled) {
        status = carry_all_scan_run(plan, args, workspace, bytes);
    } else {
        status = carry_all_scan_begin(plan, args, workspace, bytes);
        for (int done = 0, i = 0; status == CARRY_OK && !done && draw(seed, 8, (uint64_t)i) % 16 != 0; i++) {
            status = carry_all_scan_poll(plan, &done);
            (void)sched_yield();
        }
        status = status == CARRY_OK ? carry_all_scan_end(plan) : status;
    }
    return status;
}

/* f32: a sum of K+1 terms for each hop, whose error is passed on undiminished at worst. bf16 rounds by 2^-9 of a
   number: the chain rounds its state once a hop. Pairs also round M, or W, Y and gamma, and composed maps add their
   errors: four times as much. */
static double tolerance(const carry_all_scan_problem *p, int ranks, const char *algorithm) {
    const bool chain = strcmp(algorithm, "chain") == 0 || strcmp(algorithm, "serial") == 0;
    const double f32 = ranks * (double)(2 * p->key + 2 * p->rows + 4) * 0x1p-24;
    return p->wire == CARRY_F32 ? f32 : f32 + ranks * (chain ? 0x1p-8 : 0x1p-7);
}

static carry_status compare(carry_comm *comm, const example *e, const part *parts, const char *algorithm) {
    const carry_all_scan_problem *p = &e->problem;
    const int rank = carry_comm_rank(comm), ranks = carry_comm_size(comm);
    const int64_t count = p->heads * p->key * p->value;
    double *enters = calloc((size_t)count, sizeof(double)), *leaves = calloc((size_t)count, sizeof(double));
    const double largest = reference(p, parts, ranks, rank, e->initial, enters, leaves);
    const double allowed = tolerance(p, ranks, algorithm) * largest;
    int64_t wrong = -1;
    for (int64_t i = 0; i < count && wrong < 0; i++) {
        const bool state = fabs(parts[rank].state[i] - enters[i]) <= allowed; /* false for NaN */
        const bool left = !e->leaving || fabs(parts[rank].leaving[i] - leaves[i]) <= allowed;
        wrong = state && left ? -1 : i;
    }
    const double state = wrong >= 0 ? parts[rank].state[wrong] : 0, wanted = wrong >= 0 ? enters[wrong] : 0;
    const double left = wrong >= 0 ? parts[rank].leaving[wrong] : 0, leaving = wrong >= 0 ? leaves[wrong] : 0;
    free(enters);
    free(leaves);
    EXPECT(comm, wrong < 0,
           "%s kind %d %s%s%s h%d k%d v%d rows %d blocks %d seed %d role %d: element %d: state %g for %g, leaving %g "
           "for %g (%d), allowed %g",
           algorithm, (int)p->kind, carry_dtype_name(p->wire), p->reversed ? " reversed" : "",
           p->transposed ? " transposed" : "", (int)p->heads, (int)p->key, (int)p->value, (int)p->rows,
           (int)e->options.blocks, (int)e->seed, (int)parts[rank].role, (int)wrong, state, wanted, left, leaving,
           (int)e->leaving, allowed);
    return CARRY_OK;
}

static carry_status try_example(carry_comm *comm, const example *e) {
    const int rank = carry_comm_rank(comm), ranks = carry_comm_size(comm);
    carry_all_scan_plan *plan;
    part parts[RANKS] = {0};
    TRY(carry_all_scan_plan_new_on(comm, &plan, &e->problem, &e->options, &some_machine));
    for (int r = 0; r < ranks; r++) {
        parts[r] = make_part(&e->problem, e->seed, r);
        const unsigned die = draw(e->seed, 9, (uint64_t)r) % 8; /* most have maps */
        parts[r].role = die == 0 ? CARRY_ALL_SCAN_CUT : die == 1 ? CARRY_ALL_SCAN_PASS : CARRY_ALL_SCAN_MAP;
    }
    const carry_all_scan_args args = args_of(&e->problem, &parts[rank], e->initial, e->leaving);
    carry_status status = scan(plan, &args, e->polled, e->seed + (uint64_t)rank);
    if (status == CARRY_OK) {
        status = compare(comm, e, parts, carry_all_scan_plan_algorithm(plan));
    }
    for (int r = 0; r < ranks; r++) {
        free_part(&parts[r]);
    }
    carry_all_scan_plan_free(plan);
    return status;
}

static carry_status try_everything(void *user, carry_comm *comm) {
    const int rounds = *(const int *)user;
    uint64_t seed = 1;
    const char *algorithm;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; (algorithm = carry_all_scan_name(i)) != NULL; i++) {
            for (int which = 0; which < 3 * 8; which++) {
                const example e = draw_example(seed++, algorithm, which / 8, which & 1, which & 2, which & 4);
                TRY(try_example(comm, &e));
            }
        }
    }
    return CARRY_OK;
}

static void try_on(int ranks, int rounds) {
    char message[512];
    if (run_ranks(ranks, &world, try_everything, &rounds, message) != CARRY_OK) {
        fail_msg("%d ranks: %s", ranks, message);
    }
}

static void test_every_algorithm_is_the_recurrence_over_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        try_on(sizes[i], support_cases(6, 1));
    }
}

/* Many more sends than can be in flight at once, to receivers that arrive in any order. */
static void test_every_algorithm_works_on_many_ranks(void **state) {
    (void)state;
    static const int many[] = {7, 9, 13, RANKS};
    for (size_t i = 0; i < (is_under_mpi() ? 1 : sizeof many / sizeof many[0]); i++) {
        try_on(many[i], 1);
    }
}

typedef struct repeated {
    const char *algorithm;
    carry_dtype wire;
} repeated;

/* The bits are the same in whichever order messages arrive. */
static carry_status repeat(void *user, carry_comm *comm) {
    const repeated *r = user;
    const carry_all_scan_problem p = {
        .kind = CARRY_ALL_SCAN_DENSE, .heads = 3, .key = 17, .value = 19, .wire = r->wire};
    const carry_all_scan_options options = {CARRY_INIT(carry_all_scan_options), .algorithm = r->algorithm, .blocks = 5,
                                            .tag = 1};
    const int rank = carry_comm_rank(comm);
    float first[3 * 17 * 19];
    carry_all_scan_plan *plan;
    TRY(carry_all_scan_plan_new_on(comm, &plan, &p, &options, &some_machine));
    part mine = make_part(&p, 3, rank);
    mine.role = rank == 2 ? CARRY_ALL_SCAN_PASS : CARRY_ALL_SCAN_MAP;
    const carry_all_scan_args args = args_of(&p, &mine, true, false);
    carry_status status = CARRY_OK;
    for (int run = 0; run < 20 && status == CARRY_OK; run++) {
        usleep(draw(4, (uint64_t)run, (uint64_t)rank) % 300);
        memset(mine.state, 0xff, sizeof first);
        status = scan(plan, &args, run % 2, (uint64_t)run);
        if (run == 0) {
            memcpy(first, mine.state, sizeof first);
        } else if (status == CARRY_OK && memcmp(first, mine.state, sizeof first) != 0) {
            print_error("%s: run %d has other bits\n", r->algorithm, run);
            status = CARRY_EFORMAT;
        }
    }
    free_part(&mine);
    carry_all_scan_plan_free(plan);
    return status;
}

static void test_the_bits_do_not_depend_on_timing(void **state) {
    (void)state;
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        repeated r = {.algorithm = carry_all_scan_name(i), .wire = i % 2 ? CARRY_BF16 : CARRY_F32};
        assert_int_equal(run_ranks(5, &world, repeat, &r, NULL), CARRY_OK);
    }
}

enum { PLANS = 4 };

/* Two algorithms in each direction, begun in another order by every second rank and polled in turn. */
static carry_status several(void *user, carry_comm *comm) {
    (void)user;
    static const char *const names[PLANS] = {"chain", "gather", "doubling", "chain"};
    const int rank = carry_comm_rank(comm), ranks = carry_comm_size(comm);
    carry_all_scan_plan *plans[PLANS];
    part parts[PLANS][RANKS];
    void *workspaces[PLANS];
    example e[PLANS];
    for (int i = 0; i < PLANS; i++) {
        e[i] = draw_example(77, names[i], i % 3, i % 2, i % 2, false);
        e[i].options.tag = i;
        e[i].initial = true;
        e[i].leaving = false;
        TRY(carry_all_scan_plan_new_on(comm, &plans[i], &e[i].problem, &e[i].options, &some_machine));
        workspaces[i] = malloc(carry_all_scan_run_workspace(plans[i]));
        for (int r = 0; r < ranks; r++) {
            parts[i][r] = make_part(&e[i].problem, (uint64_t)i, r);
        }
    }
    for (int k = 0; k < PLANS; k++) {
        const int i = rank % 2 ? PLANS - 1 - k : k;
        const carry_all_scan_args args = args_of(&e[i].problem, &parts[i][rank], true, false);
        TRY(carry_all_scan_begin(plans[i], &args, workspaces[i], carry_all_scan_run_workspace(plans[i])));
    }
    for (int left = PLANS, done[PLANS] = {0}; left > 0;) {
        left = PLANS;
        for (int i = 0; i < PLANS; i++) {
            TRY(carry_all_scan_poll(plans[i], &done[i]));
            left -= done[i];
        }
        (void)sched_yield();
    }
    for (int i = 0; i < PLANS; i++) {
        TRY(carry_all_scan_end(plans[i]));
        TRY(compare(comm, &e[i], parts[i], names[i]));
        for (int r = 0; r < ranks; r++) {
            free_part(&parts[i][r]);
        }
        free(workspaces[i]);
        carry_all_scan_plan_free(plans[i]);
    }
    return CARRY_OK;
}

static void test_several_scans_are_under_way_at_once(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(run_ranks(sizes[i], &world, several, NULL, NULL), CARRY_OK);
    }
    assert_int_equal(run_ranks(RANKS, &world, several, NULL, NULL), CARRY_OK);
}

/* Ranks with two threads each split heads and columns. */
static void test_threads_of_a_rank_split_its_products(void **state) {
    (void)state;
    carry_ctx *ctxs[3];
    int rounds = 1;
    for (int r = 0; r < 3; r++) {
        ctxs[r] = support_ctx(3, NULL, NULL);
    }
    assert_ok(ctxs[0], carry_comm_threads(ctxs, 3, &world, try_everything, &rounds));
    for (int r = 0; r < 3; r++) {
        carry_ctx_free(ctxs[r]);
    }
}

/* `user` is the kind of the communicator. */
static carry_status try_on_gpu(void *user, carry_comm *comm) {
    carry_comm *gpus;
    int rounds = 1;
    TRY(carry_comm_open_device(comm, &gpus, 1, user));
    carry_status status = try_everything(&rounds, gpus);
    repeated r = {.algorithm = "gather", .wire = CARRY_BF16};
    status = status == CARRY_OK ? repeat(&r, gpus) : status;
    carry_comm_close(gpus);
    return status;
}

static void test_ranks_that_share_a_gpu_agree_with_the_recurrence(void **state) {
    (void)state;
    static const char *const ways[] = {"peer", "staged"};
    if (carry_device_count() < 2) {
        skip();
    }
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        char message[512];
        if (run_ranks(sizes[i / 2], &world, try_on_gpu, (void *)ways[i % 2], message) != CARRY_OK) {
            fail_msg("%d ranks, %s: %s", sizes[i / 2], ways[i % 2], message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_is_the_recurrence_over_ranks),
        cmocka_unit_test(test_every_algorithm_works_on_many_ranks),
        cmocka_unit_test(test_the_bits_do_not_depend_on_timing),
        cmocka_unit_test(test_several_scans_are_under_way_at_once),
        cmocka_unit_test(test_threads_of_a_rank_split_its_products),
        cmocka_unit_test(test_ranks_that_share_a_gpu_agree_with_the_recurrence),
    };
    take_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
