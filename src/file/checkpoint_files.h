/* The files and folders of checkpoints: listing, comparing, removing. */
#ifndef CARRY_CHECKPOINT_FILES_H
#define CARRY_CHECKPOINT_FILES_H

#include <stdint.h>

#include "carry/context.h"
#include "core/json.h"
#include "core/json_write.h"

#define CARRY_CHECKPOINT_FORMAT 1
#define CARRY_NOTE_FILE "train.json"
#define CARRY_SUMS_FILE "checksums.json" /* for a model that is not a checkpoint */
#define CARRY_NOTE_SUM_KEY "crc32c"
#define CARRY_NOTE_SUM ",\n  \"" CARRY_NOTE_SUM_KEY "\":" /* the start of its last member, a checksum */
#define CARRY_STATE_FILE "optimizer.safetensors"
#define CARRY_SCALES_NAME "fp8.scales" /* a tensor in it */
#define CARRY_TOKENIZER_FILE "tokenizer.json"
#define CARRY_WORDS_FILE "words.txt" /* only in video models */
#define CARRY_STATE_NAME 104         /* bytes of a tensor's name: a letter, a dot and a parameter's name */

/* Files with checksums in train.json; ends with NULL. */
extern const char *const carry_checkpoint_files[];

/* Lists the numbers of the step-N folders in a folder, newest first; the caller frees *steps. */
carry_status carry_checkpoint_steps(carry_ctx *ctx, int64_t **steps, int64_t *count, const char *folder);
carry_status carry_checkpoint_sum(carry_ctx *ctx, const char *path, int64_t *bytes, uint32_t *crc);
carry_status carry_checkpoint_sync(carry_ctx *ctx, const char *folder);
/* Removes a folder and the files in it; errors are ignored. */
void carry_checkpoint_remove(const char *folder);
/* Removes hidden step folders, which a killed run leaves behind. */
void carry_checkpoint_sweep(const char *folder);
/* Removes all steps except the `keep` newest of those up to `newest`. Later steps belong to another run and are removed
   too. */
carry_status carry_checkpoint_prune(carry_ctx *ctx, const char *folder, int64_t newest, int64_t keep);

/* Reads train.json or checksums.json and checks its last member, a checksum of the text before it (older files have
   none). The caller frees *document. */
carry_status carry_checkpoint_note(carry_ctx *ctx, carry_json **document, const char *path);
/* Reads a non-negative integer of an object in train.json. */
carry_status carry_checkpoint_whole(carry_ctx *ctx, int64_t *to, const carry_json *object, const char *key,
                                    const char *path);
/* Compares one file of the folder with its entry in train.json. */
carry_status carry_checkpoint_check(carry_ctx *ctx, const carry_json *entry, const char *folder, const char *note);
/* Compares a model's files, except the optimizer's state, with the sizes and checksums in its train.json (in a
   checkpoint, or copied from one) or checksums.json. A folder without either passes. If the path is a single file of
   weights, only this file is compared. */
carry_status carry_checkpoint_verify_model(carry_ctx *ctx, const char *path);

/* Writes the list of files with their sizes and checksums, as in train.json and checksums.json: "files": [...]. With
   may_lack, files of `names` that do not exist are left out. */
carry_status carry_checkpoint_put_files(carry_ctx *ctx, carry_json_text *text, const char *folder,
                                        const char *const *names, bool may_lack);
/* Writes "crc32c", the checksum of the text before it, and ends the object. */
void carry_checkpoint_put_sum(carry_json_text *text);
/* Writes checksums.json for config.json, model.safetensors and words.txt. Remove it before one of them is replaced, so
   that a killed program does not leave checksums that contradict the files. */
carry_status carry_checkpoint_write_sums(carry_ctx *ctx, const char *folder);
void carry_checkpoint_remove_sums(const char *folder);

#endif
