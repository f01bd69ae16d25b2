/* All-Scan on a cluster that is not here: the library's own communicator of MPI and its own algorithms, compiled with
   SimGrid's smpicc and run on a described platform (tools/simulate). What travels is simulated by SimGrid; products and
   conversions are not computed but charged, with the times of a GPU that were measured on one (docs/results/ranks.md).

   all_scan HEADS prints a line for every kind and algorithm: ranks, heads, kind, algorithm, blocks, simulated seconds,
   predicted seconds, whether the planner chose it, bytes that the busiest rank received. A gather of more than
   GATHER_RANKS ranks, P^2 / 2 messages, would take the simulator hours: its simulated time is then a -. */
#include <mpi.h>
#include <smpi/smpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/all_scan.h"
#include "comm/rates.h"
#include "scan/all_scan/all_scan.h"

#define KEY 128
#define GATHER_RANKS 64
#define RATED 64
#define SPEED 1e9 /* of a host in the platform file, operations a second */

/* One H200, measured: carry bench matmul:bf16:b1:n128:device=cuda takes 2.46 us, b16 3.14 us, b64 5.20 us, that is 2.4
   us and 43 ns a product; its memory copies 4.2 TB/s (docs/results/ranks.md). */
#define LAUNCH 2.4e-6
#define PRODUCT_RATE 97e12 /* operations a second */
#define MEMORY 4.2e12      /* bytes a second */

static void charge(double seconds) {
    smpi_execute_flops(seconds * SPEED);
}

/* One kernel for the heads of a call; where an algorithm goes through the heads one after the other for want of
   threads, a GPU would not: the calls share one start. */
static void charge_products(const carry_all_scan_plan *plan, int64_t heads, double seconds) {
    const double share = plan->algorithm->cuts ? 1.0 : (double)heads / (double)plan->shape.problem.heads;
    charge(share * LAUNCH + (double)heads * seconds);
}

static double product_seconds(carry_all_scan_kind kind, int64_t columns) {
    return kind == CARRY_ALL_SCAN_DIAGONAL ? 12.0 * KEY * (double)columns / MEMORY
                                           : 2.0 * KEY * KEY * (double)columns / PRODUCT_RATE;
}

static double compose_seconds(carry_all_scan_kind kind) {
    return kind == CARRY_ALL_SCAN_DIAGONAL ? 12.0 * KEY / MEMORY : 2.0 * KEY * KEY * KEY / PRODUCT_RATE;
}

static void apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                  carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns) {
    (void)out, (void)S, (void)L;
    charge_products(plan, heads, product_seconds(map->kind, columns));
}

static void compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first, int64_t heads) {
    (void)out, (void)second, (void)first;
    charge_products(plan, heads, compose_seconds(plan->shape.problem.kind));
}

/* Conversions are part of the kernel before or after them: their bytes count, not a start of their own. */
static void pack(carry_all_scan_plan *plan, void *wire, carry_all_scan_view from, int64_t heads, int64_t rows,
                 int64_t columns) {
    (void)wire, (void)from;
    charge((double)(heads * rows * columns) * (4.0 + (double)carry_dtype_size(plan->shape.problem.wire)) / MEMORY);
}

static void unpack(carry_all_scan_plan *plan, carry_all_scan_view to, const void *wire, int64_t heads, int64_t rows,
                   int64_t columns) {
    (void)wire;
    pack(plan, NULL, to, heads, rows, columns);
}

static void copy(carry_all_scan_plan *plan, carry_all_scan_view to, carry_all_scan_view from, int64_t heads,
                 int64_t rows, int64_t columns) {
    (void)plan, (void)to, (void)from;
    charge(8.0 * (double)(heads * rows * columns) / MEMORY);
}

static void clear(carry_all_scan_plan *plan, void *bytes, size_t count) {
    (void)plan, (void)bytes, (void)count;
}

static const carry_all_scan_arith charged = {
    .apply = apply, .compose = compose, .copy = copy, .pack = pack, .unpack = unpack, .clear = clear};

static carry_tensor view(char *memory, int64_t heads, int64_t rows, int64_t columns) {
    return columns > 0 ? carry_view_3d(memory, CARRY_F32, heads, rows, columns)
                       : carry_view_2d(memory, CARRY_F32, heads, rows);
}

static carry_all_scan_args args_of(char *memory, const carry_all_scan_problem *p) {
    const size_t state = (size_t)(p->heads * p->key * p->value) * sizeof(float);
    return (carry_all_scan_args){
        .state = view(memory, p->heads, p->key, p->value),
        .L = view(memory + state, p->heads, p->key, p->value),
        .M = view(memory + 2 * state, p->heads, p->key, p->kind == CARRY_ALL_SCAN_DIAGONAL ? 0 : p->key),
    };
}

