/* The scan across ranks as problems: allscan:wy:bf16:h16:k128:v128:p8.

   Words of the problem: wy, also written dense (K x K transitions: the WY form of the delta rule over a range of
   tokens, multiplied out), factors (the WY form itself, with r rows), diagonal; f32 or bf16 is the type of messages;
   reversed, initial (with an initial state), gather (LASP-2: algo=gather), same (the reference is a scan by one device
   in the same precision: it rounds its states to the type of messages, and errors are relative to norms). p ranks solve
   it together. Each rank has its own inputs (all_scan_set.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/all_scan.h"
#include "carry/device.h"
#include "comm/ranks.h"
#include "comm/rates.h"
#include "core/context.h"
#include "core/tensor.h"
#include "bench/family/all_scan_set.h"
#include "bench/collective.h"
#include "bench/deviation.h"
#include "bench/family/family_ranks.h"

#define MAX_COPIES 64
#define REFERENCE_TAG (CARRY_MAX_COMM_TAGS - 1)

typedef struct instance {
    carry_ranks_instance base;
    carry_all_scan_problem problem;
    bool initial, same;
    int copies, current;
    carry_all_scan_set sets[MAX_COPIES];
    int device;
    char way[CARRY_PROBLEM_WORD];          /* the communicator for the GPU's memory, or "" */
    carry_comm *moving;                    /* a communicator over base.comm that moves GPU memory; NULL on the CPU */
    carry_all_scan_args there[MAX_COPIES]; /* the sets in the device's memory */
    carry_all_scan_plan *plan;
    void *workspace;
    double *entering, *leaving, *row; /* float64 reference of set 0 */
    /* The largest magnitude among the states up to `entering`, and up to `leaving`. */
    double met[2];
    bool has_reference;
} instance;

static const char takes[] =
    "wy (or dense), factors (with r rows) or diagonal; f32 or bf16 messages, h, k, v, p (ranks), "
    "reversed, initial (a state), gather, same (compared with one device in the same precision), algo=NAME, "
    "device=cpu, "
    "cuda or gpus, comm=NAME (peer, ipc, mpi-gpu, staged, nccl)";

static carry_status parse_kind(carry_ctx *ctx, instance *it, carry_problem *problem) {
    const bool wy = carry_problem_has(problem, "wy"), dense = carry_problem_has(problem, "dense");
    const bool factors = carry_problem_has(problem, "factors"), diagonal = carry_problem_has(problem, "diagonal");
    if (wy + dense + factors + diagonal != 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' must say one of wy, factors, diagonal (dense is wy)",
                          problem->text);
    }
    it->problem.kind = factors ? CARRY_ALL_SCAN_FACTORS : diagonal ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE;
    it->problem.rows = carry_problem_size(problem, "r", factors ? CARRY_ALL_SCAN_KEYS : 0);
    if (!factors && it->problem.rows != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' has r%lld, but only factors have rows", problem->text,
                          (long long)it->problem.rows);
    }
    return carry_problem_dtype(ctx, &it->problem.wire, problem, CARRY_BF16);
}

