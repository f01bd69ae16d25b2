/* The planner of All-Scan: predicts the time of each algorithm on a machine and takes the fastest. Predictions have no
   side effects, so that tests and simulators can call them, and all ranks use the same numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/rates.h"
#include "core/clock.h"
#include "core/context.h"
#include "ops/convert.h"
#include "ops/product/rates.h"
#include "scan/all_scan/all_scan.h"

#define HANDLED 16384 /* floats that are packed and unpacked to measure the rate: a head of 128 x 128 */
#define FORKS 4  /* factor: threads that have waited for a block start more slowly than in the measurement of rates */
#define EVERY 64 /* up to this number, every block count is tried; above it, steps of a quarter */

static double cost_of(const carry_all_scan_algorithm *algorithm, const carry_all_scan_shape *shape,
                      const carry_all_scan_machine *machine, int64_t blocks) {
    char why[160];
    return algorithm->applies(shape, blocks, why, sizeof why) ? algorithm->cost(shape, machine, blocks) : INFINITY;
}

/* The next number of blocks to try: up to one block a head every divisor, then several blocks for each head. */
static int64_t next_blocks(const carry_all_scan_problem *p, int64_t blocks) {
    const int64_t step = blocks < EVERY ? 1 : blocks / 4;
    if (blocks < p->heads) {
        return p->heads - blocks < step ? p->heads : blocks + step;
    }
    const int64_t each = blocks / p->heads, more = each < EVERY ? 1 : each / 4;
    return each >= p->value ? 0 : p->heads * (p->value - each < more ? p->value : each + more);
}

double carry_all_scan_predict(const carry_all_scan_algorithm *algorithm, const carry_all_scan_problem *problem,
                              int ranks, const carry_all_scan_machine *machine, int64_t *blocks) {
    const carry_all_scan_shape shape = {.problem = *problem, .ranks = ranks, .threads = 1};
    if (!algorithm->cuts) {
        *blocks = 1;
    }
    if (*blocks > 0) {
        return cost_of(algorithm, &shape, machine, *blocks);
    }
    double best = INFINITY;
    *blocks = 1;
    for (int64_t tried = 1; tried > 0; tried = next_blocks(problem, tried)) {
        const double seconds = cost_of(algorithm, &shape, machine, tried);
        if (seconds < best) {
            best = seconds;
            *blocks = tried;
        }
    }
    return best;
}

/* Writes a name such as "chain in 8 blocks". */
static void write_name(char *text, size_t size, const carry_all_scan_algorithm *algorithm, int64_t blocks) {
    if (algorithm->cuts) {
        (void)snprintf(text, size, "%s in %lld block%s", algorithm->name, (long long)blocks, blocks == 1 ? "" : "s");
    } else {
        (void)snprintf(text, size, "%s", algorithm->name);
    }
}

static void write_about(carry_all_scan_plan *plan, const carry_all_scan_algorithm *next, int64_t next_in,
                        double next_seconds, bool asked) {
    char name[64], other[64] = "", times[4][32];
    const carry_all_scan_machine *m = &plan->machine;
    write_name(name, sizeof name, plan->algorithm, plan->blocks);
    if (next != NULL) {
        write_name(other, sizeof other, next, next_in);
    }
    (void)snprintf(plan->about, sizeof plan->about,
                   "%s over %d rank%s (%s)%s: %s predicted (%s latency, %.3g GB/s, %s a head's product)%s%s%s%s", name,
                   plan->shape.ranks, plan->shape.ranks == 1 ? "" : "s", carry_comm_name(plan->comm),
                   asked ? ", as asked" : "", carry_time_text(times[0], plan->seconds),
                   carry_time_text(times[1], m->latency), m->bandwidth * 1e-9, carry_time_text(times[2], m->product),
                   next != NULL ? "; next " : "", other, next != NULL ? " " : "",
                   next != NULL ? carry_time_text(times[3], next_seconds) : "");
}

