/* Communicators: every collective equals a plain loop for every kind and number of ranks; results do not vary; whatever
   goes wrong in one rank ends the others with a sentence and within the deadline.

   Under mpirun the same tests run on the ranks that it started, kind "mpi", instead of threads (test_mpi.sh). */
#include "support.h"

#include <unistd.h>

#include "comm/ranks.h"
#include "core/clock.h"
#include "core/rng.h"

enum { RANKS = 8 };

static const int sizes[] = {1, 2, 3, 4, 5, 8};
static carry_comm_options world = {.deadline = 20};
static int under_mpi;

static uint32_t draw(uint64_t key, uint64_t high, uint64_t low) {
    return carry_philox(key, high, low).word[0];
}

/* Values whose sums depend on the order. */
static double value(uint64_t key, int rank, int64_t i) {
    return ((double)draw(key, (uint64_t)rank, (uint64_t)i) / 4294967296.0 - 0.5) * (i % 3 == 0 ? 1e6 : 1);
}

#define EXPECT(comm, condition, ...)                                                                      \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            print_error("rank %d of %d: %s: ", carry_comm_rank(comm), carry_comm_size(comm), #condition); \
            print_error(__VA_ARGS__);                                                                     \
            print_error("\n");                                                                            \
            return CARRY_EFORMAT;                                                                         \
        }                                                                                                 \
    } while (0)

#define TRY(expression)                         \
    do {                                        \
        carry_status try_status = (expression); \
        if (try_status != CARRY_OK) {           \
            return try_status;                  \
        }                                       \
    } while (0)

/* Runs the function on ranks of every kind; *sentence gets what rank 0 was told. */
static carry_status run_ranks(int ranks, const carry_comm_options *options, carry_comm_function function, void *user,
                              char sentence[512]) {
    carry_ctx *ctxs[RANKS];
    for (int r = 0; r < ranks; r++) {
        ctxs[r] = support_ctx(1, NULL, NULL);
    }
    carry_status status;
    if (under_mpi || ranks == 1) {
        carry_comm *comm;
        status = carry_comm_open(ctxs[0], &comm, under_mpi ? "mpi" : "self", options);
        if (status == CARRY_OK) {
            status = function(user, comm);
            if (status != CARRY_OK) {
                carry_comm_abort(comm, carry_ctx_error(ctxs[0]));
            }
            carry_comm_free(comm);
        }
    } else {
        status = carry_comm_threads(ctxs, ranks, options, function, user);
    }
    if (sentence != NULL) {
        (void)snprintf(sentence, 512, "%s", carry_ctx_error(ctxs[0]));
    }
    for (int r = 0; r < ranks; r++) {
        carry_ctx_free(ctxs[r]);
    }
    return status;
}

static void run_every_size(carry_comm_function function, void *user) {
    char sentence[512];
    for (size_t i = 0; i < (under_mpi ? 1 : sizeof sizes / sizeof sizes[0]); i++) {
        carry_status status = run_ranks(sizes[i], &world, function, user, sentence);
        if (status != CARRY_OK) {
            fail_msg("%d ranks: %s: %s", sizes[i], carry_status_name(status), sentence);
        }
    }
}

static double reduced(uint64_t seed, int ranks, int64_t i, carry_reduce_type type, carry_reduce reduce) {
    float sum32 = 0;
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        const double x = type == CARRY_REDUCE_I64 ? (double)(int64_t)value(seed, r, i) : value(seed, r, i);
        const double x_or_32 = type == CARRY_REDUCE_F32 ? (double)(float)x : x;
        if (r == 0) {
            sum = x_or_32;
            sum32 = (float)x;
        } else if (reduce == CARRY_REDUCE_SUM) {
            sum += x_or_32;
            sum32 += (float)x;
        } else {
            sum = x_or_32 > sum ? x_or_32 : sum;
            sum32 = (float)sum;
        }
    }
    return type == CARRY_REDUCE_F32 ? (double)sum32 : sum;
}

static void put(void *at, int64_t i, carry_reduce_type type, double x) {
    if (type == CARRY_REDUCE_F32) {
        ((float *)at)[i] = (float)x;
    } else if (type == CARRY_REDUCE_F64) {
        ((double *)at)[i] = x;
    } else {
        ((int64_t *)at)[i] = (int64_t)x;
    }
}

