/* Records the steps of each rank. */
#include "scan/all_scan/all_scan_simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/backend.h"
#include "core/context.h"

typedef struct recorder {
    carry_all_scan_trace *trace;
    const carry_all_scan_costs *costs;
} recorder;

static void add(carry_all_scan_trace *t, carry_all_scan_step_kind kind, int peer, double amount) {
    if (t->count == t->room) {
        const int64_t room = t->room > 0 ? 2 * t->room : 256;
        carry_all_scan_step *more = realloc(t->steps, (size_t)room * sizeof *more);
        if (more == NULL) {
            t->no_memory = true;
            return;
        }
        t->steps = more;
        t->room = room;
    }
    t->steps[t->count++] = (carry_all_scan_step){.kind = kind, .peer = peer, .amount = amount};
}

static void post(carry_wire *wire, carry_request *request) {
    if (request->to == NULL) {
        add(wire->state, CARRY_STEP_SEND, request->world, (double)request->bytes);
    }
}

/* A message is never reported as arrived before a rank waits for it. So ranks behave as if every message came late, as
   most do. */
static void progress(carry_wire *wire, carry_request *request, double until) {
    if (until > 0) {
        add(wire->state, request->to != NULL ? CARRY_STEP_RECEIVED : CARRY_STEP_SENT, request->world,
            (double)request->bytes);
        request->state = CARRY_REQUEST_DONE;
    }
}

static void cancel(carry_wire *wire, carry_request *request) {
    (void)wire;
    request->state = CARRY_REQUEST_NONE;
}

static void do_nothing(carry_wire *wire) {
    (void)wire;
}

static void end(carry_wire *wire, const char *reason) {
    (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    wire->ended_by = wire->rank;
}

static const carry_comm_kind recorded = {.name = "simulated",
                                         .about = "messages are recorded and not sent",
                                         .post = post,
                                         .progress = progress,
                                         .cancel = cancel,
                                         .abort = end,
                                         .close = do_nothing};

static void charge(carry_all_scan_plan *plan, double seconds) {
    const recorder *r = plan->arith_user;
    add(r->trace, CARRY_STEP_COMPUTE, 0, seconds);
}

static double product_seconds(const carry_all_scan_costs *c, carry_all_scan_kind kind, int64_t key, int64_t columns) {
    return kind == CARRY_ALL_SCAN_DIAGONAL ? 12.0 * (double)(key * columns) / c->memory
                                           : 2.0 * (double)(key * key * columns) / c->product;
}

static double compose_seconds(const carry_all_scan_costs *c, carry_all_scan_kind kind, int64_t key) {
    return kind == CARRY_ALL_SCAN_DIAGONAL ? 12.0 * (double)key / c->memory : product_seconds(c, kind, key, key);
}

static void apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                  carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns) {
    const carry_all_scan_costs *c = ((const recorder *)plan->arith_user)->costs;
    (void)out, (void)S, (void)L;
    charge(plan, c->launch + (double)heads * product_seconds(c, map->kind, plan->shape.problem.key, columns));
}

static void compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first, int64_t heads) {
    const carry_all_scan_costs *c = ((const recorder *)plan->arith_user)->costs;
    const carry_all_scan_problem *p = &plan->shape.problem;
    (void)out, (void)second, (void)first;
    charge(plan, c->launch + (double)heads * compose_seconds(c, p->kind, p->key));
}

static void densify(carry_all_scan_plan *plan, float *out, const carry_all_scan_map *map, int64_t heads) {
    (void)map;
    compose(plan, out, NULL, NULL, heads);
}

/* Conversions are part of the kernel before or after them, so their bytes count but not the start of a launch. */
static void pack(carry_all_scan_plan *plan, void *wire, carry_all_scan_view from, int64_t heads, int64_t rows,
                 int64_t columns) {
    const carry_all_scan_costs *c = ((const recorder *)plan->arith_user)->costs;
    (void)wire, (void)from;
    charge(plan,
           (double)(heads * rows * columns) * (4.0 + (double)carry_dtype_size(plan->shape.problem.wire)) / c->memory);
}

