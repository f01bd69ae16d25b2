/* Prompts to text vectors: opening the encoder and its tokenizer, encoding, and the cache of recent prompts. */
#include "model/text/prompts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/text/umt5.h"
#include "tokenizer/unigram.h"

/* A prompt and its encoding. */
typedef struct kept {
    char *text;
    size_t length;
    float *hidden; /* [rows, text_dim] */
    int64_t rows, left_out;
    uint64_t used;
} kept;

struct carry_prompts {
    carry_ctx *ctx;
    carry_unigram *tokenizer;
    carry_umt5 *encoder;
    char folder[CARRY_FILE_PATH];
    bool is_on_gpu;
    int64_t text_len, text_dim;
    int64_t *ids;
    uint64_t uses;
    kept kept[CARRY_PROMPTS_KEPT];
};

/* Opens tokenizer.json or spiece.model in the encoder's folder, or in the folder `tokenizer` next to it. */
static carry_status open_tokenizer(carry_prompts *p, const char *folder) {
    char beside[CARRY_FILE_PATH];
    const carry_status status = carry_unigram_open(p->ctx, &p->tokenizer, folder);
    if (status != CARRY_ENOTFOUND) {
        return status;
    }
    CARRY_TRY(carry_file_in(p->ctx, beside, folder, "../tokenizer"));
    const carry_status second = carry_unigram_open(p->ctx, &p->tokenizer, beside);
    if (second == CARRY_ENOTFOUND) {
        return carry_fail(
            p->ctx, CARRY_ENOTFOUND,
            "the text encoder %s has no tokenizer: tokenizer.json or spiece.model is looked for there and "
            "in %s",
            folder, beside);
    }
    return second;
}

/* The size in bytes of an encoder in 16 bits: the matrices of its layers and the table of tokens. */
static double encoder_bytes(const carry_umt5_config *c) {
    const double inner = (double)(c->num_heads * c->d_kv);
    const double layer = 4.0 * inner * (double)c->d_model + 3.0 * (double)c->d_model * (double)c->d_ff;
    return 2.0 * ((double)c->num_layers * layer + (double)c->vocab_size * (double)c->d_model);
}

static carry_status open_encoder(carry_prompts *p, const carry_prompts_options *o) {
    carry_umt5_config config;
    size_t available = 0;
    size_t total = 0;
    CARRY_TRY(carry_umt5_config_read(p->ctx, &config, o->folder));
    if (config.d_model != o->text_dim) {
        return carry_fail(p->ctx, CARRY_ESHAPE,
                          "the text encoder %s makes %" PRId64 " numbers a token, and the model takes %" PRId64,
                          o->folder, config.d_model, o->text_dim);
    }
    if (o->device != 0) {
        CARRY_TRY(carry_device_memory(p->ctx, &available, &total, o->device));
        const double needs = 1.1 * encoder_bytes(&config) + (double)o->spare;
        const carry_status status = needs <= (double)available ? carry_umt5_open(p->ctx, &p->encoder, o->folder,
                                                                                 o->device, CARRY_BF16, o->text_len)
                                                               : CARRY_EMEMORY;
        p->is_on_gpu = status == CARRY_OK;
        if (status != CARRY_EMEMORY) {
            return status;
        }
        carry_log(p->ctx, CARRY_LOG_WARNING,
                  "the text encoder runs on the CPU: it needs %.1f GB of the GPU, and %.1f of %.1f are free",
                  1e-9 * needs, 1e-9 * (double)available, 1e-9 * (double)total);
    }
    return carry_umt5_open(p->ctx, &p->encoder, o->folder, 0, CARRY_F32, o->text_len);
}

carry_status carry_prompts_open(carry_ctx *ctx, carry_prompts **made, const carry_prompts_options *options) {
    *made = NULL;
    carry_prompts *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text encoder");
    }
    p->ctx = ctx;
    p->text_len = options->text_len;
    p->text_dim = options->text_dim;
    (void)snprintf(p->folder, sizeof p->folder, "%s", options->folder);
    p->ids = calloc((size_t)p->text_len, sizeof *p->ids);
    carry_status status = p->ids != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: tokens");
    status = status == CARRY_OK ? open_tokenizer(p, options->folder) : status;
    status = status == CARRY_OK ? open_encoder(p, options) : status;
    if (status != CARRY_OK) {
        carry_prompts_free(p);
        return status;
    }
    *made = p;
    return CARRY_OK;
}

static void forget(kept *k) {
    free(k->text);
    free(k->hidden);
    *k = (kept){0};
}

