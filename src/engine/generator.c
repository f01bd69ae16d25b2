/* Generation: a prompt goes through passes of many tokens, then each step is a pass of one token. Both read and update
   the same states.

   On a GPU a step is recorded at its second call and replayed: ids are uploaded and logits downloaded through pinned
   memory, and the host waits once per token. With attention, positions and lengths are uploaded before each step, and a
   step is recorded again when its caches have moved; if attention steps cannot be recorded (as in f32), every step is
   launched kernel by kernel. If the activations are bf16 and the decoding kernel (decode.h) supports the model, it runs
   the steps instead, which are then not recorded. */
#include "engine/generator.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "engine/decode.h"
#include "model/host.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/lm_pass.h"

/* Tokens of a prompt read at a time: bounds the memory for long prompts. A GPU needs the larger number to be busy. */
#define PIECE 512
#define PIECE_GPU 4096

struct carry_lm_generator {
    carry_lm *lm;
    int64_t batch;
    carry_dtype dtype;
    carry_lm_state *state;
    carry_lm_state *one; /* state of the prompt that is being read; NULL: for a batch of one, it is read into `state` */
    carry_lm_pass *step;
    void *memory;
    void *room;          /* memory of the logits */
    carry_tensor logits; /* [batch, vocabulary], in the activations' type */
    carry_tensor wide;   /* the same in f32 */
    /* On a GPU: */
    carry_tensor ids;     /* [batch, 1], on the device */
    int64_t *pinned_ids;  /* the same in pinned memory; NULL: steps are not recorded */
    float *pinned_logits; /* [batch, vocabulary] */
    carry_stream *stream; /* made for the context; NULL: the context had one */
    carry_graph *graph;
    carry_decode *decode; /* runs steps with the decoding kernel; NULL: by passes */
    carry_run *runs;      /* runs of a step by the decoding kernel, [batch] */
    int32_t *pages;       /* pages of the runs, [batch, page_room] */
    int32_t *given;       /* ids of the runs, [batch] */
    int64_t page_room;
    bool has_run;       /* a step has run, so everything is set up */
    int64_t cache_room; /* capacity of the caches when the step was recorded */
};