static double get(const void *at, int64_t i, carry_reduce_type type) {
    return type == CARRY_REDUCE_F32   ? (double)((const float *)at)[i]
           : type == CARRY_REDUCE_F64 ? ((const double *)at)[i]
                                      : (double)((const int64_t *)at)[i];
}

/* Bit for bit the plain loop over the ranks, in their order: so the same every time as well. */
static carry_status reduce_all(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    static const int64_t counts[] = {0, 1, 2, 7, 64, 1023};
    double *data = malloc(1024 * RANKS * sizeof *data), *piece = malloc(1024 * sizeof *piece);
    carry_status status = CARRY_OK;
    for (int c = 0; c < 36 && status == CARRY_OK; c++) {
        const int64_t n = counts[c % 6];
        const carry_reduce_type type = (carry_reduce_type)(c / 6 % 3);
        const carry_reduce reduce = (carry_reduce)(c / 18);
        for (int64_t i = 0; i < n * size; i++) {
            put(data, i, type, value((uint64_t)c, rank, i));
        }
        status = carry_reduce_scatter(comm, piece, data, n, type, reduce);
        if (status == CARRY_OK) {
            status = carry_all_reduce(comm, data, n, type, reduce);
        }
        for (int64_t i = 0; i < n && status == CARRY_OK; i++) {
            if (get(data, i, type) != reduced((uint64_t)c, size, i, type, reduce) ||
                get(piece, i, type) != reduced((uint64_t)c, size, rank * n + i, type, reduce)) {
                print_error("reduction %d of type %d: element %lld of %lld differs\n", (int)reduce, (int)type,
                            (long long)i, (long long)n);
                status = CARRY_EFORMAT;
            }
        }
    }
    free(piece);
    free(data);
    return status;
}

static unsigned char byte_of(int round, int from, int to, size_t i) {
    return (unsigned char)draw((uint64_t)round, (uint64_t)(from * 16 + to), i);
}

static carry_status move_all(void *user, carry_comm *comm) {
    (void)user;
    enum { LIMIT = 600 };
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    static _Thread_local unsigned char from[LIMIT * RANKS], to[LIMIT * RANKS];
    for (int round = 0; round < 24; round++) {
        const size_t n = round % 4 == 0 ? 0 : draw(99, 0, (uint64_t)round) % LIMIT;
        const int root = (int)(draw(98, 0, (uint64_t)round) % (unsigned)size);
        memset(to, 0xee, sizeof to);
        for (size_t i = 0; i < n * (size_t)size; i++) {
            from[i] = byte_of(round, rank, (int)(i / n), i % n);
        }
        TRY(carry_all_to_all(comm, to, from, n));
        for (size_t i = 0; i < n * (size_t)size; i++) {
            EXPECT(comm, to[i] == byte_of(round, (int)(i / n), rank, i % n), "all-to-all, %zu bytes", n);
        }
        TRY(carry_all_gather(comm, to, from, n));
        for (size_t i = 0; i < n * (size_t)size; i++) {
            EXPECT(comm, to[i] == byte_of(round, (int)(i / n), 0, i % n), "all-gather, %zu bytes", n);
        }
        size_t each[RANKS], at = 0;
        for (int r = 0; r < size; r++) {
            each[r] = r == root ? 0 : draw(97, (uint64_t)r, (uint64_t)round) % LIMIT;
        }
        for (size_t i = 0; i < each[rank]; i++) {
            from[i] = byte_of(round, rank, 9, i);
        }
        TRY(carry_all_gatherv(comm, to, from, each));
        for (int r = 0; r < size; at += each[r++]) {
            for (size_t i = 0; i < each[r]; i++) {
                EXPECT(comm, to[at + i] == byte_of(round, r, 9, i), "all-gatherv, rank %d", r);
            }
        }
        for (size_t i = 0; i < n; i++) {
            from[i] = rank == root ? byte_of(round, root, 10, i) : 0xee;
        }
        TRY(carry_broadcast(comm, from, n, root));
        for (size_t i = 0; i < n; i++) {
            EXPECT(comm, from[i] == byte_of(round, root, 10, i), "broadcast from %d", root);
        }
        TRY(carry_barrier(comm));
    }
    return CARRY_OK;
}

