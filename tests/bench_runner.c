/* Not a test: tokens a second of a model of Qwen3.5-0.8B's shape with random weights through its runner, on a device.
   bench_runner DEVICE bf16|f32 [CHECKPOINT | CONFIG.json [LONG [profile]]]: prompts of 8192 tokens in steps of several
   sizes, then single tokens of 1 to 256 sequences, and a prompt of LONG tokens. A CHECKPOINT is opened instead; with a
   CONFIG.json, weights are random. Sizes are smaller on the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/carry.h"
#include "carry/device.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "device/activity.h"
#include "engine/model_runner.h"
#include "model/lm/families/hybrid.h"
#include "ops/sampler.h"

#define MOST 256
#define CONTEXT 9216
#define STEP_TOKENS 8192

static void check(carry_ctx *ctx, carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "bench_runner: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static carry_lm_config shape(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_qwen3_5);
    carry_lm_hybrid_of(&c)->layers_listed = 24;
    c.vocab_size = 248320;
    c.hidden_size = 1024;
    c.num_hidden_layers = 24;
    for (int i = 3; i < 24; i += 4) {
        c.mixer[i] = CARRY_LM_MIXER_ATTENTION;
    }
    memset(c.feedforward, CARRY_LM_FEEDFORWARD_SWIGLU, sizeof c.feedforward);
    c.swiglu.width = 3584;
    c.delta.heads = c.delta.value_heads = 16;
    c.delta.key = c.delta.value = 128;
    c.attention.heads = 8;
    c.attention.kv_heads = 2;
    c.attention.head_dim = 256;
    c.attention.rope_theta = 1e7;
    c.attention.rotary_factor = 0.25;
    c.tie_word_embeddings = true;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

static carry_lm *make(carry_ctx *ctx, int device, const char *folder) {
    carry_lm *lm;
    const size_t length = folder != NULL ? strlen(folder) : 0;
    const bool is_config = length > 5 && strcmp(folder + length - 5, ".json") == 0;
    if (folder != NULL && !is_config) {
        check(ctx, carry_lm_open(ctx, &lm, folder, device));
        return lm;
    }
    carry_lm_config config = shape();
    if (is_config) {
        check(ctx, carry_lm_config_read(ctx, &config, folder));
    }
    check(ctx, carry_lm_new(ctx, &lm, &config, device));
    const int64_t count = lm->own.count;
    check(ctx, carry_random_fill(ctx, carry_view_on(device, lm->own.weights, CARRY_F32, 1, &count), 1, 2, 0.0f, 0.02f));
    return lm;
}

static carry_run run_of(int32_t slot, const int32_t *pages, int64_t length, const int32_t *ids, int64_t count) {
    static const carry_sampling greedy = {.top_p = 1.0};
    return (carry_run){.slot = slot,
                       .pages = pages,
                       .length = length,
                       .ids = ids,
                       .count = count,
                       .wants_token = true,
                       .sampling = &greedy,
                       .logprobs = -1};
}

static void read_results(carry_runner *r, int64_t count) {
    static carry_run_result results[MOST];
    check(r->ctx, r->ops->results(r, results, count));
    for (int64_t i = 0; i < count; i++) {
        if (results[i].is_failed) {
            (void)fprintf(stderr, "bench_runner: run %d failed\n", (int)i);
            exit(1);
        }
    }
}

static void step(carry_runner *r, const carry_run *runs, int64_t count) {
    check(r->ctx, r->ops->step(r, runs, count));
    read_results(r, count);
}

static void read_prompt(carry_runner *r, const int32_t *pages, const int32_t *ids, int64_t tokens, int64_t piece) {
    double best = 1e30;
    for (int turn = 0; turn < 4; turn++) {
        const double begin = carry_seconds();
        check(r->ctx, r->ops->clear_slot(r, 0));
        for (int64_t at = 0; at < tokens; at += piece) {
            carry_run run = run_of(0, pages, at, ids + at, piece < tokens - at ? piece : tokens - at);
            run.wants_token = at + piece >= tokens;
            step(r, &run, 1);
        }
        const double took = carry_seconds() - begin;
        best = turn > 0 && took < best ? took : best;
    }
    (void)printf("prompt of %d in steps of %d: %.1f tokens/s\n", (int)tokens, (int)piece, (double)tokens / best);
}

/* Single tokens after a short prompt each. */
static void decode(carry_runner *r, const int32_t *pages, const int32_t *ids, int64_t sequences, int64_t steps) {
    static carry_run runs[MOST];
    const int64_t own = 4; /* pages of a sequence */
    for (int64_t i = 0; i < sequences; i++) {
        check(r->ctx, r->ops->clear_slot(r, (int32_t)i));
        carry_run run = run_of((int32_t)i, pages + i * own, 0, ids + i, 64);
        step(r, &run, 1);
        runs[i] = run_of((int32_t)i, pages + i * own, 64, NULL, 1);
    }
    double begin = 0.0;
    for (int64_t s = 0; s < steps + 4; s++) {
        if (s == 4) {
            read_results(r, sequences);
            begin = carry_seconds();
        }
        check(r->ctx, r->ops->step(r, runs, sequences));
        if (s > 0 && s != 4) {
            read_results(r, sequences); /* of the step before */
        }
        for (int64_t i = 0; i < sequences; i++) {
            runs[i].length++;
        }
    }
    read_results(r, sequences);
    const double took = carry_seconds() - begin;
    (void)printf("%d sequences: %.1f tokens/s together, %.3f ms a step\n", (int)sequences,
                 (double)(sequences * steps) / took, 1e3 * took / (double)steps);
}

