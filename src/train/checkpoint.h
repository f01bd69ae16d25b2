/* Checkpoints: a training run's folder holds step-N folders, the newest of which `latest` points to.

       step-400/config.json, model.safetensors, tokenizer.json    a model as Hugging Face has it
       step-400/optimizer.safetensors                             AdamW's m.NAME and v.NAME, shaped like NAME; w.NAME
                                                                  where the model is an average of weights
       step-400/train.json                                        step, place in the data, options; size and CRC-32C of
                                                                  each of the other files, and of itself up to there
       latest -> step-400

   A checkpoint is written in a hidden folder beside it, every file and folder synced, and renamed: it is there whole or
   not at all. Older ones are removed only then. Loading compares every file with train.json; a folder that is not whole
   is skipped with a warning, and the one before it is taken.

   The folder is locked while a run writes to it. */
#ifndef CARRY_TRAIN_CHECKPOINT_H
#define CARRY_TRAIN_CHECKPOINT_H

#include "core/file.h"
#include "core/sink.h"
#include "core/json.h"
#include "train/data/batches.h"
#include "model/parameters.h"
#include "train/optimizer.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_run_folder {
    char path[CARRY_FILE_PATH];
    int lock;       /* a file that is open while it is ours; -1: none */
    int64_t newest; /* the step that was saved or found last; -1: none */
} carry_run_folder;

/* Makes the folder where it is missing and removes what a killed run left half-written. CARRY_EIO when it cannot be
   written or another process trains into it. */
carry_status carry_run_folder_open(carry_ctx *ctx, carry_run_folder *folder, const char *path);
void carry_run_folder_close(carry_run_folder *folder);
/* Does it hold checkpoints, whole or not? */
bool carry_run_folder_is_used(const char *path);
/* True if the folder does not exist, or holds no file that a new run could overwrite or be mixed with. A killed run's
   lock and half-written step do not count; a symbolic link is not free, wherever it leads. */
bool carry_run_folder_is_free(const char *path);

typedef struct carry_checkpoint {
    int64_t step, seen; /* steps done, tokens seen */
    carry_position position;
    uint32_t source;     /* identifies the training data; 0: a task */
    const char *options; /* a JSON object */
    const carry_parameters *parameters;
    carry_status (*save)(const void *model, const char *folder); /* config.json and model.safetensors in f32 */
    const void *model;
    const carry_tokenizer *tokenizer; /* NULL: none */
    const float *m, *v;               /* [parameters->count] */
    const float *weights; /* the weights in training, where the model that is saved is an average of them; else NULL */
    int64_t keep;
} carry_checkpoint;

/* One rank does it. On failure the older ones are as they were. */
carry_status carry_checkpoint_save(carry_ctx *ctx, carry_run_folder *folder, const carry_checkpoint *checkpoint);

typedef struct carry_found {
    char path[CARRY_FILE_PATH]; /* of the checkpoint */
    int64_t step, seen;
    carry_position position;
    uint32_t source;
    carry_json *document; /* train.json; "options" is in it */
} carry_found;

/* The newest whole checkpoint of a run's folder (or path is a checkpoint itself); damaged ones are noted, with what is
   wrong. CARRY_ENOTFOUND if no checkpoint is whole. */
carry_status carry_checkpoint_find(carry_ctx *ctx, carry_found *found, const char *path, const carry_sink *sink);
void carry_found_free(carry_found *found);
/* The slice's m and v, from the checkpoint. */
carry_status carry_checkpoint_load_state(const char *path, carry_optimizer *optimizer);
/* The weights that were trained, of a checkpoint whose model is their average. */
carry_status carry_checkpoint_load_weights(carry_ctx *ctx, const char *path, const carry_parameters *model);

#endif
