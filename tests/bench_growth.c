/* Not a test: tokens a second of generation against the number of sequences and against the context, as JSON.
   bench_growth DEVICE SHAPE [LONGEST [KV_TYPE [STATE_TYPE]]]: SHAPE as for bench_runner, in bf16; LONGEST tokens of
   context, a power of two; types of states as in carry/engine.h (bf16 and f32).

   A prompt of LONGEST tokens is read once; its first tokens, in pages of its own, are the context of every sequence.
   docs/results/decoding-gpu.md has the plot, which tools/growth-plot makes of the output. */
#include "bench_runner_support.h"

enum { CONTEXTS = 16 /* sequences with long contexts */, SHORT = 64, STEPS = 40, SPARE = 64 };

static int64_t pages_of(int64_t tokens) {
    return (tokens + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS;
}

static void read_context(carry_runner *r, const int32_t *pages, int64_t tokens) {
    int32_t *ids = calloc((size_t)r->sizes.tokens, sizeof *ids);
    if (ids == NULL) {
        exit(1);
    }
    check(r->ctx, r->ops->clear_slot(r, 0));
    for (int64_t at = 0; at < tokens; at += r->sizes.tokens) {
        const int64_t count = tokens - at < r->sizes.tokens ? tokens - at : r->sizes.tokens;
        for (int64_t i = 0; i < count; i++) {
            ids[i] = (int32_t)((uint32_t)(at + i) * 2654435761u >> 8) % 1000;
        }
        const carry_run run = run_of(0, pages, at, ids, count);
        step(r, &run, 1);
    }
    free(ids);
}

static void measure(carry_runner *r, const int32_t *pages, int64_t each, int64_t sequences, int64_t context) {
    static carry_run runs[MOST];
    static const int32_t one = 1;
    for (int64_t i = 0; i < sequences; i++) {
        runs[i] = run_of((int32_t)i, pages + i * each, context, &one, 1);
    }
    step(r, runs, sequences); /* a token of each is sampled, which the next step reads */
    for (int64_t i = 0; i < sequences; i++) {
        runs[i].ids = NULL;
        runs[i].length++;
    }
    const double took = time_steps(r, runs, sequences, STEPS);
    (void)printf("%s\n    {\"sequences\": %d, \"context\": %d, \"ms\": %.4f, \"tokens_per_s\": %.1f}",
                 sequences == 1 && context == SHORT ? "" : ",", (int)sequences, (int)context,
                 1e3 * took / (double)STEPS, (double)(sequences * STEPS) / took);
    (void)fflush(stdout);
}

int main(int argc, char **argv) {
    const int device = argc > 1 ? atoi(argv[1]) : 0;
    const char *shape = argc > 2 ? argv[2] : "qwen3.5-0.8b";
    const int64_t longest = argc > 3 && atol(argv[3]) > 0 ? atol(argv[3]) : 131072;
    const int64_t each = pages_of(longest + SPARE);
    carry_ctx *ctx;
    carry_runner *r;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    carry_lm *lm = make(ctx, device, CARRY_BF16, shape);
    const int64_t few = pages_of(SHORT + SPARE);
    const carry_runner_sizes sizes = {.slots = MOST,
                                      .pages = CONTEXTS * each > MOST * few ? CONTEXTS * each : MOST * few,
                                      .sequences = MOST,
                                      .tokens = device == 0 ? 512 : 8192,
                                      .context = longest + SPARE};
    carry_state_types types;
    check(ctx, carry_state_types_parse(&types, lm, CARRY_BF16, argc > 4 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL));
    check(ctx, carry_model_runner_new_with(lm, &r, &sizes, CARRY_BF16, &(carry_model_runner_options){.types = &types}));
    int32_t *pages = calloc((size_t)sizes.pages, sizeof *pages);
    if (pages == NULL) {
        return 1;
    }
    for (int32_t i = 0; i < sizes.pages; i++) {
        pages[i] = i;
    }
    read_context(r, pages, longest);
    for (int32_t i = 1; i < MOST; i++) {
        check(ctx, r->ops->copy_slot(r, i, 0));
    }
    for (int64_t i = each; i < CONTEXTS * each; i++) {
        check(ctx, r->ops->copy_page(r, (int32_t)i, (int32_t)(i % each)));
    }
    (void)printf("{\"shape\": \"%s\", \"dtype\": \"bf16\", \"kv_type\": \"%s\", \"state_type\": \"%s\", \"steps\": %d, "
                 "\"rows\": [",
                 shape, carry_state_types_name(types.kv), carry_state_types_name(types.state), STEPS);
    for (int64_t sequences = 1; sequences <= MOST; sequences *= 2) {
        measure(r, pages, few, sequences, SHORT);
    }
    for (int64_t context = 1024; context <= longest; context *= 2) {
        measure(r, pages, each, 1, context);
        measure(r, pages, each, CONTEXTS, context);
    }
    (void)printf("\n]}\n");
    r->ops->close(r);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    free(pages);
    return 0;
}
