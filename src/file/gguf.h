/* GGUF files: metadata and tensors of a model in one file, as llama.cpp writes them.

   The file is little-endian and has these parts: "GGUF", the version (2 or 3), the number of tensors and of keys; the
   keys, each a text, a type and a value; for each tensor its name, its sizes with the fastest index first, its type and
   the offset of its data; then the data, aligned to general.alignment (32 unless given). The file is mapped. Every
   length is checked before use, and no two tensors share a byte. */
#ifndef CARRY_FILE_GGUF_H
#define CARRY_FILE_GGUF_H

#include "file/safetensors.h"

typedef enum carry_gguf_type {
    CARRY_GGUF_U8,
    CARRY_GGUF_I8,
    CARRY_GGUF_U16,
    CARRY_GGUF_I16,
    CARRY_GGUF_U32,
    CARRY_GGUF_I32,
    CARRY_GGUF_F32,
    CARRY_GGUF_BOOL,
    CARRY_GGUF_TEXT,
    CARRY_GGUF_ARRAY,
    CARRY_GGUF_U64,
    CARRY_GGUF_I64,
    CARRY_GGUF_F64,
    CARRY_GGUF_TYPES
} carry_gguf_type;

/* Not NUL-terminated. */
typedef struct carry_gguf_text {
    const char *bytes;
    size_t length;
} carry_gguf_text;

typedef struct carry_gguf_item {
    carry_gguf_text key;
    carry_gguf_type type; /* type of the value, or of the elements of an array */
    bool is_array;
    uint64_t count;          /* 1 unless an array */
    const unsigned char *at; /* address of the first value */
} carry_gguf_item;

typedef struct carry_gguf {
    carry_gguf_item *items;
    int64_t item_count;
    /* f32, f16 and bf16 tensors keep their type; others have type CARRY_QUANTISED and rank 2 (for rank 3, the rows of
       all matrices together). The fastest index comes last in the shape. */
    carry_safetensors tensors;
} carry_gguf;

bool carry_gguf_is_file(const char *path); /* true for a regular file whose name ends in .gguf */
carry_status carry_gguf_open(carry_ctx *ctx, carry_gguf *file, const char *path);
/* Like carry_gguf_open, over bytes in memory (borrowed), aligned to 64. */
carry_status carry_gguf_parse(carry_ctx *ctx, carry_gguf *file, const void *data, size_t bytes);
void carry_gguf_close(carry_gguf *file);

/* Returns NULL for an unknown key. */
const carry_gguf_item *carry_gguf_find(const carry_gguf *file, const char *key);
/* Read single values; false if the key is missing or has another kind. An integer must fit an int64_t. */
bool carry_gguf_integer(const carry_gguf *file, const char *key, int64_t *value);
bool carry_gguf_number(const carry_gguf *file, const char *key, double *value);
bool carry_gguf_string(const carry_gguf *file, const char *key, carry_gguf_text *value);
/* Returns element `index` of an array of integers. */
int64_t carry_gguf_integer_at(const carry_gguf_item *item, uint64_t index);
/* Returns the text at *at and moves *at past it. Reads the texts of an array in order, starting at item->at. */
carry_gguf_text carry_gguf_next_text(const unsigned char **at);

#endif