static carry_status parse_method(carry_ctx *ctx, instance *it, carry_problem *problem) {
    const bool gather = carry_problem_has(problem, "gather");
    const char *algo = carry_problem_setting(problem, "algo");
    if (gather && algo != NULL && strcmp(algo, "gather") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' asks for gather and for algo=%s", problem->text, algo);
    }
    algo = gather ? "gather" : algo == NULL ? "" : algo;
    algo = strcmp(algo, "lasp2") == 0 ? "gather" : strcmp(algo, "lasp1") == 0 ? "serial" : algo;
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algo);
    return CARRY_OK;
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    CARRY_TRY(parse_kind(ctx, it, problem));
    CARRY_TRY(parse_method(ctx, it, problem));
    it->problem.heads = carry_problem_size(problem, "h", 16);
    it->problem.key = carry_problem_size(problem, "k", 128);
    it->problem.value = carry_problem_size(problem, "v", 128);
    it->problem.reversed = carry_problem_has(problem, "reversed");
    it->initial = carry_problem_has(problem, "initial");
    it->same = carry_problem_has(problem, "same");
    const int64_t p = carry_problem_size(problem, "p", 0);
    const char *way = carry_problem_setting(problem, "comm");
    (void)snprintf(it->way, sizeof it->way, "%s", way != NULL ? way : "");
    CARRY_TRY(carry_ranks_family_device(ctx, &it->device, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (p < 1 || p > CARRY_RANKS) {
        return carry_fail(ctx, p < 1 ? CARRY_EARGUMENT : CARRY_ESIZE,
                          "'%s' must say how many ranks there are, from p1 to p%d", problem->text, CARRY_RANKS);
    }
    if (way != NULL && it->device == 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "comm=%s in '%s' is how memory of GPUs moves: device=cuda", way,
                          problem->text);
    }
    if (problem->comm != NULL && carry_comm_size(problem->comm) != p) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' is given to %d ranks", problem->text,
                          carry_comm_size(problem->comm));
    }
    return CARRY_OK;
}

/* The tensors of a call; those that are written come first. */
enum { TENSORS = 8, WRITTEN = 2 };

static void list_tensors(carry_all_scan_args *args, carry_tensor *all[TENSORS]) {
    carry_tensor *const list[TENSORS] = {&args->state, &args->leaving, &args->L,     &args->initial,
                                         &args->M,     &args->W,       &args->gamma, &args->Y};
    memcpy(all, list, sizeof list);
}

static size_t tensor_bytes(const carry_tensor *tensor) {
    return (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype);
}

/* Copies a set to the GPU's memory. */
static carry_status upload(instance *it, int index) {
    carry_tensor *all[TENSORS];
    it->there[index] = it->sets[index].args;
    list_tensors(&it->there[index], all);
    for (int i = 0; i < TENSORS; i++) {
        const void *host = all[i]->data;
        all[i]->data = NULL;
        if (host != NULL) {
            all[i]->device = it->device;
            CARRY_TRY(carry_device_alloc(it->base.ctx, &all[i]->data, it->device, tensor_bytes(all[i])));
            CARRY_TRY(carry_device_copy(it->base.ctx, all[i]->data, it->device, host, 0, tensor_bytes(all[i]), NULL));
        }
    }
    return carry_stream_wait(it->base.ctx, it->device, NULL);
}

/* Copies the inputs to the device (the poisoned results too), or the results back. */
static carry_status copy_set(instance *it, bool back) {
    carry_tensor *here[TENSORS], *there[TENSORS];
    carry_ctx *ctx = it->base.ctx;
    carry_stream *stream = carry_ctx_stream(ctx, it->device);
    list_tensors(&it->sets[0].args, here);
    list_tensors(&it->there[0], there);
    for (int i = 0; i < WRITTEN; i++) {
        const size_t count = tensor_bytes(here[i]);
        CARRY_TRY(back ? carry_device_copy(ctx, here[i]->data, 0, there[i]->data, it->device, count, stream)
                       : carry_device_copy(ctx, there[i]->data, it->device, here[i]->data, 0, count, stream));
    }
    return carry_stream_wait(ctx, it->device, stream);
}

static void close_instance(void *given) {
    instance *it = given;
    carry_all_scan_plan_free(it->plan);
    for (int i = 0; i < it->copies; i++) {
        carry_tensor *all[TENSORS];
        list_tensors(&it->there[i], all);
        for (int t = 0; t < TENSORS && it->device > 0; t++) {
            carry_device_free(it->base.ctx, it->device, all[t]->data);
        }
        carry_all_scan_set_free(&it->sets[i]);
    }
    carry_comm_close(it->moving);
    carry_comm_close(it->base.alone);
    carry_device_free(it->base.ctx, it->device, it->workspace);
    carry_ranks_family_end_stream(&it->base);
    free(it->entering);
    free(it->leaving);
    free(it->row);
    free(it);
}

