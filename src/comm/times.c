/* Measuring collectives at a few sizes, and interpolating between them. */
#include "comm/times.h"

#include <stdlib.h>

#include "carry/device.h"
#include "comm/backend.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"

#define TRIPS CARRY_MEASURED(5, 1)
#define LARGE ((size_t)1 << CARRY_MEASURED(24, 18))

static carry_status around(carry_comm *comm, void *to, const void *from, size_t bytes) {
    const int ahead = (comm->rank + 1) % comm->size, behind = (comm->rank + comm->size - 1) % comm->size;
    carry_request requests[2];
    CARRY_TRY(carry_irecv(comm, &requests[0], to, bytes, behind, 0));
    CARRY_TRY(carry_isend(comm, &requests[1], from, bytes, ahead, 0));
    const carry_status received = carry_wait(&requests[0]), sent = carry_wait(&requests[1]);
    return received != CARRY_OK ? received : sent;
}

carry_status carry_comm_time_once(carry_comm *comm, carry_comm_operation operation, carry_dtype type, void *all,
                                  void *own, size_t bytes) {
    const size_t element = carry_dtype_size(type), part = bytes / (size_t)comm->size;
    switch (operation) {
    case CARRY_TIME_ALL_REDUCE:
        return carry_all_reduce(comm, own, (int64_t)(bytes / element), type, CARRY_REDUCE_SUM);
    case CARRY_TIME_ALL_GATHER:
        return carry_all_gather(comm, all, own, part);
    case CARRY_TIME_REDUCE_SCATTER:
        return carry_reduce_scatter(comm, all, own, (int64_t)(part / element), type, CARRY_REDUCE_SUM);
    case CARRY_TIME_BROADCAST:
        return carry_broadcast(comm, own, bytes, 0);
    default:
        return around(comm, all, own, bytes);
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures after a first run, which finds the ranks asleep. */
static carry_status measure(carry_comm *comm, carry_comm_operation operation, carry_dtype type, void *data[2],
                            size_t bytes, double *seconds) {
    carry_comm *host = carry_comm_host(comm);
    const int device = comm->wire->device;
    double times[1 + TRIPS];
    for (int i = 0; i <= TRIPS; i++) {
        CARRY_TRY(carry_barrier(host));
        const double start = carry_seconds();
        CARRY_TRY(carry_comm_time_once(comm, operation, type, data[0], data[1], bytes));
        CARRY_TRY(carry_stream_wait(comm->ctx, device, carry_ctx_stream(comm->ctx, device)));
        times[i] = carry_seconds() - start;
        CARRY_TRY(carry_all_reduce(host, &times[i], 1, CARRY_F64, CARRY_REDUCE_MAX));
    }
    qsort(times + 1, TRIPS, sizeof *times, by_size);
    *seconds = times[1 + TRIPS / 2];
    return CARRY_OK;
}

static carry_status measure_all(carry_comm *comm, carry_comm_operation operation, carry_dtype type, void *data[2],
                                carry_comm_times *times) {
    static const size_t sizes[CARRY_COMM_SIZES] = {LARGE >> 14, LARGE >> 8, LARGE >> 4, LARGE};
    const size_t step = carry_dtype_size(type) * (size_t)comm->size;
    for (int i = 0; i < CARRY_COMM_SIZES; i++) {
        const size_t bytes = sizes[i] < step ? step : sizes[i] / step * step;
        times->bytes[i] = (double)bytes;
        CARRY_TRY(measure(comm, operation, type, data, bytes, &times->seconds[i]));
        if (i > 0 && times->seconds[i] < times->seconds[i - 1]) { /* more bytes never take less time */
            times->seconds[i] = times->seconds[i - 1];
        }
    }
    return CARRY_OK;
}

carry_status carry_comm_times_of(carry_comm *comm, carry_comm_operation operation, carry_dtype type,
                                 carry_comm_times *times) {
    CARRY_SPAN(comm->ctx, "plan", "times of a collective");
    const size_t most = LARGE + 8 * (size_t)comm->size;
    const int device = comm->wire->device;
    void *data[2] = {NULL, NULL};
    carry_status status = CARRY_OK;
    *times = (carry_comm_times){0};
    for (int i = 0; i < 2 && status == CARRY_OK; i++) {
        status = carry_device_alloc(comm->ctx, &data[i], device, most);
        status = status == CARRY_OK
                     ? carry_device_fill(comm->ctx, data[i], device, 0, most, carry_ctx_stream(comm->ctx, device))
                     : status;
    }
    if (status != CARRY_OK) {
        carry_comm_abort(comm, carry_ctx_error(comm->ctx)); /* the others would wait */
    } else {
        status = measure_all(comm, operation, type, data, times);
    }
    carry_device_free(comm->ctx, device, data[0]);
    carry_device_free(comm->ctx, device, data[1]);
    return status;
}

double carry_comm_time(const carry_comm_times *times, double bytes) {
    int i = 1;
    while (i + 1 < CARRY_COMM_SIZES && bytes > times->bytes[i]) {
        i++;
    }
    const double wide = times->bytes[i] - times->bytes[i - 1];
    const double slope = wide > 0.0 ? (times->seconds[i] - times->seconds[i - 1]) / wide : 0.0;
    const double seconds = times->seconds[i - 1] + slope * (bytes - times->bytes[i - 1]);
    return bytes < times->bytes[0] ? times->seconds[0] : seconds;
}
