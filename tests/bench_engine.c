/* Not a test: the engine under the load of tools/serve-load --clients, without HTTP: the difference between both is the
   server's own time. Each of CLIENTS submits its next request when its last has ended.

       bench_engine DEVICE bf16|f32 SHAPE CLIENTS REQUESTS PROMPT TOKENS [CONTEXT [TEMPERATURE]] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "engine/engine_inside.h"
#include "engine/model_random.h"

typedef struct load {
    carry_ctx *ctx;
    carry_engine *engine;
    int64_t clients, requests, prompt, tokens, vocabulary;
    double temperature;
    int64_t submitted, ended, failed, generated;
    double *firsts; /* [requests], seconds */
    int64_t *ids;   /* [prompt] */
} load;

static void check(carry_ctx *ctx, carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "bench_engine: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static void submit(load *l);

static bool on_event(void *user, const carry_engine_event *event) {
    load *l = user;
    if (event->token >= 0) {
        return true;
    }
    l->firsts[l->ended++] = event->first_s;
    l->generated += event->tokens;
    if (event->reason != CARRY_REASON_LENGTH) {
        l->failed++;
        (void)fprintf(stderr, "bench_engine: a request ended by %s: %s\n", carry_engine_reason_name(event->reason),
                      event->message);
    }
    submit(l);
    return true;
}

static void submit(load *l) {
    if (l->submitted == l->requests) {
        return;
    }
    uint64_t state = (uint64_t)++l->submitted * 0x9E3779B97F4A7C15u;
    for (int64_t i = 0; i < l->prompt; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        l->ids[i] = (int64_t)((state >> 33) % (uint64_t)l->vocabulary);
    }
    uint64_t id;
    check(l->ctx, carry_engine_submit(l->ctx, l->engine,
                                      &(carry_engine_request){CARRY_INIT(carry_engine_request), .ids = l->ids,
                                                              .id_count = l->prompt, .tokens = l->tokens,
                                                              .temperature = l->temperature,
                                                              .seed = (uint64_t)l->submitted, .logprobs = -1,
                                                              .ignore_ends = true, .on_event = on_event, .user = l},
                                      &id));
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(load *l) {
    const double begin = carry_seconds();
    for (int64_t i = 0; i < l->clients; i++) {
        submit(l);
    }
    check(l->ctx, carry_engine_run(l->engine));
    const double took = carry_seconds() - begin;
    qsort(l->firsts, (size_t)l->ended, sizeof *l->firsts, compare);
    (void)printf("engine: %" PRId64 " requests, %" PRId64
                 " failed, %.2f s, %.0f tokens/s, first token p50 %.1f ms, p95 "
                 "%.1f ms\n",
                 l->ended, l->failed, took, (double)l->generated / took, 1e3 * l->firsts[l->ended / 2],
                 1e3 * l->firsts[l->ended * 95 / 100]);
}

int main(int count, char **arguments) {
    if (count < 8) {
        (void)fprintf(stderr, "usage: bench_engine DEVICE bf16|f32 SHAPE CLIENTS REQUESTS PROMPT TOKENS [CONTEXT "
                              "[TEMPERATURE]]\n");
        return 2;
    }
    const int device = atoi(arguments[1]);
    const carry_dtype dtype = strcmp(arguments[2], "bf16") == 0 ? CARRY_BF16 : CARRY_F32;
    load l = {.clients = atoll(arguments[4]),
              .requests = atoll(arguments[5]),
              .prompt = atoll(arguments[6]),
              .tokens = atoll(arguments[7]),
              .temperature = count > 9 ? atof(arguments[9]) : 0.0};
    if (l.clients < 1 || l.requests < l.clients || l.prompt < 1 || l.tokens < 1) {
        (void)fprintf(stderr, "bench_engine: expected at least one client, request, prompt token and token\n");
        return 2;
    }
    const int64_t context = count > 8 ? atoll(arguments[8]) : l.prompt + l.tokens;
    const carry_engine_options options = {CARRY_INIT(carry_engine_options), .sequences = l.clients, .context = context,
                                          .queue = l.requests};
    carry_lm *lm;
    carry_model model;
    if (carry_ctx_new(&l.ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 0}) != CARRY_OK) {
        return 1;
    }
    check(l.ctx, carry_model_random(l.ctx, &lm, arguments[3], device, dtype, 1));
    carry_model_borrow(l.ctx, &model, lm);
    check(l.ctx, carry_engine_adopt(l.ctx, &l.engine, &model, dtype, &options));
    l.vocabulary = carry_engine_vocabulary(l.engine);
    l.firsts = calloc((size_t)l.requests, sizeof *l.firsts);
    l.ids = calloc((size_t)l.prompt, sizeof *l.ids);
    if (l.firsts != NULL && l.ids != NULL) {
        load first = l; /* warms the recorded steps up, with other prompts */
        first.requests = l.clients;
        first.tokens = l.tokens < 32 ? l.tokens : 32;
        first.vocabulary = l.vocabulary / 2;
        run(&first);
        run(&l);
    }
    free(l.firsts);
    free(l.ids);
    carry_engine_close(l.engine);
    carry_ctx_free(l.ctx);
    return l.failed > 0 || l.ended == 0;
}
