/* The table of options of a run. */
#include "train/options.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/nearest.h"
#include "core/tensor.h"
#include "model/lm/lm_fp8.h"
#include "train/data/examples.h"
#include "train/recurrences.h"
#include "train/presets.h"

#define MOST 9e15 /* whole numbers up to it are exact in a double */
#define AT(field) offsetof(carry_train_options, field), sizeof(((carry_train_options *)0)->field)
#define WHOLE(name, field, least, most, fixed, help) \
    { name, CARRY_TRAIN_WHOLE, AT(field), least, most, fixed, "N", help }
#define REAL(name, field, least, most, fixed, help) \
    { name, CARRY_TRAIN_REAL, AT(field), least, most, fixed, "X", help }
#define TEXT(name, field, fixed, argument, help) \
    { name, CARRY_TRAIN_TEXT, AT(field), 0, 0, fixed, argument, help }
#define FLAG(name, field, fixed, help) \
    { name, CARRY_TRAIN_FLAG, AT(field), 0, 0, fixed, NULL, help }

const carry_train_key carry_train_keys[] = {
    TEXT("preset", preset, true, "NAME",
         "a model with its batch size: gdn-130m, gdn-130m-128k, gdn-1b, deltanet-13m; other options override it"),
    TEXT("data", data, false, "PATH",
         "text to train on, a file or folder, or examples in JSON lines (.jsonl); more may follow as arguments"),
    TEXT("task", task, true, "NAME", "train on a synthetic task instead: mqar, s5, s5-swaps, copy"),
    WHOLE("pairs", pairs, 1, MOST, true, "mqar: pairs to recall"),
    WHOLE("fewest-pairs", fewest_pairs, 1, MOST, true, "mqar: training rows have N, 2N, ... pairs (all have --pairs)"),
    TEXT("eval-data", eval_data, false, "FILE", "held-out text (the last twentieth of the text)"),
    TEXT("tokenizer", tokenizer, true, "PATH", "a tokenizer.json or its folder (trained on the text)"),
    WHOLE("vocab", vocab, 2, 1 << 21, true, "vocabulary of the tokenizer to train, or of the task"),
    FLAG("binary", binary, false, "accept files that do not look like text"),
    TEXT("long-examples", long_examples, true, "NAME",
         ".jsonl: refuse or cut examples that are longer than a row (refuse)"),
    FLAG("in-order", in_order, true, ".jsonl: take examples in the order of the file instead of shuffling them"),
    TEXT("model", model, true, "DIR", "start from the weights of this model"),
    TEXT("architecture", architecture, true, "FILE", "a config.json that describes the model"),
    TEXT("type", type, true, "NAME", "gated_deltanet (the default) or delta_net"),
    WHOLE("hidden", hidden, 1, 1 << 20, true, "width of the model (192)"),
    WHOLE("layers", layers, 1, 4096, true, "layers (4)"),
    WHOLE("heads", heads, 1, 4096, true, "heads (hidden / head-dim)"),
    WHOLE("head-dim", head_dim, 1, 4096, true, "keys per head (64, or 32 if hidden is not a multiple of 64)"),
    WHOLE("conv", conv, 0, 16, true, "width of the short convolutions; 0: none (4)"),
    REAL("expand-v", expand_v, 1e-3, 1e3, true, "values per head divided by keys per head (1)"),
    REAL("init", init, 1e-6, 1e3, true, "standard deviation of initial weights (0.02)"),
    REAL("forget", forget, 1e-6, 1e3, true,
         "how many times faster heads forget initially (1: within 1 to 10000 tokens)"),
    FLAG("neg-eigval", neg_eigval, true, "allow negative eigenvalues"),
    FLAG("tie", tie, true, "use the embeddings as output layer"),
    WHOLE("lora-rank", lora_rank, 1, 4096, true, "train a LoRA adapter of this rank instead of all weights"),
    REAL("lora-alpha", lora_alpha, 1e-6, 1e6, true, "the adapter is scaled by alpha / rank (twice the rank)"),
    TEXT("lora-targets", lora_targets, true, "NAMES",
         "linear maps that get an adapter, such as q_proj,v_proj (all-linear)"),
    REAL("lora-dropout", lora_dropout, 0, 0.99, true, "share of an adapter's inputs that are dropped (0)"),
    TEXT("adapter", adapter, true, "DIR", "start from this adapter, in the format of PEFT, and train it further"),
    WHOLE("batch", batch, 1, MOST, false, "rows per step, over all ranks (8)"),
    WHOLE("length", length, 1, MOST, true, "tokens per row (256, or that of the task)"),
    WHOLE("accumulate", accumulate, 1, MOST, false,
          "number of parts in which a rank processes its rows, to save memory (1)"),
    WHOLE("sequence-ranks", sequence_ranks, 1, 4096, false, "split each row over N ranks (1)"),
    TEXT("dtype", dtype, false, "TYPE", "type of activations: f32, bf16 or f16; weights stay f32 (f32)"),
    TEXT("method", method, false, "NAME",
         "how the recurrence is computed (chunk); linear: a model without the delta rule"),
    FLAG("recompute", recompute, false, "recompute in the backward pass: slower, less memory"),
    TEXT("fp8", fp8, false, "LIST",
         "products in 8-bit floats, on a GPU in bf16: all, or some of qkv,o,up,down,head; NAME:forward or NAME:dx for "
         "one direction"),
    FLAG("no-graph", no_graph, false, "on a GPU: launch kernels one by one instead of one CUDA graph per step"),
    WHOLE("steps", steps, 1, MOST, false, "optimizer steps (250)"),
    WHOLE("tokens", tokens, 1, MOST, false, "tokens to train on, instead of steps"),
    REAL("epochs", epochs, 1e-9, 1e9, false, "approximate passes over the text, instead of steps"),
    TEXT("optimizer", optimizer, true, "NAME",
         "adamw, or muon: orthogonalised steps for matrices, AdamW for the rest (adamw)"),
    TEXT("optimizer-state", optimizer_state, false, "TYPE",
         "type of the optimizer's running means: f32, or bf16 in half the memory (f32)"),
    REAL("momentum", momentum, 0.000001, 0.999999999, false, "momentum of muon (0.95)"),
    REAL("rate", rate, 1e-30, 1e3, false, "highest learning rate (0.002)"),
    REAL("final-rate", final_rate, 0, 1, false, "rate of the last step, as a share of --rate (0.1)"),
    WHOLE("warmup", warmup, 0, MOST, false, "steps until the highest rate (a twentieth of the steps, 100 at most)"),
    TEXT("schedule", schedule, false, "NAME", "constant, linear or cosine (cosine)"),
    REAL("clip", clip, 0, 1e30, false, "clip gradients to this norm; 0: no clipping (1)"),
    WHOLE("skip-limit", skip_limit, 0, 1e6, false,
          "consecutive steps with gradients that are not finite to skip before the run ends (10)"),
    REAL("decay", decay, 0, 1e3, false, "weight decay (0.1)"),
    REAL("beta1", beta1, 0, 0.999999999, false, "beta1 of AdamW (0.9)"),
    REAL("beta2", beta2, 0, 0.999999999, false, "beta2 of AdamW (0.95)"),
    REAL("epsilon", epsilon, 1e-30, 1, false, "epsilon of AdamW (1e-8)"),
    WHOLE("seed", seed, 0, MOST, true, "seed of the initial weights, the rows and their order (1)"),
    TEXT("out", out, false, "DIR", "folder for checkpoints (trained/NAME)"),
    WHOLE("save-every", save_every, 0, MOST, false,
          "steps between checkpoints; 0: none unless the run is interrupted or fails (100)"),
    WHOLE("keep", keep, 1, 1e6, false, "checkpoints to keep (2)"),
    WHOLE("eval-every", eval_every, 0, MOST, false, "steps between evaluations; 0: none (100)"),
    WHOLE("eval-batches", eval_batches, 1, MOST, false, "most batches per evaluation (8)"),
    WHOLE("log-every", log_every, 1, MOST, false, "steps between progress lines (10)"),
    {0},
};