/* Around a ring with tags taken in another order than sent; counters count it. */
static carry_status ring(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    const carry_comm_counts before = carry_comm_counted(comm);
    carry_request send[3], receive;
    int64_t out[3] = {rank, rank + 100, rank + 200}, in[3] = {0};
    for (int i = 0; i < 3; i++) {
        TRY(carry_isend(comm, &send[i], &out[i], sizeof out[i], next, i == 2 ? 0 : i));
    }
    TRY(carry_recv(comm, &in[1], sizeof in[1], last, 1));
    TRY(carry_recv(comm, &in[0], sizeof in[0], last, 0));
    TRY(carry_irecv(comm, &receive, &in[2], sizeof in[2], last, 0));
    for (int done = 0; !done;) {
        TRY(carry_test(&receive, &done));
    }
    for (int i = 0; i < 3; i++) {
        TRY(carry_wait(&send[i]));
        TRY(carry_wait(&send[i])); /* none any more */
        EXPECT(comm, in[i] == last + 100 * i, "message %d", i);
    }
    const carry_comm_counts after = carry_comm_counted(comm);
    EXPECT(comm, after.bytes_sent - before.bytes_sent == 24 && after.messages_sent - before.messages_sent == 3, "sent");
    EXPECT(comm, after.bytes_received - before.bytes_received == 24, "received");
    EXPECT(comm, after.messages_received - before.messages_received == 3, "received");
    return CARRY_OK;
}

/* Odd and even ranks apart, in reverse; both parts and the whole work at once. */
static carry_status split(void *user, carry_comm *comm) {
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    carry_comm *part, *none;
    TRY(carry_comm_split(comm, &part, rank % 2, -rank));
    const int members = (size + 1 - rank % 2) / 2;
    EXPECT(comm, carry_comm_size(part) == members && carry_comm_rank(part) == members - 1 - rank / 2, "a part");
    carry_request early;
    int64_t ahead = 7, back = 0;
    TRY(carry_isend(comm, &early, &ahead, 8, rank, 5)); /* not to be taken for the part's */
    carry_status status = ring(user, part);
    if (status == CARRY_OK) {
        status = move_all(user, part);
    }
    carry_comm_free(part);
    TRY(status);
    TRY(carry_recv(comm, &back, 8, rank, 5));
    TRY(carry_wait(&early));
    TRY(carry_comm_split(comm, &none, -1, 0));
    EXPECT(comm, none == NULL && back == 7, "no part");
    return carry_barrier(comm);
}

static void test_reductions_equal_a_plain_loop_over_the_ranks(void **state) {
    (void)state;
    run_every_size(reduce_all, NULL);
}

static void test_what_is_moved_arrives(void **state) {
    (void)state;
    run_every_size(move_all, NULL);
}

static void test_messages_keep_their_order_and_are_counted(void **state) {
    (void)state;
    run_every_size(ring, NULL);
}

static void test_parts_work_beside_the_whole(void **state) {
    (void)state;
    run_every_size(split, NULL);
}

typedef struct failing {
    int seed, rank, at;
    carry_status seen[RANKS];
    double seconds[RANKS];
} failing;

/* A mixture of everything, in which one rank gives up at some point. */
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
            TRY(carry_all_reduce(comm, data, 40, CARRY_REDUCE_F32, CARRY_REDUCE_SUM));
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
    for (int seed = 0; seed < 50; seed++) {
        const int ranks = sizes[1 + seed % 5];
        failing f = {.seed = seed, .rank = (int)(draw(5, 0, (uint64_t)seed) % (unsigned)ranks)};
        f.at = (int)(draw(6, 0, (uint64_t)seed) % 60);
        for (int r = 0; r < ranks; r++) {
            f.seen[r] = CARRY_EPEER; /* one may still be opening when another gives up */
        }
        const double start = carry_seconds();
        assert_int_equal(run_ranks(ranks, &world, fail_somewhere, &f, NULL), CARRY_ERANGE);
        assert_true(carry_seconds() - start < world.deadline / 2); /* told, not timed out */
        for (int r = 0; r < ranks; r++) {                          /* the last steps may not need everybody */
            assert_true(f.seen[r] == (r == f.rank ? CARRY_ERANGE : CARRY_EPEER) ||
                        (f.at > 40 && f.seen[r] == CARRY_OK));
        }
    }
}

