/* The state of a run on disk and in memory: before the first step, between steps and after the last. */
#include "train/steps_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/device.h"
#include "comm/alone.h"
#include "comm/rates.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/host.h"
#include "train/steps_graph.h"

carry_status carry_steps_stop(carry_steps *s, bool *stop) {
    int64_t stops = s->stop != NULL && s->stop() ? 1 : 0;
    CARRY_TRY(carry_all_reduce(s->comm, &stops, 1, CARRY_I64, CARRY_REDUCE_MAX));
    *stop = s->was_stopped = stops > 0;
    return CARRY_OK;
}

carry_status carry_steps_alone(carry_steps *s, carry_status (*work)(void *user), void *user, const char *what) {
    carry_status outcome;
    CARRY_TRY(carry_comm_alone(s->comm, 0, what, work, user, &outcome));
    if (outcome == CARRY_EINTERRUPTED) {
        s->was_stopped = true;
        return CARRY_OK;
    }
    if (outcome != CARRY_OK && !s->speaks) {
        return carry_fail(s->ctx, CARRY_EPEER, "rank 0 could not %s of step %" PRId64, what, s->step);
    }
    return outcome;
}

void carry_steps_init(carry_steps *s, carry_comm *comm, const char *out, const carry_sink *sink) {
    *s = (carry_steps){.ctx = carry_comm_ctx(comm),
                       .comm = comm,
                       .out = out,
                       .sink = sink,
                       .speaks = carry_comm_rank(comm) == 0,
                       .folder = {.lock = -1, .newest = -1},
                       .found = {.step = -1},
                       .loss = NAN,
                       .norm = NAN};
}

carry_status carry_steps_find(carry_steps *s, bool resume) {
    struct {
        char path[CARRY_FILE_PATH];
        int64_t step, seen;
        carry_position position;
        uint32_t source;
    } at = {.step = -1};
    if (!resume) {
        return CARRY_OK;
    }
    if (s->speaks) {
        CARRY_TRY(carry_checkpoint_find(s->ctx, &s->found, s->out, s->sink));
        (void)snprintf(at.path, sizeof at.path, "%s", s->found.path);
        at.step = s->found.step;
        at.seen = s->found.seen;
        at.position = s->found.position;
        at.source = s->found.source;
    }
    CARRY_TRY(carry_broadcast(s->comm, &at, sizeof at, 0));
    (void)snprintf(s->found.path, sizeof s->found.path, "%s", at.path);
    s->found.step = s->step = at.step;
    s->found.source = at.source;
    s->seen = at.seen;
    s->position = at.position;
    return CARRY_OK;
}

carry_status carry_steps_open(carry_steps *s, carry_parameters *own, const carry_optimizer_options *adam) {
    void *sums;
    s->own = own;
    const bool alone = carry_comm_size(s->comm) == 1;
    if (own->device != 0 && !alone) {
        CARRY_TRY(carry_comm_open_device(s->comm, &s->moving, own->device, NULL));
        s->lag = 1; /* ranks add their sums before the weights change */
    }
    s->lag = s->lag > 0 ? s->lag : own->device == 0 ? 1 : CARRY_STEPS_LAG;
    CARRY_TRY(carry_steps_open_stream(s));
    CARRY_TRY(carry_device_alloc(s->ctx, &sums, own->device, (size_t)(s->lag + 1) * CARRY_STEPS_SUMS * sizeof(double)));
    s->sums = carry_view_on(own->device, sums, CARRY_F64, 2, (const int64_t[]){s->lag + 1, CARRY_STEPS_SUMS});
    carry_optimizer_options guarded = *adam;
    guarded.skips = s->skip_limit;
    CARRY_TRY(carry_optimizer_new(s->ctx, &s->optimizer, own, s->moving != NULL ? s->moving : s->comm, &guarded));
    if (s->found.step >= 0) {
        CARRY_TRY(carry_checkpoint_load_state(s->found.path, s->optimizer));
    }
    if (s->speaks) {
        CARRY_TRY(carry_run_folder_open(s->ctx, &s->folder, s->out));
        s->folder.newest = s->found.step;
    }
    return CARRY_OK;
}

