/* The scan across ranks on a simulated cluster: cluster:wy:bf16:h16:k128:v128:p1024. The library's own algorithms
   are recorded and replayed (scan/all_scan/all_scan_simulate.h) in nodes of `node` GPUs. The time of a run is the
   simulated one, and there are no results to compare.

   near, far: GB/s of a GPU inside a node and to other nodes; nearlatency, farlatency: ns. The costs of products and
   memory are those of an H200 (docs/results/ranks.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "bench/family/family.h"
#include "scan/all_scan/all_scan_simulate.h"

/* carry bench matmul:bf16:b1:n128:device=cuda takes 2.46 us, b16 3.14 us, b64 5.20 us: 2.4 us plus 43 ns per
   product. The memory of an H200 copies 4.2 TB/s. Dependent products of one launch wait for each other: half a
   microsecond per product is assumed. */
static const carry_all_scan_costs h200 = {.launch = 2.4e-6, .step = 0.5e-6, .product = 97e12, .memory = 4.2e12};

typedef struct instance {
    carry_instance base;
    carry_all_scan_problem problem;
    carry_all_scan_network network;
    int ranks;
    carry_all_scan_simulated result; /* of the chosen method */
    char about[256];
} instance;

static const char takes[] = "wy (or dense) or diagonal; f32 or bf16 messages, h, k, v, p (ranks), node (GPUs of one), "
                            "near and far (GB/s), nearlatency and farlatency (ns), algo=NAME, device=cpu";

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    const bool dense = carry_problem_has(problem, "wy") || carry_problem_has(problem, "dense");
    const bool diagonal = carry_problem_has(problem, "diagonal");
    const char *algo = carry_problem_setting(problem, "algo");
    carry_dtype wire;
    CARRY_TRY(carry_problem_dtype(it->base.ctx, &wire, problem, CARRY_BF16));
    it->problem = (carry_all_scan_problem){.kind = diagonal ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE,
                                           .heads = carry_problem_size(problem, "h", 16),
                                           .key = carry_problem_size(problem, "k", 128),
                                           .value = carry_problem_size(problem, "v", 128),
                                           .wire = wire};
    const int64_t ranks = carry_problem_size(problem, "p", 8), node = carry_problem_size(problem, "node", 8);
    it->network.bandwidth[0] = 1e9 * (double)carry_problem_size(problem, "near", 450);
    it->network.bandwidth[1] = 1e9 * (double)carry_problem_size(problem, "far", 50);
    it->network.latency[0] = 1e-9 * (double)carry_problem_size(problem, "nearlatency", 2000);
    it->network.latency[1] = 1e-9 * (double)carry_problem_size(problem, "farlatency", 4000);
    int device;
    CARRY_TRY(carry_problem_device(it->base.ctx, &device, problem));
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algo != NULL ? algo : "");
    CARRY_TRY(carry_problem_finish(it->base.ctx, problem, takes));
    if (dense == diagonal || device != 0) {
        return carry_fail(it->base.ctx, CARRY_EARGUMENT, "'%s' must say one of wy (dense) and diagonal, on the CPU",
                          problem->text);
    }
    if (ranks > CARRY_ALL_SCAN_SIMULATED || node > ranks * 4096) {
        return carry_fail(it->base.ctx, CARRY_ESIZE, "'%s': there may be p1 to p%d ranks", problem->text,
                          CARRY_ALL_SCAN_SIMULATED);
    }
    it->ranks = (int)ranks;
    it->network.node = (int)node;
    return CARRY_OK;
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    char times[2][32];
    CARRY_TRY(carry_all_scan_simulate(it->base.ctx, &it->result, &it->problem, it->ranks, method, &it->network, &h200));
    (void)snprintf(it->about, sizeof it->about,
                   "%s in %lld block%s over %d simulated ranks, nodes of %d: %s predicted, %s simulated, %.3g MB "
                   "received by the busiest rank",
                   it->result.algorithm, (long long)it->result.blocks, it->result.blocks == 1 ? "" : "s", it->ranks,
                   it->network.node, carry_time_text(times[0], it->result.predicted),
                   carry_time_text(times[1], it->result.seconds), 1e-6 * (double)it->result.received);
    return CARRY_OK;
}

static double bytes(const void *given) {
    const carry_all_scan_problem *p = &((const instance *)given)->problem;
    return (double)(p->heads * p->key * p->value) * (double)carry_dtype_size(p->wire);
}

static const char *chosen(const void *given) {
    return ((const instance *)given)->result.algorithm;
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

/* Does nothing: the run was simulated when its method was chosen. */
static carry_status run(void *given) {
    (void)given;
    return CARRY_OK;
}

static carry_status time_run(void *given, double *seconds) {
    *seconds = ((const instance *)given)->result.seconds;
    return CARRY_OK;
}

static carry_counts counts(const void *given) {
    const carry_all_scan_simulated *r = &((const instance *)given)->result;
    return (carry_counts){.bytes = (double)r->received, .received = (double)r->received, .predicted = r->predicted};
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    const instance *it = given;
    *count = 0;
    deviations[0] = (carry_deviation){0};
    return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED,
                      "nothing is computed on a simulated cluster: bench --unchecked");
}

const carry_family carry_family_cluster = {
    .name = "cluster",
    .about = "a simulation of the scan across p ranks of a cluster, with the costs of an H200",
    .takes = takes,
    .example = "cluster:wy:bf16:h16:k128:v128:p1024",
    .support = {.cpu = "f32 bf16"},
    .is_simulated = true,
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .bytes = bytes,
    .method = carry_all_scan_name,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .counts = counts,
    .compare = compare,
};
