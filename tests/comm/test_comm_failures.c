/* Communicators after a failure: when a rank fails, does not arrive or differs, the others end with an error message
   within the deadline. */
#include "comm_support.h"

#include <unistd.h>

#include "comm/ranks.h"
#include "comm/rates.h"
#include "core/clock.h"

typedef struct failing {
    int seed, rank, at;
    carry_status seen[RANKS];
    double seconds[RANKS];
} failing;

/* All operations in turn; one rank gives up at some point. */
static carry_status mixture(const failing *f, carry_comm *comm) {
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    float data[40] = {0};
    unsigned char all[RANKS * 4];
    for (int step = 0; step < 60; step++) {
        if (rank == f->rank && step == f->at) {
            return CARRY_ERANGE;
        }
        switch (draw((uint64_t)f->seed, 1, (uint64_t)step) % 5) {
        case 0:
            TRY(carry_barrier(comm));
            break;
        case 1:
            TRY(carry_broadcast(comm, data, sizeof data, step % size));
            break;
        case 2:
            TRY(carry_all_reduce(comm, data, 40, CARRY_F32, CARRY_REDUCE_SUM));
            break;
        case 3:
            TRY(carry_all_gather(comm, all, data, 4));
            break;
        default:
            TRY(ring(NULL, comm));
            break;
        }
    }
    return CARRY_OK;
}

static carry_status fail_somewhere(void *user, carry_comm *comm) {
    failing *f = user;
    const int rank = carry_comm_rank(comm);
    f->seen[rank] = mixture(f, comm);
    return f->seen[rank];
}

static void test_a_rank_that_fails_leaves_nobody_hanging(void **state) {
    (void)state;
    const carry_comm_options patient = {CARRY_INIT(carry_comm_options),
                                        .deadline = 120}; /* far longer than a loaded machine needs */
    for (int seed = 0; seed < 50; seed++) {
        const int ranks = sizes[1 + seed % 5];
        failing f = {.seed = seed, .rank = (int)(draw(5, 0, (uint64_t)seed) % (unsigned)ranks)};
        f.at = (int)(draw(6, 0, (uint64_t)seed) % 60);
        for (int r = 0; r < ranks; r++) {
            f.seen[r] = CARRY_EPEER; /* one may still be opening when another gives up */
        }
        const double start = carry_seconds();
        assert_int_equal(run_ranks(ranks, &patient, fail_somewhere, &f, NULL), CARRY_ERANGE);
        assert_true(carry_seconds() - start < patient.deadline / 2); /* notified, not timed out */
        for (int r = 0; r < ranks; r++) {                            /* the last steps may not involve all ranks */
            assert_true(f.seen[r] == (r == f.rank ? CARRY_ERANGE : CARRY_EPEER) ||
                        (f.at > 40 && f.seen[r] == CARRY_OK));
        }
    }
}

static carry_status come_late(void *user, carry_comm *comm) {
    failing *f = user;
    const int rank = carry_comm_rank(comm);
    f->seen[rank] = CARRY_EPEER; /* another rank may have given up before this one has passed the barrier */
    TRY(carry_barrier(comm));    /* ranks may start slowly */
    TRY(carry_comm_set_deadline(comm, 0.3));
    const double start = carry_seconds();
    if (rank == f->rank) {
        int64_t never;
        f->seen[rank] = carry_recv(comm, &never, 8, rank, 3); /* what only it could send */
    } else {
        f->seen[rank] = carry_barrier(comm);
    }
    f->seconds[rank] = carry_seconds() - start;
    return f->seen[rank];
}

static void test_every_wait_ends_at_the_deadline(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        char sentence[512];
        failing f = {.rank = ranks - 1};
        assert_int_equal(run_ranks(ranks, &world, come_late, &f, sentence), CARRY_ETIMEOUT);
        assert_non_null(strstr(sentence, "within the deadline ("));
        assert_non_null(strstr(sentence, ranks == 1 ? "receive: rank 0" : "rank "));
        for (int r = 0; r < ranks; r++) {
            assert_true(f.seen[r] == CARRY_ETIMEOUT || f.seen[r] == CARRY_EPEER);
            assert_true(f.seconds[r] < world.deadline / 2); /* by its own deadline of 0.3 s */
        }
    }
}

