/* Windows of tokens. */
#include "train/data/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/threads.h"
#include "train/data/shuffle.h"

#define WINDOW_BYTES ((int64_t)16 << 20)
#define BLOCK_STREAM 0x626C6F636B73u /* distinguishes random numbers for blocks from others of the same seed */
#define SHIFT_STREAM 0x7368696674u

struct carry_corpus {
    carry_text *text;
    carry_corpus_options options;
    carry_encoder **encoder; /* one per thread */
    int threads;
    int64_t blocks;
    int64_t *order; /* order of the blocks in the current epoch */
    int64_t *start; /* index in `order` of the first block of each window, and the end */
    int64_t windows;
    int64_t epoch, window; /* the current ones; -1: none */
    bool is_wide;          /* tokens are uint32_t */
    void *tokens;
    int64_t count;
    size_t room; /* bytes */
    int64_t text_bytes;
    int64_t shift; /* number of tokens before the first row */
};

/* The encoding of one window: its block i is bytes[from[i]..from[i+1]). */
typedef struct encoding {
    carry_corpus *corpus;
    carry_bytes bytes;
    size_t *from;
    bool *begins_file, *ends_file;
    carry_ids *ids;
    int64_t count;
    bool *failed; /* for each block */
} encoding;

/* Assigns the blocks of an epoch to windows. */
static void deal_blocks(carry_corpus *c, int64_t epoch) {
    bool shuffled = !c->options.in_order && carry_text_bytes(c->text) > c->options.window_bytes;
    for (int64_t i = 0; i < c->blocks; i++) {
        c->order[i] = shuffled ? carry_shuffle(c->options.seed, BLOCK_STREAM + (uint64_t)epoch, c->blocks, i) : i;
    }
    c->windows = 0;
    int64_t bytes = 0;
    for (int64_t i = 0; i < c->blocks; i++) {
        if (i == 0 || bytes >= c->options.window_bytes) {
            c->start[c->windows++] = i;
            bytes = 0;
        }
        bytes += carry_text_block_bytes(c->text, c->order[i]);
    }
    c->start[c->windows] = c->blocks;
}

static void encode_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    encoding *e = argument;
    carry_corpus *c = e->corpus;
    for (int64_t i = begin; i < end; i++) {
        e->failed[i] =
            carry_encode_text(c->encoder[worker], &e->ids[i], e->bytes.at + e->from[i], e->from[i + 1] - e->from[i],
                              e->begins_file[i] ? CARRY_SPECIALS_FOUND : CARRY_TEXT_GOES_ON) != CARRY_OK;
    }
}

static carry_status no_memory(carry_ctx *ctx) {
    return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a window of a corpus");
}

static void encoding_free(encoding *e) {
    for (int64_t i = 0; e->ids != NULL && i < e->count; i++) {
        carry_ids_free(&e->ids[i]);
    }
    free(e->bytes.at);
    free(e->from);
    free(e->begins_file);
    free(e->ends_file);
    free(e->ids);
    free(e->failed);
}

/* Reads and encodes blocks order[first..first+count). The caller frees *e, also after a failure. */
static carry_status encode_all(carry_ctx *ctx, carry_corpus *c, encoding *e, int64_t first, int64_t count) {
    *e = (encoding){.corpus = c, .count = count};
    e->from = calloc((size_t)count + 1, sizeof *e->from);
    e->begins_file = calloc((size_t)count, sizeof *e->begins_file);
    e->ends_file = calloc((size_t)count, sizeof *e->ends_file);
    e->ids = calloc((size_t)count, sizeof *e->ids);
    e->failed = calloc((size_t)count, sizeof *e->failed);
    if (e->from == NULL || e->begins_file == NULL || e->ends_file == NULL || e->ids == NULL || e->failed == NULL) {
        return no_memory(ctx);
    }
    for (int64_t i = 0; i < count; i++) {
        CARRY_TRY(carry_text_read(ctx, c->text, c->order[first + i], &e->bytes, &e->ends_file[i]));
        e->begins_file[i] = carry_text_begins_file(c->text, c->order[first + i]);
        e->from[i + 1] = e->bytes.count;
    }
    carry_parallel(ctx, count, 1, encode_blocks, e);
    for (int64_t i = 0; i < count; i++) {
        if (e->failed[i]) {
            return no_memory(ctx);
        }
    }
    return CARRY_OK;
}

