/* The gated delta rule over ranks as problems: delta:f32:t32768:h16:k128:v128:p4, :backward.

   t is the length of the whole sequence; each of p ranks has an equal part of it, or one token more. The methods are
   All-Scan's algorithms, which pass states between ranks; method=NAME is the method of the delta rule, wire=bf16 the
   type of messages, and groups=N the number of groups of heads. delta_set.h describes the inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/ranks.h"
#include "core/context.h"
#include "core/tensor.h"
#include "delta/ranks.h"
#include "bench/collective.h"
#include "bench/family/delta_ranks_reference.h"
#include "bench/deviation.h"
#include "bench/family/family_ranks.h"

#define MAX_COPIES 64

typedef struct instance {
    carry_ranks_instance base;
    carry_delta_problem problem; /* this rank's part */
    int64_t total;               /* tokens of the whole sequence */
    bool is_last;                /* the last of the ranks that have tokens */
    bool backward, initial;
    char method[CARRY_PROBLEM_WORD];
    carry_delta_ranks_options options;
    int copies, current;
    carry_delta_set sets[MAX_COPIES]; /* on the device */
    carry_delta_set host;             /* set 0 on the CPU; the same set if that is the device */
    char way[CARRY_PROBLEM_WORD];     /* the communicator for the GPU's memory, or "" */
    carry_comm *moving;               /* a communicator over base.comm that moves GPU memory; NULL on the CPU */
    carry_delta_ranks_plan *plan;
    void *workspace, *kept;
    int64_t received;                      /* bytes received in the last run */
    carry_delta_ranks_reference reference; /* of set 0 */
} instance;

static const char takes[] =
    "f32, bf16 or f16, b, t (of all ranks), h, hv (h unless given), k, v, p (ranks), nogate, "
    "keygate, initial (a state), backward, algo=NAME of All-Scan, method=NAME of the delta rule, "
    "wire=f32 or bf16, groups=N, device=cpu, cuda or gpus, comm=NAME (peer, ipc, mpi-gpu, staged, nccl)";

static carry_status parse_settings(carry_ctx *ctx, instance *it, carry_problem *problem) {
    const char *algo = carry_problem_setting(problem, "algo");
    const char *method = carry_problem_setting(problem, "method");
    const char *wire = carry_problem_setting(problem, "wire");
    const char *groups = carry_problem_setting(problem, "groups");
    const char *way = carry_problem_setting(problem, "comm");
    CARRY_TRY(carry_ranks_family_device(ctx, &it->problem.device, problem));
    (void)snprintf(it->way, sizeof it->way, "%s", way != NULL ? way : "");
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algo != NULL ? algo : "");
    (void)snprintf(it->method, sizeof it->method, "%s", method != NULL ? method : "");
    it->options = (carry_delta_ranks_options){CARRY_INIT(carry_delta_ranks_options)};
    it->options.algorithm = method != NULL ? it->method : NULL;
    if (wire != NULL && strcmp(wire, "f32") != 0 && strcmp(wire, "bf16") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "wire=%s in '%s': states travel as f32 or bf16", wire, problem->text);
    }
    it->options.wire = wire != NULL && strcmp(wire, "bf16") == 0 ? CARRY_BF16 : CARRY_F32;
    char *end = NULL;
    it->options.groups = groups != NULL ? strtol(groups, &end, 10) : 0;
    if (groups != NULL && (*end != '\0' || it->options.groups < 1)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "groups=%s in '%s' is not a number of groups", groups, problem->text);
    }
    if (way != NULL && it->problem.device == 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "comm=%s in '%s' is how memory of GPUs moves: device=cuda", way,
                          problem->text);
    }
    return CARRY_OK;
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    carry_delta_problem *p = &it->problem;
    CARRY_TRY(carry_problem_dtype(ctx, &p->dtype, problem, CARRY_F16));
    p->batch = carry_problem_size(problem, "b", 1);
    p->heads = carry_problem_size(problem, "h", 4);
    p->value_heads = carry_problem_size(problem, "hv", p->heads);
    p->key = carry_problem_size(problem, "k", 128);
    p->value = carry_problem_size(problem, "v", 128);
    bool none = carry_problem_has(problem, "nogate");
    bool keys = carry_problem_has(problem, "keygate");
    p->gate = none ? CARRY_DELTA_NO_GATE : keys ? CARRY_DELTA_KEY_GATE : CARRY_DELTA_HEAD_GATE;
    p->l2norm = true;
    it->total = carry_problem_size(problem, "t", 1024);
    it->backward = carry_problem_has(problem, "backward");
    it->initial = carry_problem_has(problem, "initial");
    const int64_t wanted = carry_problem_size(problem, "p", 0);
    CARRY_TRY(parse_settings(ctx, it, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (none && keys) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' asks for two things that exclude each other", problem->text);
    }
    if (wanted < 1 || wanted > CARRY_RANKS || it->total > INT64_MAX / CARRY_RANKS) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s': there may be p1 to p%d ranks, and t%lld at most", problem->text,
                          CARRY_RANKS, (long long)(INT64_MAX / CARRY_RANKS));
    }
    const int64_t size = problem->comm != NULL ? carry_comm_size(problem->comm) : 1;
    if (problem->comm != NULL && size != wanted) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' is given to %lld ranks", problem->text, (long long)size);
    }
    const int64_t rank = problem->comm != NULL ? carry_comm_rank(problem->comm) : 0;
    const int64_t first = it->total * rank / size, end = it->total * (rank + 1) / size;
    p->tokens = end - first;
    it->is_last = p->tokens > 0 && end == it->total;
    return CARRY_OK;
}

