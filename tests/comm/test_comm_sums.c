/* All-reduces as work in a stream (comm/sums.h): the sums of ranks in their order, f32 and bf16, aligned and not,
   launched and replayed; a rank that leaves or never arrives; refusals. */
/* labels: gpu */
#include "comm_support.h"

#include "carry/device.h"
#include "comm/sums.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/nearest.h"

enum { MOST = 4099, ROUNDS = 5 };

static const int64_t counts[] = {1, 7, 8, 1024, MOST - 1};

static float number(int rank, int64_t i, int round) {
    return (float)(int)(draw(7, (uint64_t)(rank + 16 * round), (uint64_t)i) % 2001) / 500.0f - 2.0f;
}

/* The sum in the order of ranks, rounded after each addition. */
static float wanted_sum(int ranks, int64_t i, int round, carry_dtype type) {
    float sum = number(0, i, round);
    sum = type == CARRY_BF16 ? carry_f32_from_bf16(carry_bf16_from_f32(sum)) : sum;
    for (int r = 1; r < ranks; r++) {
        float more = number(r, i, round);
        more = type == CARRY_BF16 ? carry_f32_from_bf16(carry_bf16_from_f32(more)) : more;
        sum += more;
        sum = type == CARRY_BF16 ? carry_f32_from_bf16(carry_bf16_from_f32(sum)) : sum;
    }
    return sum;
}

typedef struct place {
    carry_sums *sums;
    carry_stream *stream;
    char *memory; /* of the device */
    void *host;   /* pinned */
} place;

static carry_status open_place(carry_comm *comm, place *p) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    TRY(carry_stream_new(ctx, &p->stream, 1));
    TRY(carry_ctx_set_stream(ctx, 1, p->stream));
    TRY(carry_device_alloc(ctx, (void **)&p->memory, 1, MOST * sizeof(float) + 16));
    TRY(carry_host_alloc(ctx, &p->host, MOST * sizeof(float)));
    return carry_sums_open(comm, &p->sums, 1, MOST * sizeof(float));
}

static void close_place(carry_comm *comm, place *p) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    (void)carry_stream_wait(ctx, 1, p->stream);
    carry_sums_close(p->sums);
    carry_device_free(ctx, 1, p->memory);
    carry_host_free(ctx, p->host);
    (void)carry_ctx_set_stream(ctx, 1, NULL);
    carry_stream_free(ctx, 1, p->stream);
}

static void fill_host(void *host, carry_dtype type, int64_t count, int rank, int round) {
    for (int64_t i = 0; i < count; i++) {
        if (type == CARRY_BF16) {
            ((uint16_t *)host)[i] = carry_bf16_from_f32(number(rank, i, round));
        } else {
            ((float *)host)[i] = number(rank, i, round);
        }
    }
}

static float host_value(const void *host, carry_dtype type, int64_t i) {
    return type == CARRY_BF16 ? carry_f32_from_bf16(((const uint16_t *)host)[i]) : ((const float *)host)[i];
}

/* graph NULL: the work is enqueued without a graph. */
static carry_status one_round(carry_comm *comm, const place *p, carry_graph *graph, char *data, int64_t count,
                              carry_dtype type, int round) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    const size_t bytes = (size_t)count * carry_dtype_size(type);
    fill_host(p->host, type, count, carry_comm_rank(comm), round);
    TRY(carry_device_copy(ctx, data, 1, p->host, 0, bytes, p->stream));
    TRY(graph != NULL ? carry_graph_launch(ctx, 1, graph, p->stream) : carry_sums_add(p->sums, data, count, type));
    TRY(carry_device_copy(ctx, p->host, 0, data, 1, bytes, p->stream));
    TRY(carry_stream_wait(ctx, 1, p->stream));
    TRY(carry_sums_check(p->sums));
    for (int64_t i = 0; i < count; i++) {
        const float have = host_value(p->host, type, i);
        const float want = wanted_sum(carry_comm_size(comm), i, round, type);
        EXPECT(comm, have == want, "%lld of %lld, round %d: %g, not %g", (long long)i, (long long)count, round,
               (double)have, (double)want);
    }
    return CARRY_OK;
}

static carry_status recorded(carry_comm *comm, const place *p, char *data, int64_t count, carry_dtype type) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_graph *graph;
    TRY(carry_graph_begin(ctx, 1, p->stream));
    TRY(carry_sums_add(p->sums, data, count, type));
    TRY(carry_graph_end(ctx, &graph, 1, p->stream));
    TRY(carry_barrier(comm)); /* making a graph may wait for all work of the GPU: no rank may wait there meanwhile */
    carry_status status = CARRY_OK;
    for (int round = 0; round < ROUNDS && status == CARRY_OK; round++) {
        status = one_round(comm, p, graph, data, count, type, 10 + round);
    }
    TRY(carry_barrier(comm));
    carry_graph_free(ctx, 1, graph);
    TRY(carry_barrier(comm));
    return status;
}