static double since_all_are_here(double *start) {
    double seconds = MPI_Wtime() - *start, slowest = 0;
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static const char *kind_name(const carry_all_scan_problem *problem) {
    return problem->kind == CARRY_ALL_SCAN_DIAGONAL ? "diagonal" : "wy";
}

/* One scan, and its line; *chosen is the planner's. */
static carry_status simulate(carry_comm *comm, const carry_all_scan_problem *problem, const char *algorithm,
                             const carry_all_scan_machine *machine, const char *chosen) {
    carry_all_scan_plan *plan;
    const carry_all_scan_options options = {CARRY_INIT(carry_all_scan_options), .algorithm = algorithm};
    CARRY_TRY(carry_all_scan_plan_new_on(comm, &plan, problem, &options, machine));
    if (strcmp(algorithm, "gather") == 0 && carry_comm_size(comm) > GATHER_RANKS) {
        if (carry_comm_rank(comm) == 0) {
            (void)printf("%d %d %s %s 1 - %.9f %s -\n", carry_comm_size(comm), (int)problem->heads, kind_name(problem),
                         algorithm, carry_all_scan_plan_seconds(plan),
                         strcmp(algorithm, chosen) == 0 ? "planned" : "-");
        }
        carry_all_scan_plan_free(plan);
        return CARRY_OK;
    }
    carry_all_scan_set_arith(plan, &charged);
    const size_t state = (size_t)(problem->heads * problem->key * problem->value) * sizeof(float);
    const size_t bytes = carry_all_scan_run_workspace(plan);
    /* One piece of memory for all ranks: its bytes travel in simulated time and are not copied. */
    char *memory = SMPI_SHARED_MALLOC(4 * state);
    char *workspace = SMPI_SHARED_MALLOC(bytes + 1);
    const carry_all_scan_args args = args_of(memory, problem);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    const carry_status status = carry_all_scan_run(plan, &args, workspace, bytes);
    const double seconds = since_all_are_here(&start);
    const carry_all_scan_counts counts = plan->counts;
    long long received = counts.bytes_received, most = 0;
    MPI_Allreduce(&received, &most, 1, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (status == CARRY_OK && carry_comm_rank(comm) == 0) {
        (void)printf("%d %d %s %s %d %.9f %.9f %s %lld\n", carry_comm_size(comm), (int)problem->heads,
                     kind_name(problem), algorithm, (int)plan->blocks, seconds, carry_all_scan_plan_seconds(plan),
                     strcmp(algorithm, chosen) == 0 ? "planned" : "-", most);
        (void)fflush(stdout);
    }
    carry_all_scan_plan_free(plan);
    SMPI_SHARED_FREE(memory);
    SMPI_SHARED_FREE(workspace);
    return status;
}

static carry_status simulate_kind(carry_comm *comm, carry_all_scan_kind kind, int64_t heads,
                                  const carry_comm_rates *rates) {
    const carry_all_scan_problem problem = {.kind = kind, .heads = heads, .key = KEY, .value = KEY, .wire = CARRY_BF16};
    carry_all_scan_machine machine = {.latency = rates->latency + LAUNCH,
                                      .overhead = rates->overhead + LAUNCH,
                                      .bandwidth = rates->bandwidth,
                                      .mean_latency = rates->mean_latency + LAUNCH,
                                      .mean_bandwidth = rates->mean_bandwidth,
                                      .product = product_seconds(kind, KEY),
                                      .compose = compose_seconds(kind),
                                      .memory = MEMORY};
    carry_all_scan_put_far(&machine, rates);
    for (int i = 0; i < CARRY_COMM_FAR; i++) {
        machine.far_latency[i] += machine.far_latency[i] > 0 ? LAUNCH : 0;
    }
    carry_all_scan_plan *plan;
    char chosen[16];
    CARRY_TRY(carry_all_scan_plan_new_on(comm, &plan, &problem, NULL, &machine));
    (void)snprintf(chosen, sizeof chosen, "%s", carry_all_scan_plan_algorithm(plan));
    carry_all_scan_plan_free(plan);
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        CARRY_TRY(simulate(comm, &problem, carry_all_scan_name(i), &machine, chosen));
    }
    return CARRY_OK;
}

/* In simulated time, by the first RATED ranks: to them the platform looks as to all, and all of a thousand playing
   ping-pong at once would take the simulator long. */
static carry_status rates_of(carry_comm *comm, carry_comm_rates *rates) {
    carry_comm *part;
    CARRY_TRY(carry_comm_split(comm, &part, carry_comm_rank(comm) < RATED ? 0 : -1, 0));
    carry_status status = part != NULL ? carry_comm_rates_of(part, rates) : CARRY_OK;
    carry_comm_close(part);
    CARRY_TRY(status);
    return carry_broadcast(comm, rates, sizeof *rates, 0);
}

static carry_status run(carry_ctx *ctx, int64_t heads) {
    carry_comm *comm;
    carry_comm_rates rates;
    CARRY_TRY(carry_comm_open(ctx, &comm, "mpi", NULL));
    carry_status status = rates_of(comm, &rates);
    if (status == CARRY_OK && carry_comm_rank(comm) == 0) {
        (void)printf("# %d ranks: %.3g us, %.3g GB/s\n", carry_comm_size(comm), 1e6 * rates.latency,
                     1e-9 * rates.bandwidth);
    }
    status = status == CARRY_OK ? simulate_kind(comm, CARRY_ALL_SCAN_DENSE, heads, &rates) : status;
    status = status == CARRY_OK ? simulate_kind(comm, CARRY_ALL_SCAN_DIAGONAL, heads, &rates) : status;
    carry_comm_close(comm);
    return status;
}

int main(int count, char **words) {
    const int64_t heads = count > 1 ? strtol(words[1], NULL, 10) : 16;
    const carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 1, .wisdom = "none"};
    carry_ctx *ctx = NULL;
    int level;
    MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &level);
    carry_status status = carry_ctx_new(&ctx, &options);
    status = status == CARRY_OK && heads >= 1 && heads <= 4096 ? run(ctx, heads) : CARRY_EARGUMENT;
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "all_scan: %s\n", ctx != NULL ? carry_ctx_error(ctx) : "no context");
    }
    carry_ctx_free(ctx);
    MPI_Finalize();
    return status == CARRY_OK ? 0 : 2;
}
