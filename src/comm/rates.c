/* Measures latency and bandwidth by ping-pong: between neighbours, first on one side, then on the other; then between
   ranks that are 2, 4, 8, ... apart. All pairs of one side or distance exchange messages at the same time, as the ranks
   of a chain do. */
#include "comm/rates.h"

#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"

#define SMALL 8
#define LARGE ((size_t)1 << CARRY_MEASURED(20, 16))
#define SMALL_TRIPS CARRY_MEASURED(15, 3)
#define LARGE_TRIPS 3
#define FAR_TRIPS 3
#define BURST 16 /* messages sent at once */
#define BURST_TRIPS CARRY_MEASURED(5, 1)

typedef struct game {
    carry_comm *comm;
    char *data;
    int peer;
    bool serves;
} game;

/* Waits until a message's work in a stream is done. */
static carry_status let_happen(const carry_comm *comm) {
    const int device = comm->wire->device;
    return device > 0 ? carry_stream_wait(comm->ctx, device, carry_ctx_stream(comm->ctx, device)) : CARRY_OK;
}

static carry_status move(const game *g, bool sends, size_t bytes) {
    const carry_deadline deadline = carry_deadline_from_now(g->comm, "rates");
    if (sends) {
        carry_comm_post_send(g->comm, g->comm->requests, "rates", g->data, bytes, g->peer, CARRY_TAG_RATES);
    } else {
        carry_comm_post_recv(g->comm, g->comm->requests, "rates", g->data, bytes, g->peer, CARRY_TAG_RATES);
    }
    CARRY_TRY(carry_comm_wait_all(g->comm, g->comm->requests, 1, &deadline));
    return let_happen(g->comm);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* *seconds: time of one message one way, the median of all trips but the first, which finds the ranks asleep. */
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

/* Sends small messages from the first rank to the last. Every rank passes each one on as soon as it arrives. */
static carry_status pass_on(carry_comm *comm, char *data, int count) {
    const carry_deadline deadline = carry_deadline_from_now(comm, "rates");
    carry_request sends[BURST] = {{0}};
    carry_status status = CARRY_OK;
    for (int i = 0; i < count && status == CARRY_OK; i++) {
        char *at = data + (size_t)i * SMALL;
        if (comm->rank > 0) {
            carry_comm_post_recv(comm, comm->requests, "rates", at, SMALL, comm->rank - 1, CARRY_TAG_RATES);
            status = carry_comm_wait_all(comm, comm->requests, 1, &deadline);
        }
        if (comm->rank < comm->size - 1 && status == CARRY_OK) {
            carry_comm_post_send(comm, &sends[i], "rates", at, SMALL, comm->rank + 1, CARRY_TAG_RATES);
        }
    }
    if (status != CARRY_OK) {
        carry_comm_withdraw(sends, BURST); /* data is about to be freed */
        return status;
    }
    CARRY_TRY(carry_comm_wait_all(comm, sends, count, &deadline));
    return let_happen(comm);
}

/* *seconds: the time of the slowest rank, in the fastest of several trips. */
static carry_status relay(carry_comm *comm, char *data, int count, double *seconds) {
    *seconds = INFINITY;
    for (int trip = 0; trip < BURST_TRIPS; trip++) {
        CARRY_TRY(carry_barrier(comm));
        double spent = carry_seconds();
        CARRY_TRY(pass_on(comm, data, count));
        spent = carry_seconds() - spent;
        CARRY_TRY(carry_all_reduce(carry_comm_host(comm), &spent, 1, CARRY_F64, CARRY_REDUCE_MAX));
        *seconds = spent < *seconds ? spent : *seconds;
    }
    return CARRY_OK;
}

/* *overhead: seconds that one more message adds when ranks pass it on directly behind another. */
static carry_status measure_relay(carry_comm *comm, char *data, double *overhead) {
    double one, many;
    CARRY_TRY(relay(comm, data, 1, &one));
    CARRY_TRY(relay(comm, data, BURST, &many));
    const double more = (many - one) / (BURST - 1);
    *overhead = more > 1e-10 ? more : 1e-10;
    return CARRY_OK;
}

/* Measures the seconds of a small and of a large message between neighbours. slowest: the largest times over all pairs,
   small then large, and the negatives of the smallest times, small then large, so that one maximum over the ranks finds
   all four. sum: the times summed over all pairs, small then large. */
static carry_status measure(carry_comm *comm, char *data, double slowest[4], double sum[2]) {
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
        slowest[2] = -small > slowest[2] ? -small : slowest[2];
        slowest[3] = -large > slowest[3] ? -large : slowest[3];
        sum[0] += serves ? small : 0;
        sum[1] += serves ? large : 0;
    }
    CARRY_TRY(carry_all_reduce(carry_comm_host(comm), sum, 2, CARRY_F64, CARRY_REDUCE_SUM));
    return carry_all_reduce(carry_comm_host(comm), slowest, 4, CARRY_F64, CARRY_REDUCE_MAX);
}