/* True for the rank where the scan starts, which has the initial state. */
static bool is_first(const instance *it) {
    return carry_comm_rank(it->base.comm) == (it->problem.reversed ? carry_comm_size(it->base.comm) - 1 : 0);
}

static carry_status make_plan(void *given, const char *method) {
    instance *it = given;
    CARRY_TRY(carry_ranks_family_own_stream(&it->base, it->device));
    if (it->device > 0 && it->moving == NULL) {
        CARRY_TRY(carry_comm_open_device(it->base.comm, &it->moving, it->device, it->way[0] != '\0' ? it->way : NULL));
    }
    return carry_all_scan_plan_new(it->moving != NULL ? it->moving : it->base.comm, &it->plan, &it->problem,
                                   &(carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = method});
}

/* Refuses sizes before memory is allocated, by making a plan for one rank, which needs no other ranks. */
static carry_status check_sizes(instance *it) {
    carry_comm *one = NULL;
    carry_all_scan_plan *probe = NULL;
    carry_status status = carry_comm_open(it->base.ctx, &one, "self", NULL);
    if (status == CARRY_OK) {
        status = carry_all_scan_plan_new(
            one, &probe, &it->problem,
            &(carry_all_scan_options){CARRY_INIT(carry_all_scan_options), .algorithm = "chain"});
    }
    carry_all_scan_plan_free(probe);
    carry_comm_close(one);
    return status;
}

static carry_status fill(void *given, carry_problem *problem, uint64_t seed, int copies) {
    instance *it = given;
    CARRY_TRY(parse(it->base.ctx, it, problem));
    CARRY_TRY(check_sizes(it));
    for (int i = 0; i < copies && i < MAX_COPIES; i++) {
        it->copies = i + 1;
        CARRY_TRY(carry_all_scan_set_new(it->base.ctx, &it->sets[i], &it->problem, it->initial && is_first(it),
                                         seed + (uint64_t)i, carry_comm_rank(it->base.comm)));
        if (it->device > 0) {
            CARRY_TRY(upload(it, i));
        }
    }
    return CARRY_OK;
}

static const carry_ranks_family over_ranks = {
    .bytes = sizeof(instance), .fill = fill, .make_plan = make_plan, .close = close_instance};

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    return carry_ranks_family_open(&over_ranks, ctx, opened, problem, seed, copies);
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    return carry_ranks_family_plan(&over_ranks, ctx, opened, problem, measure);
}

static double bytes(const void *given) {
    return carry_all_scan_set_bytes(&((const instance *)given)->problem);
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    carry_all_scan_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->device, it->workspace);
    it->plan = NULL;
    it->workspace = NULL;
    CARRY_TRY(make_plan(it, method)); /* the same status on every rank */
    const size_t wanted = carry_all_scan_run_workspace(it->plan);
    /* The workspace stays NULL if this fails. */
    (void)carry_device_alloc(it->base.ctx, &it->workspace, it->device, wanted);
    return carry_collective_agree(it->base.comm,
                                  it->workspace != NULL
                                      ? CARRY_OK
                                      : carry_fail(it->base.ctx, CARRY_EUNSUPPORTED,
                                                   "%s needs %.3g GB of workspace, which cannot be allocated",
                                                   carry_all_scan_plan_algorithm(it->plan), 1e-9 * (double)wanted));
}

static const char *chosen(const void *given) {
    return carry_all_scan_plan_algorithm(((const instance *)given)->plan);
}

static const char *about_plan(const void *given) {
    return carry_all_scan_plan_about(((const instance *)given)->plan);
}

