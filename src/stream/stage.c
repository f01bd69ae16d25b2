#include "stream/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/memory.h"
#include "device/share.h"

#define SPARE_BYTES ((size_t)2 << 30) /* GPU memory kept free for graphs and kernels, which allocate on first use */

/* Allocates host memory, pinned if a GPU copies to or from it. */
static carry_status host_memory(carry_stage *s, float **to, size_t bytes) {
    void *made = NULL;
    if (s->options->device != 0) {
        CARRY_TRY(carry_host_alloc(s->ctx, &made, bytes));
    } else {
        made = carry_aligned_new(bytes);
    }
    *to = made;
    return made != NULL ? CARRY_OK : carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: %zu bytes of pictures", bytes);
}

static void free_host(carry_stage *s, float *memory) {
    if (s->options->device == 0) {
        free(memory);
    } else if (memory != NULL) {
        carry_host_free(s->ctx, memory);
    }
}

static carry_status allocate(carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    const int64_t channels = s->config.in_dim;
    const int64_t ratio = carry_codec_ratio(s->codec);
    const struct {
        void *to;
        int64_t factors[5];
        size_t unit;
    } parts[] = {
        {&s->past, {s->context_chunks + 1, channels, o->chunk, s->height, s->width}, sizeof(uint16_t)},
        {&s->anchor, {s->context_chunks + CARRY_STAGE_DEPTH, channels, 1, s->height, s->width}, sizeof(uint16_t)},
        {&s->context, {s->context_chunks, channels, o->chunk, s->height, s->width}, sizeof(uint16_t)},
        {&s->noise, {1, channels, o->chunk, s->height, s->width}, sizeof(uint16_t)},
        {&s->first, {1, 1, 3, o->height, o->width}, sizeof(float)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t bytes = 0;
        void *made = carry_size_product(&bytes, parts[i].factors, 5, parts[i].unit) ? carry_aligned_new(bytes) : NULL;
        memcpy(parts[i].to, &made, sizeof made);
        if (made == NULL) {
            return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: pictures of %lld x %lld", (long long)o->width,
                              (long long)o->height);
        }
    }
    const size_t latents = (size_t)(channels * s->frame) * sizeof(float);
    const size_t pixels = (size_t)(ratio * 3 * o->height * o->width) * sizeof(float);
    CARRY_TRY(host_memory(s, &s->latents, latents));
    return host_memory(s, &s->pixels, pixels);
}

/* The codec runs concurrently with the generator. If stage 0 is a separate rank, the codec has its own stream. */
static carry_status open_codecs(carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    const carry_codec_size size = {.height = o->height,
                                   .width = o->width,
                                   .most = 1,
                                   .device = o->device,
                                   .dtype = o->device != 0 ? CARRY_BF16 : CARRY_F32};
    if (o->device != 0 && s->is_apart && carry_ctx_stream(s->ctx, o->device) == NULL) {
        CARRY_TRY(o->multiprocessors > 0
                      ? carry_stream_new_share(s->ctx, &s->stream, o->device, o->multiprocessors, false)
                      : carry_stream_new(s->ctx, &s->stream, o->device));
        CARRY_TRY(carry_ctx_set_stream(s->ctx, o->device, s->stream));
    }
    char beside[CARRY_FILE_PATH];
    const char *folder = o->codec;
    if (folder == NULL && o->model != NULL) {
        CARRY_TRY(carry_file_in(s->ctx, beside, o->model, "codec"));
        folder = access(beside, F_OK) == 0 ? beside : NULL;
    }
    CARRY_TRY(carry_codec_open(s->ctx, &s->codec, folder, &size));
    CARRY_TRY(s->hooks->source != NULL ? carry_stage_open_input(s, folder) : CARRY_OK);
    return o->recompute == CARRY_RECOMPUTE_ANCHOR ? carry_codec_open(s->ctx, &s->anchor_codec, folder, &size)
                                                  : CARRY_OK;
}

/* Refuses a pace at which a chunk takes longer than half the deadline: while stage 0 waits for its pace, the mesh
   waits for stage 0. */
