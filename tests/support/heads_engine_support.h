/* Requests to an engine over a checkpoint with multi-token heads. */
#ifndef CARRY_TESTS_HEADS_ENGINE_SUPPORT_H
#define CARRY_TESTS_HEADS_ENGINE_SUPPORT_H

#include "heads_support.h"

#include "carry/engine.h"

typedef struct heads_answer {
    int64_t token[64];
    int64_t count, cached, drafted, accepted;
} heads_answer;

static inline bool heads_take(void *user, const carry_engine_event *event) {
    heads_answer *a = user;
    if (event->token >= 0) {
        a->token[a->count++] = event->token;
        return true;
    }
    assert_int_equal(event->reason, CARRY_REASON_LENGTH);
    a->cached = event->cached_tokens;
    a->drafted = event->drafted_tokens;
    a->accepted = event->accepted_tokens;
    return true;
}

static inline carry_engine *heads_engine(carry_ctx *ctx, const heads_case *c, const char *draft, int device,
                                         carry_dtype dtype) {
    carry_engine *engine;
    assert_ok(ctx, carry_engine_open(ctx, &engine, c->folder,
                                     &(carry_engine_options){CARRY_INIT(carry_engine_options), .device = device,
                                                             .dtype = dtype, .sequences = 4, .context = 512,
                                                             .memory = (size_t)64 << 20, .same_bits = device == 0,
                                                             .draft = draft}));
    return engine;
}

static inline void heads_ask(carry_ctx *ctx, carry_engine *engine, int number, double temperature, heads_answer *a) {
    int64_t ids[300];
    uint64_t request;
    const int64_t count = 2 + 70 * number;
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (i * 5 + i / 3 + number) % HEADS_H;
    }
    *a = (heads_answer){0};
    const carry_engine_request r = {CARRY_INIT(carry_engine_request),
                                    .ids = ids,
                                    .id_count = count,
                                    .tokens = 50,
                                    .temperature = temperature,
                                    .seed = 7,
                                    .ignore_ends = true,
                                    .on_event = heads_take,
                                    .user = a};
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &request));
}

#endif
