/* Collectives and messages between ranks as problems: allreduce:bf16:2160x5120:p2, allgather, reducescatter,
   broadcast, sendrecv (every rank sends to the next and receives from the previous one). Sizes are of the whole
   tensor: the pieces of allgather and the results of reducescatter are 1/p of it.

   The methods are communicators: on the CPU, the one that connects the ranks; with device=cuda, those for GPU memory
   that can be opened over it. The plan has a time that is predicted from measurements of the same collective at a few
   sizes (comm/times.h), and carry bench prints it beside the measured time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/ranks.h"
#include "comm/rates.h"
#include "comm/times.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "bench/collective.h"
#include "bench/deviation.h"
#include "bench/family/family_ranks.h"

#define KINDS 16 /* maximum number of kinds of communicators */

/* In the order of carry_comm_operation. */
typedef enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND_RECEIVE } operation;

static const char *const names[] = {"allreduce", "allgather", "reducescatter", "broadcast", "sendrecv"};

typedef struct instance {
    carry_ranks_instance base;
    operation what;
    carry_dtype dtype;
    int64_t count, part; /* number of elements in total, and in a rank's part */
    int device;
    carry_comm *moving; /* a communicator over base.comm that moves GPU memory; NULL: base.comm itself */
    void *from, *to;    /* [count] each, on the device */
    void *host;         /* [count] */
    struct {
        const char *name;
        carry_comm_times times;
    } believed[KINDS]; /* by kind of communicator */
    int kinds;
    double predicted;
    char about[256];
} instance;

static const char takes[] = "f32 or bf16, a shape such as 2160x5120 or n (elements), p (ranks), algo=NAME (a "
                            "communicator), device=cpu, cuda or gpus";

static size_t item(const instance *it) {
    return carry_dtype_size(it->dtype);
}

static carry_dtype reduce_type(const instance *it) {
    return it->dtype == CARRY_BF16 ? CARRY_BF16 : CARRY_F32;
}

static carry_comm *comm_of(const instance *it) {
    return it->moving != NULL ? it->moving : it->base.comm;
}

/* Elements of a shape such as 2160x5120; 0 if it is not a shape or too large for memory. */
static int64_t elements_of(const char *shape) {
    int64_t count = 1;
    while (*shape != '\0') {
        char *end;
        const long long number = strtoll(shape, &end, 10);
        if (end == shape || number < 1 || __builtin_mul_overflow(count, number, &count) || count > INT64_MAX / 64) {
            return 0;
        }
        shape = *end == 'x' ? end + 1 : end;
        if (*end != 'x' && *end != '\0') {
            return 0;
        }
    }
    return count;
}

static carry_status parse(carry_ctx *ctx, instance *it, carry_problem *problem) {
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        it->what = strcmp(problem->family, names[i]) == 0 ? (operation)i : it->what;
    }
    CARRY_TRY(carry_problem_dtype(ctx, &it->dtype, problem, CARRY_BF16));
    const char *shape = carry_problem_setting(problem, "shape"), *algo = carry_problem_setting(problem, "algo");
    it->count = carry_problem_size(problem, "n", shape != NULL ? elements_of(shape) : 1 << 20);
    const int64_t p = carry_problem_size(problem, "p", 0);
    CARRY_TRY(carry_ranks_family_device(ctx, &it->device, problem));
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algo != NULL ? algo : "");
    CARRY_TRY(carry_problem_finish(ctx, problem, takes));
    if (p < 1 || p > CARRY_RANKS) {
        return carry_fail(ctx, p < 1 ? CARRY_EARGUMENT : CARRY_ESIZE,
                          "'%s' must say how many ranks there are, from p1 to p%d", problem->text, CARRY_RANKS);
    }
    it->part = it->count / p;
    if (it->count < 1 || it->count % p != 0) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s' has %" PRId64 " elements: a number that %" PRId64 " ranks can share",
                          problem->text, it->count, p);
    }
    if (problem->comm != NULL && carry_comm_size(problem->comm) != p) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' is given to %d ranks", problem->text,
                          carry_comm_size(problem->comm));
    }
    return CARRY_OK;
}

static void close_instance(void *given) {
    instance *it = given;
    carry_comm_close(it->moving);
    carry_device_free(it->base.ctx, it->device, it->from);
    carry_device_free(it->base.ctx, it->device, it->to);
    free(it->host);
    carry_comm_close(it->base.alone);
    carry_ranks_family_end_stream(&it->base);
    free(it);
}

/* Small whole numbers, so that sums over ranks are exact in bf16 too. */
static float element(int rank, int64_t at) {
    return (float)((int)(carry_philox(5, (uint64_t)rank, (uint64_t)at).word[0] % 9) - 4);
}

static void put(void *to, carry_dtype dtype, int64_t at, float value) {
    if (dtype == CARRY_F32) {
        ((float *)to)[at] = value;
    } else {
        ((uint16_t *)to)[at] = carry_bf16_from_f32(value);
    }
}

