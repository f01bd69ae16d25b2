/* The table of what a run may be told. */
#include "train/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "train/mixers.h"

#define MOST 9e15 /* a whole number that a double holds */
#define AT(field) offsetof(carry_train_options, field), sizeof(((carry_train_options *)0)->field)
#define WHOLE(name, field, least, most, fixed, help) \
    { name, CARRY_TRAIN_WHOLE, AT(field), least, most, fixed, "N", help }
#define REAL(name, field, least, most, help) \
    { name, CARRY_TRAIN_REAL, AT(field), least, most, false, "X", help }
#define TEXT(name, field, fixed, argument, help) \
    { name, CARRY_TRAIN_TEXT, AT(field), 0, 0, fixed, argument, help }
#define FLAG(name, field, fixed, help) \
    { name, CARRY_TRAIN_FLAG, AT(field), 0, 0, fixed, NULL, help }

const carry_train_key carry_train_keys[] = {
    TEXT("data", data, false, "PATH", "text to learn: a file or a folder; more may follow as words"),
    TEXT("task", task, true, "NAME", "learn a synthetic task instead: mqar, s5, s5-swaps, copy"),
    WHOLE("pairs", pairs, 1, MOST, true, "mqar: pairs to recall"),
    WHOLE("fewest-pairs", fewest_pairs, 1, MOST, true, "mqar: rows to learn from have N, 2N, ... pairs (all have all)"),
    TEXT("eval-data", eval_data, false, "FILE", "held-out text (the last twentieth of the text)"),
    TEXT("tokenizer", tokenizer, true, "PATH", "a tokenizer.json or its folder (trained on the text)"),
    WHOLE("vocab", vocab, 2, 1 << 21, true, "tokens: of the tokenizer that is trained, or of the task"),
    FLAG("binary", binary, false, "take files that do not look like text"),
    TEXT("model", model, true, "DIR", "start from this model's weights"),
    TEXT("architecture", architecture, true, "FILE", "a config.json that describes the model"),
    TEXT("type", type, true, "NAME", "gated_deltanet (the default) or delta_net"),
    WHOLE("hidden", hidden, 1, 1 << 20, true, "width of the model (192)"),
    WHOLE("layers", layers, 1, 4096, true, "layers (4)"),
    WHOLE("heads", heads, 1, 4096, true, "heads (hidden / head-dim)"),
    WHOLE("head-dim", head_dim, 1, 4096, true, "keys of a head (64, or 32 where hidden is no multiple)"),
    WHOLE("conv", conv, 0, 16, true, "width of the short convolutions; 0: none (4)"),
    REAL("expand-v", expand_v, 1e-3, 1e3, "values of a head over its keys (1)"),
    REAL("init", init, 1e-6, 1e3, "standard deviation of start weights (0.02)"),
    REAL("forget", forget, 1e-6, 1e3, "at the start, heads forget so many times as fast (1: within 1 to 10000 tokens)"),
    FLAG("neg-eigval", neg_eigval, true, "allow negative eigenvalues"),
    FLAG("tie", tie, true, "the output layer is the embeddings"),
    WHOLE("batch", batch, 1, MOST, false, "rows of a step, over all ranks (8)"),
    WHOLE("length", length, 1, MOST, true, "tokens of a row (256, or the task's)"),
    WHOLE("accumulate", accumulate, 1, MOST, false, "parts in which a rank does its rows, to save memory (1)"),
    WHOLE("sequence-ranks", sequence_ranks, 1, 4096, false, "ranks that share a row; the others share the batch (1)"),
    TEXT("dtype", dtype, false, "TYPE", "of activations: f32, bf16 or f16; weights stay f32 (f32)"),
    TEXT("method", method, false, "NAME", "of the recurrence (chunk); linear: a model without the delta rule"),
    FLAG("recompute", recompute, false, "keep less from forward for backward: slower, less memory"),
    WHOLE("steps", steps, 1, MOST, false, "steps of the optimizer (250)"),
    WHOLE("tokens", tokens, 1, MOST, false, "tokens to train on, instead of steps"),
    REAL("epochs", epochs, 1e-9, 1e9, "times through the text (about), instead of steps"),
    REAL("rate", rate, 1e-30, 1e3, "the learning rate at its highest (0.002)"),
    REAL("final-rate", final_rate, 0, 1, "of it, what the last step has (0.1)"),
    WHOLE("warmup", warmup, 0, MOST, false, "steps until it is highest (a twentieth, 100 at most)"),
    TEXT("schedule", schedule, false, "NAME", "constant, linear or cosine (cosine)"),
    REAL("clip", clip, 0, 1e30, "the largest norm of the gradients; 0: any (1)"),
    REAL("decay", decay, 0, 1e3, "weight decay (0.1)"),
    REAL("beta1", beta1, 0, 0.999999999, "AdamW's (0.9)"),
    REAL("beta2", beta2, 0, 0.999999999, "AdamW's (0.95)"),
    REAL("epsilon", epsilon, 1e-30, 1, "AdamW's (1e-8)"),
    WHOLE("seed", seed, 0, MOST, true, "of start weights, rows and their order (1)"),
    TEXT("out", out, false, "DIR", "where checkpoints go (trained/NAME)"),
    WHOLE("save-every", save_every, 1, MOST, false, "steps between checkpoints (100)"),
    WHOLE("keep", keep, 1, 1e6, false, "checkpoints kept (2)"),
    WHOLE("eval-every", eval_every, 0, MOST, false, "steps between evaluations; 0: none (100)"),
    WHOLE("eval-batches", eval_batches, 1, MOST, false, "batches of an evaluation, at most (8)"),
    WHOLE("log-every", log_every, 1, MOST, false, "steps between lines (10)"),
    {0},
};

