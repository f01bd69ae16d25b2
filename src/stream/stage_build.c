/* Envelopes of stage 0: the request for the next chunk. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/span.h"
#include "stream/stage.h"

/* Number of context chunks before chunk k of an epoch. */
static int64_t context_of(const carry_stage *s, int64_t k) {
    return k < s->context_chunks ? k : s->context_chunks;
}

bool carry_stage_is_done(const carry_stage *s) {
    const int64_t unfinished = s->options->batch > 0 ? s->options->batch - 1 : 0;
    return s->has_ended || (s->options->chunks > 0 && (int64_t)s->chunk_index >= s->options->chunks + unfinished);
}

/* True if the next chunk would exceed the positions. With a recompute, positions start again at every chunk. */
static bool has_no_positions(const carry_stage *s) {
    return s->options->recompute == CARRY_RECOMPUTE_OFF && s->start + s->options->chunk > CARRY_DIT_POSITIONS;
}

bool carry_stage_may_send(const carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    if (s->under_way >= o->depth || s->state.paused || carry_stage_is_done(s)) {
        return false;
    }
    if (s->unanswered >= (o->depth > 2 ? o->depth - 1 : 1)) {
        return false; /* an envelope sent early would have an older prompt */
    }
    if (has_no_positions(s) && s->under_way > 0) {
        return false; /* the next envelope starts with a cut, which would make chunks in progress stale */
    }
    if (s->input_codec != NULL && s->under_way > 0 && !carry_stage_input_is_ready(s)) {
        return false; /* chunks in progress are shown meanwhile */
    }
    if (o->recompute == CARRY_RECOMPUTE_OFF || s->chunk_of == 0) {
        return true;
    }
    if (s->known < s->chunk_of) {
        return false;
    }
    return o->recompute == CARRY_RECOMPUTE_LATENT || s->anchors > s->chunk_of - context_of(s, s->chunk_of);
}

void carry_stage_keep(carry_stage *s, const carry_result *result) {
    if (s->context_chunks > 0) {
        const int64_t at = s->known % (s->context_chunks + 1);
        memcpy(s->past + at * s->piece, result->latents_out.data, (size_t)s->piece * sizeof *s->past);
    }
    s->known++;
}

/* The previous chunks as context: in each channel, their frames one after the other. */
static carry_tensor gather_context(carry_stage *s) {
    const int64_t count = context_of(s, s->chunk_of);
    const int64_t channels = s->config.in_dim;
    const int64_t part = s->options->chunk * s->frame; /* elements of a chunk in one channel */
    for (int64_t i = 0; i < count; i++) {
        const int64_t chunk = s->chunk_of - count + i;
        const uint16_t *from = s->past + chunk % (s->context_chunks + 1) * s->piece;
        for (int64_t c = 0; c < channels; c++) {
            memcpy(s->context + (c * count + i) * part, from + c * part, (size_t)part * sizeof *from);
        }
    }
    if (s->options->recompute == CARRY_RECOMPUTE_ANCHOR) {
        const int64_t chunk = s->chunk_of - count;
        const uint16_t *from = s->anchor + chunk % (s->context_chunks + CARRY_STAGE_DEPTH) * channels * s->frame;
        for (int64_t c = 0; c < channels; c++) {
            memcpy(s->context + c * count * part, from + c * s->frame, (size_t)s->frame * sizeof *from);
        }
    }
    return carry_view_4d(s->context, CARRY_BF16, channels, count * s->options->chunk, s->height, s->width);
}

void carry_stage_cut(carry_stage *s, bool is_asked) {
    char text[CARRY_CALL_TEXT];
    s->figures.cuts++;
    if (s->is_cut || s->is_first) {
        return; /* no chunk was sent since the last cut: the epoch is still new */
    }
    s->epoch++;
    s->start = s->chunk_of = s->known = s->anchors = 0;
    s->is_cut = true;
    s->has_last = false;
    s->figures.epoch = s->epoch;
    carry_codec_reset(s->codec);
    if (s->input_codec != NULL) {
        carry_codec_reset(s->input_codec);
    }
    carry_overlap_restart(s->overlap);
    const carry_call call = {
        .group = "stage0", .call_id = s->call_id, .chunk_index = s->chunk_index, .cache_epoch = s->epoch};
    carry_log(s->ctx, CARRY_LOG_INFO, "%s: a hard cut, %d under way are stale", carry_call_text(text, &call),
              s->under_way);
    if (s->hooks->cut != NULL) {
        s->hooks->cut(s->hooks->user, s->epoch, is_asked);
    }
}