static carry_status check_pace(const carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    const int64_t frames = o->chunk * carry_codec_ratio(s->codec);
    const double seconds = o->fps > 0.0 ? (double)frames / o->fps : 0.0;
    if (seconds > s->deadline / 2) {
        return carry_fail(s->ctx, CARRY_EARGUMENT,
                          "%g frames a second: a chunk of %lld would take %.3g s, longer than half the deadline of %g "
                          "s: show it faster, "
                          "or wait longer (--deadline)",
                          o->fps, (long long)frames, seconds, s->deadline);
    }
    return CARRY_OK;
}

carry_status carry_stage_open_text(carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    const carry_prompts_options prompts = {.folder = o->text_encoder,
                                           .text_len = s->config.text_len,
                                           .text_dim = s->config.text_dim,
                                           .device = o->device,
                                           .spare = SPARE_BYTES};
    CARRY_TRY(o->text_encoder != NULL ? carry_prompts_open(s->ctx, &s->prompts, &prompts) : CARRY_OK);
    return carry_conditioning_new(s->ctx, &s->conditioning, s->config.text_len, s->config.text_dim, s->prompts);
}

/* The number of chunks that the stages can work on at once, from which the period is predicted. */
static int batches(const carry_stage *s, bool is_apart) {
    const int depth = s->options->depth;
    if (!is_apart) {
        return 1; /* a single rank runs the stages in turn */
    }
    if (s->options->recompute == CARRY_RECOMPUTE_ANCHOR && s->context_chunks < depth) {
        return (int)s->context_chunks;
    }
    return s->options->recompute == CARRY_RECOMPUTE_LATENT && depth > 2 ? 2 : depth;
}

carry_status carry_stage_open(carry_ctx *ctx, carry_stage **made, const carry_pipeline_options *o,
                              const carry_pipeline_hooks *hooks, const carry_dit_config *config, carry_link *link,
                              bool is_apart, double deadline) {
    carry_stage *s = calloc(1, sizeof *s);
    *made = s;
    if (s == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: stage 0");
    }
    s->ctx = ctx;
    s->options = o;
    s->hooks = hooks;
    s->config = *config;
    s->link = link;
    s->is_apart = is_apart;
    s->deadline = deadline;
    s->height = o->height / 8;
    s->width = o->width / 8;
    s->frame = s->height * s->width;
    s->piece = config->in_dim * o->chunk * s->frame;
    s->context_chunks = o->recompute != CARRY_RECOMPUTE_OFF ? o->context / o->chunk : 0;
    s->epoch = o->first_epoch;
    s->is_first = true;
    s->state = carry_control_default();
    if (hooks->controls != NULL) {
        carry_controls_read(hooks->controls, &s->state);
    }
    s->cuts_seen = s->state.cuts;
    s->prompts_sent = s->state.prompt_version;
    s->changed_seen = hooks->controls != NULL ? carry_controls_prompts_changed(hooks->controls) : 0.0;
    s->figures = (carry_stream_figures){.depth = o->depth, .epoch = s->epoch, .restarts = o->restarts};
    CARRY_TRY(open_codecs(s));
    CARRY_TRY(check_pace(s));
    CARRY_TRY(allocate(s));
    return carry_overlap_new(ctx, &s->overlap, batches(s, is_apart));
}

void carry_stage_close(carry_stage *s) {
    if (s == NULL) {
        return;
    }
    carry_codec_free(s->codec);
    carry_codec_free(s->anchor_codec);
    carry_stage_close_input(s);
    carry_conditioning_free(s->conditioning);
    carry_prompts_free(s->prompts);
    carry_overlap_free(s->overlap);
    free(s->past);
    free(s->anchor);
    free(s->context);
    free(s->noise);
    free_host(s, s->latents);
    free_host(s, s->pixels);
    if (s->stream != NULL) {
        (void)carry_stream_wait(s->ctx, s->options->device, s->stream);
        (void)carry_ctx_set_stream(s->ctx, s->options->device, NULL);
        carry_stream_free(s->ctx, s->options->device, s->stream);
    }
    free(s->first);
    free(s);
}