static void close_instance(void *given) {
    instance *it = given;
    const int device = it->problem.device;
    carry_delta_ranks_plan_free(it->plan);
    if (device != 0) {
        carry_delta_set_free(it->base.ctx, &it->host);
    }
    for (int i = 0; i < it->copies; i++) {
        carry_delta_set_free(it->base.ctx, &it->sets[i]);
    }
    carry_comm_close(it->moving);
    carry_comm_close(it->base.alone);
    carry_device_free(it->base.ctx, device, it->workspace);
    carry_device_free(it->base.ctx, device, it->kept);
    carry_delta_ranks_reference_free(&it->reference);
    carry_ranks_family_end_stream(&it->base);
    free(it);
}

/* Makes a set on the CPU, and copies it if the device is another one. */
static carry_status make_set(instance *it, int index, uint64_t seed) {
    carry_delta_problem here = it->problem;
    carry_delta_set made = {0};
    here.device = 0;
    carry_status status = carry_delta_set_new(it->base.ctx, &made, &here, it->backward, seed + (uint64_t)index,
                                              carry_comm_rank(it->base.comm));
    if (it->problem.device == 0) {
        it->sets[index] = made;
        it->host = it->sets[0];
        return status;
    }
    status =
        status == CARRY_OK ? carry_delta_set_upload(it->base.ctx, &it->sets[index], &made, it->problem.device) : status;
    if (index == 0) {
        it->host = made;
    } else {
        carry_delta_set_free(it->base.ctx, &made);
    }
    return status;
}

static carry_status fill(void *given, carry_problem *problem, uint64_t seed, int copies) {
    instance *it = given;
    CARRY_TRY(parse(it->base.ctx, it, problem));
    carry_delta_plan *probe; /* refuses sizes before memory is allocated */
    carry_delta_problem whole = it->problem;
    whole.tokens = it->total;
    CARRY_TRY(carry_delta_plan_new(
        it->base.ctx, &probe, &whole,
        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = it->options.algorithm}));
    carry_delta_plan_free(probe);
    for (int i = 0; i < copies && i < MAX_COPIES; i++) {
        it->copies = i + 1;
        CARRY_TRY(make_set(it, i, seed));
    }
    return CARRY_OK;
}

static carry_status make_plan(void *given, const char *algorithm) {
    instance *it = given;
    carry_delta_ranks_options options = it->options;
    options.all_scan_algorithm = algorithm;
    CARRY_TRY(carry_ranks_family_own_stream(&it->base, it->problem.device));
    if (it->problem.device > 0 && it->moving == NULL) {
        CARRY_TRY(carry_comm_open_device(it->base.comm, &it->moving, it->problem.device,
                                         it->way[0] != '\0' ? it->way : NULL));
    }
    return carry_delta_ranks_plan_new(it->moving != NULL ? it->moving : it->base.comm, &it->plan, &it->problem,
                                      &options);
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
    const instance *it = given;
    return carry_delta_set_bytes(&it->problem, it->initial, it->backward);
}

static carry_status run_forward(instance *it, carry_delta_set *s, void *kept) {
    carry_delta_forward_args args = carry_delta_set_forward(s, &it->problem, it->initial);
    args.kept = kept;
    return carry_delta_ranks_forward(it->plan, &args, it->workspace, carry_delta_ranks_forward_workspace(it->plan));
}

