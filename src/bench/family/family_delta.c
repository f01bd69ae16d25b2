/* The gated delta rule as problems: delta:bf16:b1:t32768:h16:hv32:k128:v128.

   delta_set.h describes the inputs. Options: backward; step, also with ring=N (delta_ring.h); nogate (DeltaNet);
   keygate (KDA); initial (with an initial state). Problems with p ranks belong to family_delta_ranks.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/delta.h"
#include "carry/device.h"
#include "core/tensor.h"
#include "core/context.h"
#include "core/memory.h"
#include "bench/family/delta_gradients.h"
#include "bench/family/delta_ring.h"
#include "bench/family/delta_set.h"
#include "bench/deviation.h"
#include "bench/family/family.h"
#include "bench/timer.h"

typedef carry_delta_set set;

typedef struct instance {
    carry_instance base;
    carry_delta_problem problem;
    bool backward, step, initial;
    char gates[CARRY_PROBLEM_WORD]; /* delta_set.h */
    set sets[CARRY_COPIES];         /* on the device */
    set host;                       /* set 0 on the CPU; the same set if that is the device */
    carry_bench_ring ring;
    carry_delta_plan *plan;
    void *workspace, *kept;
    double *o, *final; /* float64 reference of set 0 */
    bool has_reference;
} instance;

static const char takes[] =
    "f32, bf16 or f16, b, t, h, hv (h unless given), k, v, nogate, keygate, gates=mixed or zero, given (q and k "
    "have norms of about 1 and are not normalised), initial (a state), backward, step, ring=1 to 16 (with step), "
    "algo=NAME, device=cpu or cuda; with p ranks: b, t, h, "
    "hv, k, v, nogate, keygate, initial, backward, algo=NAME of All-Scan, method=, wire=, groups=";

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    carry_delta_problem *p = &it->problem;
    CARRY_TRY(carry_problem_dtype(ctx, &p->dtype, problem, CARRY_F16));
    p->batch = carry_problem_size(problem, "b", 1);
    p->tokens = carry_problem_size(problem, "t", 1024);
    p->heads = carry_problem_size(problem, "h", 4);
    p->value_heads = carry_problem_size(problem, "hv", p->heads);
    p->key = carry_problem_size(problem, "k", 128);
    p->value = carry_problem_size(problem, "v", 128);
    bool none = carry_problem_has(problem, "nogate");
    bool keys = carry_problem_has(problem, "keygate");
    p->gate = none ? CARRY_DELTA_NO_GATE : keys ? CARRY_DELTA_KEY_GATE : CARRY_DELTA_HEAD_GATE;
    p->l2norm = !carry_problem_has(problem, "given");
    it->backward = carry_problem_has(problem, "backward");
    it->step = carry_problem_has(problem, "step");
    it->initial = carry_problem_has(problem, "initial");
    if (it->step) {
        p->tokens = carry_problem_size(problem, "t", 1);
    }
    CARRY_TRY(carry_bench_ring_parse(ctx, &it->ring, problem, it->step));
    const char *gates = carry_problem_setting(problem, "gates");
    (void)snprintf(it->gates, sizeof it->gates, "%s", gates != NULL ? gates : "");
    const char *method = carry_problem_setting(problem, "algo");
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", method != NULL ? method : "");
    CARRY_TRY(carry_problem_device(ctx, &p->device, problem));
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (gates != NULL && strcmp(it->gates, "mixed") != 0 && strcmp(it->gates, "zero") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "gates=%s: expected mixed or zero", it->gates);
    }
    if ((none && keys) || (none && gates != NULL) || (it->step && it->backward)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' asks for two things that exclude each other", problem->text);
    }
    it->base.device = p->device;
    carry_delta_plan *probe; /* refuses sizes before memory is allocated */
    carry_status status = carry_delta_plan_new(
        ctx, &probe, p,
        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = p->device != 0 ? NULL : "chunk16"});
    carry_delta_plan_free(probe);
    return status;
}

static void release(void *given) {
    instance *it = given;
    for (int i = 0; i < it->base.copies; i++) {
        carry_delta_set_free(it->base.ctx, &it->sets[i]);
    }
    if (it->problem.device != 0) {
        carry_delta_set_free(it->base.ctx, &it->host);
    }
    carry_delta_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->problem.device, it->workspace);
    carry_device_free(it->base.ctx, it->problem.device, it->kept);
    carry_device_free(it->base.ctx, it->problem.device, it->ring.memory);
    free(it->o);
    free(it->final);
}