/* What the GPU does in ten steps of `sequences`, by kernel. */
static void profile(carry_runner *r, const int32_t *pages, const int32_t *ids, int64_t sequences) {
    carry_activity_log *log = NULL;
    if (carry_activity_start(r->ctx, &log, 0) != CARRY_OK || log == NULL) {
        (void)printf("no profile: %s\n", carry_ctx_error(r->ctx));
        return;
    }
    decode(r, pages, ids, sequences, 10);
    check(r->ctx, carry_activity_stop(r->ctx, log));
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        const carry_activity_sum *sum = &log->sum[i];
        if (sum->name != NULL && sum->seconds > 1e-4) {
            (void)printf("  %8.3f ms %6d calls  %.90s\n", 1e3 * sum->seconds, (int)sum->calls, sum->name);
        }
    }
    carry_activity_free(log);
}

int main(int argc, char **argv) {
    const int device = argc > 1 ? atoi(argv[1]) : 0;
    const carry_dtype dtype = argc > 2 && strcmp(argv[2], "f32") == 0 ? CARRY_F32 : CARRY_BF16;
    carry_ctx *ctx;
    carry_runner *r;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    const int64_t most = device == 0 ? 16 : MOST;
    const int64_t prompt = device == 0 ? 1024 : 8192;
    carry_lm *lm = make(ctx, device, argc > 3 ? argv[3] : NULL);
    const int64_t longest = argc > 4 && atol(argv[4]) > 0 ? atol(argv[4]) : 0;
    const int64_t context = longest > CONTEXT ? longest : CONTEXT;
    const int64_t page_count = context / CARRY_PAGE_TOKENS + 1 > 4 * MOST ? context / CARRY_PAGE_TOKENS + 1 : 4 * MOST;
    const carry_runner_sizes sizes = {.slots = most,
                                      .pages = page_count,
                                      .sequences = most,
                                      .tokens = device == 0 ? 512 : STEP_TOKENS,
                                      .context = context};
    double begin = carry_seconds();
    check(ctx, carry_model_runner_new(lm, &r, &sizes, dtype));
    (void)printf("opened in %.2f s; a slot has %.1f MB\n", carry_seconds() - begin, 1e-6 * (double)r->sizes.slot_bytes);
    int32_t *ids = calloc((size_t)context, sizeof *ids);
    int32_t *pages = calloc((size_t)page_count, sizeof *pages);
    for (int32_t i = 0; i < context; i++) {
        ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 1000;
    }
    for (int32_t i = 0; i < page_count; i++) {
        pages[i] = (int32_t)page_count - 1 - i;
    }
    for (int64_t piece = sizes.tokens; piece >= 512; piece /= 2) {
        read_prompt(r, pages, ids, prompt, piece);
    }
    for (int64_t sequences = 1; sequences <= most; sequences *= 2) {
        decode(r, pages, ids, sequences, device == 0 ? 8 : 50);
    }
    if (device != 0 && argc > 5) {
        profile(r, pages, ids, 16);
        profile(r, pages, ids, 128);
    }
    if (longest > 0) {
        read_prompt(r, pages, ids, longest, STEP_TOKENS);
    }
    begin = carry_seconds();
    for (int i = 0; i < 20; i++) {
        check(ctx, r->ops->copy_slot(r, 1, 0));
    }
    (void)carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device));
    (void)printf("copy of a slot: %.1f us\n", 5e4 * (carry_seconds() - begin));
    r->ops->close(r);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    free(ids);
    free(pages);
    return 0;
}