static void close_recording(carry_lm_generator *g) {
    carry_ctx *ctx = g->lm->ctx;
    const int device = g->lm->own.device;
    if (g->pinned_ids != NULL) {
        (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
        carry_graph_free(ctx, device, g->graph);
        carry_host_free(ctx, g->pinned_ids);
    }
    if (g->stream != NULL) {
        (void)carry_stream_wait(ctx, device, g->stream);
        (void)carry_ctx_set_stream(ctx, device, NULL);
        carry_stream_free(ctx, device, g->stream);
    }
}

/* Allocates pinned memory, and makes a stream that can be recorded. */
static carry_status open_recording(carry_lm_generator *g) {
    carry_ctx *ctx = g->lm->ctx;
    const int device = g->lm->own.device;
    const int64_t sizes[] = {g->batch, g->lm->config.vocab_size};
    size_t logits;
    void *pinned;
    const bool records = !g->lm->config.has_attention || carry_lm_attention_records(g->lm, g->batch, g->dtype);
    if (device == 0 || !records || !carry_size_product(&logits, sizes, 2, sizeof(float))) {
        return CARRY_OK;
    }
    const size_t ids = (size_t)g->batch * sizeof(int64_t);
    CARRY_TRY(carry_host_alloc(ctx, &pinned, ids + logits));
    g->pinned_ids = pinned;
    g->pinned_logits = (void *)(g->pinned_ids + g->batch);
    if (carry_ctx_stream(ctx, device) != NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(ctx, device, NULL));
    CARRY_TRY(carry_stream_new(ctx, &g->stream, device));
    return carry_ctx_set_stream(ctx, device, g->stream);
}

void carry_lm_generator_free(carry_lm_generator *g) {
    if (g != NULL) {
        close_recording(g);
        carry_decode_close(g->decode);
        free(g->runs);
        free(g->pages);
        free(g->given);
        carry_lm_state_free(g->state);
        carry_lm_state_free(g->one);
        carry_device_free(g->lm->ctx, g->lm->own.device, g->memory);
        carry_device_free(g->lm->ctx, g->lm->own.device, g->room);
        carry_lm_pass_free(g->step);
        free(g);
    }
}

static void place_logits(carry_lm_generator *g, carry_arena *arena) {
    const int64_t shape[] = {g->batch, g->lm->config.vocab_size};
    g->wide = carry_arena_tensor(arena, g->lm->own.device, CARRY_F32, 2, shape);
    g->logits = g->dtype == CARRY_F32 ? g->wide : carry_arena_tensor(arena, g->lm->own.device, g->dtype, 2, shape);
    g->ids = carry_arena_tensor(arena, g->lm->own.device, CARRY_I64, 2, (const int64_t[]){g->batch, 1});
}

static carry_status open_generator(carry_lm_generator *g) {
    carry_lm *lm = g->lm;
    const carry_lm_pass_options options = {.batch = g->batch, .tokens = 1, .dtype = g->dtype, .forward_only = true};
    CARRY_TRY(open_recording(g));
    CARRY_TRY(carry_lm_pass_new(lm, &g->step, &options));
    CARRY_TRY(carry_lm_state_new(lm, &g->state, g->batch));
    if (g->batch > 1) {
        CARRY_TRY(carry_lm_state_new(lm, &g->one, 1));
    }
    CARRY_TRY(carry_lm_pass_take(g->step, &g->memory));
    size_t bytes;
    carry_arena count = carry_arena_over(NULL, 0);
    place_logits(g, &count);
    if (!carry_arena_total(&count, &bytes)) {
        return carry_fail(lm->ctx, CARRY_ESIZE, "the logits of %" PRId64 " sequences are too large", g->batch);
    }
    CARRY_TRY(carry_device_alloc(lm->ctx, &g->room, lm->own.device, bytes));
    carry_arena arena = carry_arena_over(g->room, bytes);
    place_logits(g, &arena);
    if (g->pinned_ids != NULL && g->dtype == CARRY_BF16) {
        const carry_decode_options decode = {.sequences = g->batch, .same_bits = true};
        CARRY_TRY(carry_decode_open(&g->decode, lm, g->state, g->wide, &decode));
        if (g->decode != NULL && carry_decode_sequences(g->decode) < g->batch) {
            carry_decode_close(g->decode);
            g->decode = NULL;
        }
    }
    return carry_lm_pack(lm, g->dtype, 0);
}

carry_status carry_lm_generator_new(carry_lm *lm, carry_lm_generator **made, int64_t batch, carry_dtype dtype) {
    *made = NULL;
    carry_lm_generator *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: generating");
    }
    g->lm = lm;
    g->batch = batch;
    g->dtype = dtype;
    carry_status status = open_generator(g);
    if (status != CARRY_OK) {
        carry_lm_generator_free(g);
        return status;
    }
    *made = g;
    return CARRY_OK;
}

carry_lm_state *carry_lm_generator_state(carry_lm_generator *g) {
    return g->state;
}

int64_t carry_lm_generator_piece(const carry_lm_generator *g) {
    return g->lm->own.device != 0 ? PIECE_GPU : PIECE;
}

/* Copies the logits of `rows` sequences to host memory. */
static carry_status read_logits(carry_lm_generator *g, float *to, int64_t rows) {
    if (g->dtype != CARRY_F32) {
        CARRY_TRY(carry_convert(g->lm->ctx, g->wide, g->logits));
    }
    return carry_read(g->lm->ctx, carry_view_2d(to, CARRY_F32, rows, g->lm->config.vocab_size),
                      carry_slice(g->wide, 0, rows));
}

/* Reads the next piece of a prompt. */
static carry_status read_piece(carry_lm_generator *g, const int64_t *ids, int64_t count, bool last) {
    carry_lm_pass *pass = NULL;
    void *memory = NULL;
    const carry_lm_pass_options options = {.batch = 1, .tokens = count, .dtype = g->dtype, .forward_only = true};
    CARRY_TRY(carry_lm_pass_new(g->lm, &pass, &options));
    const carry_lm_args args = {.ids = carry_view_2d((void *)(uintptr_t)ids, CARRY_I64, 1, count),
                                .logits = last ? carry_slice(g->logits, 0, 1) : (carry_tensor){0},
                                .last_logits = true,
                                .state = g->one != NULL ? g->one : g->state};
    carry_status status = carry_lm_pass_take(pass, &memory);
    status = status == CARRY_OK ? carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)) : status;
    status = status == CARRY_OK ? carry_lm_router_check(pass) : status;
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
    return status;
}