const carry_train_key *carry_train_key_find(const char *name) {
    return carry_keys_find(carry_train_keys, name);
}

carry_train_options carry_train_options_default(void) {
    carry_train_options o = {
        .type = "gated_deltanet",
        .expand_v = 1.0,
        .long_examples = "refuse",
        .conv = 4,
        .batch = 8,
        .accumulate = 1,
        .sequence_ranks = 1,
        .dtype = "f32",
        .method = "chunk",
        .rate = 2e-3,
        .final_rate = 0.1,
        .clip = 1.0,
        .skip_limit = 10,
        .decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .epsilon = 1e-8,
        .warmup = -1,
        .schedule = "cosine",
        .optimizer = "adamw",
        .optimizer_state = "f32",
        .momentum = 0.95,
        .seed = 1,
        .save_every = 100,
        .keep = 2,
        .eval_every = 100,
        .eval_batches = 8,
        .log_every = 10,
    };
    return o;
}

carry_status carry_train_set(carry_ctx *ctx, carry_train_options *options, const char *name, const char *value) {
    CARRY_TRY(carry_keys_set(ctx, carry_train_keys, options, name, value));
    return strcmp(name, "preset") == 0 ? carry_train_preset_apply(ctx, options, value) : CARRY_OK;
}

void carry_train_options_write(carry_json_text *text, const carry_train_options *options) {
    carry_keys_write(text, carry_train_keys, options);
}