/* Runs without the leaving state: callers that pass a state into a part of a sequence do not use it. */
static carry_status run(void *given) {
    instance *it = given;
    it->current = (it->current + 1) % it->copies;
    carry_all_scan_args args = it->device > 0 ? it->there[it->current] : it->sets[it->current].args;
    args.leaving = (carry_tensor){0};
    CARRY_TRY(carry_all_scan_run(it->plan, &args, it->workspace, carry_all_scan_run_workspace(it->plan)));
    return carry_stream_wait(it->base.ctx, it->device, carry_ctx_stream(it->base.ctx, it->device));
}

/* The counts of this rank's last run. */
static carry_counts counts(const void *given) {
    const instance *it = given;
    carry_all_scan_counts done = {CARRY_INIT(carry_all_scan_counts)};
    (void)carry_all_scan_counted(it->plan, &done);
    return (carry_counts){.flops = done.flops,
                          .bytes = (double)done.bytes_received,
                          .products = done.products,
                          .workspace = (double)carry_all_scan_run_workspace(it->plan),
                          .received = (double)done.bytes_received,
                          .predicted = carry_all_scan_plan_seconds(it->plan),
                          .waited = -1.0};
}

static carry_status allocate_reference(instance *it) {
    const size_t size = (size_t)(it->problem.heads * it->problem.key * it->problem.value);
    free(it->entering);
    free(it->leaving);
    free(it->row);
    it->entering = calloc(size, sizeof *it->entering);
    it->leaving = calloc(size, sizeof *it->leaving);
    it->row = calloc((size_t)it->problem.value, sizeof *it->row);
    if (it->entering == NULL || it->leaving == NULL || it->row == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    return CARRY_OK;
}

/* Without fmax: gcc 12 for ARM crashes on it at -O3. A NaN is ignored. */
static double larger_of(double so_far, double number) {
    return fabs(number) > so_far ? fabs(number) : so_far;
}

static double largest_of(const double *numbers, size_t count, double so_far) {
    for (size_t i = 0; i < count; i++) {
        so_far = larger_of(so_far, numbers[i]);
    }
    return so_far;
}

/* The loop over ranks in float64: each rank waits for the entering state, applies its transition and sends the
   result on. */
static carry_status make_reference(instance *it) {
    if (it->has_reference) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_collective_agree(it->base.comm, allocate_reference(it)));
    const int rank = carry_comm_rank(it->base.comm), step = it->problem.reversed ? -1 : 1, next = rank + step;
    const size_t size = (size_t)(it->problem.heads * it->problem.key * it->problem.value);
    if (!is_first(it)) {
        CARRY_TRY(carry_recv(it->base.comm, it->entering, size * sizeof(double), rank - step, REFERENCE_TAG));
        CARRY_TRY(carry_recv(it->base.comm, it->met, sizeof(double), rank - step, REFERENCE_TAG));
    }
    for (size_t i = 0; it->same && it->problem.wire == CARRY_BF16 && i < size; i++) {
        it->entering[i] = (double)carry_f32_from_bf16(carry_bf16_from_f32((float)it->entering[i]));
    }
    const float *initial = it->sets[0].args.initial.data;
    for (size_t i = 0; initial != NULL && i < size; i++) {
        it->entering[i] = (double)initial[i];
    }
    carry_all_scan_set_apply(it->leaving, it->entering, &it->sets[0], &it->problem, it->row);
    it->met[0] = largest_of(it->entering, size, it->met[0]);
    it->met[1] = largest_of(it->leaving, size, it->met[0]);
    const float *own = it->sets[0].args.L.data;
    for (size_t i = 0; i < size; i++) {
        it->met[1] = larger_of(it->met[1], (double)own[i]);
    }
    if (next >= 0 && next < carry_comm_size(it->base.comm)) {
        CARRY_TRY(carry_send(it->base.comm, it->leaving, size * sizeof(double), next, REFERENCE_TAG));
        CARRY_TRY(carry_send(it->base.comm, it->met + 1, sizeof(double), next, REFERENCE_TAG));
    }
    it->has_reference = true;
    return CARRY_OK;
}