carry_status carry_lm_generator_prompt(carry_lm_generator *g, int64_t sequence, const int64_t *ids, int64_t count,
                                       float *logits) {
    carry_ctx *ctx = g->lm->ctx;
    CARRY_SPAN(ctx, "model", "prompt");
    if (sequence < 0 || sequence >= g->batch || count < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a prompt of %" PRId64 " tokens for sequence %" PRId64 " of %" PRId64 " cannot be read",
                          count, sequence, g->batch);
    }
    if (g->one != NULL) {
        CARRY_TRY(carry_lm_state_copy(g->one, 0, g->state, sequence));
    }
    CARRY_TRY(carry_lm_pack(g->lm, g->dtype, count));
    const int64_t piece = carry_lm_generator_piece(g);
    for (int64_t at = 0; at < count; at += piece) {
        int64_t some = count - at < piece ? count - at : piece;
        CARRY_TRY(read_piece(g, ids + at, some, at + some == count));
    }
    if (g->one != NULL) {
        CARRY_TRY(carry_lm_state_copy(g->state, sequence, g->one, 0));
    }
    return read_logits(g, logits, 1);
}

/* Enqueues a step, from ids on the device to logits in f32 on the device. begun: carry_lm_begin was called. */
static carry_status enqueue_step(carry_lm_generator *g, bool begun) {
    const carry_lm_args args = {
        .ids = g->ids, .logits = g->logits, .last_logits = true, .state = g->state, .begun = begun};
    CARRY_TRY(carry_lm_run(g->step, &args, g->memory, carry_lm_pass_memory(g->step)));
    return g->dtype != CARRY_F32 ? carry_convert(g->lm->ctx, g->wide, g->logits) : CARRY_OK;
}

/* Records a step. One that cannot be recorded is enqueued directly; a later step tries again. */
static carry_status record_step(carry_lm_generator *g) {
    carry_ctx *ctx = g->lm->ctx;
    const int device = g->lm->own.device;
    carry_stream *stream = carry_ctx_stream(ctx, device);
    if (carry_graph_begin(ctx, device, stream) != CARRY_OK) {
        return enqueue_step(g, true);
    }
    const carry_status status = enqueue_step(g, true);
    const carry_status ended = carry_graph_end(ctx, &g->graph, device, stream);
    carry_lm_state_advance(g->state, -1); /* recording has not run the step */
    if (status != CARRY_OK || ended != CARRY_OK) {
        carry_graph_free(ctx, device, g->graph);
        g->graph = NULL;
        g->has_run = false;
        return enqueue_step(g, true);
    }
    g->cache_room = g->state->room;
    return CARRY_OK;
}

/* Called before a step that was or will be recorded. If caches have moved, the recording is no longer valid. */
static carry_status begin_step(carry_lm_generator *g) {
    const carry_lm_args args = {.state = g->state};
    CARRY_TRY(carry_lm_begin(g->step, &args));
    if (g->graph != NULL && g->state->room != g->cache_room) {
        CARRY_TRY(carry_stream_wait(g->lm->ctx, g->lm->own.device, carry_ctx_stream(g->lm->ctx, g->lm->own.device)));
        carry_graph_free(g->lm->ctx, g->lm->own.device, g->graph);
        g->graph = NULL;
    }
    return CARRY_OK;
}