static carry_status come_late(void *user, carry_comm *comm) {
    failing *f = user;
    const int rank = carry_comm_rank(comm);
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
        carry_comm_options options = {.deadline = 0.3};
        assert_int_equal(run_ranks(ranks, &options, come_late, &f, sentence), CARRY_ETIMEOUT);
        assert_non_null(strstr(sentence, "within the deadline (0."));
        assert_non_null(strstr(sentence, ranks == 1 ? "receive: rank 0" : "rank "));
        for (int r = 0; r < ranks; r++) {
            assert_true(f.seen[r] == CARRY_ETIMEOUT || f.seen[r] == CARRY_EPEER);
            assert_true(f.seconds[r] < 5);
        }
    }
}

static carry_status misfit(void *user, carry_comm *comm) {
    const int which = *(int *)user, rank = carry_comm_rank(comm), odd = rank == 1;
    float data[64] = {0}, out[64 * RANKS];
    size_t each[RANKS] = {4, odd ? 4 : 8, 4};
    switch (which) {
    case 0:
        return carry_all_reduce(comm, data, 10 + odd, CARRY_REDUCE_F32, CARRY_REDUCE_SUM);
    case 1:
        return carry_all_gather(comm, out, data, odd ? 8 : 12);
    case 2:
        return carry_all_gatherv(comm, out, data, each);
    case 3:
        return carry_broadcast(comm, data, odd ? 8 : 12, 0);
    case 4:
        return carry_reduce_scatter(comm, data, out, 10 + odd, CARRY_REDUCE_F64, CARRY_REDUCE_MAX);
    case 5:
        return carry_all_to_all(comm, out, data, odd ? 0 : 4);
    default:
        return rank == 0 ? carry_send(comm, data, 8, 1, 0) : odd ? carry_recv(comm, data, 4, 0, 0) : CARRY_OK;
    }
}

static void test_sizes_that_differ_are_refused(void **state) {
    (void)state;
    for (int which = 0; which < 7; which++) {
        char sentence[512];
        assert_int_equal(run_ranks(3, &world, misfit, &which, sentence), CARRY_ESHAPE);
        assert_non_null(strstr(sentence, "bytes where rank"));
    }
}

static carry_status nothing(void *user, carry_comm *comm) {
    (void)user;
    (void)comm;
    return CARRY_OK;
}

/* Every rank opens with a word of its own. */
static carry_status open_with_word(void *user, const carry_rank *self) {
    carry_ctx *const *ctxs = user;
    carry_comm *comm;
    carry_comm_options options = {.deadline = 20, .rank = self, .word = self->rank == 2 ? "bf16 chain" : "f32 chain"};
    return carry_comm_open(ctxs[self->rank], &comm, "threads", &options);
}

static void test_ranks_that_differ_are_told_apart(void **state) {
    (void)state;
    carry_comm_options same = {.deadline = 20, .word = "f32 chain"};
    assert_int_equal(run_ranks(3, &same, nothing, NULL, NULL), CARRY_OK);
    carry_ctx *ctxs[4];
    for (int r = 0; r < 4; r++) {
        ctxs[r] = support_ctx(1, NULL, NULL);
    }
    assert_int_equal(carry_ranks_run(ctxs[0], 4, open_with_word, ctxs), CARRY_EARGUMENT);
    for (int r = 0; r < 4; r++) {
        assert_non_null(strstr(carry_ctx_error(ctxs[r]), "rank 0 has 'f32 chain', rank 2 has word 'bf16 chain'"));
        carry_ctx_free(ctxs[r]);
    }
}