/* A rank's part maps a state S to M S + L (carry/all_scan.h). An f32 product M S has a rounding error of about
   sqrt(K) 2^-24 of the largest element of S, since the norm of M is at most 1. M as factors takes two products, which
   doubles the error, and composing transitions first, as gather and doubling do, doubles it again. Messages in bf16
   round by up to 2^-8 at every transfer, in either direction, so these errors grow like the square root of the number
   of transfers. A transition shrinks a state by a tenth on average, so only the last 32 ranks count.

   Errors are relative to the largest element of the states and of L on all ranks so far, and not of the rank's own
   state: M S and L may nearly cancel, especially in a state of a single number. */
static double bound_of(const instance *it) {
    const double hops = fmin((double)carry_comm_size(it->base.comm), 32.0);
    const double products = 4.0 * 0x1p-24 * sqrt((double)it->problem.key + 4.0) * hops;
    return products + (it->problem.wire == CARRY_BF16 ? 2.0 * carry_unit_roundoff(CARRY_BF16) * sqrt(hops) : 0.0);
}

/* Relative to the norm: a number rounded in the other direction differs by 2^-8 of itself, and few numbers do. */
#define SAME 1e-3

/* |result - reference| / |reference|, with Euclidean norms over all numbers. */
static double distance(const carry_tensor *result, const double *reference) {
    double apart = 0.0, all = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(result); i++) {
        const double difference = carry_tensor_at(result, i) - reference[i];
        apart += difference * difference;
        all += reference[i] * reference[i];
    }
    return all > 0.0 ? sqrt(apart / all) : sqrt(apart);
}

static carry_deviation deviation_of(const instance *it, int which) {
    const carry_tensor *result = which == 0 ? &it->sets[0].args.state : &it->sets[0].args.leaving;
    const double *reference = which == 0 ? it->entering : it->leaving;
    carry_deviation d = carry_deviation_of(which == 0 ? "state" : "leaving", result, reference, bound_of(it));
    d.error = it->met[which] > 0.0 ? d.absolute / it->met[which] : d.absolute;
    if (it->same) {
        const char *name = carry_all_scan_plan_algorithm(it->plan);
        /* Other algorithms compose first. */
        const bool rounds_alike = strcmp(name, "chain") == 0 || strcmp(name, "serial") == 0;
        d.error = distance(result, reference);
        d.bound = rounds_alike ? SAME : d.bound;
    }
    return d;
}

/* Compares every rank's state; all ranks get the worst deviation. */
static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    const carry_all_scan_args *args = &it->sets[0].args;
    *count = 0;
    CARRY_TRY(make_reference(it));
    carry_poison(&args->state);
    carry_poison(&args->leaving);
    const bool on_gpu = it->device > 0;
    CARRY_TRY(on_gpu ? copy_set(it, false) : CARRY_OK);
    CARRY_TRY(carry_all_scan_run(it->plan, on_gpu ? &it->there[0] : args, it->workspace,
                                 carry_all_scan_run_workspace(it->plan)));
    CARRY_TRY(on_gpu ? copy_set(it, true) : CARRY_OK);
    deviations[0] = deviation_of(it, 0);
    deviations[1] = deviation_of(it, 1);
    CARRY_TRY(carry_ranks_family_worst(it->base.comm, deviations, 2));
    *count = 2;
    return CARRY_OK;
}

static int device_of(const void *given) {
    return ((const instance *)given)->device;
}

const carry_family carry_family_allscan = {
    .name = "allscan",
    .about = "the scan across p ranks: S[p+1] = M[p] S[p] + L[p], M k x k, its factors or diagonal, S k x v",
    .takes = takes,
    .example = "allscan:wy:bf16:h16:k128:v128:p8",
    .support = {.cpu = "f32 bf16", .cuda = "f32 bf16", .ranks = "cpu cuda"},
    .ranks = carry_ranks_family_size,
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = carry_all_scan_name,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_ranks_family_only,
    .run = run,
    .device = device_of,
    .counts = counts,
    .compare = compare,
};