static carry_status take_asked(carry_all_scan_plan *plan, const carry_all_scan_options *options) {
    const carry_all_scan_shape *shape = &plan->shape;
    char why[160] = "it cannot be predicted";
    plan->algorithm = carry_all_scan_find(options->algorithm);
    plan->blocks = options->blocks;
    plan->seconds =
        carry_all_scan_predict(plan->algorithm, &shape->problem, shape->ranks, &plan->machine, &plan->blocks);
    if (!plan->algorithm->applies(shape, plan->blocks, why, sizeof why)) {
        return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "%s does not apply: %s", plan->algorithm->name, why);
    }
    return CARRY_OK;
}

carry_status carry_all_scan_choose(carry_all_scan_plan *plan, const carry_all_scan_options *options) {
    const carry_all_scan_shape *shape = &plan->shape;
    const carry_all_scan_algorithm *candidate, *next = NULL;
    double next_seconds = INFINITY;
    int64_t next_in = 0;
    if (options->algorithm != NULL) {
        CARRY_TRY(take_asked(plan, options));
        write_about(plan, NULL, 0, 0.0, true);
        return CARRY_OK;
    }
    plan->seconds = INFINITY;
    for (int i = 0; (candidate = carry_all_scan_at(i)) != NULL; i++) {
        int64_t blocks = options->blocks;
        const double seconds =
            carry_all_scan_predict(candidate, &shape->problem, shape->ranks, &plan->machine, &blocks);
        if (seconds < plan->seconds) {
            next = plan->algorithm;
            next_seconds = plan->seconds;
            next_in = plan->blocks;
            plan->algorithm = candidate;
            plan->seconds = seconds;
            plan->blocks = blocks;
        } else if (seconds < next_seconds && seconds > plan->seconds) {
            /* Equal times are skipped: the chain with one block is "serial". */
            next = candidate;
            next_seconds = seconds;
            next_in = blocks;
        }
    }
    if (plan->algorithm == NULL) {
        return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "no algorithm applies: the state of a column is too large");
    }
    write_about(plan, next, next_in, next_seconds, false);
    return CARRY_OK;
}

/* The speed-up by threads, which share the heads or the columns of a head. Two threads are less than twice as fast. */
static double speed_up(int threads) {
    return 1.0 + CARRY_TIME_SPLIT * (threads - 1);
}

/* Measures bytes/s, read and written, of packing and unpacking a state. The state was just computed or is about to be
   used, so it is in a cache, and the rate of memory says little. */
static carry_status measure_handling(carry_all_scan_plan *plan, double *rate) {
    const carry_dtype wire = plan->shape.problem.wire;
    const size_t item = sizeof(float) + carry_dtype_size(wire);
    double best = INFINITY;
    char *data = calloc(HANDLED, item);
    if (data == NULL) {
        return carry_fail(plan->ctx, CARRY_EMEMORY, "out of memory: measuring how states are packed");
    }
    float *numbers = (float *)(void *)data;
    for (int i = 0; i < 5; i++) {
        const double start = carry_seconds();
        carry_narrow(plan->kernels, data + HANDLED * sizeof(float), numbers, wire, HANDLED);
        carry_widen(plan->kernels, numbers, data + HANDLED * sizeof(float), wire, HANDLED);
        const double spent = carry_seconds() - start;
        best = spent > 1e-9 && spent < best ? spent : best;
    }
    free(data);
    *rate = 2.0 * HANDLED * (double)item / (best < 1.0 ? best : 1.0);
    return CARRY_OK;
}

/* One of the P-1 pairs of neighbours crosses each border between nodes. The mean bandwidth gives the share of such
   pairs. */
double carry_all_scan_nodes(const carry_all_scan_machine *machine, int ranks) {
    if (machine->near_bandwidth < 2.0 * machine->bandwidth || machine->mean_bandwidth <= 0) {
        return 1.0;
    }
    const double near = 1.0 / machine->near_bandwidth, far = 1.0 / machine->bandwidth;
    const double share = (1.0 / machine->mean_bandwidth - near) / (far - near);
    return 1.0 + (share > 0 ? share < 1 ? share : 1 : 0) * (ranks - 1);
}