void carry_prompts_free(carry_prompts *p) {
    if (p != NULL) {
        for (int i = 0; i < CARRY_PROMPTS_KEPT; i++) {
            forget(&p->kept[i]);
        }
        carry_umt5_free(p->encoder);
        carry_unigram_free(p->tokenizer);
        free(p->ids);
        free(p);
    }
}

/* Returns the cache entry of a prompt, or the least recently used one, emptied. */
static kept *find(carry_prompts *p, const char *prompt, size_t length) {
    kept *oldest = &p->kept[0];
    for (int i = 0; i < CARRY_PROMPTS_KEPT; i++) {
        kept *k = &p->kept[i];
        if (k->text != NULL && k->length == length && memcmp(k->text, prompt, length) == 0) {
            return k;
        }
        oldest = k->used < oldest->used ? k : oldest;
    }
    forget(oldest);
    return oldest;
}

/* Replaces runs of ASCII spaces by one space and drops those at the ends. */
static size_t clean(char *to, const char *prompt, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        const bool space = prompt[i] == ' ' || (prompt[i] >= '\t' && prompt[i] <= '\r');
        if (!space || (count > 0 && to[count - 1] != ' ')) {
            to[count++] = space ? ' ' : prompt[i];
        }
    }
    return count > 0 && to[count - 1] == ' ' ? count - 1 : count;
}

/* Frees the GPU memory of the encoder, which others can then use. */
static carry_status move_to_cpu(carry_prompts *p) {
    carry_log(p->ctx, CARRY_LOG_WARNING, "the GPU's memory has run out: the text encoder goes on on the CPU: %s",
              carry_ctx_error(p->ctx));
    carry_umt5_free(p->encoder);
    p->encoder = NULL;
    p->is_on_gpu = false;
    return carry_umt5_open(p->ctx, &p->encoder, p->folder, 0, CARRY_F32, p->text_len);
}

static carry_status encode(carry_prompts *p, kept *k, const char *prompt, size_t length) {
    CARRY_SPAN(p->ctx, "model", "text encode");
    char *text = malloc(length + 1);
    char *cleaned = malloc(length + 1);
    carry_status status = text != NULL && cleaned != NULL
                              ? CARRY_OK
                              : carry_fail(p->ctx, CARRY_EMEMORY, "out of memory: a prompt of %zu bytes", length);
    if (status == CARRY_OK) {
        memcpy(text, prompt, length);
        text[length] = '\0';
        status = carry_unigram_encode(p->tokenizer, p->ids, p->text_len, &k->rows, &k->left_out, cleaned,
                                      clean(cleaned, prompt, length));
    }
    free(cleaned);
    if (status == CARRY_OK) {
        k->hidden = carry_aligned_new((size_t)(k->rows * p->text_dim) * sizeof *k->hidden);
        if (k->hidden == NULL) {
            status = carry_fail(p->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " tokens", k->rows);
        }
    }
    if (status == CARRY_OK) {
        const carry_tensor hidden = carry_view_2d(k->hidden, CARRY_F32, k->rows, p->text_dim);
        status = carry_umt5_encode(p->encoder, hidden, carry_view_1d(p->ids, CARRY_I64, k->rows), k->rows);
        if (status == CARRY_EMEMORY && p->is_on_gpu) {
            status = move_to_cpu(p);
            status = status == CARRY_OK
                         ? carry_umt5_encode(p->encoder, hidden, carry_view_1d(p->ids, CARRY_I64, k->rows), k->rows)
                         : status;
        }
    }
    if (status != CARRY_OK) {
        free(text);
        forget(k);
        return status;
    }
    k->text = text;
    k->length = length;
    return CARRY_OK;
}

carry_status carry_prompts_encode(carry_prompts *p, carry_tensor conditioning, int64_t *rows, int64_t *left_out,
                                  const char *prompt, size_t length) {
    const int64_t shape[] = {p->text_len, p->text_dim};
    CARRY_TRY(carry_tensor_expect(p->ctx, "conditioning", &conditioning, 2, shape));
    kept *k = find(p, prompt, length);
    if (k->text == NULL) {
        CARRY_TRY(encode(p, k, prompt, length));
    }
    k->used = ++p->uses;
    const size_t filled = (size_t)(k->rows * p->text_dim);
    memcpy(conditioning.data, k->hidden, filled * sizeof(float));
    memset((float *)conditioning.data + filled, 0, ((size_t)(shape[0] * shape[1]) - filled) * sizeof(float));
    *rows = k->rows;
    *left_out = k->left_out;
    return CARRY_OK;
}