static carry_status misfit(void *user, carry_comm *comm) {
    const int which = *(int *)user, rank = carry_comm_rank(comm), odd = rank == 1;
    enum { LARGE = 10000 }; /* floats: for this size a reduction among three ranks uses other messages than for 10 */
    static _Thread_local float data[LARGE], out[LARGE * 3];
    size_t each[RANKS] = {4, odd ? 4 : 8, 4};
    switch (which) {
    case 0:
        return carry_all_reduce(comm, data, 10 + odd, CARRY_F32, CARRY_REDUCE_SUM);
    case 1:
        return carry_all_gather(comm, out, data, odd ? 8 : 12);
    case 2:
        return carry_all_gatherv(comm, out, data, each);
    case 3:
        return carry_broadcast(comm, data, odd ? 8 : 12, 0);
    case 4:
        return carry_reduce_scatter(comm, data, out, 10 + odd, CARRY_F64, CARRY_REDUCE_MAX);
    case 5:
        return carry_all_to_all(comm, out, data, odd ? 0 : 4);
    case 6:
        return carry_all_reduce(comm, data, odd ? LARGE : 10, CARRY_F32, CARRY_REDUCE_SUM);
    case 7:
        return carry_all_gather(comm, out, data, odd ? LARGE * sizeof(float) : 12);
    default:
        return rank == 0 ? carry_send(comm, data, 8, 1, 0) : odd ? carry_recv(comm, data, 4, 0, 0) : CARRY_OK;
    }
}

static void test_sizes_that_differ_are_refused(void **state) {
    (void)state;
    for (int which = 0; which < 9; which++) {
        char sentence[512];
        assert_int_equal(run_ranks(3, &world, misfit, &which, sentence), CARRY_ESHAPE);
        assert_non_null(strstr(sentence, "bytes where rank"));
    }
}

enum { LETTERS = 8, ROUNDS = 2000 };

/* Rank 0 posts sends of growing length and withdraws them, while rank 1 receives: the first few arrive, in order, and
   none arrives in the place of another. In every second round rank 1 sends and rank 0 withdraws its receives. */
static carry_status take_back(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm);
    for (int round = 0; round < ROUNDS; round++) {
        carry_request requests[LETTERS] = {{0}};
        unsigned char bytes[LETTERS][LETTERS] = {{0}};
        const bool sends = rank == round % 2;
        int done[LETTERS] = {0};
        for (int i = 0; i < LETTERS; i++) {
            const size_t size = (size_t)i + 1;
            memset(bytes[i], sends ? i + 1 : 0, size);
            TRY(sends ? carry_isend(comm, &requests[i], bytes[i], size, 1 - rank, 0)
                      : carry_irecv(comm, &requests[i], bytes[i], size, 1 - rank, 0));
        }
        for (int i = LETTERS - 1; i >= 0 && rank == 1; i--) { /* if one is done, those before it were done earlier */
            TRY(carry_test(&requests[i], &done[i]));
            EXPECT(comm, i == LETTERS - 1 || done[i] || !done[i + 1], "%d without %d", i + 1, i);
            EXPECT(comm, !done[i] || bytes[i][i] == i + 1, "message %d holds %d", i, bytes[i][i]);
        }
        carry_comm_withdraw(requests, LETTERS);
        TRY(carry_barrier(comm));
    }
    return CARRY_OK;
}

static void test_what_is_withdrawn_leaves_the_rest_in_order(void **state) {
    (void)state;
    char sentence[512];
    const carry_status status = run_ranks(2, &world, take_back, NULL, sentence);
    if (status != CARRY_OK) {
        print_error("%s\n", sentence);
    }
    assert_int_equal(status, CARRY_OK);
}

enum { CLOSE_CALLS = 1500 };

/* Rank 0 gives up the first of several messages at its deadline, just when rank 1 receives it. Rank 1 gets that message
   or none, and never the second in its place. */
