/* The format of messages as tables, used by encoding, decoding and the printed description (envelope_bytes.c,
   envelope_decode.c). An object is a carry_envelope or a carry_result. */
#ifndef CARRY_STREAM_ENVELOPE_BYTES_H
#define CARRY_STREAM_ENVELOPE_BYTES_H

#include "stream/envelope.h"

#define CARRY_SPEC_BYTES 56
#define CARRY_SPEC_RANK 4 /* shape[4] */

typedef enum carry_field_kind {
    CARRY_FIELD_U32,
    CARRY_FIELD_I32,
    CARRY_FIELD_F32,
    CARRY_FIELD_U64,
    CARRY_FIELD_I64,
    CARRY_FIELD_F64,
    CARRY_FIELD_FLAG, /* one bit of a u32 */
    CARRY_FIELD_ZERO  /* a u32 of padding */
} carry_field_kind;

typedef struct carry_field {
    const char *name, *rule;
    size_t in; /* offset in the object */
    carry_field_kind kind;
    unsigned at;  /* offset in the metadata */
    unsigned bit; /* of a flag */
} carry_field;

typedef struct carry_part {
    const char *name, *shape, *when, *tag;
    size_t in;
    carry_dtype dtype;
    int rank;
} carry_part;

typedef struct carry_layout {
    const char *name, *magic;
    const carry_field *field;
    const carry_part *part;
    size_t object; /* its size in bytes */
    uint32_t metadata;
    int fields, parts;
} carry_layout;

const carry_layout *carry_layout_of(bool is_result);

/* Size of a field in bytes: 4 or 8. */
int carry_field_bytes(carry_field_kind kind);
/* The type of a tensor as written in its spec: 4 ASCII characters. */
const char *carry_part_type(const carry_part *part);
/* Size of a tensor in bytes, exact and rounded up to a multiple of 8. Returns false on overflow. */
bool carry_part_bytes(size_t *bytes, size_t *filled, int rank, const int64_t *shape, carry_dtype dtype);

/* Size of the whole message in bytes. Returns false on overflow. Tensors that are present have a rank above 0. */
bool carry_message_bytes(size_t *bytes, const void *object, bool is_result);

carry_status carry_message_refuse_host(carry_ctx *ctx, const carry_layout *layout, size_t tensors);

#endif
