/* The files and folders of checkpoints: listing, comparing, removing. */
#ifndef CARRY_CHECKPOINT_FILES_H
#define CARRY_CHECKPOINT_FILES_H

#include <stdint.h>

#include "carry/context.h"
#include "core/json.h"
#include "core/json_write.h"

#define CARRY_CHECKPOINT_FORMAT 1
#define CARRY_NOTE_FILE "train.json"
#define CARRY_SUMS_FILE "checksums.json" /* of a model that is not a checkpoint */
#define CARRY_NOTE_SUM_KEY "crc32c"
#define CARRY_NOTE_SUM ",\n  \"" CARRY_NOTE_SUM_KEY "\":" /* of the note itself, as its last member begins */
#define CARRY_STATE_FILE "optimizer.safetensors"
#define CARRY_TOKENIZER_FILE "tokenizer.json"
#define CARRY_WORDS_FILE "words.txt" /* of a video model */
#define CARRY_STATE_NAME 104         /* of a tensor: a parameter's, and two more */

/* Those that train.json vouches for; NULL at the end. */
extern const char *const carry_checkpoint_files[];

/* The steps of the step-N folders in a folder, the newest first; the caller frees *steps. */
carry_status carry_checkpoint_steps(carry_ctx *ctx, int64_t **steps, int64_t *count, const char *folder);
carry_status carry_checkpoint_sum(carry_ctx *ctx, const char *path, int64_t *bytes, uint32_t *crc);
carry_status carry_checkpoint_sync(carry_ctx *ctx, const char *folder);
/* Removes a folder and the files in it; errors are ignored. */
void carry_checkpoint_remove(const char *folder);
/* Removes the hidden step folders that a killed run left. */
void carry_checkpoint_sweep(const char *folder);
/* Removes all but the `keep` newest up to `newest`; later ones are of another run, and are removed too. */
carry_status carry_checkpoint_prune(carry_ctx *ctx, const char *folder, int64_t newest, int64_t keep);

/* train.json; its last member is a checksum of the text before it, which older files lack. The caller frees *document.
 */
carry_status carry_checkpoint_note(carry_ctx *ctx, carry_json **document, const char *path);
/* A non-negative whole number of an object in it. */
carry_status carry_checkpoint_whole(carry_ctx *ctx, int64_t *to, const carry_json *object, const char *key,
                                    const char *path);
/* Compares one file of the folder with its entry in train.json. */
carry_status carry_checkpoint_check(carry_ctx *ctx, const carry_json *entry, const char *folder, const char *note);
/* A model in a checkpoint, or copied from one with its train.json, or with checksums.json: compares its files, except
   the optimizer's state, with the sizes and checksums there. A folder without either passes. Of a path that is a single
   file of weights, only this file is compared. */
carry_status carry_checkpoint_verify_model(carry_ctx *ctx, const char *path);

/* The list of files with their sizes and checksums, as train.json and checksums.json have it: "files": [...]. A
   file of `names` that does not exist is left out if may_lack is set. */
carry_status carry_checkpoint_put_files(carry_ctx *ctx, carry_json_text *text, const char *folder,
                                        const char *const *names, bool may_lack);
/* "crc32c": the checksum of the text before it; then the end of the object. */
void carry_checkpoint_put_sum(carry_json_text *text);
/* checksums.json of config.json, model.safetensors and words.txt. Remove it before one of them is replaced: a killed
   program then leaves none that contradicts them. */
carry_status carry_checkpoint_write_sums(carry_ctx *ctx, const char *folder);
void carry_checkpoint_remove_sums(const char *folder);

#endif
