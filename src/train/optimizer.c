/* The optimizer, and the exchange of gradients under it. */
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"

#define UNIT 16        /* elements: slices begin where parameters may, so that vectors stay whole */
#define BLOCK 4096     /* elements whose squares are added in one go */
#define GRADIENT_TAG 1 /* of the communicator */
#define STATE_TAG 2

void carry_optimizer_slice(int64_t whole, int rank, int ranks, int64_t *first, int64_t *count) {
    const int64_t units = (whole + UNIT - 1) / UNIT;
    const int64_t begin = UNIT * (units * rank / ranks);
    const int64_t end = UNIT * (units * (rank + 1) / ranks);
    *first = begin;
    *count = (end < whole ? end : whole) - begin;
}

static carry_status make_room(carry_optimizer *o) {
    carry_ctx *ctx = o->ctx;
    const int64_t others = o->ranks - 1;
    const int64_t each[] = {others, o->count};
    size_t state;
    size_t received;
    size_t requests;
    o->room = 2 * o->model.parameters * others;
    if (!carry_size_product(&state, &o->count, 1, sizeof(float)) ||
        !carry_size_product(&received, each, 2, sizeof(float)) ||
        !carry_size_product(&requests, &o->room, 1, sizeof *o->request)) {
        return carry_fail(ctx, CARRY_ESIZE, "the optimizer's state of %lld elements is too large", (long long)o->count);
    }
    o->m = carry_aligned_new(state + 1);
    o->v = carry_aligned_new(state + 1);
    o->received = carry_aligned_new(received + 1);
    o->request = calloc(requests + 1, 1);
    o->sums = calloc((size_t)(o->count / BLOCK) + 1, sizeof *o->sums);
    if (o->m == NULL || o->v == NULL || o->received == NULL || o->request == NULL || o->sums == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for the optimizer's state, %lld elements",
                          (long long)o->count);
    }
    memset(o->m, 0, state);
    memset(o->v, 0, state);
    return CARRY_OK;
}

carry_status carry_optimizer_new(carry_ctx *ctx, carry_optimizer **optimizer, const carry_parameters *model,
                                 carry_comm *comm, const carry_optimizer_options *options) {
    carry_optimizer *o = calloc(1, sizeof *o);
    *optimizer = NULL;
    if (o == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for an optimizer");
    }
    o->ctx = ctx;
    o->model = *model;
    o->comm = comm;
    o->options = *options;
    o->rank = carry_comm_rank(comm);
    o->ranks = carry_comm_size(comm);
    carry_optimizer_slice(model->count, o->rank, o->ranks, &o->first, &o->count);
    carry_status status = make_room(o);
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
    if (o->requests > 0) { /* backward failed half-way: the others must not wait for the rest */
        carry_comm_abort(o->comm, carry_ctx_error(o->ctx));
        for (int64_t i = 0; i < o->requests; i++) {
            (void)carry_wait(&o->request[i]);
        }
    }
    free(o->m);
    free(o->v);
    free(o->received);
    free(o->request);
    free(o->sums);
    free(o);
}

/* What [first, first + count) and a rank's slice share. */
static int64_t overlap(const carry_optimizer *o, int rank, int64_t first, int64_t count, int64_t *from) {
    int64_t begin;
    int64_t length;
    carry_optimizer_slice(o->model.count, rank, o->ranks, &begin, &length);
    const int64_t end = begin + length < first + count ? begin + length : first + count;
    *from = begin > first ? begin : first;
    return end > *from ? end - *from : 0;
}

/* Where the gradients of another rank's tokens for this slice lie. */
static float *received_from(const carry_optimizer *o, int rank) {
    return o->received + (rank < o->rank ? rank : rank - 1) * o->count;
}

carry_status carry_optimizer_ready(void *optimizer, int64_t first, int64_t count) {
    carry_optimizer *o = optimizer;
    int64_t own_from;
    const int64_t own = overlap(o, o->rank, first, count, &own_from);
    for (int shift = 1; shift < o->ranks; shift++) { /* each starts with its neighbour, not all with rank 0 */
        const int to = (o->rank + shift) % o->ranks;
        int64_t from;
        const int64_t length = overlap(o, to, first, count, &from);
        if (own > 0 && o->requests < o->room) {
            CARRY_TRY(carry_irecv(o->comm, &o->request[o->requests], received_from(o, to) + (own_from - o->first),
                                  (size_t)own * sizeof(float), to, GRADIENT_TAG));
            o->requests++;
        }
        if (length > 0 && o->requests < o->room) {
            CARRY_TRY(carry_isend(o->comm, &o->request[o->requests], o->model.gradients + from,
                                  (size_t)length * sizeof(float), to, GRADIENT_TAG));
            o->requests++;
        }
    }
    for (int64_t i = 0; i < o->requests; i++) { /* MPI gets on only while it is called */
        int done;
        CARRY_TRY(carry_test(&o->request[i], &done));
    }
    return CARRY_OK;
}

/* own becomes the sum over ranks, in their order: ((x0 + x1) + x2) + ... */
static void add_ranks(const carry_optimizer *o, float *own, int64_t from, int64_t n) {
    float sum[BLOCK];
    memcpy(sum, o->rank == 0 ? own : received_from(o, 0) + from, (size_t)n * sizeof *sum);
    for (int r = 1; r < o->ranks; r++) {
        const float *x = r == o->rank ? own : received_from(o, r) + from;
        for (int64_t i = 0; i < n; i++) {
            sum[i] += x[i];
        }
    }
    memcpy(own, sum, (size_t)n * sizeof *sum);
}

