/* The delta rule over ranks: which problems are refused, on which rank, with which message; and no rank waits for
   ever. */
#include "comm_support.h"

enum { TOKENS = 6, HEADS = 2, K = 3, V = 2, SEQUENCES = 2, NUMBERS = TOKENS * HEADS * K };

static const carry_delta_problem good = {
    .batch = 1, .tokens = TOKENS, .heads = HEADS, .value_heads = HEADS, .key = K, .value = V};

/* Problem and options of the rank that differs from the others. */
typedef struct odd {
    int rank; /* RANKS: all of them */
    carry_delta_problem problem;
    carry_delta_ranks_options options;
} odd;

static carry_status plan_only(void *user, carry_comm *comm) {
    const odd *o = user;
    bool is_odd = o->rank == RANKS || carry_comm_rank(comm) == o->rank;
    carry_delta_ranks_options options = o->options;
    options.size = sizeof options;
    carry_delta_ranks_plan *plan;
    carry_status status =
        carry_delta_ranks_plan_new(comm, &plan, is_odd ? &o->problem : &good, is_odd ? &options : NULL);
    EXPECT(comm, (status == CARRY_OK) == (plan != NULL), "a plan with a failure");
    carry_delta_ranks_plan_free(plan);
    return status;
}

static void expect_refusal(odd o, carry_status status, const char *words) {
    char message[512];
    for (o.rank = 0; o.rank <= RANKS; o.rank += o.rank == 2 ? RANKS - 2 : 1) {
        carry_status got = run_ranks(3, &world, plan_only, &o, message);
        /* Rank 0's message is its own refusal, or one that it received from another rank. */
        if ((got != status && got != CARRY_EARGUMENT) || strstr(message, words) == NULL) {
            fail_msg("rank %d: expected '%s', got %s: %s", o.rank, words, carry_status_name(got), message);
        }
    }
}

static void problems_are_refused_by_name(void **unused) {
    (void)unused;
    odd o = {.problem = good};
    o.problem.state_transposed = true;
    expect_refusal(o, CARRY_EUNSUPPORTED, "transposed");
    o.problem = good;
    o.problem.snapshot_every = 2;
    expect_refusal(o, CARRY_EUNSUPPORTED, "snapshots");
    o.problem = good;
    o.problem.tokens = -1;
    expect_refusal(o, CARRY_ESIZE, "tokens is -1");
    o.problem = good;
    o.options.algorithm = "chunk7";
    expect_refusal(o, CARRY_ENOTFOUND, "chunk7");
    o.options = (carry_delta_ranks_options){CARRY_INIT(carry_delta_ranks_options), .wire = CARRY_F16};
    expect_refusal(o, CARRY_EDTYPE, "not f16");
    o.options = (carry_delta_ranks_options){CARRY_INIT(carry_delta_ranks_options), .groups = 17};
    expect_refusal(o, CARRY_EARGUMENT, "17 groups");
    o.options =
        (carry_delta_ranks_options){CARRY_INIT(carry_delta_ranks_options), .first_tag = CARRY_MAX_COMM_TAGS - 15};
    expect_refusal(o, CARRY_EARGUMENT, "first_tag is 1009");
}

static void ranks_that_differ_are_told_so(void **unused) {
    (void)unused;
    char message[512];
    odd o = {.rank = 1, .problem = good};
    o.problem.key = K + 1;
    assert_int_equal(run_ranks(3, &world, plan_only, &o, message), CARRY_EARGUMENT);
    assert_non_null(strstr(message, "K 3"));
    assert_non_null(strstr(message, "rank 1 has"));
    assert_non_null(strstr(message, "K 4"));
    o = (odd){.rank = 2, .problem = good, .options.groups = 2};
    assert_int_equal(run_ranks(3, &world, plan_only, &o, message), CARRY_EARGUMENT);
    o = (odd){.rank = 2, .problem = good};
    o.problem.tokens = 0; /* as it may */
    assert_int_equal(run_ranks(3, &world, plan_only, &o, message), CARRY_OK);
}

typedef struct fault {
    int64_t borders[SEQUENCES + 1], others[SEQUENCES + 1]; /* others: of rank 1 */
    bool small, no_kept, leaves;                           /* leaves: rank 1 leaves before its second call */
    carry_status wanted, seen[RANKS];
    const char *words;
} fault;