static carry_status all_counts(void *user, carry_comm *comm) {
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16};
    (void)user;
    place p = {0};
    const carry_status opened = open_place(comm, &p);
    if (opened == CARRY_EUNSUPPORTED && carry_comm_size(comm) > 2) { /* all share one GPU */
        EXPECT(comm, strstr(carry_ctx_error(carry_comm_ctx(comm)), "share CUDA device") != NULL, "%s",
               carry_ctx_error(carry_comm_ctx(comm)));
        close_place(comm, &p);
        return CARRY_OK;
    }
    TRY(opened);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            char *data = p.memory + (i % 2) * carry_dtype_size(types[k]); /* aligned to 16 bytes, and not */
            for (int round = 0; round < 3; round++) {
                TRY(one_round(comm, &p, NULL, data, counts[i], types[k], round));
            }
            TRY(recorded(comm, &p, data, counts[i], types[k]));
        }
    }
    close_place(comm, &p);
    return CARRY_OK;
}

static void run_threads(int ranks, double deadline, carry_comm_function function, void *user, carry_status expected,
                        const char *words) {
    carry_ctx *ctxs[RANKS];
    for (int r = 0; r < ranks; r++) {
        ctxs[r] = support_ctx(1, NULL, NULL);
    }
    const carry_comm_options options = {CARRY_INIT(carry_comm_options), .deadline = deadline};
    const carry_status status = carry_comm_threads(ctxs, ranks, &options, function, user);
    if (status != expected || (words != NULL && strstr(carry_ctx_error(ctxs[0]), words) == NULL)) {
        fail_msg("%d ranks: %d, %s", ranks, (int)status, carry_ctx_error(ctxs[0]));
    }
    for (int r = 0; r < ranks; r++) {
        carry_ctx_free(ctxs[r]);
    }
}

static void test_sums_of_every_count_are_those_of_a_loop(void **state) {
    (void)state;
    static const int ranks[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        (void)printf("%d ranks\n", ranks[i]);
        (void)fflush(stdout);
        run_threads(ranks[i], 60, all_counts, NULL, CARRY_OK, NULL);
    }
}

/* Rank 1 does not add. With `leaves` it closes, which ends the wait of rank 0; otherwise rank 0 waits until its
   deadline. */
static carry_status one_is_missing(void *user, carry_comm *comm) {
    const bool leaves = *(const bool *)user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    place p = {0};
    TRY(open_place(comm, &p));
    carry_status status = CARRY_OK;
    if (carry_comm_rank(comm) == 0) {
        TRY(carry_sums_add(p.sums, p.memory, 64, CARRY_F32));
        TRY(carry_sums_add(p.sums, p.memory, 64, CARRY_F32)); /* ends at once after the first one failed */
        TRY(carry_stream_wait(ctx, 1, p.stream));
        status = carry_sums_check(p.sums);
        EXPECT(comm, status == CARRY_ETIMEOUT, "%d", (int)status);
        status = CARRY_OK;
    }
    if (leaves) {
        close_place(comm, &p);
        return status;
    }
    char word = 0;
    TRY(carry_comm_set_deadline(comm, 60)); /* for the message; the sums keep their own deadline */
    TRY(carry_comm_rank(comm) == 0 ? carry_send(comm, &word, 1, 1, 3) : carry_recv(comm, &word, 1, 0, 3));
    close_place(comm, &p);
    return status;
}

static void test_a_missing_rank_ends_the_wait(void **state) {
    (void)state;
    bool leaves = true;
    run_threads(2, 60, one_is_missing, &leaves, CARRY_OK, NULL);
    leaves = false;
    run_threads(2, 1, one_is_missing, &leaves, CARRY_OK, NULL);
}

static carry_status refused(void *user, carry_comm *comm) {
    (void)user;
    place p = {0};
    TRY(open_place(comm, &p));
    EXPECT(comm, carry_sums_add(p.sums, p.memory, MOST + 4, CARRY_F32) == CARRY_ESIZE, "count");
    EXPECT(comm, carry_sums_add(p.sums, p.memory, -1, CARRY_F32) == CARRY_ESIZE, "count");
    EXPECT(comm, carry_sums_add(p.sums, p.memory, 1, CARRY_F64) == CARRY_EDTYPE, "type");
    close_place(comm, &p);
    carry_sums *none;
    EXPECT(comm, carry_sums_open(comm, &none, 0, 16) == CARRY_EUNSUPPORTED && none == NULL, "the CPU");
    return CARRY_OK;
}

static void test_wrong_arguments_are_refused(void **state) {
    (void)state;
    run_threads(2, 60, refused, NULL, CARRY_OK, NULL);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_of_every_count_are_those_of_a_loop),
        cmocka_unit_test(test_a_missing_rank_ends_the_wait),
        cmocka_unit_test(test_wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
