/* Prompts of stage 0: read as late as possible, and timed until the first frame that shows them. */
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/span.h"
#include "stream/stage.h"

#define SPARE 1.25      /* the next chunk is started early enough for this multiple of the longest recent chunk */
#define SPARE_MORE 0.05 /* plus this many seconds */

double carry_stage_spare(const carry_stage *s, int64_t frames) {
    double longest = 0.0;
    if (!(s->options->fps > 0.0) || !s->is_apart || s->input_codec != NULL || s->figures.chunks < 2) {
        return 0.0;
    }
    for (int i = 0; i < CARRY_STAGE_RECENT; i++) {
        longest = fmax(longest, s->recent[i]);
    }
    return s->due + (double)frames / s->options->fps - (SPARE * longest + SPARE_MORE) - carry_seconds();
}

carry_status carry_stage_send_due(carry_stage *s, int64_t frames) {
    while (carry_stage_may_send(s) && carry_stage_spare(s, frames) <= 0.0) {
        if (s->hooks->controls != NULL) {
            carry_controls_read(s->hooks->controls, &s->state);
        }
        if (s->state.cuts != s->cuts_seen || s->state.paused) {
            return CARRY_OK; /* the caller handles a cut or a pause between two chunks */
        }
        CARRY_TRY(carry_stage_send(s));
    }
    return CARRY_OK;
}

void carry_stage_note_change(carry_stage *s) {
    if (s->hooks->controls == NULL || s->state.prompt_version == s->prompts_sent) {
        return;
    }
    if (s->changes == CARRY_STAGE_CHANGES) {
        memmove(s->change, s->change + 1, sizeof s->change - sizeof s->change[0]);
        s->changes--;
    }
    s->changed_seen = carry_controls_prompts_changed(s->hooks->controls);
    s->change[s->changes++] = (carry_stage_change){.text = s->texts, .when = s->changed_seen};
}

static carry_status post(carry_stage *s, carry_tensor rows) {
    const size_t bytes = (size_t)(rows.shape[0] * rows.shape[1]) * sizeof(uint16_t);
    carry_text_head head = {.crc = carry_crc32c(0, rows.data, bytes), .rows = (uint32_t)rows.shape[0]};
    void *room;
    CARRY_TRY(carry_link_slot(s->link, &room));
    memcpy(room, &head, sizeof head);
    memcpy((unsigned char *)room + sizeof head, rows.data, bytes);
    return carry_link_send(s->link, CARRY_MESSAGE_TEXT, sizeof head + bytes);
}

/* Each late prompt takes a slot of the link until the mesh checks for prompts, between two steps. */
static bool has_many_late(const carry_stage *s) {
    return s->texts - s->texts_known >= (uint64_t)s->unanswered + CARRY_STAGE_LATE;
}

carry_status carry_stage_late(carry_stage *s) {
    if (s->hooks->controls == NULL || s->options->batch > 0 || s->unanswered == 0 || has_many_late(s) ||
        carry_controls_prompts_changed(s->hooks->controls) <= s->changed_seen) {
        return CARRY_OK;
    }
    carry_tensor rows;
    bool is_new = false;
    CARRY_SPAN(s->ctx, "stream", "prompt");
    carry_controls_read(s->hooks->controls, &s->state);
    if (s->state.cuts != s->cuts_seen || s->state.prompt_version == s->prompts_sent) {
        return CARRY_OK; /* after a cut, the chunk in progress will not be shown */
    }
    CARRY_TRY(carry_conditioning_next(s->conditioning, &s->state, &rows, &is_new));
    if (is_new) {
        CARRY_TRY(post(s, rows));
        s->texts++;
    }
    carry_stage_note_change(s);
    s->prompts_sent = s->state.prompt_version;
    return CARRY_OK;
}

/* Seconds between two chunks as a viewer sees them. */
static double period_of(const carry_stage *s) {
    const carry_pipeline_options *o = s->options;
    const double pace = o->fps > 0.0 ? (double)(o->chunk * carry_codec_ratio(s->codec)) / o->fps : 0.0;
    carry_overlap_summary now;
    carry_overlap_read(s->overlap, &now);
    return now.period > pace ? now.period : pace;
}

double carry_stage_shows(carry_stage *s, const carry_about *about) {
    carry_stream_figures *f = &s->figures;
    const double now = carry_seconds();
    double longest = 0.0;
    int left = 0;
    f->prompt_steps_again += about->is_again;
    for (int i = 0; i < s->changes; i++) {
        carry_stage_change *c = &s->change[i];
        if (c->text > about->texts) {
            c->chunks++;
            s->change[left++] = *c;
            continue;
        }
        const double period = period_of(s);
        f->prompt_seconds = now - c->when;
        longest = fmax(longest, f->prompt_seconds);
        f->prompt_chunks = period > 0.0 ? f->prompt_seconds / period : 0.0;
        f->prompt_between = (uint64_t)c->chunks;
        f->prompt_changes++;
        f->prompt_sum += f->prompt_seconds;
        f->prompt_timed += period > 0.0;
        f->prompt_chunks_sum += f->prompt_chunks;
        f->prompt_most = fmax(f->prompt_most, f->prompt_seconds);
        f->prompt_chunks_most = fmax(f->prompt_chunks_most, f->prompt_chunks);
        f->prompt_between_most =
            f->prompt_between > f->prompt_between_most ? f->prompt_between : f->prompt_between_most;
    }
    s->changes = left;
    return longest;
}