static void unpack(carry_all_scan_plan *plan, carry_all_scan_view to, const void *wire, int64_t heads, int64_t rows,
                   int64_t columns) {
    (void)wire;
    pack(plan, NULL, to, heads, rows, columns);
}

static void copy(carry_all_scan_plan *plan, carry_all_scan_view to, carry_all_scan_view from, int64_t heads,
                 int64_t rows, int64_t columns) {
    const carry_all_scan_costs *c = ((const recorder *)plan->arith_user)->costs;
    (void)to, (void)from;
    charge(plan, 8.0 * (double)(heads * rows * columns) / c->memory);
}

/* One launch, with the products of all positions one after the other. */
static void walk(carry_all_scan_plan *plan, const carry_all_scan_walk *w) {
    const carry_all_scan_costs *c = ((const recorder *)plan->arith_user)->costs;
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_kind kind = p->kind;
    charge(plan,
           c->launch + (double)w->count * (c->step + (double)w->heads * product_seconds(c, kind, p->key, p->value)));
}

static void clear(carry_all_scan_plan *plan, void *bytes, size_t count) {
    (void)plan, (void)bytes, (void)count;
}

static const carry_all_scan_arith charged = {.apply = apply,
                                             .compose = compose,
                                             .densify = densify,
                                             .copy = copy,
                                             .pack = pack,
                                             .unpack = unpack,
                                             .walk = walk,
                                             .clear = clear};

/* The machine that carry_comm_rates_of would measure between neighbours and between ranks that are 2^i apart. */
static carry_all_scan_machine machine_of(const carry_all_scan_problem *p, int ranks, const carry_all_scan_network *n,
                                         const carry_all_scan_costs *c) {
    const int slow = ranks > n->node ? 1 : 0;
    const double far = slow ? ceil((double)ranks / n->node) - 1.0 : 0.0, all = ranks > 1 ? ranks - 1.0 : 1.0;
    const double near = all - far;
    carry_all_scan_machine m = {
        .latency = n->latency[slow] + c->launch,
        .overhead = c->launch,
        .bandwidth = n->bandwidth[slow],
        .mean_latency = (near * n->latency[0] + far * n->latency[1]) / all + c->launch,
        .mean_bandwidth = all / (near / n->bandwidth[0] + far / n->bandwidth[1]),
        .near_bandwidth = n->bandwidth[0],
        .product =
            product_seconds(c, p->kind == CARRY_ALL_SCAN_DIAGONAL ? p->kind : CARRY_ALL_SCAN_DENSE, p->key, p->value),
        .compose = compose_seconds(c, p->kind, p->key),
        .memory = c->memory,
        .start = c->launch};
    m.step = c->step + m.product * (double)((p->heads + ranks - 1) / ranks);
    for (int i = 0; i < CARRY_COMM_FAR && (1 << i) < ranks; i++) {
        const int between = (1 << i) >= n->node || slow; /* some pairs are in different nodes */
        m.far_latency[i] = n->latency[between] + c->launch;
        m.far_bandwidth[i] = n->bandwidth[between];
    }
    return m;
}

static carry_tensor view(char *memory, int64_t heads, int64_t rows, int64_t columns) {
    return columns > 0 ? carry_view_3d(memory, CARRY_F32, heads, rows, columns)
                       : carry_view_2d(memory, CARRY_F32, heads, rows);
}

/* Passes addresses only: nothing is read or written there except the first lines of messages. */
static carry_status run_rank(carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const size_t state = (size_t)(p->heads * p->key * p->value) * sizeof(float);
    const size_t map = (size_t)(p->heads * p->key * p->key) * sizeof(float);
    const size_t bytes = carry_all_scan_run_workspace(plan), all = 2 * state + map + bytes + 4096;
    char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return carry_fail(plan->ctx, CARRY_EMEMORY, "no addresses for the %.3g GB of a simulated rank",
                          1e-9 * (double)all);
    }
    const bool diagonal = p->kind == CARRY_ALL_SCAN_DIAGONAL;
    const carry_all_scan_args args = {.state = view(memory, p->heads, p->key, p->value),
                                      .L = view(memory + state, p->heads, p->key, p->value),
                                      .M = view(memory + 2 * state, p->heads, p->key, diagonal ? 0 : p->key)};
    const carry_status status = carry_all_scan_run(plan, &args, memory + 2 * state + map, bytes);
    (void)munmap(memory, all);
    return status;
}