carry_status carry_train_options_read(carry_ctx *ctx, carry_train_options *options, const carry_json *object) {
    return carry_keys_read(ctx, carry_train_keys, options, object);
}

bool carry_train_has_examples(const carry_train_options *options) {
    return options->task[0] == '\0' && carry_examples_are(options->data);
}

bool carry_train_has_adapter(const carry_train_options *options) {
    return options->lora_rank > 0 || options->adapter[0] != '\0';
}

bool carry_train_holds_back(const carry_train_options *options) {
    return options->task[0] == '\0' && !carry_train_has_examples(options) && options->eval_data[0] == '\0' &&
           options->eval_every > 0;
}

static carry_status check_examples(carry_ctx *ctx, const carry_train_options *o) {
    if (strcmp(o->long_examples, "refuse") != 0 && strcmp(o->long_examples, "cut") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "--long-examples '%s': expected refuse or cut", o->long_examples);
    }
    if (!carry_train_has_examples(o)) {
        return CARRY_OK;
    }
    if (o->model[0] == '\0' && o->tokenizer[0] == '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "examples (.jsonl) need a tokenizer: name a model with --model DIR, or --tokenizer PATH");
    }
    if (o->eval_data[0] != '\0' && !carry_examples_are(o->eval_data)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "--eval-data %s: expected a .jsonl file, as --data is one",
                          o->eval_data);
    }
    return o->sequence_ranks == 1 ? CARRY_OK
                                  : carry_fail(ctx, CARRY_EUNSUPPORTED,
                                               "packed examples are not split over sequence ranks: omit "
                                               "--sequence-ranks");
}

static carry_status check_names(carry_ctx *ctx, const carry_train_options *o) {
    carry_schedule_kind schedule;
    carry_dtype dtype;
    CARRY_TRY(carry_schedule_parse(ctx, &schedule, o->schedule));
    if (carry_dtype_parse(&dtype, o->dtype) != CARRY_OK || !carry_dtype_is_real(dtype)) {
        char hint[CARRY_NEAREST_HINT];
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no type '%s' for activations: f32, bf16 or f16 is accepted%s",
                          o->dtype,
                          carry_nearest_among(hint, o->dtype, (const char *const[]){"f32", "bf16", "f16", NULL}));
    }
    if (strcmp(o->type, "gated_deltanet") != 0 && strcmp(o->type, "delta_net") != 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no model type '%s': expected gated_deltanet or delta_net",
                          o->type);
    }
    return carry_train_recurrence(ctx, o->method, NULL, &(carry_train_recurrence_choice){0});
}