static carry_status come_at_the_end(void *user, carry_comm *comm) {
    const int *round = user;
    const double deadline = 1e-3;
    const double start = carry_seconds();
    unsigned char bytes[LETTERS] = {0};
    if (carry_comm_rank(comm) == 0) {
        carry_request requests[LETTERS] = {{0}};
        for (int i = 0; i < LETTERS; i++) {
            TRY(carry_isend(comm, &requests[i], bytes, (size_t)i + 1, 1, 0));
        }
        TRY(carry_comm_set_deadline(comm, deadline));
        (void)carry_wait(&requests[0]);
        carry_comm_abort(comm, "enough");
        carry_comm_withdraw(requests, LETTERS);
        return CARRY_OK;
    }
    while (carry_seconds() < start + deadline + 1e-6 * (*round % 150)) {
    }
    const carry_status status = carry_recv(comm, bytes, 1, 0, 0);
    EXPECT(comm, status != CARRY_ESHAPE, "round %d: %s", *round, carry_ctx_error(carry_comm_ctx(comm)));
    return CARRY_OK;
}

static void test_a_message_that_was_given_up_is_not_replaced_by_the_next(void **state) {
    (void)state;
    for (int round = 0; round < CLOSE_CALLS; round++) {
        char sentence[512];
        const carry_status status = run_ranks(2, &world, come_at_the_end, &round, sentence);
        if (status != CARRY_OK) {
            fail_msg("%s: %s", carry_status_name(status), sentence);
        }
    }
}

static carry_status nothing(void *user, carry_comm *comm) {
    (void)user;
    (void)comm;
    return CARRY_OK;
}

/* Each rank opens with a different agreement string. */
static carry_status open_with_agreement(void *user, const carry_rank *self) {
    carry_ctx *const *ctxs = user;
    carry_comm *comm;
    carry_comm_options options = {CARRY_INIT(carry_comm_options), .deadline = 120, .rank = self,
                                  .agreement = self->rank == 2 ? "bf16 chain" : "f32 chain"};
    return carry_comm_open(ctxs[self->rank], &comm, "threads", &options);
}

static void test_ranks_that_differ_are_told_apart(void **state) {
    (void)state;
    carry_comm_options same = {CARRY_INIT(carry_comm_options), .deadline = 120, .agreement = "f32 chain"};
    assert_int_equal(run_ranks(3, &same, nothing, NULL, NULL), CARRY_OK);
    carry_ctx *ctxs[4];
    for (int r = 0; r < 4; r++) {
        ctxs[r] = support_ctx(1, NULL, NULL);
    }
    assert_int_equal(carry_ranks_run(ctxs[0], 4, open_with_agreement, ctxs), CARRY_EARGUMENT);
    for (int r = 0; r < 4; r++) {
        assert_non_null(strstr(carry_ctx_error(ctxs[r]), "rank 0 has 'f32 chain', rank 2 has agreement 'bf16 chain'"));
        carry_ctx_free(ctxs[r]);
    }
}

