/* The optimizer, and the exchange of gradients between ranks. */
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "comm/rates.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"

#define UNIT 16        /* elements: slices start at multiples, where parameters start, so that vectors are not split */
#define GRADIENT_TAG 1 /* message tag of the communicator */
#define ROW (CARRY_ADAMW_FACTORS + CARRY_MUON_RATES) /* numbers uploaded for a step */

void carry_optimizer_slice(int64_t whole, int rank, int ranks, int64_t *first, int64_t *count) {
    const int64_t units = (whole + UNIT - 1) / UNIT;
    const int64_t begin = UNIT * (units * rank / ranks);
    const int64_t end = UNIT * (units * (rank + 1) / ranks);
    *first = begin;
    *count = (end < whole ? end : whole) - begin;
}

/* Places all arrays on the model's device: m, v, the workspace of sums, the clip factor and AdamW's factors. */
static void place(carry_optimizer *o, carry_arena *arena) {
    const int device = o->model->device;
    const int64_t one = 1;
    o->workspace_bytes = carry_sum_squares_workspace(o->count);
    const carry_dtype state = o->options.narrow ? CARRY_BF16 : CARRY_F32;
    o->m = carry_arena_tensor(arena, device, state, 1, &o->count);
    o->v = carry_arena_tensor(arena, device, state, 1, &o->count);
    o->workspace = carry_arena_take(arena, o->workspace_bytes, 1);
    o->clip = carry_arena_tensor(arena, device, CARRY_F32, 1, &one);
    o->bad = carry_arena_tensor(arena, device, CARRY_F32, 1, &one);
    if (device != 0) {
        o->factors = carry_arena_tensor(arena, device, CARRY_F32, 1, (const int64_t[]){CARRY_ADAMW_FACTORS});
    }
    const int64_t numbers = carry_parameters_spared(o->model, o->first, o->count);
    if (numbers > 0) {
        o->spared = carry_arena_tensor(arena, device, CARRY_I64, 1, &numbers);
    }
    if (o->options.momentum > 0.0) {
        const int64_t pairs = 2 * o->model->parameters;
        carry_muon_place(&o->muon, arena);
        o->ranges = carry_arena_tensor(arena, device, CARRY_I64, 1, &pairs);
    }
}

/* Sets the range [0, count) for every parameter: parameters without decay are updated by a separate call with it. */
static carry_status put_ranges(carry_optimizer *o) {
    const int64_t count = o->model->parameters;
    int64_t *ranges = calloc((size_t)count, 2 * sizeof *ranges);
    if (ranges == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: %lld parameters", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        ranges[2 * i + 1] = o->model->parameter[i].count;
    }
    const carry_status status = carry_copy(o->ctx, o->ranges, carry_view_1d(ranges, CARRY_I64, 2 * count));
    free(ranges);
    return status;
}

static carry_status make_room(carry_optimizer *o) {
    carry_ctx *ctx = o->ctx;
    const int64_t others = o->ranks - 1;
    const int64_t each[] = {others, o->count};
    const int device = o->model->device;
    size_t bytes;
    size_t received;
    size_t requests;
    o->room = 2 * o->model->parameters * others;
    carry_arena count = carry_arena_over(NULL, 0);
    place(o, &count);
    if (!carry_arena_total(&count, &bytes) || !carry_size_product(&received, each, 2, sizeof(float)) ||
        !carry_size_product(&requests, &o->room, 1, sizeof *o->request)) {
        return carry_fail(ctx, CARRY_ESIZE, "the optimizer's state of %lld elements is too large", (long long)o->count);
    }
    o->request = calloc(requests + 1, 1);
    const bool is_there = carry_device_alloc(ctx, &o->memory, device, bytes) == CARRY_OK &&
                          carry_device_alloc(ctx, (void **)&o->received, device, received) == CARRY_OK;
    if (!is_there || o->request == NULL) {
        size_t available = 0;
        size_t total = 0;
        (void)carry_device_memory(ctx, &available, &total, device);
        return carry_fail(ctx, CARRY_EMEMORY,
                          "out of memory: the optimizer's state of %lld elements needs %.2f GB, and %.2f GB are free",
                          (long long)o->count, 1e-9 * (double)bytes, 1e-9 * (double)available);
    }
    carry_arena arena = carry_arena_over(o->memory, bytes);
    place(o, &arena);
    if (device != 0) {
        void *pinned;
        CARRY_TRY(carry_host_alloc(ctx, &pinned, CARRY_OPTIMIZER_AHEAD * ROW * sizeof(float)));
        o->uploaded = pinned;
    }
    CARRY_TRY(carry_device_fill(ctx, o->memory, device, 0, bytes, carry_ctx_stream(ctx, device)));
    CARRY_TRY(carry_parameters_put_spared(o->model, o->spared, o->first, o->count));
    CARRY_TRY(o->options.momentum > 0.0 ? put_ranges(o) : CARRY_OK);
    return carry_fill(ctx, o->clip, 1.0);
}