static carry_status allocate(instance *it) {
    const size_t forward = carry_delta_ranks_forward_workspace(it->plan);
    const size_t backward = it->backward ? carry_delta_ranks_backward_workspace(it->plan) : 0;
    const size_t workspace = forward > backward ? forward : backward, kept = carry_delta_ranks_kept_bytes(it->plan);
    /* The workspace stays NULL if this fails. */
    (void)carry_device_alloc(it->base.ctx, &it->workspace, it->problem.device, workspace);
    if (it->backward && it->copies > 0) {
        (void)carry_device_alloc(it->base.ctx, &it->kept, it->problem.device, kept);
    }
    if (it->workspace == NULL || (it->backward && it->copies > 0 && it->kept == NULL)) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED,
                          "%.3g GB of workspace and %.3g GB for backward cannot be allocated", 1e-9 * (double)workspace,
                          1e-9 * (double)kept);
    }
    return CARRY_OK;
}

/* Backward is timed with the values that forward keeps, as in training; they are made here once, from set 0. */
static carry_status choose(void *given, const char *algorithm) {
    instance *it = given;
    carry_delta_ranks_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->problem.device, it->workspace);
    carry_device_free(it->base.ctx, it->problem.device, it->kept);
    it->plan = NULL;
    it->workspace = it->kept = NULL;
    CARRY_TRY(carry_collective_agree(it->base.comm, make_plan(it, algorithm)));
    CARRY_TRY(carry_collective_agree(it->base.comm, allocate(it)));
    return it->kept != NULL ? run_forward(it, &it->sets[0], it->kept) : CARRY_OK;
}

static const char *chosen(const void *given) {
    const carry_delta_ranks_plan *plan = ((const instance *)given)->plan;
    return plan->chained ? carry_all_scan_plan_algorithm(plan->forward[0]) : "chain";
}

static const char *about_plan(const void *given) {
    return carry_delta_ranks_plan_about(((const instance *)given)->plan);
}

static carry_status run_set(instance *it, carry_delta_set *s) {
    if (!it->backward) {
        return run_forward(it, s, NULL);
    }
    carry_delta_backward_args args = carry_delta_set_backward(s, &it->problem, it->initial, it->kept);
    return carry_delta_ranks_backward(it->plan, &args, it->workspace, carry_delta_ranks_backward_workspace(it->plan));
}

static carry_status run(void *given) {
    instance *it = given;
    it->current = (it->current + 1) % it->copies;
    const carry_comm *comm = it->moving != NULL ? it->moving : it->base.comm;
    carry_comm_counts before = {CARRY_INIT(carry_comm_counts)}, after = before;
    CARRY_TRY(carry_comm_counted(comm, &before));
    const carry_status status = run_set(it, &it->sets[it->current]);
    CARRY_TRY(carry_comm_counted(comm, &after));
    it->received = after.bytes_received - before.bytes_received;
    CARRY_TRY(status);
    return carry_stream_wait(it->base.ctx, it->problem.device, carry_ctx_stream(it->base.ctx, it->problem.device));
}

/* The counts of this rank's last run; flops exclude the additional work for ranks. */
static carry_counts counts(const void *given) {
    const instance *it = given;
    const double seconds = carry_delta_ranks_last_seconds(it->plan);
    const carry_delta_plan *inner = it->plan->inner; /* NULL without tokens */
    const double flops = inner == NULL  ? 0.0
                         : it->backward ? carry_delta_backward_flops(inner, false)
                                        : carry_delta_forward_flops(inner);
    return (carry_counts){.flops = flops,
                          .bytes = bytes(it),
                          .workspace = (double)(it->backward ? carry_delta_ranks_backward_workspace(it->plan)
                                                             : carry_delta_ranks_forward_workspace(it->plan)),
                          .tokens = (double)it->problem.batch * (double)it->total,
                          .received = (double)it->received,
                          .waited = seconds > 0.0 ? carry_delta_ranks_last_exposed(it->plan) / seconds : 0.0};
}

static carry_status make_reference(instance *it) {
    carry_delta_problem here = it->problem;
    here.device = 0;
    CARRY_TRY(carry_collective_agree(
        it->base.comm, carry_delta_ranks_reference_new(it->base.ctx, &it->reference, &it->host, it->backward)));
    return carry_delta_ranks_reference_run(it->base.comm, &it->reference, &it->host, &here, it->initial);
}

