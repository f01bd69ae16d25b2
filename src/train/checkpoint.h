/* Checkpoints: a training run's folder has step-N folders; `latest` points to the newest.

       step-400/config.json, model.safetensors, tokenizer.json    a model in the format of Hugging Face
       step-400/optimizer.safetensors                             AdamW's m.NAME and v.NAME, shaped like NAME, f32 or
                                                                  bf16; also w.NAME, the weights in training, if the
                                                                  saved model is their average, and fp8.scales, the
                                                                  scales of products in 8-bit floats
       step-400/train.json                                        step, position in the data, options; size and CRC of
                                                                  each other file; CRC of its own text
       latest -> step-400

   If an adapter is trained, adapter_config.json and adapter_model.safetensors take the place of the first two files.

   A checkpoint is written to a hidden folder, its files and folders are synced, and the folder is renamed to step-N: so
   a checkpoint is complete or absent. Older ones are removed only after that. Loading compares every file with the
   CRC-32C checksums in train.json; a damaged folder is skipped with a warning, and the one before it is used.

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
    int lock;       /* descriptor of the lock file, open while the folder is locked; -1: not locked */
    int64_t newest; /* the step that was last saved or found; -1: none */
} carry_run_folder;

/* Makes the folder if it is missing and removes the partly written files of a killed run. CARRY_EIO if it cannot be
   written, or if another process trains into it. */
carry_status carry_run_folder_open(carry_ctx *ctx, carry_run_folder *folder, const char *path);
void carry_run_folder_close(carry_run_folder *folder);
/* True if it has checkpoints, complete or not. */
bool carry_run_folder_is_used(const char *path);
/* True if the folder does not exist, or has no file that a new run could overwrite or be mixed with. The lock and the
   partly written step of a killed run do not count; a symbolic link is never free, whatever its target. */
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
    bool narrow;                      /* m and v are bf16 numbers and are written as such */
    const float *weights;             /* the weights in training, if the saved model is an average of them; else NULL */
    carry_tensor scales;              /* [n, numbers], f32, in host memory, saved as fp8.scales; absent: none */
    int64_t keep;
} carry_checkpoint;

/* Called by one rank. If it fails, the older checkpoints are unchanged. */
carry_status carry_checkpoint_save(carry_ctx *ctx, carry_run_folder *folder, const carry_checkpoint *checkpoint);

typedef struct carry_found {
    char path[CARRY_FILE_PATH]; /* of the checkpoint */
    int64_t step, seen;
    carry_position position;
    uint32_t source;
    carry_json *document; /* train.json; "options" is in it */
} carry_found;

/* Finds the newest complete checkpoint of a run's folder (path may also be a checkpoint itself); damaged ones are
   reported with the reason. CARRY_ENOTFOUND if no checkpoint is complete. */
carry_status carry_checkpoint_find(carry_ctx *ctx, carry_found *found, const char *path, const carry_sink *sink);
void carry_found_free(carry_found *found);
/* Loads m and v of the optimizer's slice from the checkpoint. */
carry_status carry_checkpoint_load_state(const char *path, carry_optimizer *optimizer);
/* Loads fp8.scales into a tensor of its shape, on any device. */
carry_status carry_checkpoint_load_scales(carry_ctx *ctx, const char *path, carry_tensor scales);
/* Loads the weights in training, from a checkpoint whose model is their average. */
carry_status carry_checkpoint_load_weights(carry_ctx *ctx, const char *path, const carry_parameters *model);

#endif