static void test_bad_arguments_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    const double bad[] = {-1, 0.0 / 0.0, 1.0 / 0.0};
    for (int i = 0; i < 3; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "deadline",
                       carry_comm_open(ctx, &comm, "self",
                                       &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = bad[i]}));
        assert_null(comm);
    }
    assert_ok(ctx,
              carry_comm_open(ctx, &comm, "self",
                              &(carry_comm_options){CARRY_INIT(carry_comm_options)})); /* all zero is the default */
    assert_true(carry_comm_deadline(comm) == CARRY_COMM_DEADLINE);
    carry_comm_close(comm);
    bool has_mpi = false;
    for (int i = 0; carry_comm_kind_name(i) != NULL; i++) {
        has_mpi = has_mpi || strcmp(carry_comm_kind_name(i), "mpi") == 0;
    }
    if (!has_mpi) {
        assert_refused(ctx, CARRY_EUNSUPPORTED, "install MPI", carry_comm_open(ctx, &comm, "mpi", NULL));
    }
    assert_refused(ctx, CARRY_ENOTFOUND, "self, threads", carry_comm_open(ctx, &comm, "pigeons", NULL));
    assert_refused(ctx, CARRY_EARGUMENT, "carry_comm_threads", carry_comm_open(ctx, &comm, "threads", NULL));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "device 1",
                   carry_comm_open(ctx, &comm, "self",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 1, .device = 1}));
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    assert_true(carry_comm_deadline(comm) == CARRY_COMM_DEADLINE);
    assert_refused(ctx, CARRY_EARGUMENT, "deadline", carry_comm_set_deadline(comm, 0));
    int64_t x = 0;
    assert_refused(ctx, CARRY_EARGUMENT, "no rank 1", carry_send(comm, &x, 8, 1, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "tag", carry_recv(comm, &x, 8, 0, CARRY_MAX_COMM_TAGS));
    assert_refused(ctx, CARRY_EARGUMENT, "no address", carry_recv(comm, NULL, 8, 0, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "no rank -1", carry_broadcast(comm, &x, 8, -1));
    assert_refused(ctx, CARRY_ESIZE, "elements", carry_all_reduce(comm, &x, -1, CARRY_I64, CARRY_REDUCE_SUM));
    assert_ok(ctx, carry_barrier(comm)); /* a refusal ends nothing */
    carry_comm_abort(comm, "enough");
    assert_refused(ctx, CARRY_EPEER, "enough", carry_recv(comm, &x, 8, 0, 0));
    carry_comm_close(comm);
    carry_comm_close(NULL);
    carry_ctx_free(ctx);
}

/* The same failures among processes, each of which sees only its own result. */
static void test_processes_end_with_a_sentence(void **state) {
    (void)state;
    char sentence[512];
    for (int which = 0; which < 9; which++) {
        const carry_status status = run_ranks(1, &world, misfit, &which, sentence);
        assert_true(status == CARRY_OK || strstr(sentence, "bytes where rank") != NULL);
    }
    for (int seed = 0; seed < 10; seed++) {
        failing f = {.seed = seed, .rank = seed % 2, .at = (int)(draw(6, 0, (uint64_t)seed) % 40)};
        const double start = carry_seconds();
        const carry_status status = run_ranks(1, &world, fail_somewhere, &f, sentence);
        assert_true(status == CARRY_ERANGE || status == CARRY_EPEER);
        assert_true(carry_seconds() - start < world.deadline / 2);
    }
    failing late = {.rank = 1};
    const carry_status status = run_ranks(1, &world, come_late, &late, sentence);
    assert_true(status == CARRY_ETIMEOUT || status == CARRY_EPEER);
    assert_non_null(strstr(sentence, "waited"));
}

static void test_processes_go_on_with_another(void **state) {
    (void)state;
    assert_int_equal(run_ranks(1, &world, ring, NULL, NULL), CARRY_OK);
}

/* Under mpirun, "wait SECONDS" is the program whose rank test_mpi.sh kills; the ranks may take SECONDS to start. */
static carry_status wait_to_be_killed(void *user, carry_comm *comm) {
    (void)user;
    int64_t rounds = 0;
    TRY(carry_comm_set_deadline(comm, 5));
    (void)printf("rank %d is process %ld\n", carry_comm_rank(comm), (long)getpid());
    (void)fflush(stdout);
    for (;;) {
        TRY(carry_all_reduce(comm, &rounds, 1, CARRY_I64, CARRY_REDUCE_MAX));
        rounds++;
    }
}

static int main_of_mpi(int count, char **arguments) {
    if (count > 1 && strncmp(arguments[1], "wait ", 5) == 0) {
        char sentence[512];
        const carry_comm_options options = {CARRY_INIT(carry_comm_options), .deadline = strtod(arguments[1] + 5, NULL)};
        const carry_status status = run_ranks(1, &options, wait_to_be_killed, NULL, sentence);
        (void)fprintf(stderr, "told: %s: %s\n", carry_status_name(status), sentence);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_end_with_a_sentence),
        cmocka_unit_test(test_processes_go_on_with_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int count, char **arguments) {
    if (is_under_mpi()) {
        return main_of_mpi(count, arguments);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_fails_leaves_nobody_hanging),
        cmocka_unit_test(test_every_wait_ends_at_the_deadline),
        cmocka_unit_test(test_sizes_that_differ_are_refused),
        cmocka_unit_test(test_what_is_withdrawn_leaves_the_rest_in_order),
        cmocka_unit_test(test_a_message_that_was_given_up_is_not_replaced_by_the_next),
        cmocka_unit_test(test_ranks_that_differ_are_told_apart),
        cmocka_unit_test(test_bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
