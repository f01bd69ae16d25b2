/* Reading safetensors files: 8 bytes of header length (little-endian), a JSON object that names tensors with dtype,
   shape and data_offsets, then the data. The file is mapped; every length, offset, dtype and shape is checked before
   use. */
#ifndef CARRY_MODEL_SAFETENSORS_H
#define CARRY_MODEL_SAFETENSORS_H

#include "carry/tensor.h"

#define CARRY_SAFETENSORS_NAME 256

typedef struct carry_safetensors_entry {
    char name[CARRY_SAFETENSORS_NAME];
    carry_tensor view; /* borrowed from the mapping; read-only */
} carry_safetensors_entry;

/* A "__metadata__" pair; texts as they stand between their quotes, escapes undone. */
typedef struct carry_safetensors_note {
    char key[CARRY_SAFETENSORS_NAME];
    char *value;
} carry_safetensors_note;

typedef struct carry_safetensors {
    void *mapping;
    size_t mapping_bytes;
    int64_t count, notes;
    carry_safetensors_entry *entries;
    carry_safetensors_note *note;
} carry_safetensors;

/* CARRY_EFORMAT with a sentence when anything does not fit; *file is then empty and need not be freed. */
carry_status carry_safetensors_open(carry_ctx *ctx, carry_safetensors *file, const char *path);
/* The same over bytes in memory (borrowed), for fuzzing. data must be aligned to 8. */
carry_status carry_safetensors_parse(carry_ctx *ctx, carry_safetensors *file, const void *data, size_t bytes);
void carry_safetensors_close(carry_safetensors *file);

/* NULL when there is none. */
const carry_tensor *carry_safetensors_find(const carry_safetensors *file, const char *name);
const char *carry_safetensors_metadata(const carry_safetensors *file, const char *key);

#endif