const carry_train_key *carry_train_key_find(const char *name) {
    for (const carry_train_key *key = carry_train_keys; key->name != NULL; key++) {
        if (strcmp(key->name, name) == 0) {
            return key;
        }
    }
    return NULL;
}

carry_train_options carry_train_options_default(void) {
    carry_train_options o = {
        .type = "gated_deltanet",
        .expand_v = 1.0,
        .conv = 4,
        .batch = 8,
        .accumulate = 1,
        .sequence_ranks = 1,
        .dtype = "f32",
        .method = "chunk",
        .rate = 2e-3,
        .final_rate = 0.1,
        .clip = 1.0,
        .decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .epsilon = 1e-8,
        .warmup = -1,
        .schedule = "cosine",
        .seed = 1,
        .save_every = 100,
        .keep = 2,
        .eval_every = 100,
        .eval_batches = 8,
        .log_every = 10,
    };
    return o;
}

static carry_status set_text(carry_ctx *ctx, char *field, const carry_train_key *key, const char *value) {
    if (*value == '\0' || strlen(value) >= key->size) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s needs 1 to %zu bytes, and got %zu", key->name, key->size - 1,
                          strlen(value));
    }
    (void)snprintf(field, key->size, "%s", value);
    return CARRY_OK;
}

static carry_status set_flag(carry_ctx *ctx, bool *field, const carry_train_key *key, const char *value) {
    *field = strcmp(value, "true") == 0;
    if (!*field && strcmp(value, "false") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s is true or false, not '%.40s'", key->name, value);
    }
    return CARRY_OK;
}

static carry_status set_number(carry_ctx *ctx, void *field, const carry_train_key *key, const char *value) {
    char *end;
    errno = 0;
    const double real = strtod(value, &end);
    const bool is_whole = key->kind == CARRY_TRAIN_WHOLE;
    if (end == value || *end != '\0' || !isfinite(real) || (is_whole && real != floor(real))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s needs a %s number, not '%.40s'", key->name,
                          is_whole ? "whole" : "finite", value);
    }
    if (real < key->least || real > key->most) {
        return carry_fail(ctx, CARRY_ERANGE, "%s is %.40s: it is at least %g and at most %g", key->name, value,
                          key->least, key->most);
    }
    if (is_whole) {
        *(int64_t *)field = (int64_t)real;
    } else {
        *(double *)field = real;
    }
    return CARRY_OK;
}

carry_status carry_train_set(carry_ctx *ctx, carry_train_options *options, const char *name, const char *value) {
    const carry_train_key *key = carry_train_key_find(name);
    if (key == NULL) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no key '%.40s'", name);
    }
    void *field = (char *)options + key->offset;
    switch (key->kind) {
    case CARRY_TRAIN_TEXT:
        return set_text(ctx, field, key, value);
    case CARRY_TRAIN_FLAG:
        return set_flag(ctx, field, key, value);
    case CARRY_TRAIN_WHOLE:
    case CARRY_TRAIN_REAL:
        break;
    }
    return set_number(ctx, field, key, value);
}

