/* Messages as bytes. The two tables of fields and the two of tensors define the format; encoding, decoding and the
   printed description use them.

       header 32 | metadata | specs, 56 each | tensors, each padded with zeros to a multiple of 8

   A spec: tag (4 ASCII bytes), type (4 ASCII bytes), u32 rank, u32 zero, i64 shape[4] (0 past the rank), u64 bytes.
   There is exactly one way to write a message: unused flags and padding are zero, or the message is refused.

   Fields are written byte by byte, so the host's byte order does not matter. Tensors are views of the message, so
   hosts that are not little-endian refuse messages with tensors. */
#include "stream/envelope_bytes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"

static const char *const kind_name[] = {"u32", "i32", "f32", "u64", "i64", "f64", "bit", "u32"};

_Static_assert(sizeof(carry_action) == 4, "an action travels as a u32");
_Static_assert(sizeof(bool) == 1, "a flag is a byte of the object");

#define IN(member) offsetof(carry_envelope, member)
static const carry_field envelope_field[] = {
    {"action", "0 NOOP, 1 INFER, 2 SHUTDOWN", IN(action), CARRY_FIELD_U32, 0, 0},
    {"do_recompute", "context_frames is there", IN(do_recompute), CARRY_FIELD_FLAG, 4, 0},
    {"init_cache", "", IN(init_cache), CARRY_FIELD_FLAG, 4, 1},
    {"reset_cache", "", IN(reset_cache), CARRY_FIELD_FLAG, 4, 2},
    {"reset_cross_cache", "conditioning has rows", IN(reset_cross_cache), CARRY_FIELD_FLAG, 4, 3},
    {"call_id", "grows by one with every envelope", IN(call_id), CARRY_FIELD_U64, 8, 0},
    {"chunk_index", "grows by one with every INFER", IN(chunk_index), CARRY_FIELD_U64, 16, 0},
    {"cache_epoch", "grows by one at every hard cut", IN(cache_epoch), CARRY_FIELD_U64, 24, 0},
    {"seed", "", IN(seed), CARRY_FIELD_U64, 32, 0},
    {"height", "of the latents, 1 or more", IN(height), CARRY_FIELD_I32, 40, 0},
    {"width", "of the latents, 1 or more", IN(width), CARRY_FIELD_I32, 44, 0},
    {"current_start_frame", "0 or more", IN(current_start_frame), CARRY_FIELD_I32, 48, 0},
    {"num_denoise_steps", "1 to 64", IN(num_denoise_steps), CARRY_FIELD_I32, 52, 0},
    {"expected_generator_calls", "steps + recompute + clean pass", IN(expected_generator_calls), CARRY_FIELD_I32, 56,
     0},
    {"kv_bias", "above 0, up to 1", IN(kv_bias), CARRY_FIELD_F32, 60, 0},
    {"noise_scale", "0 or more", IN(noise_scale), CARRY_FIELD_F32, 64, 0},
    {"(filling)", "0", 0, CARRY_FIELD_ZERO, 68, 0},
};
static const carry_part envelope_part[] = {
    {"conditioning", "[L, text_dim]", "INFER; L is 0 exactly without reset_cross_cache", "COND", IN(conditioning),
     CARRY_BF16, 2},
    {"latents_in", "[16, F, height, width]", "INFER", "LATI", IN(latents_in), CARRY_BF16, 4},
    {"steps", "[num_denoise_steps]", "INFER; falling, 1 to 1000", "STEP", IN(steps), CARRY_I64, 1},
    {"context_frames", "[16, C, height, width]", "INFER with do_recompute", "CTXT", IN(context_frames), CARRY_BF16, 4},
};
#undef IN

#define IN(member) offsetof(carry_result, member)
static const carry_field result_field[] = {
    {"call_id", "of the envelope", IN(call_id), CARRY_FIELD_U64, 0, 0},
    {"chunk_index", "of the envelope", IN(chunk_index), CARRY_FIELD_U64, 8, 0},
    {"cache_epoch", "of the envelope", IN(cache_epoch), CARRY_FIELD_U64, 16, 0},
    {"digest", "of the bytes of latents_out", IN(digest), CARRY_FIELD_I64, 24, 0},
    {"stage1_ms", "0 or more", IN(stage1_ms), CARRY_FIELD_F64, 32, 0},
    {"mesh_idle_ms", "0 or more", IN(mesh_idle_ms), CARRY_FIELD_F64, 40, 0},
    {"observed_generator_calls", "1 or more", IN(observed_generator_calls), CARRY_FIELD_I32, 48, 0},
    {"mesh_start_frame", "0 or more", IN(mesh_start_frame), CARRY_FIELD_I32, 52, 0},
};
static const carry_part result_part[] = {
    {"latents_out", "[16, F, height, width]", "always", "LATO", IN(latents_out), CARRY_BF16, 4},
};
#undef IN

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
static const carry_layout layout_of[2] = {
    {"envelope", "CRYE", envelope_field, envelope_part, sizeof(carry_envelope), 72, COUNT(envelope_field),
     COUNT(envelope_part)},
    {"result", "CRYR", result_field, result_part, sizeof(carry_result), 56, COUNT(result_field), COUNT(result_part)},
};