static void test_bad_arguments_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    const double bad[] = {0, -1, 0.0 / 0.0, 1.0 / 0.0};
    for (int i = 0; i < 4; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "deadline",
                       carry_comm_open(ctx, &comm, "self", &(carry_comm_options){.deadline = bad[i]}));
        assert_null(comm);
    }
    assert_refused(ctx, CARRY_ENOTFOUND, "self, threads", carry_comm_open(ctx, &comm, "pigeons", NULL));
    assert_refused(ctx, CARRY_EARGUMENT, "carry_comm_threads", carry_comm_open(ctx, &comm, "threads", NULL));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "device 1",
                   carry_comm_open(ctx, &comm, "self", &(carry_comm_options){.deadline = 1, .device = 1}));
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    assert_true(carry_comm_deadline(comm) == CARRY_COMM_DEADLINE);
    assert_refused(ctx, CARRY_EARGUMENT, "deadline", carry_comm_set_deadline(comm, 0));
    int64_t x = 0;
    assert_refused(ctx, CARRY_EARGUMENT, "no rank 1", carry_send(comm, &x, 8, 1, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "tag", carry_recv(comm, &x, 8, 0, CARRY_COMM_TAGS));
    assert_refused(ctx, CARRY_EARGUMENT, "no address", carry_recv(comm, NULL, 8, 0, 0));
    assert_refused(ctx, CARRY_EARGUMENT, "no rank -1", carry_broadcast(comm, &x, 8, -1));
    assert_refused(ctx, CARRY_ESIZE, "elements", carry_all_reduce(comm, &x, -1, CARRY_REDUCE_I64, CARRY_REDUCE_SUM));
    assert_ok(ctx, carry_barrier(comm)); /* a refusal ends nothing */
    carry_comm_abort(comm, "enough");
    assert_refused(ctx, CARRY_EPEER, "enough", carry_recv(comm, &x, 8, 0, 0));
    carry_comm_free(comm);
    carry_comm_free(NULL);
    carry_ctx_free(ctx);
}

/* The same failures among processes, where each sees only its own end. */
static void test_processes_end_with_a_sentence(void **state) {
    (void)state;
    char sentence[512];
    for (int which = 0; which < 7; which++) {
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
    const carry_comm_options options = {.deadline = 0.3};
    const carry_status status = run_ranks(1, &options, come_late, &late, sentence);
    assert_true(status == CARRY_ETIMEOUT || status == CARRY_EPEER);
    assert_non_null(strstr(sentence, "waited"));
}

/* Under mpirun: "wait" is what test_mpi.sh kills a rank of. */
static carry_status wait_to_be_killed(void *user, carry_comm *comm) {
    (void)user;
    int64_t rounds = 0;
    (void)printf("rank %d is process %ld\n", carry_comm_rank(comm), (long)getpid());
    (void)fflush(stdout);
    for (;;) {
        TRY(carry_all_reduce(comm, &rounds, 1, CARRY_REDUCE_I64, CARRY_REDUCE_MAX));
        rounds++;
    }
}

static int main_of_mpi(int count, char **arguments) {
    under_mpi = 1;
    if (count > 1 && strcmp(arguments[1], "wait") == 0) {
        char sentence[512];
        const carry_comm_options options = {.deadline = 2};
        const carry_status status = run_ranks(1, &options, wait_to_be_killed, NULL, sentence);
        (void)fprintf(stderr, "told: %s: %s\n", carry_status_name(status), sentence);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_equal_a_plain_loop_over_the_ranks),
        cmocka_unit_test(test_what_is_moved_arrives),
        cmocka_unit_test(test_messages_keep_their_order_and_are_counted),
        cmocka_unit_test(test_parts_work_beside_the_whole),
        cmocka_unit_test(test_processes_end_with_a_sentence),
        cmocka_unit_test(test_messages_keep_their_order_and_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int count, char **arguments) {
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_RANK") != NULL) {
        return main_of_mpi(count, arguments);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_equal_a_plain_loop_over_the_ranks),
        cmocka_unit_test(test_what_is_moved_arrives),
        cmocka_unit_test(test_messages_keep_their_order_and_are_counted),
        cmocka_unit_test(test_parts_work_beside_the_whole),
        cmocka_unit_test(test_a_rank_that_fails_leaves_nobody_hanging),
        cmocka_unit_test(test_every_wait_ends_at_the_deadline),
        cmocka_unit_test(test_sizes_that_differ_are_refused),
        cmocka_unit_test(test_ranks_that_differ_are_told_apart),
        cmocka_unit_test(test_bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
