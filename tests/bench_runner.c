/* Not a test: tokens a second of a model of Qwen3.5-0.8B's shape with random weights through its runner, on a device.
   bench_runner DEVICE bf16|f32 [CHECKPOINT | SHAPE | CONFIG.json [LONG [profile|- [RINGS]]]]: prompts of 8192 tokens in
   steps of several sizes, then single tokens of 1 to 256 sequences, and a prompt of LONG tokens. RINGS: steps of
   this many sequences or more write the states once in 16 tokens (carry_model_runner_options). A CHECKPOINT is a
   folder; SHAPE (qwen3.5-0.8b, qwen3.5-4b, qwen3.5-35b-a3b) and CONFIG.json have random weights, SHAPE:FORMAT quantised
   ones (carry quantise lists the formats). Sizes are smaller on the CPU, where single tokens of a CHECKPOINT are
   measured again with packed weights. */

#include "bench_runner_support.h"

#include "device/activity.h"

#define CONTEXT 9216
#define STEP_TOKENS 8192

/* Memory of the weights, and of the whole device. */
static void print_memory(carry_ctx *ctx, const carry_lm *lm) {
    size_t available = 0;
    size_t total = 0;
    if (lm->own.device != 0 && carry_device_memory(ctx, &available, &total, lm->own.device) == CARRY_OK) {
        (void)printf("%.2f GB of the device are used, %.2f GB by quantised weights\n",
                     1e-9 * (double)(total - available), 1e-9 * (double)lm->own.tiled_bytes);
    }
}

static void read_prompt(carry_runner *r, const int32_t *pages, const int32_t *ids, int64_t tokens, int64_t piece) {
    double best = 1e30;
    const int turns = tokens > CONTEXT ? 2 : 4;
    for (int turn = 0; turn < turns; turn++) {
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
    const double took = time_steps(r, runs, sequences, steps);
    (void)printf("%d sequences: %.1f tokens/s together, %.3f ms a step\n", (int)sequences,
                 (double)(sequences * steps) / took, 1e3 * took / (double)steps);
}

/* Prints the time that the GPU spends in each kernel during ten steps of `sequences`. */
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
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    const int64_t most = device == 0 ? 16 : MOST;
    const int64_t prompt = device == 0 ? 1024 : 8192;
    carry_lm *lm = make(ctx, device, dtype, argc > 3 ? argv[3] : NULL);
    const int64_t longest = argc > 4 && atol(argv[4]) > 0 ? atol(argv[4]) : 0;
    const int64_t context = longest > CONTEXT ? longest : CONTEXT;
    const int64_t page_count = context / CARRY_PAGE_TOKENS + 1 > 4 * MOST ? context / CARRY_PAGE_TOKENS + 1 : 4 * MOST;
    const carry_runner_sizes sizes = {.slots = most,
                                      .pages = page_count,
                                      .sequences = most,
                                      .tokens = device == 0 ? 512 : STEP_TOKENS,
                                      .context = context};
    double begin = carry_seconds();
    const carry_model_runner_options options = {.rings = argc > 6 ? atol(argv[6]) : 0};
    check(ctx, carry_model_runner_new_with(lm, &r, &sizes, dtype, &options));
    (void)printf("opened in %.2f s; a slot has %.1f MB\n", carry_seconds() - begin, 1e-6 * (double)r->sizes.slot_bytes);
    print_memory(ctx, lm);
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
    /* Steps of more than 64 sequences read quantised matrices several times. */
    const bool is_quantised = argc > 3 && strchr(argv[3], ':') != NULL;
    for (int64_t sequences = 1; sequences <= (is_quantised && most > 64 ? 64 : most); sequences *= 2) {
        decode(r, pages, ids, sequences, device == 0 ? 8 : 50);
    }
    if (device == 0) {
        lm->prompted = (int64_t)1 << 20; /* as after many prompts */
        lm->is_settled = false;
        check(ctx, carry_lm_pack(lm, dtype, 1));
    }
    for (int64_t sequences = 1; device == 0 && lm->panels != NULL && sequences <= most; sequences *= 2) {
        (void)printf("packed weights, ");
        decode(r, pages, ids, sequences, 8);
    }
    if (device != 0 && argc > 5 && strcmp(argv[5], "-") != 0) {
        profile(r, pages, ids, 1);
        profile(r, pages, ids, 16);
        profile(r, pages, ids, 64);
        if (!is_quantised) {
            profile(r, pages, ids, MOST);
        }
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