const carry_layout *carry_layout_of(bool is_result) {
    return &layout_of[is_result];
}

static void put(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        to[i] = (unsigned char)(value >> 8 * i);
    }
}

int carry_field_bytes(carry_field_kind kind) {
    return kind == CARRY_FIELD_U64 || kind == CARRY_FIELD_I64 || kind == CARRY_FIELD_F64 ? 8 : 4;
}

/* The bits of a member of 4 or 8 bytes, read as an integer in host byte order, whatever the member's type. */
static uint64_t load(const void *member, int bytes) {
    uint32_t half;
    uint64_t whole;
    if (bytes == 4) {
        memcpy(&half, member, sizeof half);
        return half;
    }
    memcpy(&whole, member, sizeof whole);
    return whole;
}

static const carry_tensor *tensor_in(const void *object, const carry_part *p) {
    return (const carry_tensor *)(const void *)((const unsigned char *)object + p->in);
}

const char *carry_part_type(const carry_part *p) {
    return p->dtype == CARRY_I64 ? "I64 " : "BF16";
}

bool carry_part_bytes(size_t *bytes, size_t *filled, int rank, const int64_t *shape, carry_dtype dtype) {
    return rank <= CARRY_SPEC_RANK && carry_size_product(bytes, shape, rank, carry_dtype_size(dtype)) &&
           carry_size_add(filled, *bytes, (8 - *bytes % 8) % 8);
}

/* Counts the tensors that are present and their bytes. */
static bool count_tensors(const carry_layout *l, const void *object, uint32_t *specs, size_t *bytes) {
    *specs = 0;
    *bytes = 0;
    for (int i = 0; i < l->parts; i++) {
        const carry_tensor *tensor = tensor_in(object, &l->part[i]);
        size_t plain;
        size_t filled;
        if (tensor->rank == 0) {
            continue;
        }
        if (!carry_part_bytes(&plain, &filled, tensor->rank, tensor->shape, tensor->dtype) ||
            !carry_size_add(bytes, *bytes, filled)) {
            return false;
        }
        ++*specs;
    }
    return true;
}

bool carry_message_bytes(size_t *bytes, const void *object, bool is_result) {
    const carry_layout *l = &layout_of[is_result];
    uint32_t specs;
    size_t tensors;
    return count_tensors(l, object, &specs, &tensors) &&
           carry_size_add(bytes, tensors, CARRY_ENVELOPE_HEADER + l->metadata + (size_t)specs * CARRY_SPEC_BYTES);
}

static void put_fields(const carry_layout *l, unsigned char *metadata, const void *object) {
    memset(metadata, 0, l->metadata);
    for (int i = 0; i < l->fields; i++) {
        const carry_field *f = &l->field[i];
        const unsigned char *member = (const unsigned char *)object + f->in;
        if (f->kind == CARRY_FIELD_FLAG) {
            const unsigned byte = f->at + f->bit / 8;
            metadata[byte] = (unsigned char)(metadata[byte] | (*(const bool *)member ? 1U << f->bit % 8 : 0));
        } else if (f->kind != CARRY_FIELD_ZERO) {
            put(metadata + f->at, load(member, carry_field_bytes(f->kind)), carry_field_bytes(f->kind));
        }
    }
}

static void put_spec(unsigned char *spec, const carry_part *p, const carry_tensor *tensor, size_t bytes) {
    memset(spec, 0, CARRY_SPEC_BYTES);
    memcpy(spec, p->tag, 4);
    memcpy(spec + 4, carry_part_type(p), 4);
    put(spec + 8, (uint64_t)tensor->rank, 4);
    for (int i = 0; i < tensor->rank; i++) {
        put(spec + 16 + 8 * i, (uint64_t)tensor->shape[i], 8);
    }
    put(spec + 48, bytes, 8);
}

static void put_message(const carry_layout *l, unsigned char *to, const void *object, size_t bytes) {
    unsigned char *metadata = to + CARRY_ENVELOPE_HEADER;
    unsigned char *spec = metadata + l->metadata;
    uint32_t specs = 0;
    size_t tensors = 0;
    (void)count_tensors(l, object, &specs, &tensors);
    unsigned char *data = spec + (size_t)specs * CARRY_SPEC_BYTES;
    put_fields(l, metadata, object);
    for (int i = 0; i < l->parts; i++) {
        const carry_tensor *tensor = tensor_in(object, &l->part[i]);
        size_t plain = 0;
        size_t filled = 0;
        if (tensor->rank == 0 || !carry_part_bytes(&plain, &filled, tensor->rank, tensor->shape, tensor->dtype)) {
            continue;
        }
        put_spec(spec, &l->part[i], tensor, plain);
        if (plain > 0) {
            memcpy(data, tensor->data, plain);
        }
        memset(data + plain, 0, filled - plain);
        spec += CARRY_SPEC_BYTES;
        data += filled;
    }
    memcpy(to, l->magic, 4);
    put(to + 4, CARRY_ENVELOPE_VERSION, 4);
    put(to + 8, l->metadata, 4);
    put(to + 12, specs, 4);
    put(to + 16, tensors, 8);
    put(to + 24, carry_crc32c(0, metadata, bytes - CARRY_ENVELOPE_HEADER), 4);
    put(to + 28, carry_crc32c(0, to, 28), 4);
}