/* Encodes an envelope into a slot of the link. It is validated before any byte is sent. */
static carry_status post(carry_stage *s, const carry_envelope *e) {
    const carry_call call = {
        .group = "stage0", .call_id = e->call_id, .chunk_index = e->chunk_index, .cache_epoch = e->cache_epoch};
    void *room;
    size_t size;
    carry_status status = carry_link_slot(s->link, &room);
    status = status == CARRY_OK ? carry_envelope_encode(s->ctx, room, carry_link_capacity(s->link), &size, e) : status;
    s->built = carry_seconds(); /* before sending, which wakes the leader: it may take over this core */
    status = status == CARRY_OK ? carry_link_send(s->link, CARRY_MESSAGE_ENVELOPE, size) : status;
    if (status != CARRY_OK) {
        return carry_call_fail(s->ctx, status, &call);
    }
    s->call_id++;
    s->last_sent = carry_seconds();
    return CARRY_OK;
}

/* The number of steps of the next envelope: all of them or, for a stream batch, those of the chunks in it. A batch
   keeps the number of steps that it was opened with. */
static int steps_of(carry_stage *s) {
    const int64_t n = s->options->batch;
    if (n == 0) {
        memcpy(s->step, s->state.step, sizeof s->step);
        return s->input_codec != NULL ? carry_stage_weaken(s, s->state.steps) : s->state.steps;
    }
    if (s->state.steps == n) {
        memcpy(s->step, s->state.step, sizeof s->step);
    } else if (!s->is_told) {
        s->is_told = true;
        carry_log(s->ctx, CARRY_LOG_WARNING, "%d steps are asked for: a stream batch of %lld keeps its own",
                  s->state.steps, (long long)n);
    }
    return (int)(s->chunk_of + 1 < n ? s->chunk_of + 1 : n);
}

static carry_status fill(carry_stage *s, carry_envelope *e) {
    const carry_pipeline_options *o = s->options;
    CARRY_TRY(carry_stage_read(s));
    const int steps = steps_of(s);
    const bool has_clean = o->clean_pass && s->chunk_of >= o->batch;
    const bool does_recompute = o->recompute != CARRY_RECOMPUTE_OFF && s->chunk_of > 0;
    bool is_new = false;
    *e = (carry_envelope){
        .version = CARRY_ENVELOPE_VERSION,
        .action = CARRY_INFER,
        .call_id = s->call_id,
        .chunk_index = s->chunk_index,
        .cache_epoch = s->epoch,
        .height = (int32_t)s->height,
        .width = (int32_t)s->width,
        .num_denoise_steps = steps,
        .expected_generator_calls = steps + (does_recompute ? 1 : 0) + (has_clean ? 1 : 0),
        .do_recompute = does_recompute,
        .init_cache = s->is_first,
        .reset_cache = s->is_cut,
        .seed = s->state.seed,
        .kv_bias = (float)s->state.kv_bias,
        .noise_scale = (float)s->state.noise,
        .latents_in = carry_view_4d(s->noise, CARRY_BF16, s->config.in_dim, o->chunk, s->height, s->width),
        .steps = carry_view_1d(s->step, CARRY_I64, steps),
    };
    CARRY_TRY(carry_stage_start(s, e->latents_in, (double)s->step[0]));
    CARRY_TRY(carry_conditioning_next(s->conditioning, &s->state, &e->conditioning, &is_new));
    e->reset_cross_cache = is_new || s->is_first;
    if (!e->reset_cross_cache) {
        e->conditioning = carry_view_2d(NULL, CARRY_BF16, 0, s->config.text_dim);
    }
    if (does_recompute) {
        e->context_frames = gather_context(s);
        e->current_start_frame = (int32_t)e->context_frames.shape[1];
    } else {
        e->current_start_frame = (int32_t)s->start;
    }
    return CARRY_OK;
}