static carry_status record(carry_ctx *ctx, carry_all_scan_trace *trace, carry_all_scan_simulated *result, int rank,
                           int ranks, const carry_all_scan_problem *problem, const char *algorithm,
                           const carry_all_scan_machine *machine, const carry_all_scan_costs *costs) {
    carry_wire wire = {.kind = &recorded, .state = trace, .rank = rank, .size = ranks, .users = 1, .ended_by = -1};
    recorder r = {.trace = trace, .costs = costs};
    carry_comm *comm;
    carry_all_scan_plan *plan = NULL;
    CARRY_TRY(carry_comm_new(ctx, &comm, &wire, rank, ranks, 0));
    carry_status status = carry_all_scan_plan_new_for(
        comm, &plan, problem, &(carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = algorithm},
        machine);
    if (status == CARRY_OK) {
        carry_all_scan_set_arith(plan, &charged);
        plan->arith_user = &r;
        status = run_rank(plan);
    }
    if (status == CARRY_OK) {
        const carry_all_scan_counts counts = plan->counts;
        result->received = counts.bytes_received > result->received ? counts.bytes_received : result->received;
        result->messages += counts.messages;
        result->blocks = plan->blocks;
        result->predicted = carry_all_scan_plan_seconds(plan);
        (void)snprintf(result->algorithm, sizeof result->algorithm, "%s", carry_all_scan_plan_algorithm(plan));
    }
    carry_all_scan_plan_free(plan);
    carry_comm_close(comm);
    CARRY_TRY(status);
    return trace->no_memory ? carry_fail(ctx, CARRY_EMEMORY, "out of memory: recording %d ranks", ranks) : CARRY_OK;
}

static carry_status check(carry_ctx *ctx, const carry_all_scan_problem *problem, int ranks,
                          const carry_all_scan_network *n, const carry_all_scan_costs *c) {
    const bool fine = n->node > 0 && n->latency[0] > 0 && n->latency[1] > 0 && n->bandwidth[0] > 0 &&
                      n->bandwidth[1] > 0 && c->launch >= 0 && c->product > 0 && c->memory > 0;
    if (ranks < 1 || ranks > CARRY_ALL_SCAN_SIMULATED) {
        return carry_fail(ctx, CARRY_ESIZE, "%d simulated ranks: give 1 to %d", ranks, CARRY_ALL_SCAN_SIMULATED);
    }
    if (problem->kind == CARRY_ALL_SCAN_FACTORS) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "factors are not simulated: give dense or diagonal");
    }
    return fine ? CARRY_OK
                : carry_fail(ctx, CARRY_EARGUMENT, "a network's latencies, bandwidths and rates must be above 0");
}

carry_status carry_all_scan_simulate(carry_ctx *ctx, carry_all_scan_simulated *result,
                                     const carry_all_scan_problem *problem, int ranks, const char *algorithm,
                                     const carry_all_scan_network *network, const carry_all_scan_costs *costs) {
    *result = (carry_all_scan_simulated){0};
    CARRY_TRY(check(ctx, problem, ranks, network, costs));
    const carry_all_scan_machine machine = machine_of(problem, ranks, network, costs);
    carry_all_scan_trace *traces = calloc((size_t)ranks, sizeof *traces);
    carry_status status = CARRY_OK;
    if (traces == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d simulated ranks", ranks);
    }
    for (int r = 0; r < ranks && status == CARRY_OK; r++) {
        status = record(ctx, &traces[r], result, r, ranks, problem, algorithm, &machine, costs);
    }
    if (status == CARRY_OK) {
        result->seconds = carry_all_scan_replay(traces, ranks, network);
        status =
            result->seconds >= 0 ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "%d ranks could not be replayed", ranks);
    }
    for (int r = 0; r < ranks; r++) {
        free(traces[r].steps);
    }
    free(traces);
    return status;
}
