/* Evaluation: a text's tokens as they are read, some rows at a time; on a GPU the next ones are read while it works. */
#include "engine/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "tokenizer/text.h"
#include "engine/scorer.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/wikitext.h"

/* Tokens of a call: enough for large products, little enough for memory; and on a GPU. */
#define SOME 1024
#define SOME_ON_GPU 16384
#define LENGTH_MOST ((int64_t)1 << 24)
#define NO_LABEL (-100)

typedef struct work {
    carry_ctx *ctx;
    const carry_model *model;
    const carry_evaluate_options *options;
    carry_evaluation *result;
    const carry_text *text;
    carry_encoder *encoder;
    carry_bytes bytes;
    carry_ids ids; /* not yet predicted, but the first, which was: the last token of what came before */
    int64_t counted_before, file_bytes; /* bytes of the files before this one, and of this one as far as it was read */
    int64_t first_bytes;                /* of its first token */
    bool has_start;                     /* which is predicted */
    int64_t length;                     /* of a row */
    int64_t rows;
    carry_scorer scorer;
    int64_t pending;      /* tokens of the call whose result was not taken; 0: none */
    const int64_t *label; /* its labels */
} work;

static void close_work(work *w) {
    carry_scorer_close(&w->scorer);
    carry_encoder_free(w->encoder);
    carry_ids_free(&w->ids);
    free(w->bytes.at);
}

static carry_status open_work(work *w) {
    const int64_t length = w->options->length;
    if (length < 0 || length > LENGTH_MOST) {
        return carry_fail(w->ctx, CARRY_ESIZE, "windows of %" PRId64 " tokens: expected 1 to %" PRId64, length,
                          LENGTH_MOST);
    }
    const int64_t usual = w->model->lm->own.device != 0 ? SOME_ON_GPU : SOME;
    const int64_t some = w->options->at_once > 0 ? w->options->at_once : usual;
    w->length = length > 0 ? length : some;
    w->rows = length > 0 && length < some ? some / length : 1;
    const carry_scorer_options options = {.most = w->rows * w->length,
                                          .dtype = w->options->dtype,
                                          .has_state = length == 0,
                                          .no_graph = w->options->no_graph};
    CARRY_TRY(carry_scorer_open(w->model->lm, &w->scorer, &options));
    return carry_encoder_new(w->ctx, &w->encoder, w->model->tokenizer);
}

/* Adds the result of the call before, if there is one. */
static carry_status settle(work *w) {
    double loss = 0.0;
    int64_t counted = 0;
    bool is_there;
    CARRY_TRY(carry_scorer_take(&w->scorer, &is_there, &loss, &counted));
    if (!is_there) {
        return CARRY_OK;
    }
    if (!isfinite(loss)) {
        return carry_fail(w->ctx, CARRY_ERANGE, "the loss of tokens %" PRId64 " to %" PRId64 " is %f: not finite",
                          w->result->tokens, w->result->tokens + w->pending - 1, loss);
    }
    w->result->nll += loss;
    w->result->tokens += counted;
    for (int64_t i = 0; i < w->pending; i++) {
        size_t bytes = 0;
        (void)carry_tokenizer_token(w->model->tokenizer, w->label[i], &bytes);
        w->result->bytes += (int64_t)bytes;
    }
    w->pending = 0;
    if (w->options->progress != NULL &&
        !w->options->progress(w->options->user, w->result->bytes, carry_text_bytes(w->text))) {
        return carry_fail(w->ctx, CARRY_EINTERRUPTED, "interrupted after %" PRId64 " tokens", w->result->tokens);
    }
    return CARRY_OK;
}

/* The tokens after ids[at], `count` of them, each predicted from those before it in its row. A GPU is left at work. */
static carry_status predict(work *w, size_t at, int64_t count) {
    int64_t length = count < w->length ? count : w->length;
    int64_t rows = (count + length - 1) / length;
    int64_t *input;
    int64_t *label;
    carry_scorer_rows(&w->scorer, &input, &label);
    for (int64_t i = 0; i < rows * length; i++) { /* the last row may be longer than what is left */
        input[i] = i < count ? (int64_t)w->ids.id[at + (size_t)i] : 0;
        label[i] = i < count ? (int64_t)w->ids.id[at + (size_t)i + 1] : NO_LABEL;
    }
    CARRY_TRY(settle(w));
    CARRY_TRY(carry_scorer_run(&w->scorer, rows, length));
    w->pending = count;
    w->label = label;
    return w->model->lm->own.device == 0 ? settle(w) : CARRY_OK;
}

