/* Collectives: each equals a plain loop, for every kind and number of ranks, bit for bit. */
#include "comm_support.h"

#include <math.h>

#include "comm/times.h"

/* Values whose sums depend on the order. */
static double value(uint64_t key, int rank, int64_t i) {
    return ((double)draw(key, (uint64_t)rank, (uint64_t)i) / 4294967296.0 - 0.5) * (i % 3 == 0 ? 1e6 : 1);
}

static void run_every_size(carry_comm_function function, void *user) {
    char message[512];
    const size_t step = (size_t)support_cases(1, 2); /* few: 2, 4 and 8 ranks */
    for (size_t i = is_under_mpi() ? 0 : step - 1; i < (is_under_mpi() ? 1 : sizeof sizes / sizeof sizes[0]);
         i += step) {
        carry_status status = run_ranks(sizes[i], &world, function, user, message);
        if (status != CARRY_OK) {
            fail_msg("%d ranks: %s: %s", sizes[i], carry_status_name(status), message);
        }
    }
}

static double reduced(uint64_t seed, int ranks, int64_t i, carry_dtype type, carry_reduce reduce) {
    float sum32 = 0;
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        const double x = type == CARRY_I64 ? (double)(int64_t)value(seed, r, i) : value(seed, r, i);
        const double x_or_32 = type == CARRY_F32 ? (double)(float)x : x;
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
    return type == CARRY_F32 ? (double)sum32 : sum;
}

static void put(void *at, int64_t i, carry_dtype type, double x) {
    if (type == CARRY_F32) {
        ((float *)at)[i] = (float)x;
    } else if (type == CARRY_F64) {
        ((double *)at)[i] = x;
    } else {
        ((int64_t *)at)[i] = (int64_t)x;
    }
}

static double get(const void *at, int64_t i, carry_dtype type) {
    return type == CARRY_F32   ? (double)((const float *)at)[i]
           : type == CARRY_F64 ? ((const double *)at)[i]
                               : (double)((const int64_t *)at)[i];
}

/* Equals the plain loop over the ranks in their order, bit for bit, and is therefore the same every time. */
static carry_status reduce_all(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    static const int64_t counts[] = {0, 1, 2, 7, 64, 1023};
    static const carry_dtype types[] = {CARRY_F32, CARRY_F64, CARRY_I64};
    double *data = malloc(1024 * RANKS * sizeof *data), *piece = malloc(1024 * sizeof *piece);
    carry_status status = CARRY_OK;
    for (int c = 0; c < 36 && status == CARRY_OK; c += support_cases(1, 5)) {
        const int64_t n = counts[c % 6];
        const carry_dtype type = types[c / 6 % 3];
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

/* Collectives switch to another message pattern above 32768 bytes over all ranks. On either side of the limit the bits
   equal those of the plain loop, also when a rank's piece is already in its place in `all`. Sizes on both sides
   alternate, so that messages left over from one pattern would be noticed by the other. */
static carry_status cross_over(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    const int64_t most = 32768 / size / 4;
    float *all = malloc((size_t)(most + 2) * sizeof(float) * (size_t)size), *sum = malloc((size_t)(most + 2) * 4);
    carry_status status = CARRY_OK;
    for (int c = 0; c < 12 && status == CARRY_OK; c++) {
        const int64_t n = most - 1 + c % 4;
        float *own = all + rank * n;
        memset(all, 0xff, (size_t)(n * size) * sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            own[i] = sum[i] = (float)value((uint64_t)c, rank, i);
        }
        status = carry_all_reduce(comm, sum, n, CARRY_F32, CARRY_REDUCE_SUM);
        status = status == CARRY_OK ? carry_all_gather(comm, all, own, (size_t)n * sizeof(float)) : status;
        for (int64_t i = 0; i < n * size && status == CARRY_OK; i++) {
            const bool is_moved = all[i] == (float)value((uint64_t)c, (int)(i / n), i % n);
            const double wanted = reduced((uint64_t)c, size, i % n, CARRY_F32, CARRY_REDUCE_SUM);
            if (!is_moved || (double)sum[i % n] != wanted) {
                print_error("%lld floats on %d ranks: number %lld differs\n", (long long)n, size, (long long)i);
                status = CARRY_EFORMAT;
            }
        }
    }
    free(all);
    free(sum);
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

/* Splits odd and even ranks, in reverse order; both parts and the whole work at once. */
static carry_status split(void *user, carry_comm *comm) {
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    carry_comm *part, *none;
    TRY(carry_comm_split(comm, &part, rank % 2, -rank));
    const int members = (size + 1 - rank % 2) / 2;
    EXPECT(comm, carry_comm_size(part) == members && carry_comm_rank(part) == members - 1 - rank / 2, "a part");
    carry_request early;
    int64_t ahead = 7, back = 0;
    TRY(carry_isend(comm, &early, &ahead, 8, rank, 5)); /* must not be taken for a message of the part */
    carry_status status = ring(user, part);
    if (status == CARRY_OK) {
        status = move_all(user, part);
    }
    carry_comm_close(part);
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

static void test_small_and_large_pieces_have_the_same_bits(void **state) {
    (void)state;
    run_every_size(cross_over, NULL);
    for (int ranks = 6; ranks <= 7 && !is_under_mpi(); ranks++) {
        assert_int_equal(run_ranks(ranks, &world, cross_over, NULL, NULL), CARRY_OK);
    }
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

/* All ranks get the same times, and no time falls as the bytes grow. Between the measured sizes and above the largest
   one, times are interpolated linearly. */
static carry_status believe(void *user, carry_comm *comm) {
    (void)user;
    for (int i = CARRY_TIME_ALL_REDUCE; i <= CARRY_TIME_SEND_RECEIVE; i++) {
        carry_comm_times times, largest;
        TRY(carry_comm_times_of(comm, (carry_comm_operation)i, CARRY_BF16, &times));
        largest = times;
        TRY(carry_all_reduce(comm, largest.seconds, CARRY_COMM_SIZES, CARRY_F64, CARRY_REDUCE_MAX));
        for (int s = 0; s < CARRY_COMM_SIZES; s++) {
            EXPECT(comm, times.seconds[s] > 0.0 && times.seconds[s] == largest.seconds[s], "size %d of %d", s, i);
            EXPECT(comm, s == 0 || times.seconds[s] >= times.seconds[s - 1], "more bytes take less");
        }
    }
    return CARRY_OK;
}

static void test_times_of_collectives_rise_with_their_bytes(void **state) {
    (void)state;
    const carry_comm_times times = {.bytes = {1e3, 1e4, 1e6, 1e7}, .seconds = {2.0, 2.0, 4.0, 22.0}};
    assert_true(carry_comm_time(&times, 1.0) == 2.0 && carry_comm_time(&times, 5e3) == 2.0);
    assert_true(fabs(carry_comm_time(&times, 5.05e5) - 3.0) < 1e-9);
    assert_true(fabs(carry_comm_time(&times, 2e7) - 42.0) < 1e-9);
    for (int ranks = 2; ranks <= 3 && !is_under_mpi(); ranks++) {
        assert_int_equal(run_ranks(ranks, &world, believe, NULL, NULL), CARRY_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_equal_a_plain_loop_over_the_ranks),
        cmocka_unit_test(test_small_and_large_pieces_have_the_same_bits),
        cmocka_unit_test(test_what_is_moved_arrives),
        cmocka_unit_test(test_messages_keep_their_order_and_are_counted),
        cmocka_unit_test(test_parts_work_beside_the_whole),
        cmocka_unit_test(test_times_of_collectives_rise_with_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
