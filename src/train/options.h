/* The options of a training run: one table of keys serves the command line, the YAML file, and train.json in a
   checkpoint, from which a run is resumed. */
#ifndef CARRY_TRAIN_OPTIONS_H
#define CARRY_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "model/lm/config.h"
#include "core/json_write.h"
#include "train/keys.h"
#include "train/schedule.h"

#define CARRY_TRAIN_PATH 4096
#define CARRY_TRAIN_PATHS 16384 /* bytes of the paths of the data, separated by newlines */

/* 0, "" and false mean not given; defaults come from carry_train_options_default and from the text or task. */
typedef struct carry_train_options {
    /* The data: one of these two. */
    char data[CARRY_TRAIN_PATHS];
    char task[32];
    int64_t pairs, fewest_pairs;      /* for associative recall */
    char eval_data[CARRY_TRAIN_PATH]; /* held-out text; "": the end of the text, if the text is one window */
    char tokenizer[CARRY_TRAIN_PATH]; /* tokenizer.json, or its folder; "": one is trained on the start of the text */
    char preset[32];
    int64_t vocab;          /* vocabulary of that tokenizer, or of the task */
    bool binary;            /* accept files that do not look like text */
    char long_examples[16]; /* for .jsonl: "refuse" or "cut" examples that are longer than a row */
    bool in_order;          /* for .jsonl: take examples in the order of the files */
    /* The model: */
    char model[CARRY_TRAIN_PATH];        /* a folder with the initial weights */
    char architecture[CARRY_TRAIN_PATH]; /* a config.json; its vocabulary must be the tokenizer's */
    char type[24];
    int64_t hidden, layers, heads, head_dim, conv;
    double expand_v;
    double forget; /* a factor on the initial rates at which heads forget; 0 means 1 */
    double init;   /* standard deviation of initial weights; 0: the model type's default */
    bool neg_eigval, tie;
    /* An adapter (model/lm/adapter.h) instead of all weights. */
    int64_t lora_rank; /* 0: no adapter, unless `adapter` is given */
    double lora_alpha; /* 0: twice the rank */
    char lora_targets[1024];
    double lora_dropout;
    char adapter[CARRY_TRAIN_PATH]; /* a folder with the initial adapter */
    /* One step: */
    int64_t batch, length, accumulate; /* rows of a step over all ranks; tokens of a row; number of parts into which a
                                          rank splits its rows */
    int64_t sequence_ranks;
    char dtype[8], method[24];
    bool recompute, no_graph;
    char fp8[96]; /* products in 8-bit floats (model/lm/lm_fp8.h); "": none */
    /* The whole run: */
    int64_t steps, tokens;
    double epochs;
    char optimizer[16];      /* adamw or muon */
    char optimizer_state[8]; /* type of its running means: f32 or bf16 */
    double momentum;         /* momentum of muon */
    double rate, final_rate, clip, decay, beta1, beta2, epsilon;
    int64_t skip_limit;
    int64_t warmup; /* -1: a twentieth of the steps, at most 100 */
    char schedule[16];
    int64_t seed;
    /* Checkpoints, evaluation and the log: */
    char out[CARRY_TRAIN_PATH];
    int64_t save_every, keep, eval_every, eval_batches, log_every;
} carry_train_options;

extern const carry_train_key carry_train_keys[]; /* NULL name at the end */
const carry_train_key *carry_train_key_find(const char *name);

carry_train_options carry_train_options_default(void);
/* CARRY_EARGUMENT and CARRY_ERANGE name the key, the value and the accepted values. A flag takes true or false. */
carry_status carry_train_set(carry_ctx *ctx, carry_train_options *options, const char *name, const char *value);

/* Writes the options as a JSON object of strings, and reads them back; unknown keys are ignored, so that newer files
   can be read. */
void carry_train_options_write(carry_json_text *text, const carry_train_options *options);
carry_status carry_train_options_read(carry_ctx *ctx, carry_train_options *options, const carry_json *object);

/* True if the data is examples (.jsonl) and not a text. */
bool carry_train_has_examples(const carry_train_options *options);

/* True if an adapter is trained instead of all weights. */
bool carry_train_has_adapter(const carry_train_options *options);

/* True if a part of the text is held out for evaluation, provided that the text has enough rows. */
bool carry_train_holds_back(const carry_train_options *options);

/* Fails for options that have no effect in combination with others, such as sizes of an existing model. For new runs
   only: checkpoints contain the resulting values of such options. */
carry_status carry_train_options_used(carry_ctx *ctx, const carry_train_options *options);

/* Fails for options that no run supports, whatever the data, before ranks, files and folders are touched. */
carry_status carry_train_options_check(carry_ctx *ctx, const carry_train_options *options, int ranks);

#endif