carry_status carry_optimizer_new(carry_ctx *ctx, carry_optimizer **optimizer, const carry_parameters *model,
                                 carry_comm *comm, const carry_optimizer_options *options) {
    carry_optimizer *o = calloc(1, sizeof *o);
    *optimizer = NULL;
    if (o == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an optimizer");
    }
    o->ctx = ctx;
    o->model = model;
    o->comm = comm;
    o->options = *options;
    o->rank = carry_comm_rank(comm);
    o->ranks = carry_comm_size(comm);
    carry_optimizer_slice(model->count, o->rank, o->ranks, &o->first, &o->count);
    if (options->momentum > 0.0) {
        carry_muon_init(&o->muon, ctx, model, options->momentum);
    }
    carry_status status = CARRY_OK;
    if (options->momentum > 0.0 && o->ranks > 1) {
        status = carry_fail(ctx, CARRY_EUNSUPPORTED,
                            "Muon needs whole matrices and runs on one rank, not %d: use adamw", o->ranks);
    }
    status = status == CARRY_OK ? make_room(o) : status;
    if (status != CARRY_OK) {
        carry_optimizer_free(o);
        return status;
    }
    *optimizer = o;
    return CARRY_OK;
}

void carry_optimizer_free(carry_optimizer *o) {
    if (o == NULL) {
        return;
    }
    if (o->requests > 0) { /* backward failed half-way: cancel, so that the others do not wait */
        carry_comm_abort(o->comm, carry_ctx_error(o->ctx));
        for (int64_t i = 0; i < o->requests; i++) {
            (void)carry_wait(&o->request[i]);
        }
    }
    carry_device_free(o->ctx, o->model->device, o->memory);
    if (o->uploaded != NULL) {
        carry_host_free(o->ctx, o->uploaded);
    }
    carry_device_free(o->ctx, o->model->device, o->received);
    free(o->request);
    free(o);
}

/* The overlap of [first, first + count) and a rank's slice: returns its length; *from is its start. */
static int64_t overlap(const carry_optimizer *o, int rank, int64_t first, int64_t count, int64_t *from) {
    int64_t begin;
    int64_t length;
    carry_optimizer_slice(o->model->count, rank, o->ranks, &begin, &length);
    const int64_t end = begin + length < first + count ? begin + length : first + count;
    *from = begin > first ? begin : first;
    return end > *from ? end - *from : 0;
}

/* The memory for another rank's gradients for this slice. */
static float *received_from(const carry_optimizer *o, int rank) {
    return o->received + (rank < o->rank ? rank : rank - 1) * o->count;
}

