/* Not a test: the time of a step that reads pieces of prompts beside texts, through the runner of a model of random
   weights: until the step is enqueued, until its results are there, and of its kernels alone.

       bench_pieces DEVICE bf16|f32 SHAPE [profile] */
#include "bench_runner_support.h"

#include "device/activity.h"

#define TEXTS 64
#define PIECES 16
#define OWN 18 /* pages of a sequence */

typedef struct bench {
    carry_runner *r;
    int32_t pages[(TEXTS + PIECES) * OWN];
    int32_t ids[1024];
    carry_run runs[TEXTS + PIECES];
} bench;

/* Texts after 512 tokens each, and new prompts of `length` tokens. */
static int64_t fill(bench *b, int64_t texts, int64_t pieces, int64_t length) {
    for (int64_t i = 0; i < texts + pieces; i++) {
        const int32_t *pages = b->pages + i * OWN;
        const bool is_text = i < texts;
        b->runs[i] = run_of((int32_t)i, pages, is_text ? 512 : 0, is_text ? NULL : b->ids + i, is_text ? 1 : length);
    }
    return texts + pieces;
}

static void begin_texts(bench *b) {
    for (int64_t i = 0; i < TEXTS; i++) {
        check(b->r->ctx, b->r->ops->clear_slot(b->r, (int32_t)i));
        carry_run run = run_of((int32_t)i, b->pages + i * OWN, 0, b->ids + i, 512);
        step(b->r, &run, 1);
    }
}

static void clear_pieces(bench *b, int64_t texts, int64_t pieces) {
    for (int64_t i = texts; i < texts + pieces; i++) {
        check(b->r->ctx, b->r->ops->clear_slot(b->r, (int32_t)i));
    }
    check(b->r->ctx, carry_stream_wait(b->r->ctx, 1, carry_ctx_stream(b->r->ctx, 1)));
}

static double kernels_of(bench *b, int64_t count, int64_t texts, int64_t pieces, bool shows) {
    carry_activity_log *log = NULL;
    double seconds = 0.0;
    clear_pieces(b, texts, pieces);
    if (carry_activity_start(b->r->ctx, &log, 0) != CARRY_OK || log == NULL) {
        return -1e-3;
    }
    step(b->r, b->runs, count);
    check(b->r->ctx, carry_activity_stop(b->r->ctx, log));
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        const carry_activity_sum *sum = &log->sum[i];
        seconds += sum->name != NULL ? sum->seconds : 0.0;
        if (shows && sum->name != NULL && sum->seconds > 5e-5) {
            (void)printf("  %8.3f ms %6d calls  %.90s\n", 1e3 * sum->seconds, (int)sum->calls, sum->name);
        }
    }
    carry_activity_free(log);
    return seconds;
}

static void measure(bench *b, int64_t texts, int64_t pieces, int64_t length, bool has_profile) {
    double enqueued = 1e30;
    double whole = 1e30;
    const int64_t count = fill(b, texts, pieces, length);
    for (int turn = 0; turn < 6; turn++) {
        clear_pieces(b, texts, pieces);
        const double begin = carry_seconds();
        check(b->r->ctx, b->r->ops->step(b->r, b->runs, count));
        const double middle = carry_seconds();
        read_results(b->r, count);
        const double end = carry_seconds();
        enqueued = middle - begin < enqueued ? middle - begin : enqueued;
        whole = end - begin < whole ? end - begin : whole;
    }
    const bool shows = has_profile && ((pieces == 8 && length == 512) || pieces == 0);
    const double kernels = has_profile ? kernels_of(b, count, texts, pieces, shows) : -1e-3;
    (void)printf("%2d texts, %2d pieces of %3d: enqueued %6.2f ms, whole %6.2f ms, kernels %6.2f ms\n", (int)texts,
                 (int)pieces, (int)length, 1e3 * enqueued, 1e3 * whole, 1e3 * kernels);
}

int main(int argc, char **argv) {
    static bench b;
    carry_ctx *ctx;
    const int device = argc > 1 ? atoi(argv[1]) : 1;
    const carry_dtype dtype = argc > 2 && strcmp(argv[2], "f32") == 0 ? CARRY_F32 : CARRY_BF16;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    carry_lm *lm;
    check(ctx, carry_model_random(ctx, &lm, argc > 3 ? argv[3] : "qwen3.5-0.8b", device, dtype, 1));
    const carry_runner_sizes sizes = {.slots = TEXTS + PIECES,
                                      .pages = (TEXTS + PIECES) * OWN,
                                      .sequences = TEXTS + PIECES,
                                      .tokens = 8192,
                                      .context = 1024};
    check(ctx, carry_model_runner_new(lm, &b.r, &sizes, dtype));
    for (int i = 0; i < (TEXTS + PIECES) * OWN; i++) {
        b.pages[i] = i;
    }
    for (int i = 0; i < 1024; i++) {
        b.ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 1000;
    }
    begin_texts(&b);
    for (int64_t texts = 0; texts <= TEXTS; texts += TEXTS) {
        for (int64_t length = 64; length <= 512; length += 448) {
            for (int64_t pieces = texts > 0 && length == 64 ? 0 : 1; pieces <= 8;
                 pieces = pieces > 0 ? 2 * pieces : 1) {
                measure(&b, texts, pieces, length, argc > 4);
            }
        }
    }
    b.r->ops->close(b.r);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    return 0;
}