static carry_status make_set(void *given, int index, uint64_t seed) {
    instance *it = given;
    const carry_delta_problem *p = &it->problem;
    if (p->device == 0) {
        CARRY_TRY(carry_delta_set_new(it->base.ctx, &it->sets[index], p, it->backward, seed, 0));
        carry_delta_set_gates(&it->sets[index], it->gates);
        it->host = it->sets[0];
        return CARRY_OK;
    }
    set made;
    carry_status status = carry_delta_set_new(it->base.ctx, &made, p, it->backward, seed, 0);
    if (status == CARRY_OK) {
        carry_delta_set_gates(&made, it->gates);
        status = carry_delta_set_upload(it->base.ctx, &it->sets[index], &made, p->device);
    }
    if (index == 0) {
        it->host = made;
    } else {
        carry_delta_set_free(it->base.ctx, &made);
    }
    return status;
}

static carry_status make_plan(void *given, bool measure) {
    instance *it = given;
    (void)measure;
    return carry_delta_plan_new(
        it->base.ctx, &it->plan, &it->problem,
        &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = carry_instance_only(it)});
}

/* Minimum bytes moved: inputs and outputs once; a step reads and writes the state. */
static double bytes_of(const instance *it) {
    return it->ring.length > 0 ? carry_bench_ring_bytes(&it->ring, &it->problem)
                               : carry_delta_set_bytes(&it->problem, it->step || it->initial, it->backward);
}

static double bytes(const void *given) {
    return bytes_of(given);
}

static carry_delta_forward_args args_of(const instance *it, set *s) {
    return carry_delta_set_forward(s, &it->problem, it->initial);
}

static carry_status run_set(instance *it, set *s) {
    carry_delta_forward_args args = args_of(it, s);
    size_t workspace = carry_delta_forward_workspace(it->plan);
    if (it->ring.length > 0) {
        return carry_bench_ring_run(&it->ring, it->plan, s, &args, it->workspace, workspace);
    }
    if (it->step) {
        return carry_delta_step(it->plan, s->o, s->state, &args, it->workspace, workspace);
    }
    if (!it->backward) {
        return carry_delta_forward(it->plan, &args, it->workspace, workspace);
    }
    carry_delta_backward_args back = carry_delta_set_backward(s, &it->problem, it->initial, it->kept);
    return carry_delta_backward(it->plan, &back, it->workspace, carry_delta_backward_workspace(it->plan));
}

/* Backward is timed with the values that forward keeps, as in training; they are made here once, from set 0. */
static carry_status prepare_backward(instance *it) {
    carry_device_free(it->base.ctx, it->problem.device, it->kept);
    it->kept = NULL;
    if (carry_device_alloc(it->base.ctx, &it->kept, it->problem.device, carry_delta_kept_bytes(it->plan)) != CARRY_OK) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "%.3g GB to keep for backward cannot be allocated",
                          1e-9 * (double)carry_delta_kept_bytes(it->plan));
    }
    carry_delta_forward_args args = args_of(it, &it->sets[0]);
    args.kept = it->kept;
    return carry_delta_forward(it->plan, &args, it->workspace, carry_delta_forward_workspace(it->plan));
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    bool on_gpu = it->problem.device != 0;
    if (it->step && method == NULL && !on_gpu) {
        method = "recurrent";
    }
    if (it->step && !on_gpu && strcmp(method, "recurrent") != 0) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "a step is token by token");
    }
    if (it->backward && !on_gpu && method != NULL && strcmp(method, "recurrent") == 0) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "the backward pass goes by chunks");
    }
    carry_delta_plan_free(it->plan);
    carry_device_free(it->base.ctx, it->problem.device, it->workspace);
    carry_timer_reset(it->base.timer);
    it->plan = NULL;
    it->workspace = NULL;
    CARRY_TRY(carry_delta_plan_new(it->base.ctx, &it->plan, &it->problem,
                                   &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method}));
    size_t forward = carry_delta_forward_workspace(it->plan);
    size_t backward = it->backward ? carry_delta_backward_workspace(it->plan) : 0;
    size_t most = forward > backward ? forward : backward;
    if (carry_device_alloc(it->base.ctx, &it->workspace, it->problem.device, most) != CARRY_OK) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "out of memory: %s needs %.3g GB of workspace",
                          carry_delta_plan_algorithm(it->plan), 1e-9 * (double)most);
    }
    CARRY_TRY(carry_bench_ring_open(it->base.ctx, &it->ring, it->plan, it->problem.device));
    return it->backward && it->base.copies > 0 ? prepare_backward(it) : CARRY_OK;
}

static const char *chosen(const void *given) {
    return carry_delta_plan_algorithm(((const instance *)given)->plan);
}

static const char *about_plan(const void *given) {
    return carry_delta_plan_about(((const instance *)given)->plan);
}

static carry_status run(void *given) {
    instance *it = given;
    it->base.current = (it->base.current + 1) % it->base.copies;
    return run_set(it, &it->sets[it->base.current]);
}