void carry_steps_close(carry_steps *s) {
    carry_steps_close_stream(s);
    carry_optimizer_free(s->optimizer);
    carry_comm_close(s->moving);
    if (s->own != NULL) {
        carry_device_free(s->ctx, s->own->device, s->sums.data);
    }
    carry_run_folder_close(&s->folder);
    carry_found_free(&s->found);
    free(s->gathered);
}

/* Gathers m and v of all ranks in host memory of rank 0; a single rank that has them in host memory uses its own. */
static carry_status gather_state(carry_steps *s, const float **m, const float **v) {
    const int64_t count[] = {2, s->own->count};
    size_t bytes;
    if (carry_comm_size(s->comm) == 1 && s->own->device == 0 && !s->optimizer->options.narrow) {
        *m = s->optimizer->m.data;
        *v = s->optimizer->v.data;
        return CARRY_OK;
    }
    if (s->speaks && s->gathered == NULL && carry_size_product(&bytes, count, 2, sizeof(float))) {
        s->gathered = carry_aligned_new(bytes);
    }
    if (s->speaks && s->gathered == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY,
                          "out of memory: the optimizer's state of %" PRId64 " elements is gathered", s->own->count);
    }
    CARRY_TRY(carry_optimizer_gather(s->optimizer, s->gathered, s->speaks ? s->gathered + s->own->count : NULL));
    *m = s->gathered;
    *v = s->speaks ? s->gathered + s->own->count : NULL;
    return CARRY_OK;
}

typedef struct writing {
    carry_steps *steps;
    const float *m, *v;
    carry_tensor scales; /* in host memory, or absent */
} writing;

static carry_status write_checkpoint(void *user) {
    const writing *w = user;
    carry_steps *s = w->steps;
    carry_json_text options = {0};
    carry_keys_write(&options, s->keys, s->options);
    carry_status status = CARRY_OK;
    if (options.failed) {
        status = carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: a checkpoint");
    } else {
        carry_checkpoint checkpoint = {.step = s->step,
                                       .seen = s->seen,
                                       .position = s->position,
                                       .options = options.bytes,
                                       .parameters = s->own,
                                       .m = w->m,
                                       .v = w->v,
                                       .narrow = s->optimizer->options.narrow,
                                       .scales = w->scales,
                                       .keep = s->keep};
        status = s->trainee->describe(s->self, &checkpoint);
        status = status == CARRY_OK ? carry_checkpoint_save(s->ctx, &s->folder, &checkpoint) : status;
    }
    carry_json_text_free(&options);
    if (status == CARRY_OK && s->trainee->saved != NULL) {
        s->trainee->saved(s->self, s->folder.path);
    }
    return status;
}

/* A copy in host memory, which the caller frees. */
static carry_status read_scales(carry_steps *s, carry_tensor *scales) {
    if (s->scales.data == NULL) {
        return CARRY_OK;
    }
    void *data = malloc((size_t)carry_tensor_count(&s->scales) * sizeof(float));
    if (data == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: a checkpoint");
    }
    *scales = carry_view(data, CARRY_F32, s->scales.rank, s->scales.shape);
    const carry_status status = carry_read(s->ctx, *scales, s->scales);
    if (status != CARRY_OK) {
        free(data);
        *scales = (carry_tensor){0};
    }
    return status;
}

carry_status carry_steps_save(carry_steps *s) {
    writing w = {.steps = s};
    int64_t newest = s->folder.newest;
    CARRY_TRY(carry_broadcast(s->comm, &newest, sizeof newest, 0));
    if (newest == s->step) {
        return CARRY_OK;
    }
    CARRY_TRY(gather_state(s, &w.m, &w.v));
    CARRY_TRY(read_scales(s, &w.scales));
    const carry_status status = carry_steps_alone(s, write_checkpoint, &w, "write the checkpoint");
    free(w.scales.data);
    return status;
}