static double squares_of(const float *x, int64_t n) {
    double lane[8] = {0.0}; /* sums that do not wait for each other */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int l = 0; l < 8; l++) {
            lane[l] += (double)x[i + l] * (double)x[i + l];
        }
    }
    for (; i < n; i++) {
        lane[0] += (double)x[i] * (double)x[i];
    }
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* Blocks begin..end-1 of the slice. */
static void add_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_optimizer *o = argument;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        const int64_t from = b * BLOCK;
        const int64_t n = o->count - from < BLOCK ? o->count - from : BLOCK;
        float *own = o->model.gradients + o->first + from;
        if (o->ranks > 1) {
            add_ranks(o, own, from, n);
        }
        o->sums[b] = squares_of(own, n);
    }
}

carry_status carry_optimizer_collect(carry_optimizer *o, double *squares) {
    CARRY_SPAN(o->ctx, "train", "collect gradients");
    carry_status status = CARRY_OK;
    for (int64_t i = 0; i < o->requests; i++) {
        carry_status waited = carry_wait(&o->request[i]);
        status = status == CARRY_OK ? waited : status;
    }
    o->requests = 0;
    CARRY_TRY(status);
    const int64_t blocks = (o->count + BLOCK - 1) / BLOCK;
    carry_parallel(o->ctx, blocks, 4, add_blocks, o);
    *squares = 0.0;
    for (int64_t b = 0; b < blocks; b++) {
        *squares += o->sums[b];
    }
    return CARRY_OK;
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
    *parameter = -1;
    for (int64_t i = o->model.parameters - 1; i >= 0 && *parameter < 0;
         i--) { /* backward goes from the last to the first */
        int64_t from;
        const int64_t n = overlap(o, o->rank, o->model.parameter[i].offset, o->model.parameter[i].count, &from);
        *parameter = n > 0 && !all_finite(o->model.gradients + from, n) ? i : -1;
    }
    return carry_all_reduce(o->comm, parameter, 1, CARRY_REDUCE_I64, CARRY_REDUCE_MAX);
}

/* Elements [from, end) of the flat buffers, all of which decay or none. */
static carry_status update(carry_optimizer *o, int64_t from, int64_t end, const carry_adamw *options) {
    const int64_t n = end - from;
    if (n <= 0) {
        return CARRY_OK;
    }
    return carry_adamw_step(o->ctx, carry_view_1d(o->model.weights + from, CARRY_F32, n),
                            carry_view_1d(o->m + (from - o->first), CARRY_F32, n),
                            carry_view_1d(o->v + (from - o->first), CARRY_F32, n), (carry_tensor){0},
                            carry_view_1d(o->model.gradients + from, CARRY_F32, n), options);
}

static carry_status gather_weights(carry_optimizer *o) {
    size_t *bytes = calloc((size_t)o->ranks, sizeof *bytes);
    if (bytes == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "no memory for the sizes of %d ranks", o->ranks);
    }
    for (int r = 0; r < o->ranks; r++) {
        int64_t first;
        int64_t count;
        carry_optimizer_slice(o->model.count, r, o->ranks, &first, &count);
        bytes[r] = (size_t)count * sizeof(float);
    }
    carry_status status = carry_all_gatherv(o->comm, o->model.weights, o->model.weights + o->first, bytes);
    free(bytes);
    return status;
}

carry_status carry_optimizer_step(carry_optimizer *o, int64_t step, double rate, double norm) {
    CARRY_SPAN(o->ctx, "train", "optimizer");
    const double clip = o->options.clip;
    carry_adamw options = {.rate = rate,
                           .b1 = o->options.b1,
                           .b2 = o->options.b2,
                           .eps = o->options.eps,
                           .factor = clip > 0.0 && norm > clip ? clip / norm : 1.0,
                           .step = step};
    const int64_t end = o->first + o->count;
    int64_t from = o->first;
    for (int64_t i = 0; i < o->model.parameters && from < end; i++) { /* neighbours that decay alike are one run */
        const carry_parameter *p = &o->model.parameter[i];
        const bool goes_on = i + 1 < o->model.parameters && o->model.parameter[i + 1].decays == p->decays;
        int64_t until = i + 1 < o->model.parameters ? o->model.parameter[i + 1].offset : o->model.count;
        until = until < end ? until : end;
        if ((!goes_on || until == end) && until > from) {
            options.decay = p->decays ? o->options.decay : 0.0;
            CARRY_TRY(update(o, from, until, &options));
            from = until;
        }
    }
    return o->ranks > 1 ? gather_weights(o) : CARRY_OK;
}

carry_status carry_optimizer_gather(carry_optimizer *o, float *m, float *v) {
    if (o->rank != 0) {
        CARRY_TRY(carry_send(o->comm, o->m, (size_t)o->count * sizeof(float), 0, STATE_TAG));
        return carry_send(o->comm, o->v, (size_t)o->count * sizeof(float), 0, STATE_TAG);
    }
    memcpy(m, o->m, (size_t)o->count * sizeof(float));
    memcpy(v, o->v, (size_t)o->count * sizeof(float));
    for (int r = 1; r < o->ranks; r++) {
        int64_t first;
        int64_t count;
        carry_optimizer_slice(o->model.count, r, o->ranks, &first, &count);
        CARRY_TRY(carry_recv(o->comm, m + first, (size_t)count * sizeof(float), r, STATE_TAG));
        CARRY_TRY(carry_recv(o->comm, v + first, (size_t)count * sizeof(float), r, STATE_TAG));
    }
    return CARRY_OK;
}