/* Predicts what there is: by full calls, and at the end of a file the rest. */
static carry_status predict_all(work *w, bool rest) {
    size_t some = (size_t)(w->rows * w->length);
    size_t at = 0;
    while (w->ids.count > at + some) {
        CARRY_TRY(predict(w, at, (int64_t)some));
        at += some;
    }
    if (rest && w->ids.count > at + 1) {
        CARRY_TRY(predict(w, at, (int64_t)(w->ids.count - at - 1)));
        at = w->ids.count - 1;
    }
    if (rest) {
        CARRY_TRY(settle(w));
    }
    if (at > 0) {
        memmove(w->ids.id, w->ids.id + at, (w->ids.count - at) * sizeof *w->ids.id);
        w->ids.count -= at;
    }
    return CARRY_OK;
}

/* Only the tokens before the text were read: the tokenizer's tokens, or the start token if it is wanted. */
static carry_status begin_file(work *w) {
    w->ids.count = 0;
    w->counted_before = w->result->bytes;
    w->file_bytes = 0;
    if (w->scorer.state != NULL) {
        CARRY_TRY(carry_lm_state_clear(w->scorer.state, 0));
    }
    CARRY_TRY(carry_encode_start(w->ctx, w->model->tokenizer, &w->ids));
    w->has_start = w->ids.count > 0 || (w->options->from_start && w->model->start >= 0);
    if (!w->has_start || w->ids.count > 0) {
        return CARRY_OK;
    }
    if (!carry_list_grow(&w->ids.id, &w->ids.room, 0, 1, sizeof *w->ids.id)) {
        return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: a token");
    }
    w->ids.id[w->ids.count++] = (uint32_t)w->model->start;
    return CARRY_OK;
}

/* Until here the bytes of tokens were counted, which normalizers may change; a file has its own. */
static void end_file(work *w) {
    if (w->result->bytes > w->counted_before) {
        w->result->bytes = w->counted_before + w->file_bytes - (w->has_start ? 0 : w->first_bytes);
    }
    w->result->files++;
}

static carry_status read_all(work *w) {
    int64_t blocks = carry_text_blocks(w->text);
    bool ends_file = true;
    for (int64_t block = 0; block < blocks; block++) {
        bool begins_file = ends_file;
        if (begins_file) {
            CARRY_TRY(begin_file(w));
        }
        size_t before = w->ids.count;
        w->bytes.count = 0;
        CARRY_TRY(carry_text_read(w->ctx, w->text, block, &w->bytes, &ends_file));
        CARRY_TRY(carry_encode(w->ctx, w->encoder, &w->ids, w->bytes.at, w->bytes.count,
                               begins_file ? CARRY_SPECIALS_FOUND : CARRY_TEXT_GOES_ON));
        w->file_bytes += (int64_t)w->bytes.count;
        if (begins_file && w->ids.count > before) {
            size_t bytes = 0;
            (void)carry_tokenizer_token(w->model->tokenizer, w->ids.id[before], &bytes);
            w->first_bytes = (int64_t)bytes;
        }
        CARRY_TRY(predict_all(w, ends_file));
        if (ends_file) {
            end_file(w);
        }
    }
    return CARRY_OK;
}

static carry_status count_words(work *w) {
    int64_t all = 0;
    for (int64_t i = 0; i < carry_text_files(w->text); i++) {
        bool is;
        int64_t words;
        CARRY_TRY(carry_wikitext_is(w->ctx, carry_text_path(w->text, i), &is));
        if (!is) {
            return CARRY_OK;
        }
        CARRY_TRY(carry_wikitext_words(w->ctx, carry_text_path(w->text, i), &words));
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
    work w = {.ctx = ctx, .model = model, .options = options, .result = result, .text = text};
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