static carry_status refused(carry_stage *s, const carry_message *message) {
    return carry_fail(s->ctx, CARRY_EPEER, "the leader stopped the stream: %.*s", (int)message->size,
                      (const char *)message->bytes);
}

static carry_status receive(carry_stage *s, carry_message_kind kind, carry_message *message) {
    CARRY_TRY(carry_stage_receive(s, message));
    if (message->kind == CARRY_MESSAGE_REFUSAL) {
        return refused(s, message);
    }
    return message->kind == kind
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_EPEER, "a message of kind %d came where one of kind %d is due",
                            (int)message->kind, (int)kind);
}

static bool is_finite(const carry_tensor *latents, int64_t count) {
    const uint16_t *bits = latents->data;
    for (int64_t i = 0; i < count; i++) {
        if ((bits[i] & 0x7f80u) == 0x7f80u) {
            return false;
        }
    }
    return true;
}

/* Checks that a result may be shown. */
static carry_status check_result(carry_stage *s, const carry_result *r, const carry_flight *f) {
    carry_ctx *ctx = s->ctx;
    if (r->call_id != f->call_id || r->chunk_index != f->chunk_index || r->cache_epoch != f->cache_epoch) {
        return carry_fail(ctx, CARRY_EPEER, "the result is of call %llu, chunk %llu, epoch %llu",
                          (unsigned long long)r->call_id, (unsigned long long)r->chunk_index,
                          (unsigned long long)r->cache_epoch);
    }
    if (r->observed_generator_calls != f->calls || r->mesh_start_frame != f->start) {
        return carry_fail(ctx, CARRY_EPEER, "the mesh made %d calls at frame %d where %d at frame %d were asked for",
                          r->observed_generator_calls, r->mesh_start_frame, f->calls, f->start);
    }
    const int64_t *shape = r->latents_out.shape;
    if (shape[0] != s->config.in_dim || shape[1] != s->options->chunk || shape[2] != s->height ||
        shape[3] != s->width) {
        return carry_fail(ctx, CARRY_ESHAPE, "latents_out is [%lld, %lld, %lld, %lld]", (long long)shape[0],
                          (long long)shape[1], (long long)shape[2], (long long)shape[3]);
    }
    if (r->digest != carry_stream_digest(r->latents_out.data, (size_t)s->piece * sizeof(uint16_t))) {
        return carry_fail(ctx, CARRY_EPEER, "the digest of the result is not that of its latents");
    }
    if (!is_finite(&r->latents_out, s->piece)) {
        return carry_fail(ctx, CARRY_ERANGE, "a latent of the result is not finite: the stream stops");
    }
    return CARRY_OK;
}

/* Receives the next result. A stale one has been removed from the queue on return. */
static carry_status accept(carry_stage *s, carry_flight *flight, carry_result *result, carry_about *about,
                           bool *is_stale) {
    carry_message message;
    *flight = s->flight[s->oldest];
    const carry_call call = {.group = "stage0",
                             .call_id = flight->call_id,
                             .chunk_index = flight->chunk_index,
                             .cache_epoch = flight->cache_epoch};
    carry_status status = receive(s, CARRY_MESSAGE_ABOUT, &message);
    if (status == CARRY_OK && message.size == sizeof *about) {
        memcpy(about, message.bytes, sizeof *about);
        s->texts_known = about->texts;
    }
    status = status == CARRY_OK ? receive(s, CARRY_MESSAGE_RESULT, &message) : status;
    status = status == CARRY_OK ? carry_result_decode(s->ctx, result, message.bytes, message.size) : status;
    status = status == CARRY_OK ? check_result(s, result, flight) : status;
    if (status != CARRY_OK) {
        return carry_call_fail(s->ctx, status, &call);
    }
    s->unanswered--;
    *is_stale = flight->cache_epoch != s->epoch;
    if (*is_stale) {
        char text[CARRY_CALL_TEXT];
        s->oldest = (s->oldest + 1) % CARRY_STAGE_DEPTH;
        s->under_way--;
        s->figures.stale_dropped++;
        carry_log(s->ctx, CARRY_LOG_INFO, "%s: dropped: the epoch is %llu", carry_call_text(text, &call),
                  (unsigned long long)s->epoch);
    }
    return CARRY_OK;
}