carry_status carry_optimizer_ready(void *optimizer, int64_t first, int64_t count) {
    carry_optimizer *o = optimizer;
    int64_t own_from;
    const int64_t own = overlap(o, o->rank, first, count, &own_from);
    for (int shift = 1; shift < o->ranks; shift++) { /* starts with the neighbour, to spread the load */
        const int to = (o->rank + shift) % o->ranks;
        int64_t from;
        const int64_t length = overlap(o, to, first, count, &from);
        if (own > 0 && o->requests < o->room) {
            CARRY_TRY(carry_irecv(o->comm, &o->request[o->requests], received_from(o, to) + (own_from - o->first),
                                  (size_t)own * sizeof(float), to, GRADIENT_TAG));
            o->requests++;
        }
        if (length > 0 && o->requests < o->room) {
            CARRY_TRY(carry_isend(o->comm, &o->request[o->requests], o->model->gradients + from,
                                  (size_t)length * sizeof(float), to, GRADIENT_TAG));
            o->requests++;
        }
    }
    for (int64_t i = 0; i < o->requests; i++) { /* MPI makes progress only while it is called */
        int done;
        CARRY_TRY(carry_test(&o->request[i], &done));
    }
    return CARRY_OK;
}

/* Replaces the slice's gradients by the sum over ranks, in rank order: ((x0 + x1) + x2) + ... */
static carry_status add_ranks(carry_optimizer *o) {
    const carry_tensor own = carry_parameters_flat(o->model, o->model->gradients, o->first, o->count);
    const carry_tensor first = o->rank == 0 ? own : carry_parameters_flat(o->model, received_from(o, 0), 0, o->count);
    for (int r = 1; r < o->ranks; r++) {
        const carry_tensor x = r == o->rank ? own : carry_parameters_flat(o->model, received_from(o, r), 0, o->count);
        CARRY_TRY(carry_elementwise(o->ctx, r + 1 == o->ranks ? own : first, first, x, CARRY_ADD));
    }
    return CARRY_OK;
}

carry_status carry_optimizer_collect(carry_optimizer *o, carry_tensor squares) {
    CARRY_SPAN(o->ctx, "train", "collect gradients");
    carry_status status = CARRY_OK;
    for (int64_t i = 0; i < o->requests; i++) {
        carry_status waited = carry_wait(&o->request[i]);
        status = status == CARRY_OK ? waited : status;
    }
    o->requests = 0;
    CARRY_TRY(status);
    CARRY_TRY(add_ranks(o));
    return carry_sum_squares(o->ctx, squares, carry_parameters_flat(o->model, o->model->gradients, o->first, o->count),
                             false, o->workspace, o->workspace_bytes);
}