static carry_status time_run(void *given, double *seconds) {
    return carry_timer_time(((carry_instance *)given)->timer, seconds, run, given);
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    size_t forward = carry_delta_forward_workspace(it->plan);
    size_t backward = it->backward ? carry_delta_backward_workspace(it->plan) : 0;
    double runs = it->ring.length > 0 ? (double)it->ring.length : 1.0;
    carry_delta_counts done = {CARRY_INIT(carry_delta_counts)};
    (void)carry_delta_counted(it->plan, &done);
    return (carry_counts){.flops = runs * done.flops,
                          .bytes = bytes_of(it),
                          .workspace = (double)(forward > backward ? forward : backward),
                          .tokens = runs * (double)it->problem.batch * (it->step ? 1.0 : (double)it->problem.tokens)};
}

static carry_status make_reference(instance *it) {
    carry_delta_problem p = it->problem;
    set *s = &it->host;
    p.device = 0;
    if (it->has_reference) {
        return CARRY_OK;
    }
    free(it->o);
    free(it->final);
    it->o = calloc((size_t)carry_tensor_count(&s->o), sizeof *it->o);
    it->final = calloc((size_t)carry_tensor_count(&s->final), sizeof *it->final);
    if (it->o == NULL || it->final == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    carry_delta_forward_args args = args_of(it, s);
    if (it->step) {
        args.initial_state = s->state;
    }
    CARRY_TRY(it->ring.length > 0 ? carry_bench_ring_reference(it->base.ctx, &it->ring, it->o, it->final, &p, &args)
                                  : carry_delta_reference(it->base.ctx, it->o, it->final, &p, &args));
    it->has_reference = true;
    return CARRY_OK;
}

/* Compares a GPU's gradients with the CPU's, and the CPU's with a difference of the reference. */
static carry_status compare_backward(instance *it, carry_deviation *deviations, int *count) {
    const carry_delta_problem *p = &it->problem;
    CARRY_TRY(prepare_backward(it));
    CARRY_TRY(carry_delta_set_poison(it->base.ctx, &it->sets[0], &it->host));
    CARRY_TRY(run_set(it, &it->sets[0]));
    CARRY_TRY(carry_delta_set_download(it->base.ctx, &it->host, &it->sets[0]));
    if (p->device != 0) {
        return carry_delta_gradients_cpu(it->base.ctx, &it->host, p, it->initial, deviations, count);
    }
    if (p->dtype != CARRY_F32) {
        *count = 0;
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED,
                          "gradients are checked in f32 here, in bf16 by carry check --golden");
    }
    return carry_delta_gradients_dv(it->base.ctx, &it->host, p, it->initial, deviations, count);
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    set *s = &it->host;
    *count = 0;
    if (it->backward) {
        return compare_backward(it, deviations, count);
    }
    CARRY_TRY(make_reference(it));
    size_t size = (size_t)carry_tensor_count(&s->state);
    float *before = malloc(size * sizeof *before);
    if (before == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: comparing");
    }
    memcpy(before, s->state.data, size * sizeof *before);
    carry_status status = carry_delta_set_poison(it->base.ctx, &it->sets[0], s);
    status = status == CARRY_OK ? run_set(it, &it->sets[0]) : status;
    status = status == CARRY_OK ? carry_delta_set_download(it->base.ctx, s, &it->sets[0]) : status;
    const carry_tensor *state = it->step ? &s->state : &s->final;
    deviations[0] = carry_deviation_of("o", &s->o, it->o, carry_delta_set_bound(it->plan, s->o.dtype));
    deviations[1] = carry_deviation_of(it->step ? "state" : "final_state", state, it->final,
                                       carry_delta_set_bound(it->plan, state->dtype));
    memcpy(s->state.data, before, size * sizeof *before);
    free(before);
    *count = 2;
    return status;
}

/* The methods of the CPU, then those that only GPUs have, if there is one. */
static const char *method(int index) {
    int count = 0;
    while (carry_delta_name(0, count) != NULL) {
        count++;
    }
    if (index < count || carry_device_count() < 2) {
        return carry_delta_name(0, index);
    }
    for (int i = 0; carry_delta_name(1, i) != NULL; i++) {
        int same = 0;
        while (same < count && strcmp(carry_delta_name(0, same), carry_delta_name(1, i)) != 0) {
            same++;
        }
        if (same == count && index-- == count) {
            return carry_delta_name(1, i);
        }
    }
    return NULL;
}

extern const carry_family carry_family_delta_ranks;

const carry_family carry_family_delta = {
    .name = "delta",
    .about = "the gated delta rule: forward, backward, or one step",
    .takes = takes,
    .example = "delta:f32:t1024:h32:k128:v128",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16",
                .ranks = "cpu cuda"},
    .over_ranks = &carry_family_delta_ranks,
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .unmeasured = "the delta rule's planner has a cost model only",
    .make_plan = make_plan,
    .release = release,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .device = carry_instance_device,
    .counts = counts,
    .compare = compare,
};
