/* Shared by the tests of communicators: running a function on ranks of every kind, and a ring of messages. Under mpirun
   the ranks are the processes that it started, kind "mpi", instead of threads (test_mpi.sh); with CARRY_MEET in the
   environment they are of kind "processes" (test_processes.sh). */
#ifndef CARRY_TESTS_COMM_SUPPORT_H
#define CARRY_TESTS_COMM_SUPPORT_H

#include "support.h"

#include <stdbool.h>

#include "core/rng.h"

enum { RANKS = 16 }; /* that there is room for */

static const int sizes[] = {1, 2, 3, 4, 5, 8};
static const carry_comm_options world = {CARRY_INIT(carry_comm_options),
                                         .deadline = 120}; /* far longer than a busy machine needs */

static inline bool meets(void) {
    return getenv("CARRY_MEET") != NULL;
}

/* The ranks are processes. */
static inline bool is_under_mpi(void) {
    return meets() || getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_RANK") != NULL;
}

/* Processes, or 0. */
static inline int process_count(void) {
    const char *size = getenv(meets() ? "CARRY_RANKS" : "OMPI_COMM_WORLD_SIZE");
    return size != NULL ? atoi(size) : 0;
}

/* Runs only the tests that CMOCKA_TEST_FILTER matches: cmocka does not read the environment itself. */
static inline void take_filter(void) {
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
}

static inline uint32_t draw(uint64_t key, uint64_t high, uint64_t low) {
    return carry_philox(key, high, low).word[0];
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

/* Runs the function on ranks of every kind, each with `threads` threads; *message gets rank 0's error message. */
static inline carry_status run_ranks_of(int ranks, int threads, const carry_comm_options *options,
                                        carry_comm_function function, void *user, char message[512]) {
    carry_ctx *ctxs[RANKS];
    for (int r = 0; r < ranks; r++) {
        ctxs[r] = support_ctx(threads, NULL, NULL);
    }
    carry_status status;
    if (is_under_mpi() || ranks == 1) {
        carry_comm *comm;
        status = carry_comm_open(ctxs[0], &comm, meets() ? "processes" : is_under_mpi() ? "mpi" : "self", options);
        if (status == CARRY_OK) {
            status = function(user, comm);
            if (status != CARRY_OK) {
                carry_comm_abort(comm, carry_ctx_error(ctxs[0]));
            }
            carry_comm_close(comm);
        }
    } else {
        status = carry_comm_threads(ctxs, ranks, options, function, user);
    }
    if (message != NULL) {
        (void)snprintf(message, 512, "%s", carry_ctx_error(ctxs[0]));
    }
    for (int r = 0; r < ranks; r++) {
        carry_ctx_free(ctxs[r]);
    }
    return status;
}

static inline carry_status run_ranks(int ranks, const carry_comm_options *options, carry_comm_function function,
                                     void *user, char message[512]) {
    return run_ranks_of(ranks, 1, options, function, user, message);
}

/* Messages around a ring, received by tag in another order than sent, and counted. */
static inline carry_status ring(void *user, carry_comm *comm) {
    (void)user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    carry_comm_counts before = {CARRY_INIT(carry_comm_counts)}, after = before;
    TRY(carry_comm_counted(comm, &before));
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
    TRY(carry_comm_counted(comm, &after));
    EXPECT(comm, after.bytes_sent - before.bytes_sent == 24 && after.messages_sent - before.messages_sent == 3, "sent");
    EXPECT(comm, after.bytes_received - before.bytes_received == 24, "received");
    EXPECT(comm, after.messages_received - before.messages_received == 3, "received");
    return CARRY_OK;
}

#endif