static void put_token(carry_corpus *c, uint32_t id) {
    if (c->is_wide) {
        ((uint32_t *)c->tokens)[c->count++] = id;
    } else {
        ((uint16_t *)c->tokens)[c->count++] = (uint16_t)id;
    }
}

/* Stores the tokens of all blocks one after the other, preceded by `before` unless it is -1. */
static carry_status keep_tokens(carry_ctx *ctx, carry_corpus *c, const encoding *e, int64_t before) {
    size_t total = 1;
    for (int64_t i = 0; i < e->count; i++) {
        if (!carry_size_add(&total, total, e->ids[i].count + 1)) {
            return no_memory(ctx);
        }
    }
    size_t bytes;
    if (!carry_size_mul(&bytes, total, c->is_wide ? sizeof(uint32_t) : sizeof(uint16_t))) {
        return no_memory(ctx);
    }
    if (bytes > c->room) {
        void *grown = realloc(c->tokens, bytes);
        if (grown == NULL) {
            return no_memory(ctx);
        }
        c->tokens = grown;
        c->room = bytes;
    }
    int64_t end = carry_tokenizer_end(c->options.tokenizer);
    c->count = 0;
    if (before >= 0) {
        put_token(c, (uint32_t)before);
    }
    for (int64_t i = 0; i < e->count; i++) {
        for (size_t j = 0; j < e->ids[i].count; j++) {
            put_token(c, e->ids[i].id[j]);
        }
        if (e->ends_file[i] && end >= 0) {
            put_token(c, (uint32_t)end);
        }
    }
    c->text_bytes = (int64_t)e->bytes.count;
    return CARRY_OK;
}

/* Sets *before to the last token before a window, or to -1 if windows are shuffled or no token comes before it. */
static carry_status find_token_before(carry_ctx *ctx, carry_corpus *c, int64_t window, int64_t *before) {
    *before = -1;
    for (int64_t i = c->start[window] - 1; c->options.in_order && i >= 0 && *before < 0; i--) {
        encoding e;
        carry_status status = encode_all(ctx, c, &e, i, 1);
        if (status == CARRY_OK) {
            int64_t end = carry_tokenizer_end(c->options.tokenizer);
            size_t count = e.ids[0].count;
            *before = e.ends_file[0] && end >= 0 ? end : count > 0 ? (int64_t)e.ids[0].id[count - 1] : -1;
        }
        encoding_free(&e);
        CARRY_TRY(status);
    }
    return CARRY_OK;
}

carry_status carry_corpus_load(carry_ctx *ctx, carry_corpus *corpus, int64_t epoch, int64_t window) {
    carry_corpus *c = corpus;
    if (epoch < 0 || window < 0) {
        return carry_fail(ctx, CARRY_ERANGE, "there is no window %lld in epoch %lld", (long long)window,
                          (long long)epoch);
    }
    bool same_order = c->windows == 1 || c->options.in_order; /* all epochs are then equal */
    if (c->window >= 0 && c->window == window && (c->epoch == epoch || same_order)) {
        c->epoch = epoch;
        return CARRY_OK;
    }
    CARRY_SPAN(ctx, "train", "tokenize");
    if (c->epoch != epoch) {
        c->window = -1;
        deal_blocks(c, epoch);
        c->epoch = epoch;
    }
    if (window >= c->windows) {
        return carry_fail(ctx, CARRY_ERANGE, "epoch %lld of this corpus has %lld windows, and none is %lld",
                          (long long)epoch, (long long)c->windows, (long long)window);
    }
    int64_t before;
    c->window = -1;
    CARRY_TRY(find_token_before(ctx, c, window, &before));
    encoding e;
    carry_status status = encode_all(ctx, c, &e, c->start[window], c->start[window + 1] - c->start[window]);
    if (status == CARRY_OK) {
        status = keep_tokens(ctx, c, &e, before);
    }
    encoding_free(&e);
    CARRY_TRY(status);
    c->window = window;
    return CARRY_OK;
}

int64_t carry_corpus_windows(const carry_corpus *corpus) {
    return corpus->windows;
}

int64_t carry_corpus_tokens(const carry_corpus *corpus) {
    return corpus->count;
}

int64_t carry_corpus_window_bytes(const carry_corpus *corpus) {
    return corpus->text_bytes;
}