carry_status carry_message_refuse_host(carry_ctx *ctx, const carry_layout *l, size_t tensors) {
    if (tensors > 0 && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "tensors of an %s are little-endian, and this host is not", l->name);
    }
    return CARRY_OK;
}

static carry_status encode(carry_ctx *ctx, const carry_layout *l, void *to, size_t room, size_t *bytes,
                           const void *object) {
    size_t needed = 0;
    uint32_t specs;
    size_t tensors = 0;
    if (!carry_message_bytes(&needed, object, l == &layout_of[1]) || !count_tensors(l, object, &specs, &tensors)) {
        return carry_fail(ctx, CARRY_ESIZE, "the %s is larger than memory can be", l->name);
    }
    CARRY_TRY(carry_message_refuse_host(ctx, l, tensors));
    *bytes = needed;
    if (to == NULL && room == 0) {
        return CARRY_OK;
    }
    if (to == NULL || room < needed) {
        return carry_fail(ctx, CARRY_ERANGE, "the %s has %zu bytes, and there is room for %zu", l->name, needed, room);
    }
    put_message(l, to, object, needed);
    return CARRY_OK;
}

carry_status carry_envelope_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes,
                                   const carry_envelope *envelope) {
    *bytes = 0;
    CARRY_TRY(carry_envelope_validate(ctx, envelope));
    return encode(ctx, &layout_of[0], to, room, bytes, envelope);
}

carry_status carry_result_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes, const carry_result *result) {
    *bytes = 0;
    CARRY_TRY(carry_result_validate(ctx, result));
    return encode(ctx, &layout_of[1], to, room, bytes, result);
}

/* Appends to the text as snprintf does, and counts characters that did not fit. */
static void say(char *text, size_t room, size_t *used, const char *format, ...) CARRY_PRINTF(4, 5);

static void say(char *text, size_t room, size_t *used, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int more = vsnprintf(*used < room ? text + *used : NULL, *used < room ? room - *used : 0, format, arguments);
    va_end(arguments);
    *used += more > 0 ? (size_t)more : 0;
}

size_t carry_envelope_layout(char *text, size_t room, bool is_result) {
    const carry_layout *l = carry_layout_of(is_result);
    size_t used = 0;
    say(text, room, &used, "| byte | type | field of the %s | value |\n| --- | --- | --- | --- |\n", l->name);
    say(text, room, &used, "| 0 | 4 bytes of ASCII | magic | %s |\n", l->magic);
    say(text, room, &used, "| 4 | u32 | version | %d |\n", CARRY_ENVELOPE_VERSION);
    say(text, room, &used, "| 8 | u32 | bytes of metadata | %" PRIu32 " |\n", l->metadata);
    say(text, room, &used, "| 12 | u32 | tensor specs | 0 to %d |\n", l->parts);
    say(text, room, &used, "| 16 | u64 | bytes of all tensors, with what fills them up | |\n");
    say(text, room, &used, "| 24 | u32 | CRC32C of all that follows the header | |\n");
    say(text, room, &used, "| 28 | u32 | CRC32C of bytes 0 to 27 | |\n");
    for (int i = 0; i < l->fields; i++) {
        const carry_field *f = &l->field[i];
        const unsigned at = CARRY_ENVELOPE_HEADER + f->at;
        if (f->kind == CARRY_FIELD_FLAG) {
            say(text, room, &used, "| %u | bit %u of a u32 | %s | %s |\n", at, f->bit, f->name, f->rule);
        } else {
            say(text, room, &used, "| %u | %s | %s | %s |\n", at, kind_name[f->kind], f->name, f->rule);
        }
    }
    say(text, room, &used, "| %u | %d bytes each | specs | |\n\n", CARRY_ENVELOPE_HEADER + l->metadata,
        CARRY_SPEC_BYTES);
    say(text, room, &used, "| tag | type | tensor | shape | when |\n| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < l->parts; i++) {
        const carry_part *p = &l->part[i];
        say(text, room, &used, "| %s | %s | %s | %s | %s |\n", p->tag, carry_dtype_name(p->dtype), p->name, p->shape,
            p->when);
    }
    return used;
}
