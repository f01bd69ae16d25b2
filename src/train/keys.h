/* Options as tables of keys: a table lists the fields of a struct, for the command line, the YAML file, and train.json
   in a checkpoint, from which a run is resumed. */
#ifndef CARRY_TRAIN_KEYS_H
#define CARRY_TRAIN_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/json.h"
#include "core/json_write.h"

typedef enum carry_train_kind {
    CARRY_TRAIN_WHOLE, /* int64_t */
    CARRY_TRAIN_REAL,  /* double */
    CARRY_TRAIN_TEXT,  /* char[] */
    CARRY_TRAIN_FLAG   /* bool */
} carry_train_kind;

typedef struct carry_train_key {
    const char *name;
    carry_train_kind kind;
    size_t offset, size; /* offset and size of the field; size is for texts */
    double least, most;
    bool fixed; /* a resumed run keeps its original value */
    const char *argument, *help;
} carry_train_key;

/* Tables end with a NULL name. Returns NULL for an unknown name. */
const carry_train_key *carry_keys_find(const carry_train_key *keys, const char *name);
/* CARRY_EARGUMENT and CARRY_ERANGE name the key, the value and the accepted values. A flag takes true or false. */
carry_status carry_keys_set(carry_ctx *ctx, const carry_train_key *keys, void *options, const char *name,
                            const char *value);
/* Writes the options as a JSON object of strings, and reads them back; unknown keys are ignored, so that newer files
   can be read. */
void carry_keys_write(carry_json_text *text, const carry_train_key *keys, const void *options);
carry_status carry_keys_read(carry_ctx *ctx, const carry_train_key *keys, void *options, const carry_json *object);

#endif