int64_t carry_corpus_token(const carry_corpus *corpus, int64_t index) {
    return corpus->is_wide ? (int64_t)((const uint32_t *)corpus->tokens)[index]
                           : (int64_t)((const uint16_t *)corpus->tokens)[index];
}

/* In later epochs rows start at other tokens, so that a small corpus is not always cut at the same places. */
static carry_status open_window(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                                int64_t *rows, int64_t *windows) {
    carry_corpus *c = state;
    CARRY_TRY(carry_corpus_load(ctx, c, epoch, window));
    int64_t labels = c->count > 0 ? c->count - 1 : 0;
    c->shift = 0;
    if (!padded && !c->options.in_order && epoch > 0 && labels >= 2 * length) {
        c->shift = carry_draw(c->options.seed, SHIFT_STREAM + (uint64_t)epoch, (uint64_t)window, length);
    }
    *rows = padded || labels < length ? (labels + length - 1) / length : (labels - c->shift) / length;
    *windows = c->windows;
    return CARRY_OK;
}

static void take_row(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label) {
    const carry_corpus *c = state;
    int64_t end = carry_tokenizer_end(c->options.tokenizer);
    int64_t first = c->shift + row * length;
    for (int64_t i = 0; i < length; i++) {
        int64_t at = first + i;
        input[i] = at < c->count ? carry_corpus_token(c, at) : end >= 0 ? end : 0;
        label[i] = at + 1 < c->count ? carry_corpus_token(c, at + 1) : CARRY_NO_LABEL;
    }
}

carry_source carry_corpus_source(carry_corpus *corpus) {
    return (carry_source){.vocabulary = carry_tokenizer_size(corpus->options.tokenizer),
                          .end = carry_tokenizer_end(corpus->options.tokenizer),
                          .state = corpus,
                          .open = open_window,
                          .row = take_row};
}

static carry_status make_encoders(carry_ctx *ctx, carry_corpus *c) {
    c->threads = carry_ctx_threads(ctx);
    c->encoder = calloc((size_t)c->threads, sizeof(carry_encoder *));
    if (c->encoder == NULL) {
        return no_memory(ctx);
    }
    for (int i = 0; i < c->threads; i++) {
        CARRY_TRY(carry_encoder_new(ctx, &c->encoder[i], c->options.tokenizer));
    }
    return CARRY_OK;
}

carry_status carry_corpus_open(carry_ctx *ctx, carry_corpus **corpus, const char *const *paths, int count,
                               const carry_corpus_options *options) {
    *corpus = NULL;
    carry_corpus *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return no_memory(ctx);
    }
    made->options = *options;
    made->options.window_bytes = options->window_bytes > 0 ? options->window_bytes : WINDOW_BYTES;
    made->epoch = made->window = -1;
    made->is_wide = carry_tokenizer_size(options->tokenizer) > UINT16_MAX + 1;
    carry_text_options about = {
        .tokenizer = options->tokenizer, .block_bytes = options->block_bytes, .take_binary = options->take_binary};
    carry_status status = carry_text_open(ctx, &made->text, paths, count, &about);
    if (status == CARRY_OK) {
        made->blocks = carry_text_blocks(made->text);
        made->order = calloc((size_t)made->blocks, sizeof *made->order);
        made->start = calloc((size_t)made->blocks + 1, sizeof *made->start);
        status = made->order == NULL || made->start == NULL ? no_memory(ctx) : make_encoders(ctx, made);
    }
    if (status != CARRY_OK) {
        carry_corpus_free(made);
        return status;
    }
    *corpus = made;
    return CARRY_OK;
}

void carry_corpus_free(carry_corpus *corpus) {
    if (corpus == NULL) {
        return;
    }
    for (int i = 0; corpus->encoder != NULL && i < corpus->threads; i++) {
        carry_encoder_free(corpus->encoder[i]);
    }
    free(corpus->encoder);
    free(corpus->order);
    free(corpus->start);
    free(corpus->tokens);
    carry_text_free(corpus->text);
    free(corpus);
}

const carry_text *carry_corpus_text(const carry_corpus *corpus) {
    return corpus->text;
}

uint32_t carry_corpus_crc(const carry_corpus *corpus) {
    uint64_t about[] = {carry_text_crc(corpus->text), carry_tokenizer_crc(corpus->options.tokenizer),
                        corpus->options.seed, (uint64_t)corpus->options.window_bytes, corpus->options.in_order};
    return carry_crc32c(0, about, sizeof about);
}