/* Loads this rank's numbers; for an all-gather, its part is the beginning. */
static carry_status load(instance *it) {
    const int rank = carry_comm_rank(it->base.comm);
    for (int64_t i = 0; i < it->count; i++) {
        put(it->host, it->dtype, i, element(rank, i));
    }
    return carry_device_copy(it->base.ctx, it->from, it->device, it->host, 0, (size_t)it->count * item(it), NULL);
}

static carry_status fill(void *given, carry_problem *problem, uint64_t seed, int copies) {
    instance *it = given;
    (void)seed;
    CARRY_TRY(parse(it->base.ctx, it, problem));
    if (copies == 0) {
        return CARRY_OK;
    }
    const size_t bytes = (size_t)it->count * item(it);
    it->host = carry_aligned_new(bytes);
    if (it->host == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce the shape",
                          1e-9 * (double)bytes);
    }
    CARRY_TRY(carry_device_alloc(it->base.ctx, &it->from, it->device, bytes));
    CARRY_TRY(carry_device_alloc(it->base.ctx, &it->to, it->device, bytes));
    CARRY_TRY(carry_device_fill(it->base.ctx, it->to, it->device, 0, bytes, NULL));
    CARRY_TRY(load(it));
    return carry_stream_wait(it->base.ctx, it->device, NULL);
}

/* Bytes that a rank receives. */
static double received(const instance *it) {
    const double ranks = carry_comm_size(it->base.comm), bytes = (double)it->count * (double)item(it);
    switch (it->what) {
    case ALL_REDUCE:
        return 2.0 * bytes * (ranks - 1.0) / ranks;
    case BROADCAST:
    case SEND_RECEIVE:
        return ranks > 1.0 ? bytes : 0.0;
    default:
        return bytes * (ranks - 1.0) / ranks;
    }
}

/* Predicts the time from a few sizes of this collective, measured once for every kind of communicator. */
static carry_status predict(instance *it) {
    const char *name = carry_comm_name(comm_of(it));
    int kind = 0;
    if (carry_comm_size(it->base.comm) == 1) { /* one rank: nothing is sent */
        (void)snprintf(it->about, sizeof it->about, "%s over 1 rank (%s)", names[it->what], name);
        return CARRY_OK;
    }
    while (kind < it->kinds && strcmp(it->believed[kind].name, name) != 0) {
        kind++;
    }
    if (kind == it->kinds && kind < KINDS) {
        CARRY_TRY(carry_comm_times_of(comm_of(it), (carry_comm_operation)it->what, reduce_type(it),
                                      &it->believed[kind].times));
        it->believed[kind].name = name;
        it->kinds++;
    }
    const carry_comm_times *t = &it->believed[kind].times;
    const double bytes = (double)it->count * (double)item(it), last = t->seconds[CARRY_COMM_SIZES - 1];
    char times[3][32];
    it->predicted = carry_comm_time(t, bytes);
    (void)snprintf(it->about, sizeof it->about,
                   "%s of %.3g MB over %d ranks (%s%s%s): %s predicted (measured: %s for %g bytes, %s for %.3g MB)",
                   names[it->what], 1e-6 * bytes, carry_comm_size(it->base.comm), name,
                   it->moving != NULL ? " over " : "", it->moving != NULL ? carry_comm_name(it->base.comm) : "",
                   carry_time_text(times[0], it->predicted), carry_time_text(times[1], t->seconds[0]), t->bytes[0],
                   carry_time_text(times[2], last), 1e-6 * t->bytes[CARRY_COMM_SIZES - 1]);
    return CARRY_OK;
}

static bool is_of_cpu(const char *kind) {
    static const char *const kinds[] = {"self", "threads", "mpi", "processes"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Every rank refuses in the same way, since this depends on names only. */
static carry_status make_plan(void *given, const char *method) {
    instance *it = given;
    const char *below = carry_comm_name(it->base.comm);
    carry_comm_close(it->moving);
    it->moving = NULL;
    CARRY_TRY(carry_ranks_family_own_stream(&it->base, it->device));
    if (it->device == 0) {
        if (method != NULL && strcmp(method, below) != 0) {
            return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "these ranks are \"%s\" and not \"%s\"%s", below,
                              method, is_of_cpu(method) ? "" : ", which moves memory of GPUs: device=cuda");
        }
    } else if (method != NULL && is_of_cpu(method)) {
        return carry_fail(it->base.ctx, CARRY_EUNSUPPORTED, "\"%s\" moves memory of the CPU: device=cpu", method);
    } else {
        CARRY_TRY(carry_comm_open_device(it->base.comm, &it->moving, it->device, method));
    }
    return predict(it);
}

static const carry_ranks_family over_ranks = {
    .bytes = sizeof(instance), .fill = fill, .make_plan = make_plan, .close = close_instance};

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    return carry_ranks_family_open(&over_ranks, ctx, opened, problem, seed, copies);
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    return carry_ranks_family_plan(&over_ranks, ctx, opened, problem, measure);
}

static double bytes_of(const void *given) {
    const instance *it = given;
    return 2.0 * (double)it->count * (double)item(it);
}

static const char *method_at(int index) {
    return carry_comm_kind_name(index);
}

