/* Measuring latency and bandwidth: neighbours play ping-pong, first those on one side, then those on the other. All
   pairs play at once, as the ranks of a chain do. */
#include "comm/rates.h"

#include <stdlib.h>

#include "comm/backend.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"

#define SMALL 8
#define LARGE ((size_t)1 << 20)
#define SMALL_TRIPS 15
#define LARGE_TRIPS 3

typedef struct game {
    carry_comm *comm;
    char *data;
    int peer;
    bool serves;
} game;

static carry_status move(const game *g, bool sends, size_t bytes) {
    const carry_deadline deadline = carry_deadline_from_now(g->comm, "rates");
    if (sends) {
        carry_comm_post_send(g->comm, g->comm->requests, "rates", g->data, bytes, g->peer, CARRY_TAG_RATES);
    } else {
        carry_comm_post_recv(g->comm, g->comm->requests, "rates", g->data, bytes, g->peer, CARRY_TAG_RATES);
    }
    return carry_comm_wait_all(g->comm, g->comm->requests, 1, &deadline);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds one way: the median of the trips after the first, which finds everybody asleep. */
static carry_status play(const game *g, size_t bytes, int trips, double *seconds) {
    double times[SMALL_TRIPS] = {0};
    for (int i = 0; i <= trips; i++) {
        const double start = carry_seconds();
        CARRY_TRY(move(g, g->serves, bytes));
        CARRY_TRY(move(g, !g->serves, bytes));
        times[i > 0 ? i - 1 : 0] = (carry_seconds() - start) / 2;
    }
    qsort(times, (size_t)trips, sizeof *times, by_size);
    *seconds = times[trips / 2];
    return CARRY_OK;
}

/* slowest: seconds of a small and of a large message. */
static carry_status measure(carry_comm *comm, char *data, double slowest[2]) {
    for (int side = 0; side < 2; side++) {
        const bool serves = comm->rank % 2 == side;
        const int peer = serves ? comm->rank + 1 : comm->rank - 1;
        if (peer < 0 || peer >= comm->size) {
            continue;
        }
        const game g = {.comm = comm, .data = data, .peer = peer, .serves = serves};
        double small, large;
        CARRY_TRY(play(&g, SMALL, SMALL_TRIPS, &small));
        CARRY_TRY(play(&g, LARGE, LARGE_TRIPS, &large));
        slowest[0] = small > slowest[0] ? small : slowest[0];
        slowest[1] = large > slowest[1] ? large : slowest[1];
    }
    return carry_all_reduce(comm, slowest, 2, CARRY_REDUCE_F64, CARRY_REDUCE_MAX);
}

carry_status carry_comm_rates_of(carry_comm *comm, carry_comm_rates *rates) {
    if (comm->size == 1) {
        *rates = (carry_comm_rates){.bandwidth = 1e12};
        return CARRY_OK;
    }
    if (comm->rates.latency <= 0) {
        CARRY_SPAN(comm->ctx, "plan", "rates of the communicator");
        double slowest[2] = {1e-9, 0};
        char *data = calloc(1, LARGE);
        if (data == NULL) {
            const carry_status status =
                carry_fail(comm->ctx, CARRY_EMEMORY, "no memory to measure a communicator's rates (%zu bytes)", LARGE);
            carry_comm_abort(comm, carry_ctx_error(comm->ctx));
            return status;
        }
        const carry_status status = measure(comm, data, slowest);
        free(data);
        CARRY_TRY(status);
        const double bytes_took = slowest[1] - slowest[0] > 0.1 * slowest[1] ? slowest[1] - slowest[0] : slowest[1];
        comm->rates = (carry_comm_rates){.latency = slowest[0], .bandwidth = (double)LARGE / bytes_took};
        carry_log(comm->ctx, CARRY_LOG_INFO, "messages between %d ranks: %.3g us, %.3g GB/s", comm->size,
                  comm->rates.latency * 1e6, comm->rates.bandwidth * 1e-9);
    }
    *rates = comm->rates;
    return CARRY_OK;
}