static bool all_finite(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

carry_status carry_optimizer_bad(carry_optimizer *o, int64_t *parameter) {
    const carry_parameters *model = o->model;
    const float *gradients;
    float *copied;
    *parameter = -1;
    CARRY_TRY(carry_parameters_see(model, model->gradients, &gradients, &copied));
    for (int64_t i = model->parameters - 1; i >= 0 && *parameter < 0; i--) { /* in backward's order */
        int64_t from;
        const int64_t n = overlap(o, o->rank, model->parameter[i].offset, model->parameter[i].count, &from);
        *parameter = n > 0 && !all_finite(gradients + from, n) ? i : -1;
    }
    free(copied);
    return carry_all_reduce(carry_comm_host(o->comm), parameter, 1, CARRY_I64, CARRY_REDUCE_MAX);
}

static carry_adamw adamw_of(const carry_optimizer *o) {
    return (carry_adamw){CARRY_INIT(carry_adamw), .rate = o->rate,           .b1 = o->options.b1, .b2 = o->options.b2,
                         .eps = o->options.eps,   .decay = o->options.decay, .factor = 1.0,       .step = o->step,
                         .clip = o->clip,         .factors = o->factors,     .spared = o->spared};
}

carry_status carry_optimizer_set(carry_optimizer *o, int64_t step, double rate) {
    o->step = step;
    o->rate = rate;
    float here[ROW];
    float *row = o->uploaded != NULL ? o->uploaded + step % CARRY_OPTIMIZER_AHEAD * ROW : here;
    if (o->options.momentum > 0.0) {
        row[CARRY_ADAMW_FACTORS] = (float)rate;
        row[CARRY_ADAMW_FACTORS + 1] = (float)(rate * o->options.decay);
        row[CARRY_ADAMW_FACTORS + 2] = (float)(step & 0xFFFFFF); /* exact in f32, as AdamW's (carry_adam_factors) */
        CARRY_TRY(
            carry_copy(o->ctx, o->muon.rates, carry_view_1d(row + CARRY_ADAMW_FACTORS, CARRY_F32, CARRY_MUON_RATES)));
    }
    if (o->uploaded == NULL) {
        return CARRY_OK;
    }
    const carry_adamw options = adamw_of(o);
    CARRY_TRY(carry_adamw_factors(o->ctx, row, &options));
    return carry_copy(o->ctx, o->factors, carry_view_1d(row, CARRY_F32, CARRY_ADAMW_FACTORS));
}

static carry_status gather_weights(carry_optimizer *o) {
    size_t *bytes = calloc((size_t)o->ranks, sizeof *bytes);
    if (bytes == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: the sizes of %d ranks", o->ranks);
    }
    for (int r = 0; r < o->ranks; r++) {
        int64_t first;
        int64_t count;
        carry_optimizer_slice(o->model->count, r, o->ranks, &first, &count);
        bytes[r] = (size_t)count * sizeof(float);
    }
    carry_status status = carry_all_gatherv(o->comm, o->model->weights, o->model->weights + o->first, bytes);
    free(bytes);
    if (status != CARRY_OK || o->model->low == NULL) {
        return status;
    }
    return carry_convert(o->ctx, carry_parameters_low(o->model, 0, o->model->count),
                         carry_parameters_flat(o->model, o->model->weights, 0, o->model->count));
}

/* AdamW for one parameter that Muon does not update. */
static carry_status step_alone(carry_optimizer *o, int64_t index) {
    const carry_parameters *model = o->model;
    const carry_parameter *p = &model->parameter[index];
    carry_adamw options = adamw_of(o);
    options.spared = (carry_tensor){0};
    if (!p->decays) {
        options.spared = carry_slice(o->ranges, 2 * index, 2);
    }
    return carry_adamw_step(o->ctx, carry_parameters_flat(model, model->weights, p->offset, p->count),
                            carry_slice(o->m, p->offset, p->count), carry_slice(o->v, p->offset, p->count),
                            carry_parameters_low(model, p->offset, p->count),
                            carry_parameters_flat(model, model->gradients, p->offset, p->count), &options);
}

static carry_status step_muon(carry_optimizer *o) {
    CARRY_TRY(carry_muon_step(&o->muon, o->m, o->clip));
    for (int64_t i = 0; i < o->model->parameters; i++) {
        CARRY_TRY(carry_muon_takes(&o->model->parameter[i]) ? CARRY_OK : step_alone(o, i));
    }
    return CARRY_OK;
}

carry_status carry_optimizer_step(carry_optimizer *o, carry_tensor squares) {
    CARRY_SPAN(o->ctx, "train", "optimizer");
    CARRY_TRY(carry_clip_factor(o->ctx, o->clip, squares, o->options.clip));
    CARRY_TRY(carry_skip_guard(o->ctx, o->clip, o->bad, o->options.skips));
    const carry_parameters *model = o->model;
    const carry_adamw options = adamw_of(o);
    if (o->options.momentum > 0.0) {
        return step_muon(o);
    }
    if (o->count > 0) {
        CARRY_TRY(carry_adamw_step(o->ctx, carry_parameters_flat(model, model->weights, o->first, o->count), o->m, o->v,
                                   carry_parameters_low(model, o->first, o->count),
                                   carry_parameters_flat(model, model->gradients, o->first, o->count), &options));
    }
    return o->ranks > 1 ? gather_weights(o) : CARRY_OK;
}