/* If a small message takes nearly as long as a large one, their difference means nothing, so the time of the large
   one is used. */
static double bandwidth_of(double small, double large) {
    return (double)LARGE / (large - small > 0.1 * large ? large - small : large);
}

/* Measures pairs of ranks that are 2^i apart, each rank first with the peer on one side, then on the other. Some
   pairs may share a machine and others not, so the largest times are kept. */
static carry_status measure_far(carry_comm *comm, char *data, carry_comm_rates *rates) {
    double times[CARRY_COMM_FAR][2] = {{rates->latency, (double)LARGE / rates->bandwidth + rates->latency}};
    for (int i = 1, distance = 2; i < CARRY_COMM_FAR && distance < comm->size; i++, distance *= 2) {
        for (int side = 0; side < 2; side++) {
            const bool serves = comm->rank / distance % 2 == side;
            const int peer = serves ? comm->rank + distance : comm->rank - distance;
            if (peer < 0 || peer >= comm->size) {
                continue;
            }
            const game g = {.comm = comm, .data = data, .peer = peer, .serves = serves};
            double small, large;
            CARRY_TRY(play(&g, SMALL, FAR_TRIPS, &small));
            CARRY_TRY(play(&g, LARGE, FAR_TRIPS, &large));
            times[i][0] = small > times[i][0] ? small : times[i][0];
            times[i][1] = large > times[i][1] ? large : times[i][1];
        }
    }
    CARRY_TRY(carry_all_reduce(carry_comm_host(comm), times, 2 * (int64_t)CARRY_COMM_FAR, CARRY_F64, CARRY_REDUCE_MAX));
    for (int i = 0; i < CARRY_COMM_FAR && times[i][1] > 0; i++) {
        rates->far_latency[i] = times[i][0] > 1e-9 ? times[i][0] : 1e-9;
        rates->far_bandwidth[i] = bandwidth_of(times[i][0], times[i][1]);
    }
    return CARRY_OK;
}

static carry_status fill_rates(carry_comm *comm, char *data, carry_comm_rates *rates) {
    double slowest[4] = {1e-9, 0, -INFINITY, -INFINITY}, sum[2] = {0}, overhead;
    const double pairs = comm->size - 1;
    CARRY_TRY(measure(comm, data, slowest, sum));
    CARRY_TRY(measure_relay(comm, data, &overhead));
    *rates = (carry_comm_rates){.latency = slowest[0],
                                .overhead = overhead,
                                .bandwidth = bandwidth_of(slowest[0], slowest[1]),
                                .mean_latency = sum[0] / pairs > 1e-9 ? sum[0] / pairs : 1e-9,
                                .mean_bandwidth = bandwidth_of(sum[0] / pairs, sum[1] / pairs),
                                .near_bandwidth = bandwidth_of(-slowest[2], -slowest[3])};
    return measure_far(comm, data, rates);
}

carry_status carry_comm_rates_of(carry_comm *comm, carry_comm_rates *rates) {
    if (comm->size == 1) {
        *rates = (carry_comm_rates){.bandwidth = 1e12, .mean_bandwidth = 1e12, .near_bandwidth = 1e12};
        return CARRY_OK;
    }
    if (comm->rates.latency <= 0) {
        CARRY_SPAN(comm->ctx, "plan", "rates of the communicator");
        carry_comm_rates measured = {0};
        void *data = NULL;
        const int device = comm->wire->device;
        if (carry_device_alloc(comm->ctx, &data, device, LARGE) != CARRY_OK ||
            carry_device_fill(comm->ctx, data, device, 0, LARGE, carry_ctx_stream(comm->ctx, device)) != CARRY_OK) {
            carry_device_free(comm->ctx, device, data);
            const carry_status status = carry_fail(
                comm->ctx, CARRY_EMEMORY, "out of memory: measuring a communicator's rates (%zu bytes)", LARGE);
            carry_comm_abort(comm, carry_ctx_error(comm->ctx));
            return status;
        }
        const carry_status status = fill_rates(comm, data, &measured);
        carry_device_free(comm->ctx, device, data);
        CARRY_TRY(status);
        comm->rates = measured;
        carry_log(comm->ctx, CARRY_LOG_INFO, "messages between %d ranks: %.3g us, %.3g GB/s", comm->size,
                  comm->rates.latency * 1e6, comm->rates.bandwidth * 1e-9);
    }
    *rates = comm->rates;
    return CARRY_OK;
}