/* The f32 part is twice that of one rank (carry_delta_set_bound), since the states at the borders of ranks
   come from separate products, with rounding errors of their own. Messages in bf16 round the state at every border,
   with an error of up to 2^-8 that fades over the next tokens: two such errors are allowed. Tensor cores also round
   states and corrected values to 16 bits, which adds a few rounding errors. */
static double bound_of(const instance *it, carry_dtype dtype) {
    const double wire = it->options.wire == CARRY_BF16 ? 2.0 * carry_unit_roundoff(CARRY_BF16) : 0.0;
    const bool tensor_cores = it->problem.device > 0 && it->problem.dtype != CARRY_F32;
    const double cores = tensor_cores ? 4.0 * carry_unit_roundoff(it->problem.dtype) : 0.0;
    return 128.0 * 0x1p-24 + wire + cores + carry_unit_roundoff(dtype);
}

static carry_status compare_forward(instance *it, carry_deviation *deviations, int *count) {
    carry_delta_set *s = &it->host;
    CARRY_TRY(make_reference(it));
    carry_poison(&s->o);
    carry_poison(&s->final);
    CARRY_TRY(carry_delta_set_poison(it->base.ctx, &it->sets[0], s));
    CARRY_TRY(run_set(it, &it->sets[0]));
    CARRY_TRY(carry_delta_set_download(it->base.ctx, s, &it->sets[0]));
    deviations[0] = carry_deviation_of("o", &s->o, it->reference.o[0], bound_of(it, s->o.dtype));
    deviations[1] = carry_deviation_of("final_state", &s->final, it->reference.leaving, bound_of(it, CARRY_F32));
    if (!it->is_last) { /* only the rank where the sequence ends writes it */
        deviations[1].error = deviations[1].absolute = 0.0;
    }
    CARRY_TRY(carry_ranks_family_worst(it->base.comm, deviations, 2));
    *count = 2;
    return CARRY_OK;
}

/* Compares dv as for one rank (delta_gradients.c): o is linear in v, so a central difference along any direction is
   exact. The difference and the product with the gradient are summed over the ranks. */
static carry_status compare_backward(instance *it, carry_deviation *deviations, int *count) {
    carry_delta_set *s = &it->host;
    const int64_t size = carry_tensor_count(&s->v);
    if (it->problem.dtype != CARRY_F32) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "gradients over ranks are checked in f32");
    }
    CARRY_TRY(make_reference(it));
    const carry_tensor *poisoned[] = {&s->dq, &s->dk, &s->dv, &s->dbeta};
    for (size_t i = 0; i < sizeof poisoned / sizeof poisoned[0]; i++) {
        carry_poison(poisoned[i]);
    }
    CARRY_TRY(carry_delta_set_poison(it->base.ctx, &it->sets[0], s));
    CARRY_TRY(run_forward(it, &it->sets[0], it->kept));
    CARRY_TRY(run_set(it, &it->sets[0]));
    CARRY_TRY(carry_delta_set_download(it->base.ctx, s, &it->sets[0]));
    const float *along = s->grad_o.data;
    const float *dv = s->dv.data;
    double sums[3] = {0.0}; /* numeric, analytic, sum of the squared analytic terms */
    for (int64_t i = 0; i < size; i++) {
        const double part = (double)dv[i] * (double)along[CARRY_DELTA_RANKS_ALONG(i, size)];
        sums[0] += 0.5 * (it->reference.o[0][i] - it->reference.o[1][i]) * (double)along[i];
        sums[1] += part;
        sums[2] += part * part;
    }
    CARRY_TRY(carry_all_reduce(it->base.comm, sums, 3, CARRY_F64, CARRY_REDUCE_SUM));
    const double off = fabs(sums[1] - sums[0]);
    deviations[0] = (carry_deviation){.tensor = "dv", .error = off / sqrt(sums[2]), .absolute = off, .bound = 1e-4};
    if (it->options.wire == CARRY_BF16) {
        deviations[0].bound += 2.0 * carry_unit_roundoff(CARRY_BF16);
    }
    *count = 1;
    return CARRY_OK;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    *count = 0;
    return ((const instance *)given)->backward ? compare_backward(given, deviations, count)
                                               : compare_forward(given, deviations, count);
}

static int device_of(const void *given) {
    return ((const instance *)given)->problem.device;
}

const carry_family carry_family_delta_ranks = {
    .name = "delta",
    .about = "the gated delta rule over p ranks that share the tokens: forward or backward",
    .takes = takes,
    .example = "delta:f32:t32768:h16:k128:v128:p4",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16",
                .ranks = "cpu cuda"},
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
