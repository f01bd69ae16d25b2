/* Recording a step. The first step runs directly, so that libraries and plans are set up; the second is recorded if the
   key (carry_trainee.key) has not changed, and replayed from then on. A step with another key, such as one with fewer
   labels, runs directly; if the next step has the same key, it is recorded in place of the old graph. If recording
   fails, a note is given, and steps run directly for the rest of the run. */
#include "train/steps_graph.h"

#include <stdio.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"

carry_status carry_steps_open_stream(carry_steps *s) {
    const int device = s->own->device;
    if (device == 0 || s->trainee->key == NULL || carry_ctx_stream(s->ctx, device) != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(s->ctx, device, NULL)); /* wait for work that was begun on the default stream */
    CARRY_TRY(carry_stream_new(s->ctx, &s->stream, device));
    return carry_ctx_set_stream(s->ctx, device, s->stream);
}

void carry_steps_close_stream(carry_steps *s) {
    if (s->own == NULL) {
        return;
    }
    const int device = s->own->device;
    if (s->graph != NULL) {
        (void)carry_stream_wait(s->ctx, device, carry_ctx_stream(s->ctx, device));
        carry_graph_free(s->ctx, device, s->graph);
        s->graph = NULL;
    }
    if (s->stream != NULL) {
        (void)carry_stream_wait(s->ctx, device, s->stream);
        (void)carry_ctx_set_stream(s->ctx, device, NULL);
        carry_stream_free(s->ctx, device, s->stream);
        s->stream = NULL;
    }
}

static carry_status work(carry_steps *s, carry_tensor now) {
    const carry_tensor squares = carry_slice(now, 2, 1);
    CARRY_TRY(carry_zero(s->ctx, now));
    CARRY_TRY(carry_parameters_zero_gradients(s->own));
    CARRY_TRY(s->trainee->gradients(s->self, carry_slice(now, 0, 2), NULL, NULL));
    CARRY_TRY(carry_optimizer_collect(s->optimizer, squares));
    return carry_optimizer_step(s->optimizer, squares);
}

/* Records a step. The recording is ended even if the step fails. */
static carry_status record(carry_steps *s, carry_tensor now) {
    const int device = s->own->device;
    carry_stream *stream = carry_ctx_stream(s->ctx, device);
    char why[512];
    carry_graph *graph;
    CARRY_TRY(carry_graph_begin(s->ctx, device, stream));
    const carry_status status = work(s, now);
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(s->ctx));
    const carry_status ended = carry_graph_end(s->ctx, &graph, device, stream);
    if (status != CARRY_OK) {
        carry_graph_free(s->ctx, device, graph);
        return carry_fail(s->ctx, status, "%s", why);
    }
    CARRY_TRY(ended);
    carry_graph_free(s->ctx, device, s->graph);
    s->graph = graph;
    return CARRY_OK;
}

carry_status carry_steps_enqueue(carry_steps *s, carry_tensor now) {
    const uint64_t key = s->trainee->key != NULL && !s->no_graph ? s->trainee->key(s->self) : 0;
    const uint64_t before = s->last_key;
    s->last_key = key;
    if (key == 0) {
        return work(s, now);
    }
    if (key != s->graph_key && key == before) {
        if (record(s, now) != CARRY_OK) {
            char line[640];
            (void)snprintf(line, sizeof line, "steps are not replayed as a graph: %s", carry_ctx_error(s->ctx));
            carry_sink_note(s->sink, s->step, line);
            s->no_graph = true;
            s->graph_key = 0;
            return work(s, now);
        }
        s->graph_key = key;
    }
    if (key != s->graph_key) {
        return work(s, now);
    }
    return carry_graph_launch(s->ctx, s->own->device, s->graph, carry_ctx_stream(s->ctx, s->own->device));
}
