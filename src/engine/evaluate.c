/* Evaluation with the engine's runner: a step reads pieces of several texts, or several windows of one. On a GPU the
   tokens of the next step are prepared while the GPU works on the current one. */
#include "engine/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "engine/evaluate_reader.h"
#include "engine/model_runner.h"
#include "tokenizer/wikitext.h"

/* Tokens of a step, on the CPU and on a GPU: enough for large products, few enough for memory. */
#define SOME 1024
#define SOME_ON_GPU 16384
#define LENGTH_MOST ((int64_t)1 << 24)
#define TEXTS 16                     /* maximum number of texts at once */
#define WINDOWS 256                  /* maximum number of windows in a step */
#define UNBOUNDED ((int64_t)1 << 29) /* maximum tokens of a text, for a model whose state does not grow */
#define BLOCK 64                     /* pieces are multiples of it: the delta rule then has the same chunks */

/* A sequence in the current step. */
typedef struct piece {
    int64_t file, first, count, bytes;
    bool ends_file;
} piece;

typedef struct step {
    int64_t count; /* number of pieces; 0: no step */
    piece *piece;
} step;

/* A text in progress; with windows, one lane has all windows, one after the other. */
typedef struct lane {
    carry_evaluate_reader reader;
    int32_t slot;
    int64_t length; /* number of tokens of the sequence that were read */
} lane;

typedef struct work {
    carry_ctx *ctx;
    const carry_model *model;
    const carry_evaluate_options *options;
    carry_evaluation *result;
    carry_evaluate_files files;
    carry_runner *runner;
    carry_state_types types;
    int64_t lanes;
    lane *lane;
    int64_t page_list; /* pages of a slot */
    int32_t *pages;    /* [slots, page_list] */
    int32_t *ids;      /* [2, tokens of a step]: inputs, then targets */
    carry_run *runs;
    double *losses; /* of each run */
    step steps[2];  /* the current one and the next */
} work;

static void close_work(work *w) {
    for (int64_t i = 0; w->lane != NULL && i < w->lanes; i++) {
        carry_evaluate_reader_close(&w->lane[i].reader);
    }
    if (w->runner != NULL) {
        w->runner->ops->close(w->runner);
    }
    free(w->lane);
    free(w->pages);
    free(w->ids);
    free(w->runs);
    free(w->losses);
    free(w->steps[0].piece);
    free(w->steps[1].piece);
}

static carry_status out_of_memory(const work *w) {
    return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: an evaluation of %" PRId64 " texts at once", w->lanes);
}

/* The number of sequences, each with a slot and `page_list` pages of these sizes, that fit into half of the free
   memory: at least 1, at most `wanted`. */
static int64_t fitting(const work *w, size_t slot, size_t page, int64_t page_list, int64_t wanted) {
    size_t available = 0;
    size_t total = 0;
    if (carry_device_memory(w->ctx, &available, &total, w->model->lm->own.device) != CARRY_OK) {
        return 1;
    }
    const double each = (double)slot + (double)page * (double)page_list;
    const double fit = 0.5 * (double)available / (each > 1.0 ? each : 1.0);
    return fit < 1.0 ? 1 : fit < (double)wanted ? (int64_t)fit : wanted;
}