static const char *chosen(const void *given) {
    return carry_comm_name(comm_of(given));
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

/* Runs the collective and waits for it, on a GPU too. Repeated sums overflow after a while, which is harmless: only
   moves and additions are timed. */
static carry_status run(void *given) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    CARRY_TRY(carry_comm_time_once(comm_of(it), (carry_comm_operation)it->what, reduce_type(it), it->to, it->from,
                                   (size_t)it->count * item(it)));
    return carry_stream_wait(ctx, it->device, carry_ctx_stream(ctx, it->device));
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const double bytes = received(it);
    const bool adds = it->what == ALL_REDUCE || it->what == REDUCE_SCATTER;
    return (carry_counts){.flops = adds ? (double)it->part * (carry_comm_size(it->base.comm) - 1) : 0.0,
                          .bytes = bytes,
                          .received = bytes,
                          .predicted = it->predicted,
                          .waited = -1.0};
}

/* The element that this rank should have at index `at` afterwards. */
static double wanted(const instance *it, int64_t at) {
    const int rank = carry_comm_rank(it->base.comm), size = carry_comm_size(it->base.comm);
    const int64_t from = it->what == REDUCE_SCATTER ? rank * it->part + at : at;
    double sum = 0.0;
    switch (it->what) {
    case ALL_GATHER:
        return (double)element((int)(at / it->part), at % it->part);
    case BROADCAST:
        return (double)element(0, at);
    case SEND_RECEIVE:
        return (double)element((rank + size - 1) % size, at);
    default:
        for (int r = 0; r < size; r++) {
            sum += (double)element(r, from);
        }
        return sum;
    }
}

/* Sums of whole numbers are exact, in bf16 up to 256, which is enough for 64 ranks. */
static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    carry_ctx *ctx = it->base.ctx;
    const bool in_place = it->what == ALL_REDUCE || it->what == BROADCAST;
    const int64_t results = it->what == REDUCE_SCATTER ? it->part : it->count;
    const size_t bytes = (size_t)it->count * item(it);
    *count = 0;
    CARRY_TRY(load(it));
    CARRY_TRY(carry_device_fill(ctx, it->to, it->device, 0xff, bytes, NULL));
    CARRY_TRY(carry_stream_wait(ctx, it->device, NULL));
    CARRY_TRY(run(it));
    CARRY_TRY(carry_device_copy(ctx, it->host, 0, in_place ? it->from : it->to, it->device, bytes, NULL));
    double *reference = calloc((size_t)results, sizeof *reference);
    const carry_status status = carry_collective_agree(it->base.comm, reference != NULL ? CARRY_OK : CARRY_EMEMORY);
    if (status != CARRY_OK || reference == NULL) {
        free(reference);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a reference of %lld numbers", (long long)results);
    }
    for (int64_t i = 0; i < results; i++) {
        reference[i] = wanted(it, i);
    }
    const carry_tensor got = carry_view_1d(it->host, it->dtype, results);
    const double bound = it->dtype == CARRY_BF16 && carry_comm_size(it->base.comm) > 64 ? 0x1p-8 : 0.0;
    deviations[0] = carry_deviation_of(names[it->what], &got, reference, bound);
    free(reference);
    CARRY_TRY(carry_ranks_family_worst(it->base.comm, deviations, 1));
    *count = 1;
    return CARRY_OK;
}

static int device_of(const void *given) {
    return ((const instance *)given)->device;
}

#define FAMILY(which, words, about_text, example_text)                           \
    const carry_family carry_family_##which = {                                  \
        .name = (words),                                                         \
        .about = (about_text),                                                   \
        .takes = takes,                                                          \
        .example = (example_text),                                               \
        .support = {.cpu = "f32 bf16", .cuda = "f32 bf16", .ranks = "cpu cuda"}, \
        .ranks = carry_ranks_family_size,                                        \
        .open = open_instance,                                                   \
        .plan = plan_instance,                                                   \
        .close = close_instance,                                                 \
        .bytes = bytes_of,                                                       \
        .method = method_at,                                                     \
        .choose = make_plan,                                                     \
        .chosen = chosen,                                                        \
        .about_plan = about_plan,                                                \
        .only = carry_ranks_family_only,                                         \
        .run = run,                                                              \
        .device = device_of,                                                     \
        .counts = counts,                                                        \
        .compare = compare,                                                      \
    }

FAMILY(allreduce, "allreduce", "a tensor's sum over p ranks, on all of them, by every communicator that is there",
       "allreduce:bf16:2160x5120:p2");
FAMILY(allgather, "allgather", "a tensor of p parts, one from each rank, on all of them", "allgather:f32:n1048576:p4");
FAMILY(reducescatter, "reducescatter", "a tensor's sum over p ranks, a part on each", "reducescatter:f32:n1048576:p4");
FAMILY(broadcast, "broadcast", "a tensor from rank 0 to all p ranks", "broadcast:f32:n1048576:p4");
FAMILY(sendrecv, "sendrecv", "a tensor from every rank to the next of p, all at once", "sendrecv:f32:n1048576:p2");