static void look(carry_stage *s) {
    if (s->hooks->controls == NULL) {
        return;
    }
    carry_controls_read(s->hooks->controls, &s->state);
    if (s->state.cuts != s->cuts_seen) {
        s->cuts_seen = s->state.cuts;
        carry_stage_cut(s, true);
    }
}

static carry_status send_all(carry_stage *s) {
    while (carry_stage_may_send(s)) {
        CARRY_TRY(carry_stage_send(s));
    }
    return CARRY_OK;
}

static carry_status take_one(carry_stage *s, bool is_ending) {
    carry_flight flight;
    carry_result result;
    carry_about about = {0};
    bool is_stale = false;
    CARRY_TRY(accept(s, &flight, &result, &about, &is_stale));
    if (is_stale) {
        return CARRY_OK;
    }
    if (flight.is_filling) {
        s->oldest = (s->oldest + 1) % CARRY_STAGE_DEPTH;
        s->under_way--;
        return CARRY_OK;
    }
    /* The chunk that this result finishes. */
    flight.chunk_index -= s->options->batch > 0 ? (uint64_t)s->options->batch - 1 : 0;
    carry_stage_keep(s, &result);
    if (!is_ending) { /* sends the next envelope before this chunk is decoded */
        CARRY_TRY(carry_stage_send_due(s, s->options->chunk * carry_codec_ratio(s->codec)));
    }
    const carry_call call = {.group = "stage0",
                             .call_id = flight.call_id,
                             .chunk_index = flight.chunk_index,
                             .cache_epoch = flight.cache_epoch};
    const carry_status status = carry_stage_show(s, &flight, &result, &about);
    return status == CARRY_OK ? CARRY_OK : carry_call_fail(s->ctx, status, &call);
}

/* While paused, stage 0 sends a NOOP at intervals below the deadline, so that the mesh knows that it is alive; the
   mesh answers. */
static carry_status wait_paused(carry_stage *s) {
    if (!s->figures.paused) {
        carry_stage_tell(s, "paused");
        carry_overlap_restart(s->overlap);
        s->has_last = false;
    }
    if (carry_seconds() - s->last_sent > s->deadline / 4) {
        CARRY_TRY(carry_stage_signal(s, CARRY_NOOP));
    }
    carry_controls_wait(s->hooks->controls, fmin(s->deadline / 8, CARRY_STAGE_LOOK));
    return CARRY_OK;
}

carry_status carry_stage_shutdown(carry_stage *s) {
    CARRY_TRY(carry_stage_signal(s, CARRY_SHUTDOWN));
    s->is_shut = true;
    return CARRY_OK;
}

static carry_status stream(carry_stage *s) {
    for (bool is_ending = false;;) {
        is_ending = is_ending || (s->hooks->stop != NULL && s->hooks->stop());
        if (!is_ending) {
            look(s);
            CARRY_TRY(send_all(s));
        }
        if (s->under_way > 0) {
            CARRY_TRY(carry_stage_remind(s));
            CARRY_TRY(take_one(s, is_ending));
        } else if (is_ending || carry_stage_is_done(s)) {
            return CARRY_OK;
        } else {
            CARRY_TRY(wait_paused(s));
        }
    }
}

carry_status carry_stage_run(carry_stage *s) {
    s->began = s->last_sent = carry_seconds();
    carry_stage_tell(s, "starting");
    carry_status status = stream(s);
    status = status == CARRY_OK ? carry_stage_shutdown(s) : status;
    status = status == CARRY_OK ? carry_link_tell(s->link, CARRY_MESSAGE_CLOSE, NULL, 0) : status;
    status = status == CARRY_OK ? carry_link_flush(s->link) : status;
    carry_stage_tell(s, status == CARRY_OK ? "ended" : carry_ctx_error(s->ctx));
    return status;
}
