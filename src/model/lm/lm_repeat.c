/* Recording a repeated call. */
#include "model/lm/lm_repeat.h"

#include "core/error.h"
#include "model/lm/lm_pass.h"

static void advance(const carry_lm_pass *pass, const carry_lm_args *args, int64_t calls) {
    if (args->state != NULL) {
        carry_lm_state_advance(args->state, calls * pass->options.tokens);
    }
}

static bool can_record(const carry_lm_repeat *repeat, const carry_lm_pass *pass, const carry_lm_args *args) {
    const int device = pass->lm->own.device;
    return !repeat->off && device != 0 && carry_ctx_stream(pass->ctx, device) != NULL &&
           !(args->state != NULL && pass->lm->config.has_attention);
}

/* Leaves the graph NULL where it fails; nothing has run in either case. */
static void record(carry_lm_repeat *repeat, carry_lm_pass *pass, const carry_lm_args *args, void *memory,
                   size_t bytes) {
    const int device = pass->lm->own.device;
    carry_stream *stream = carry_ctx_stream(pass->ctx, device);
    const int64_t before = args->state != NULL ? carry_lm_state_length(args->state, 0) : 0;
    if (carry_graph_begin(pass->ctx, device, stream) != CARRY_OK) {
        repeat->off = true;
        return;
    }
    const carry_status status = carry_lm_run(pass, args, memory, bytes);
    const carry_status ended = carry_graph_end(pass->ctx, &repeat->graph, device, stream);
    if (args->state != NULL && carry_lm_state_length(args->state, 0) != before) {
        advance(pass, args, -1);
    }
    if (status != CARRY_OK || ended != CARRY_OK) {
        carry_graph_free(pass->ctx, device, repeat->graph);
        repeat->graph = NULL;
        repeat->off = true;
    }
}

carry_status carry_lm_repeat_run(carry_lm_repeat *repeat, carry_lm_pass *pass, const carry_lm_args *args, void *memory,
                                 size_t bytes) {
    if (!can_record(repeat, pass, args) || !repeat->has_run) {
        repeat->has_run = true;
        return carry_lm_run(pass, args, memory, bytes);
    }
    carry_lm_args begun = *args;
    begun.begun = true;
    CARRY_TRY(carry_lm_begin(pass, args));
    if (repeat->graph == NULL) {
        record(repeat, pass, &begun, memory, bytes);
    }
    if (repeat->graph == NULL) {
        return carry_lm_run(pass, &begun, memory, bytes);
    }
    const int device = pass->lm->own.device;
    CARRY_TRY(carry_graph_launch(pass->ctx, device, repeat->graph, carry_ctx_stream(pass->ctx, device)));
    advance(pass, args, 1);
    return CARRY_OK;
}

void carry_lm_repeat_end(carry_lm_repeat *repeat, carry_lm *lm) {
    if (repeat->graph != NULL) {
        const int device = lm->own.device;
        (void)carry_stream_wait(lm->ctx, device, carry_ctx_stream(lm->ctx, device));
        carry_graph_free(lm->ctx, device, repeat->graph);
    }
    repeat->graph = NULL;
    repeat->has_run = false;
}