void carry_train_options_write(carry_json_text *text, const carry_train_options *options) {
    const char *before = "{";
    for (const carry_train_key *key = carry_train_keys; key->name != NULL; key++) {
        const void *field = (const char *)options + key->offset;
        char number[64];
        const char *value = number;
        if (key->kind == CARRY_TRAIN_WHOLE) {
            (void)snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)field);
        } else if (key->kind == CARRY_TRAIN_REAL) {
            (void)snprintf(number, sizeof number, "%.17g", *(const double *)field);
        } else if (key->kind == CARRY_TRAIN_FLAG) {
            (void)snprintf(number, sizeof number, "%s", *(const bool *)field ? "true" : "false");
        } else {
            value = field;
        }
        carry_json_put_raw(text, "%s\n    ", before);
        carry_json_put_key(text, key->name);
        carry_json_put_raw(text, " ");
        carry_json_put_string(text, value);
        before = ",";
    }
    carry_json_put_raw(text, "\n  }");
}

/* A value that was never said stands in the file as 0, -1 or "". */
static bool is_unsaid(const carry_train_key *key, const char *value) {
    return *value == '\0' || strcmp(value, "-1") == 0 || (key->least > 0.0 && strcmp(value, "0") == 0);
}

carry_status carry_train_options_read(carry_ctx *ctx, carry_train_options *options, const carry_json *object) {
    for (const carry_train_key *key = carry_train_keys; key->name != NULL; key++) {
        const carry_json *node = carry_json_find(object, key->name);
        if (node == NULL || node->kind != CARRY_JSON_STRING || is_unsaid(key, node->as.text.bytes)) {
            continue;
        }
        CARRY_TRY(carry_train_set(ctx, options, key->name, node->as.text.bytes));
    }
    return CARRY_OK;
}

static carry_status check_names(carry_ctx *ctx, const carry_train_options *o) {
    carry_schedule_kind schedule;
    carry_dtype dtype;
    CARRY_TRY(carry_schedule_parse(ctx, &schedule, o->schedule));
    if (carry_dtype_parse(&dtype, o->dtype) != CARRY_OK || dtype == CARRY_I64) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no type '%s' for activations: f32, bf16 and f16 there are",
                          o->dtype);
    }
    if (strcmp(o->type, "gated_deltanet") != 0 && strcmp(o->type, "delta_net") != 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no model type '%s': gated_deltanet and delta_net there are",
                          o->type);
    }
    return carry_train_mixer(ctx, o->method, NULL, &(carry_train_mixing){0});
}

carry_status carry_train_options_check(carry_ctx *ctx, const carry_train_options *o, int ranks) {
    CARRY_TRY(check_names(ctx, o));
    if ((o->data[0] != '\0') == (o->task[0] != '\0')) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s",
                          o->task[0] != '\0' ? "a text and a task are two things to learn: give one"
                                             : "training needs a text or a task: --data FILE, or --task mqar");
    }
    if ((o->steps > 0) + (o->tokens > 0) + (o->epochs > 0.0) > 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "steps, tokens and epochs each say how long to train: give one");
    }
    if (ranks > 0 && ranks % o->sequence_ranks != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%d ranks cannot be grouped by %lld sequence ranks: the number must "
                          "divide that of ranks",
                          ranks, (long long)o->sequence_ranks);
    }
    const int64_t share = (ranks > 0 ? ranks / o->sequence_ranks : 1) * o->accumulate;
    if (o->batch % share != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a batch of %lld rows cannot be split over %lld data ranks in %lld parts each: give a "
                          "multiple of %lld",
                          (long long)o->batch, (long long)(share / o->accumulate), (long long)o->accumulate,
                          (long long)share);
    }
    if (o->length % o->sequence_ranks != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a sequence of %lld tokens cannot be split over %lld sequence ranks evenly",
                          (long long)o->length, (long long)o->sequence_ranks);
    }
    if (o->model[0] != '\0' && o->architecture[0] != '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT, "a model has its own architecture: give --model or --architecture");
    }
    return CARRY_OK;
}