static carry_status call(void *user, carry_comm *comm) {
    fault *f = user;
    const int rank = carry_comm_rank(comm);
    float numbers[NUMBERS] = {0};
    float states[SEQUENCES * HEADS * K * V];
    float out[NUMBERS];
    carry_delta_problem p = good;
    p.sequences = SEQUENCES;
    carry_delta_ranks_plan *plan;
    TRY(carry_delta_ranks_plan_new(comm, &plan, &p, NULL));
    size_t bytes = carry_delta_ranks_forward_workspace(plan);
    void *workspace = malloc(bytes);
    void *kept = malloc(carry_delta_ranks_kept_bytes(plan));
    EXPECT(comm, workspace != NULL && kept != NULL, "memory");
    carry_tensor keys = carry_view_4d(numbers, CARRY_F32, 1, TOKENS, HEADS, K);
    carry_tensor values = carry_view_4d(numbers, CARRY_F32, 1, TOKENS, HEADS, V);
    carry_tensor beta = carry_view_3d(numbers, CARRY_F32, 1, TOKENS, HEADS);
    carry_tensor o = values;
    carry_tensor final = carry_view_4d(states, CARRY_F32, SEQUENCES, HEADS, K, V);
    carry_tensor borders = carry_view_1d(rank == 1 ? f->others : f->borders, CARRY_I64, SEQUENCES + 1);
    o.data = out;
    carry_delta_forward_args args = {.o = o,
                                     .final_state = final,
                                     .kept = f->no_kept ? NULL : kept,
                                     .q = keys,
                                     .k = keys,
                                     .v = values,
                                     .beta = beta,
                                     .cu_seqlens = borders};
    carry_status status = carry_delta_ranks_forward(plan, &args, workspace, f->small ? bytes - 1 : bytes);
    if (status == CARRY_OK && f->leaves) {
        status = rank == 1 ? CARRY_ERANGE : carry_delta_ranks_forward(plan, &args, workspace, bytes);
    }
    if (status == CARRY_OK && f->no_kept) {
        keys.data = values.data = beta.data = out;
        status = carry_delta_ranks_backward(plan,
                                            &(carry_delta_backward_args){.dq = keys,
                                                                         .dk = keys,
                                                                         .dv = values,
                                                                         .dbeta = beta,
                                                                         .d_o = args.v,
                                                                         .q = args.q,
                                                                         .k = args.k,
                                                                         .v = args.v,
                                                                         .beta = args.beta,
                                                                         .cu_seqlens = borders},
                                            workspace, bytes);
    }
    f->seen[rank] = status;
    free(workspace);
    free(kept);
    carry_delta_ranks_plan_free(plan);
    return status;
}

static void expect_fault(fault f) {
    char message[512];
    carry_status got =
        run_ranks(3, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 120}, call, &f, message);
    if (got != f.wanted || strstr(message, f.words) == NULL) {
        fail_msg("expected '%s', got %s: %s", f.words, carry_status_name(got), message);
    }
}

static void calls_are_refused_by_name(void **unused) {
    (void)unused;
    expect_fault((fault){.borders = {0, 7, 18}, .others = {0, 7, 18}, .wanted = CARRY_OK, .words = ""});
    expect_fault((fault){
        .borders = {0, 7, 17}, .others = {0, 7, 17}, .wanted = CARRY_EARGUMENT, .words = "ends at 17 and there"});
    expect_fault((fault){
        .borders = {0, 7, 18}, .others = {0, 8, 18}, .wanted = CARRY_EARGUMENT, .words = "is not that of rank"});
    expect_fault((fault){
        .borders = {0, 7, 18}, .others = {0, 7, 18}, .small = true, .wanted = CARRY_EWORKSPACE, .words = "workspace"});
    expect_fault((fault){.borders = {0, 7, 18},
                         .others = {0, 7, 18},
                         .no_kept = true,
                         .wanted = CARRY_EARGUMENT,
                         .words = "kept is missing"});
}

/* A rank gives up between two calls: the ranks that need it end with its reason, long before their deadline. */
static void a_rank_that_leaves_ends_the_others(void **unused) {
    (void)unused;
    fault f = {.borders = {0, 18, 18}, .others = {0, 18, 18}, .leaves = true};
    char message[512];
    assert_int_equal(
        run_ranks(3, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 120}, call, &f, message),
        CARRY_ERANGE);
    assert_int_equal(f.seen[2], CARRY_EPEER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_are_refused_by_name),
        cmocka_unit_test(ranks_that_differ_are_told_so),
        cmocka_unit_test(calls_are_refused_by_name),
        cmocka_unit_test(a_rank_that_leaves_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