/* Sends a change of LoRA, before the first envelope that uses it. */
static carry_status choose_lora(carry_stage *s) {
    const int64_t which = s->state.lora;
    if (which == s->lora_sent) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_link_tell(s->link, CARRY_MESSAGE_LORA, &which, sizeof which));
    s->lora_sent = which;
    return CARRY_OK;
}

carry_status carry_stage_send(carry_stage *s) {
    CARRY_SPAN(s->ctx, "stream", "build");
    const double start = carry_seconds();
    const carry_pipeline_options *o = s->options;
    if (has_no_positions(s)) {
        carry_stage_cut(s, false);
    }
    carry_envelope e;
    CARRY_TRY(fill(s, &e));
    if (s->is_empty) {
        return CARRY_OK; /* the video ended with the previous chunk */
    }
    CARRY_TRY(choose_lora(s));
    CARRY_TRY(post(s, &e));
    s->flight[(s->oldest + s->under_way) % CARRY_STAGE_DEPTH] = (carry_flight){
        .call_id = e.call_id,
        .chunk_index = e.chunk_index,
        .cache_epoch = e.cache_epoch,
        .calls = e.expected_generator_calls,
        .start = e.current_start_frame,
        .is_filling = o->batch > 0 && s->chunk_of + 1 < o->batch,
        .build = s->built - start,
        .depth = s->under_way + 1,
    };
    s->under_way++;
    s->unanswered++;
    if (e.reset_cross_cache) {
        s->texts++;
        carry_stage_note_change(s);
    }
    s->prompts_sent = s->state.prompt_version;
    carry_log(s->ctx, CARRY_LOG_DEBUG, "stage0: call_id %llu, chunk_index %llu, cache_epoch %llu: sent, %d under way",
              (unsigned long long)e.call_id, (unsigned long long)e.chunk_index, (unsigned long long)e.cache_epoch,
              s->under_way);
    s->chunk_index++;
    s->chunk_of++;
    s->start += o->chunk;
    s->is_first = s->is_cut = false;
    return CARRY_OK;
}

static carry_envelope signal_of(const carry_stage *s, carry_action action) {
    return (carry_envelope){
        .version = CARRY_ENVELOPE_VERSION, .action = action, .call_id = s->call_id, .cache_epoch = s->epoch};
}

carry_status carry_stage_remind(carry_stage *s) {
    if (!s->is_apart || carry_seconds() - s->last_sent < s->deadline / 4) {
        return CARRY_OK;
    }
    const carry_envelope e = signal_of(s, CARRY_NOOP);
    CARRY_TRY(post(s, &e));
    s->pulses++;
    return CARRY_OK;
}

carry_status carry_stage_receive(carry_stage *s, carry_message *message) {
    for (bool there = false; s->is_apart && !there;) { /* prompts may change meanwhile */
        CARRY_TRY(carry_stage_late(s));
        CARRY_TRY(carry_stage_prepare(s));
        CARRY_TRY(carry_link_wait(s->link, CARRY_STAGE_PROMPTS, &there));
    }
    CARRY_TRY(carry_link_receive(s->link, message));
    for (; message->kind == CARRY_MESSAGE_PULSE && s->pulses > 0; s->pulses--) {
        CARRY_TRY(carry_link_receive(s->link, message));
    }
    return CARRY_OK;
}

carry_status carry_stage_signal(carry_stage *s, carry_action action) {
    const carry_envelope e = signal_of(s, action);
    carry_message message;
    uint64_t done = 0;
    CARRY_TRY(post(s, &e));
    CARRY_TRY(carry_stage_receive(s, &message));
    if (message.kind == CARRY_MESSAGE_REFUSAL) {
        return carry_fail(s->ctx, CARRY_EPEER, "the leader refused: %.*s", (int)message.size,
                          (const char *)message.bytes);
    }
    if (message.kind == CARRY_MESSAGE_PULSE && message.size == sizeof done) {
        memcpy(&done, message.bytes, sizeof done);
    }
    if (message.kind != CARRY_MESSAGE_PULSE || done != e.call_id) {
        return carry_fail(
            s->ctx, CARRY_EPEER,
            "stage0: call_id %llu, chunk_index %llu, cache_epoch %llu: message %d came in place of a pulse",
            (unsigned long long)e.call_id, (unsigned long long)s->chunk_index, (unsigned long long)s->epoch,
            (int)message.kind);
    }
    return CARRY_OK;
}