/* Chooses the sizes of the runner: a slot for each text or window, and pages for the longest. */
static carry_status choose_sizes(work *w, carry_runner_sizes *sizes) {
    const int64_t length = w->options->length;
    const int64_t usual = w->model->lm->own.device != 0 ? SOME_ON_GPU : SOME;
    const int64_t files = carry_text_files(w->files.text);
    size_t slot;
    size_t page;
    carry_model_runner_measure(w->model->lm, NULL, w->options->dtype, &w->types, &slot, &page);
    sizes->tokens = w->options->at_once > 0 ? w->options->at_once : usual;
    sizes->context = length > 0 ? length : UNBOUNDED;
    if (page > 0 && length == 0) {
        CARRY_TRY(carry_evaluate_longest(&w->files, &sizes->context));
    }
    w->page_list = page > 0 ? (sizes->context + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS : 0;
    int64_t wanted = length > 0 ? sizes->tokens / length : files;
    const int64_t most = length > 0 ? WINDOWS : TEXTS;
    wanted = wanted > most ? most : wanted;
    wanted = wanted > sizes->tokens ? sizes->tokens : wanted;
    sizes->sequences = sizes->slots = fitting(w, slot, page, w->page_list, wanted > 1 ? wanted : 1);
    sizes->pages = w->page_list * sizes->slots;
    w->lanes = length > 0 ? 1 : sizes->slots;
    return CARRY_OK;
}

static carry_status open_lanes(work *w, const carry_runner_sizes *sizes) {
    const size_t sequences = (size_t)sizes->sequences;
    w->lane = calloc((size_t)w->lanes, sizeof *w->lane);
    w->pages = calloc((size_t)sizes->pages + 1, sizeof *w->pages);
    w->ids = calloc((size_t)sizes->tokens * 2, sizeof *w->ids);
    w->runs = calloc(sequences, sizeof *w->runs);
    w->losses = calloc(sequences, sizeof *w->losses);
    for (int i = 0; i < 2; i++) {
        w->steps[i].piece = calloc(sequences, sizeof *w->steps[i].piece);
    }
    if (w->lane == NULL || w->pages == NULL || w->ids == NULL || w->runs == NULL || w->losses == NULL ||
        w->steps[0].piece == NULL || w->steps[1].piece == NULL) {
        return out_of_memory(w);
    }
    for (int64_t i = 0; i < sizes->pages; i++) {
        w->pages[i] = (int32_t)i;
    }
    for (int64_t i = 0; i < w->lanes; i++) {
        w->lane[i].slot = (int32_t)i;
        CARRY_TRY(carry_evaluate_reader_open(&w->files, &w->lane[i].reader));
    }
    return CARRY_OK;
}

static carry_status open_work(work *w) {
    const int64_t length = w->options->length;
    carry_runner_sizes sizes = {0};
    if (length < 0 || length > LENGTH_MOST) {
        return carry_fail(w->ctx, CARRY_ESIZE, "windows of %" PRId64 " tokens: expected 1 to %" PRId64, length,
                          LENGTH_MOST);
    }
    CARRY_TRY(carry_state_types_parse(&w->types, w->model->lm, w->options->dtype, w->options->kv_type,
                                      w->options->state_type));
    CARRY_TRY(choose_sizes(w, &sizes));
    CARRY_TRY(open_lanes(w, &sizes));
    return carry_model_runner_new_with(w->model->lm, &w->runner, &sizes, w->options->dtype,
                                       &(carry_model_runner_options){.scores = true, .types = &w->types});
}

/* Adds the results of a step to the sums. */
static carry_status settle(work *w, step *s) {
    const int64_t count = s->count;
    s->count = 0;
    if (count == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(w->runner->ops->scores(w->runner, w->losses, count));
    for (int64_t i = 0; i < count; i++) {
        const piece *p = &s->piece[i];
        if (!isfinite(w->losses[i])) {
            char why[80];
            carry_runner_explain(w->runner, why, sizeof why);
            return carry_fail(
                w->ctx, CARRY_ERANGE, "%s: the loss of tokens %" PRId64 " to %" PRId64 " is %f: not finite%s",
                carry_text_path(w->files.text, p->file), p->first, p->first + p->count - 1, w->losses[i], why);
        }
        w->result->nll += w->losses[i];
        w->result->tokens += p->count;
        w->result->bytes += p->bytes;
        w->result->files += p->ends_file ? 1 : 0;
    }
    const int64_t total = carry_text_bytes(w->files.text);
    const int64_t done = w->result->bytes < total ? w->result->bytes : total;
    if (w->options->progress != NULL && !w->options->progress(w->options->user, done, total)) {
        return carry_fail(w->ctx, CARRY_EINTERRUPTED, "interrupted after %" PRId64 " tokens", w->result->tokens);
    }
    return CARRY_OK;
}

/* Adds up to `most` tokens of a lane as a run of the step, with inputs and targets from row *row on. *is_added is false
   if no text is left for the lane. */
static carry_status add_run(work *w, lane *l, step *s, int64_t most, int64_t *row, bool *is_added) {
    const carry_runner_sizes *sizes = &w->runner->sizes;
    const int64_t window = w->options->length;
    carry_evaluate_piece p;
    int32_t *input = w->ids + *row;
    int32_t *target = w->ids + sizes->tokens + *row;
    if (l->length > 0 && (l->length == window || !l->reader.has_file)) { /* a new window or text begins */
        l->slot =
            window > 0 ? (int32_t)((l->slot + 1) % sizes->slots) : l->slot; /* one step may have several windows */
        l->length = 0;
    }
    most = window > 0 && most > window - l->length ? window - l->length : most;
    CARRY_TRY(carry_evaluate_reader_next(&w->files, &l->reader, most, &p, &w->result->files));
    *is_added = p.count > 0;
    if (p.count == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(l->length == 0 ? w->runner->ops->clear_slot(w->runner, l->slot) : CARRY_OK);
    for (int64_t i = 0; i < p.count; i++) {
        input[i] = (int32_t)p.id[i];
        target[i] = (int32_t)p.id[i + 1];
    }
    if (sizes->pages == 0 && l->length + p.count > sizes->context) {
        l->length = 1; /* without attention a token's position does not matter */
    }
    w->runs[s->count] = (carry_run){.slot = l->slot,
                                    .pages = w->pages + (int64_t)l->slot * w->page_list,
                                    .length = l->length,
                                    .ids = input,
                                    .targets = target,
                                    .count = p.count};
    s->piece[s->count++] =
        (piece){.file = l->reader.file, .first = p.first, .count = p.count, .bytes = p.bytes, .ends_file = p.ends_file};
    l->length += p.count;
    *row += p.count;
    return CARRY_OK;
}

/* Fills the runs of the next step: an equal share for each text, or windows until it is full. */
static carry_status fill(work *w, step *s) {
    const carry_runner_sizes *sizes = &w->runner->sizes;
    int64_t row = 0;
    for (int64_t i = 0; i < w->lanes; i++) {
        const int64_t share = (sizes->tokens - row) / (w->lanes - i);
        const int64_t most = w->options->length == 0 && share > BLOCK ? share / BLOCK * BLOCK : share;
        bool is_added = true;
        CARRY_TRY(add_run(w, &w->lane[i], s, most, &row, &is_added));
        while (w->options->length > 0 && is_added && row < sizes->tokens && s->count < sizes->sequences) {
            CARRY_TRY(add_run(w, &w->lane[i], s, sizes->tokens - row, &row, &is_added));
        }
    }
    return CARRY_OK;
}

/* If the device works asynchronously, a step is enqueued before the result of the previous one is read. */
static carry_status read_all(work *w) {
    for (int64_t turn = 0;; turn++) {
        step *next = &w->steps[turn % 2];
        step *before = &w->steps[(turn + 1) % 2];
        CARRY_TRY(fill(w, next));
        if (next->count > 0) {
            CARRY_TRY(w->runner->ops->step(w->runner, w->runs, next->count));
        }
        CARRY_TRY(settle(w, before));
        if (next->count == 0) {
            return CARRY_OK;
        }
        CARRY_TRY(w->runner->overlaps ? CARRY_OK : settle(w, next));
    }
}

static carry_status count_words(work *w) {
    int64_t all = 0;
    for (int64_t i = 0; i < carry_text_files(w->files.text); i++) {
        bool is;
        int64_t words;
        CARRY_TRY(carry_wikitext_is(w->ctx, carry_text_path(w->files.text, i), &is));
        if (!is) {
            return CARRY_OK;
        }
        CARRY_TRY(carry_wikitext_words(w->ctx, carry_text_path(w->files.text, i), &words));
        all += words;
    }
    w->result->words = all;
    return CARRY_OK;
}

carry_status carry_evaluate(carry_ctx *ctx, const carry_model *model, const char *path,
                            const carry_evaluate_options *options, carry_evaluation *result) {
    *result = (carry_evaluation){0};
    double started = carry_seconds();
    carry_text *text;
    const carry_text_options how = {.tokenizer = model->tokenizer, .take_binary = options->take_binary};
    CARRY_TRY(carry_text_open(ctx, &text, &path, 1, &how));
    work w = {.ctx = ctx,
              .model = model,
              .options = options,
              .result = result,
              .files = {.ctx = ctx, .model = model, .text = text, .from_start = options->from_start}};
    carry_status status = open_work(&w);
    status = status == CARRY_OK ? read_all(&w) : status;
    status = status == CARRY_OK ? count_words(&w) : status;
    result->seconds = carry_seconds() - started;
    close_work(&w);
    carry_text_free(text);
    return status;
}

double carry_evaluation_loss(const carry_evaluation *evaluation) {
    return evaluation->tokens > 0 ? evaluation->nll / (double)evaluation->tokens : (double)NAN;
}

double carry_evaluation_bits_per_byte(const carry_evaluation *evaluation) {
    return evaluation->bytes > 0 ? evaluation->nll / log(2.0) / (double)evaluation->bytes : (double)NAN;
}
