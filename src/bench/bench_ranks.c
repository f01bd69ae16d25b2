/* Benches on ranks: all start together and measure, and rank 0 keeps the slowest. Structures are sent without
   conversion, since the ranks of a communicator have the same build. */
#include "bench/bench_ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"

/* The results of one rank; after agree(), the worst over all ranks. */
typedef struct tally {
    carry_status status;
    int rank; /* the rank that has this status */
    int count;
    char message[256];
    carry_ceilings ceilings;
    carry_bench_result results[CARRY_BENCH_METHODS];
} tally;

/* True if a is the worse result. If one rank could not time a method, the method has no time. */
static bool is_worse(const carry_bench_result *a, const carry_bench_result *b) {
    if (a->reason[0] != '\0' || b->reason[0] != '\0') {
        return a->reason[0] != '\0' && b->reason[0] == '\0';
    }
    return a->median > b->median;
}

static void keep_slowest(tally *all, const tally *other, int rank) {
    if (all->status == CARRY_OK && other->status != CARRY_OK) {
        all->status = other->status;
        all->rank = rank;
        memcpy(all->message, other->message, sizeof all->message);
    }
    all->ceilings.gemm_gflops = fmin(all->ceilings.gemm_gflops, other->ceilings.gemm_gflops);
    all->ceilings.copy_gbytes_s = fmin(all->ceilings.copy_gbytes_s, other->ceilings.copy_gbytes_s);
    all->count = other->count < all->count ? other->count : all->count;
    for (int i = 0; i < all->count; i++) {
        if (is_worse(&other->results[i], &all->results[i])) {
            all->results[i] = other->results[i];
            all->results[i].rank = rank;
        }
    }
}

/* Rank 0 receives one rank's results at a time, so that it needs memory for only one. Returns this rank's status, or
   CARRY_EPEER if another rank failed. */
static carry_status agree(carry_comm *comm, tally *mine) {
    const carry_status own = mine->status;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    if (own != CARRY_OK) {
        (void)snprintf(mine->message, sizeof mine->message, "%s", carry_ctx_error(carry_comm_ctx(comm)));
    }
    if (rank > 0) {
        CARRY_TRY(carry_send(comm, mine, sizeof *mine, 0, 0));
    }
    for (int peer = 1; rank == 0 && peer < size; peer++) {
        tally other;
        CARRY_TRY(carry_recv(comm, &other, sizeof other, peer, 0));
        keep_slowest(mine, &other, peer);
    }
    CARRY_TRY(carry_broadcast(comm, mine, sizeof *mine, 0));
    if (own == CARRY_OK && mine->status != CARRY_OK) {
        return carry_fail(carry_comm_ctx(comm), CARRY_EPEER, "rank %d: %s", mine->rank, mine->message);
    }
    return own;
}

carry_status carry_ceilings_measure_ranks(carry_comm *comm, carry_ceilings *ceilings) {
    tally mine;
    memset(&mine, 0, sizeof mine); /* padding is sent too */
    mine.rank = carry_comm_rank(comm);
    int neighbours;
    CARRY_TRY(carry_collective_neighbours(comm, &neighbours));
    CARRY_TRY(carry_barrier(comm));
    mine.status = carry_ceilings_measure(carry_comm_ctx(comm), neighbours, &mine.ceilings);
    CARRY_TRY(agree(comm, &mine));
    *ceilings = mine.ceilings;
    return CARRY_OK;
}

/* The ranks solve the problem together: rank 0 has the figures of all, and sends them to the others. */
static carry_status bench_together(carry_comm *comm, const char *problem, const carry_ceilings *ceilings,
                                   const carry_bench_options *options, tally *mine) {
    carry_bench_options own = *options;
    own.comm = comm;
    mine->status = carry_bench_problem(carry_comm_ctx(comm), problem, ceilings, &own, mine->results, &mine->count);
    if (mine->status == CARRY_EPEER || mine->status == CARRY_ETIMEOUT) {
        return mine->status;
    }
    const carry_status status = mine->status; /* the same on all ranks */
    CARRY_TRY(carry_broadcast(comm, mine, sizeof *mine, 0));
    return status;
}

carry_status carry_bench_problem_ranks(carry_comm *comm, const char *problem, const carry_ceilings *ceilings,
                                       const carry_bench_options *options,
                                       carry_bench_result results[CARRY_BENCH_METHODS], int *count) {
    carry_bench_options own = *options;
    tally mine;
    memset(&mine, 0, sizeof mine);
    mine.rank = carry_comm_rank(comm);
    if (carry_comm_size(comm) > 1) {
        own.keep = NULL;
        own.progress = mine.rank == 0 ? own.progress : NULL;
    }
    *count = 0;
    CARRY_TRY(carry_barrier(comm));
    carry_status status;
    if (carry_collective_ranks(carry_comm_ctx(comm), problem) > 0) {
        status = bench_together(comm, problem, ceilings, options, &mine);
    } else {
        mine.status = carry_bench_problem(carry_comm_ctx(comm), problem, ceilings, &own, mine.results, &mine.count);
        status = agree(comm, &mine);
    }
    *count = mine.count;
    memcpy(results, mine.results, sizeof mine.results);
    return status;
}