static carry_status check_fp8(carry_ctx *ctx, const carry_train_options *o, int ranks) {
    if (o->fp8[0] == '\0') {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_fp8_parse(ctx, &(carry_lm_fp8){0}, o->fp8));
    if (strcmp(o->dtype, "bf16") != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "--fp8 rounds activations from bf16, not from %s: give --dtype bf16",
                          o->dtype);
    }
    if (carry_train_has_adapter(o)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "--fp8 trains all weights, not an adapter: omit --fp8");
    }
    return ranks == 1 ? CARRY_OK
                      : carry_fail(ctx, CARRY_EUNSUPPORTED, "--fp8 runs on one rank, not %d: omit --fp8", ranks);
}

carry_status carry_train_options_check(carry_ctx *ctx, const carry_train_options *o, int ranks) {
    CARRY_TRY(check_names(ctx, o));
    CARRY_TRY(check_fp8(ctx, o, ranks));
    CARRY_TRY(check_examples(ctx, o));
    if (strcmp(o->optimizer, "adamw") != 0 && strcmp(o->optimizer, "muon") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "--optimizer '%s': expected adamw or muon", o->optimizer);
    }
    if (strcmp(o->optimizer_state, "f32") != 0 && strcmp(o->optimizer_state, "bf16") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "--optimizer-state '%s': expected f32 or bf16", o->optimizer_state);
    }
    if (strcmp(o->optimizer, "muon") == 0 && ranks > 1) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "--optimizer muon runs on one rank, not %d: use adamw", ranks);
    }
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
                          "%d ranks cannot be grouped by %lld sequence ranks: the number must divide that of ranks "
                          "(carry --ranks %lld train)",
                          ranks, (long long)o->sequence_ranks, (long long)o->sequence_ranks);
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
    if (o->lora_rank > 0 && o->adapter[0] != '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT, "--adapter names an adapter with its own rank: omit --lora-rank");
    }
    if (carry_train_has_adapter(o) && o->model[0] == '\0' && o->architecture[0] == '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT, "an adapter needs the model that it is for: give --model DIR");
    }
    return CARRY_OK;
}

/* Returns the first of these names, which are separated by spaces, whose value is not the default; or NULL. */
static const char *find_said(const carry_train_options *o, const char *names, char *word, size_t size) {
    const carry_train_options none = carry_train_options_default();
    for (const char *at = names; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        (void)snprintf(word, size, "%.*s", (int)length, at);
        const carry_train_key *key = carry_train_key_find(word);
        if (key != NULL && memcmp((const char *)o + key->offset, (const char *)&none + key->offset, key->size) != 0) {
            return word;
        }
        at += length;
    }
    return NULL;
}

carry_status carry_train_options_used(carry_ctx *ctx, const carry_train_options *o) {
    const bool is_task = o->task[0] != '\0';
    const bool has_model = o->model[0] != '\0';
    const bool has_shape = has_model || o->architecture[0] != '\0';
    const struct {
        bool applies;
        const char *names, *why;
    } ignored[] = {
        {has_shape, "type hidden layers heads head-dim conv expand-v init neg-eigval tie",
         "describes a new model, but --model or --architecture names an existing one"},
        {has_model, "forget", "applies to new weights, but --model names existing ones"},
        {strcmp(o->type, "delta_net") == 0, "forget", "applies to gates, which delta_net does not have"},
        {strcmp(o->task, "mqar") != 0, "pairs fewest-pairs", "applies only to the task mqar"},
        {is_task, "eval-data tokenizer binary", "applies to texts, but --task uses no text"},
        {strcmp(o->optimizer, "muon") != 0, "momentum", "applies to --optimizer muon"},
        {o->lora_rank == 0, "lora-alpha lora-targets",
         "applies to a new adapter: give --lora-rank too, and omit --adapter"},
        {!carry_train_has_adapter(o), "lora-dropout", "applies to an adapter: give --lora-rank or --adapter too"},
        {!carry_train_has_examples(o), "long-examples in-order", "applies to examples (.jsonl)"},
        {!is_task && (has_model || o->tokenizer[0] != '\0'), "vocab",
         "applies to a tokenizer that is to be trained, but there is one already"},
    };
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        char word[32];
        if (ignored[i].applies && find_said(o, ignored[i].names, word, sizeof word) != NULL) {
            return carry_fail(ctx, CARRY_EARGUMENT, "%s %s: omit one of them", word, ignored[i].why);
        }
    }
    return CARRY_OK;
}
