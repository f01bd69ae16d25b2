/* The cache of the Hugging Face hub, in the layout that its own programs use:

       $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub
           models--OWNER--NAME/
               refs/main                   the commit that a branch or tag was at
               snapshots/COMMIT/FILE       a link to
               blobs/HASH                  the file: SHA-256 of a large one, Git's SHA-1 of a small one */
#ifndef CARRY_FILE_HUB_CACHE_H
#define CARRY_FILE_HUB_CACHE_H

#include <stdbool.h>

#include "core/file.h"

#define CARRY_HUB_NAME 200     /* bytes of OWNER/NAME, and of a revision */
#define CARRY_HUB_PREFIX "hf:" /* marks the name of a model in place of its folder */

typedef struct carry_hub_model {
    char name[CARRY_HUB_NAME]; /* OWNER/NAME, or NAME */
    char revision[CARRY_HUB_NAME];
} carry_hub_model;

/* Parses OWNER/NAME[@REVISION], with or without hf: before it; the default revision is main. */
carry_status carry_hub_parse(carry_ctx *ctx, carry_hub_model *model, const char *text);
/* Makes the path of the model's folder in the cache, which need not exist. */
carry_status carry_hub_model_folder(carry_ctx *ctx, char path[CARRY_FILE_PATH], const carry_hub_model *model);
/* Sets path to `folder` itself or, if that is hf:OWNER/NAME or hf:OWNER/NAME@REVISION, to the model's snapshot in the
   cache. The message of CARRY_ENOTFOUND names the command that downloads it. */
carry_status carry_hub_resolve(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder);
bool carry_hub_is_hash(const char *text, size_t digits); /* exactly `digits` lowercase hexadecimal digits */

#endif