/* The caches of a sequence are consecutive pages. */
static carry_status make_runs(carry_lm_generator *g) {
    const int64_t each = g->state->room / CARRY_PAGE_TOKENS;
    if (g->runs == NULL) {
        g->runs = calloc((size_t)g->batch, sizeof *g->runs);
        g->given = calloc((size_t)g->batch, sizeof *g->given);
    }
    if (each > g->page_room) {
        free(g->pages);
        g->pages = calloc((size_t)(g->batch * each), sizeof *g->pages);
        g->page_room = g->pages != NULL ? each : 0;
        for (int64_t i = 0; g->pages != NULL && i < g->batch * each; i++) {
            g->pages[i] = (int32_t)i;
        }
    }
    if (g->runs == NULL || g->given == NULL || each > g->page_room) {
        return carry_fail(g->lm->ctx, CARRY_EMEMORY, "out of memory: the pages of %" PRId64 " sequences", g->batch);
    }
    return CARRY_OK;
}

static carry_status decode_step(carry_lm_generator *g, const int64_t *ids) {
    CARRY_TRY(carry_lm_state_reserve(g->state, 1, CARRY_BF16));
    CARRY_TRY(make_runs(g));
    for (int64_t i = 0; i < g->batch; i++) {
        g->given[i] = (int32_t)ids[i];
        g->runs[i] = (carry_run){.slot = (int32_t)i,
                                 .pages = g->page_room > 0 ? g->pages + i * g->page_room : NULL,
                                 .length = g->state->length[i],
                                 .ids = &g->given[i],
                                 .count = 1};
    }
    CARRY_TRY(carry_decode_step(g->decode, g->runs, g->batch));
    carry_lm_state_advance(g->state, 1);
    return CARRY_OK;
}

/* NaN in the scores of a router makes all logits of its sequence NaN. */
static carry_status check_step(const carry_lm_generator *g, const float *logits) {
    const int64_t vocabulary = g->lm->config.vocab_size;
    for (int64_t i = 0; i < g->batch; i++) {
        if (g->step != NULL && isnan(logits[i * vocabulary])) {
            return carry_lm_router_check(g->step);
        }
    }
    return CARRY_OK;
}

static carry_status recorded_step(carry_lm_generator *g, const int64_t *ids, float *logits) {
    carry_ctx *ctx = g->lm->ctx;
    const int device = g->lm->own.device;
    const int64_t vocabulary = g->lm->config.vocab_size;
    const carry_tensor seen = carry_view_2d(g->pinned_logits, CARRY_F32, g->batch, vocabulary);
    const carry_tensor given = carry_view_2d(g->pinned_ids, CARRY_I64, g->batch, 1);
    memcpy(g->pinned_ids, ids, (size_t)g->batch * sizeof *ids);
    CARRY_TRY(carry_check_ids(ctx, given, vocabulary));
    CARRY_TRY(carry_copy(ctx, g->ids, given));
    if (g->decode != NULL) {
        CARRY_TRY(decode_step(g, ids));
    } else if (g->has_run) {
        CARRY_TRY(begin_step(g));
    }
    if (g->decode != NULL) {
        /* decode_step has enqueued the step */
    } else if (g->graph == NULL && g->has_run) {
        CARRY_TRY(record_step(g));
    } else if (g->graph == NULL) {
        CARRY_TRY(enqueue_step(g, false));
        g->has_run = true;
    }
    if (g->graph != NULL) {
        CARRY_TRY(carry_graph_launch(ctx, device, g->graph, carry_ctx_stream(ctx, device)));
        carry_lm_state_advance(g->state, 1);
    }
    carry_lm_state_tell(g->state, ids, 1);
    CARRY_TRY(carry_read(ctx, seen, g->wide));
    memcpy(logits, g->pinned_logits, (size_t)(g->batch * vocabulary) * sizeof *logits);
    return check_step(g, logits);
}

carry_status carry_lm_generator_step(carry_lm_generator *g, const int64_t *ids, float *logits) {
    CARRY_SPAN(g->lm->ctx, "model", "step");
    if (g->pinned_ids != NULL) {
        return recorded_step(g, ids, logits);
    }
    const carry_lm_args args = {.ids = carry_view_2d((void *)(uintptr_t)ids, CARRY_I64, g->batch, 1),
                                .logits = g->logits,
                                .last_logits = true,
                                .state = g->state};
    CARRY_TRY(carry_lm_run(g->step, &args, g->memory, carry_lm_pass_memory(g->step)));
    CARRY_TRY(read_logits(g, logits, g->batch));
    return check_step(g, logits);
}