void carry_all_scan_put_far(carry_all_scan_machine *machine, const carry_comm_rates *rates) {
    memcpy(machine->far_latency, rates->far_latency, sizeof machine->far_latency);
    memcpy(machine->far_bandwidth, rates->far_bandwidth, sizeof machine->far_bandwidth);
}

/* On a GPU one launch handles all heads: the numbers for one head are those of all heads, divided. */
static carry_status measure_on_device(carry_all_scan_plan *plan) {
    const double heads = (double)plan->shape.problem.heads;
    carry_comm_rates messages;
    double slowest[4] = {0};
    carry_status status = carry_all_scan_device_measure(plan, &slowest[0], &slowest[1], &slowest[2], &slowest[3]);
    if (status != CARRY_OK) {
        carry_comm_abort(plan->comm, carry_ctx_error(plan->ctx)); /* else the others would wait for this rank */
        return status;
    }
    CARRY_TRY(carry_comm_rates_of(plan->comm, &messages));
    CARRY_TRY(carry_all_reduce(plan->host, slowest, 4, CARRY_F64, CARRY_REDUCE_MAX));
    plan->machine = (carry_all_scan_machine){.latency = messages.latency,
                                             .overhead = messages.overhead,
                                             .bandwidth = messages.bandwidth,
                                             .mean_latency = messages.mean_latency,
                                             .mean_bandwidth = messages.mean_bandwidth,
                                             .near_bandwidth = messages.near_bandwidth,
                                             .product = slowest[0] / heads,
                                             .compose = slowest[1] / heads,
                                             .memory = 1.0 / slowest[2],
                                             .step = slowest[3],
                                             .message = messages.overhead};
    carry_all_scan_put_far(&plan->machine, &messages);
    return CARRY_OK;
}

carry_status carry_all_scan_measure(carry_all_scan_plan *plan) {
    if (plan->device > 0) {
        return measure_on_device(plan);
    }
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_rates_table *rates;
    carry_comm_rates messages;
    double handling = 0.0;
    carry_status status = carry_rates_of(plan->ctx, &rates, false);
    if (status == CARRY_OK) {
        status = measure_handling(plan, &handling);
    }
    if (status != CARRY_OK) {
        carry_comm_abort(plan->comm, carry_ctx_error(plan->ctx)); /* else the others would wait for this rank */
        return status;
    }
    CARRY_TRY(carry_comm_rates_of(plan->comm, &messages));
    const double fast = speed_up(plan->shape.threads);
    double product = carry_rates_product(rates, p->key, p->value);
    double compose = carry_rates_product(rates, p->key, p->key);
    if (p->kind == CARRY_ALL_SCAN_DIAGONAL) {
        product = carry_rates_diagonal(rates, p->key, p->value);
        compose = carry_rates_diagonal(rates, p->key, 1);
    } else if (p->kind == CARRY_ALL_SCAN_FACTORS) {
        product *= 2.0 * (double)p->rows / (double)p->key;
    }
    double slowest[5] = {product, compose, 1.0 / handling, 1.0 / fast, FORKS * rates->fork};
    CARRY_TRY(carry_all_reduce(plan->comm, slowest, 5, CARRY_F64, CARRY_REDUCE_MAX));
    plan->machine = (carry_all_scan_machine){.latency = messages.latency,
                                             .overhead = messages.overhead,
                                             .bandwidth = messages.bandwidth,
                                             .mean_latency = messages.mean_latency,
                                             .mean_bandwidth = messages.mean_bandwidth,
                                             .near_bandwidth = messages.near_bandwidth,
                                             .product = slowest[0],
                                             .compose = slowest[1],
                                             .memory = 1.0 / slowest[2],
                                             .message = messages.overhead,
                                             .speed = 1.0 / slowest[3],
                                             .fork = slowest[4]};
    carry_all_scan_put_far(&plan->machine, &messages);
    return CARRY_OK;
}
