/* Safetensors files: 8 bytes of header length (little-endian), a JSON object that names tensors with dtype,
   shape and data_offsets, then the data. The file is mapped; every length, offset, dtype and shape is checked before
   use, and every byte of the data is in exactly one tensor. */
#ifndef CARRY_SAFETENSORS_H
#define CARRY_SAFETENSORS_H

#include "carry/tensor.h"

#define CARRY_SAFETENSORS_NAME 256

typedef struct carry_safetensors_entry {
    char name[CARRY_SAFETENSORS_NAME];
    carry_tensor view; /* borrowed from the mapping; read-only */
} carry_safetensors_entry;

/* A "__metadata__" pair. */
typedef struct carry_safetensors_note {
    char key[CARRY_SAFETENSORS_NAME];
    char *value;
} carry_safetensors_note;

typedef struct carry_safetensors {
    void *mapping;
    size_t mapping_bytes;
    int64_t count, notes;
    carry_safetensors_entry *entries; /* in the order of the file */
    carry_safetensors_entry **by_name;
    carry_safetensors_note *note;
} carry_safetensors;

/* CARRY_EFORMAT, with a message, if anything is inconsistent; *file is then empty and need not be freed. */
carry_status carry_safetensors_open(carry_ctx *ctx, carry_safetensors *file, const char *path);
/* Like carry_safetensors_open, over bytes in memory (borrowed), for fuzzing. data must be aligned to 8. */
carry_status carry_safetensors_parse(carry_ctx *ctx, carry_safetensors *file, const void *data, size_t bytes);
void carry_safetensors_close(carry_safetensors *file);

/* NULL if not found. */
const carry_tensor *carry_safetensors_find(const carry_safetensors *file, const char *name);
const char *carry_safetensors_metadata(const carry_safetensors *file, const char *key);

/* Sorts the names again after entries were changed or removed. */
void carry_safetensors_sort(carry_safetensors *file);

/* Writing. A tensor must be packed and on the CPU. It is stored as dtype (f32, bf16 and f16 are converted into each
   other). */
typedef struct carry_safetensors_item {
    const char *name;
    carry_tensor tensor;
    carry_dtype dtype;
} carry_safetensors_item;

/* Replaces path as a whole (core/file.h): after a crash or with a full disk, the previous file remains. Tensors are
   written in the order of decreasing element size, then of names, whatever the order of items, so equal tensors give
   equal bytes. notes is a list of UTF-8 texts (key, value, key, value, ..., NULL; may be NULL), which become the
   metadata. */
carry_status carry_safetensors_write(carry_ctx *ctx, const char *path, const carry_safetensors_item *items,
                                     int64_t count, const char *const *notes);

#endif
