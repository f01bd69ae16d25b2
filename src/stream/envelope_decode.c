/* Decodes a peer's bytes, which are untrusted until every length, CRC, type and shape has been checked. */
#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "stream/envelope_bytes.h"

static uint64_t get(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | from[i];
    }
    return value;
}

static void store(void *member, uint64_t value, int bytes) {
    const uint32_t half = (uint32_t)value;
    if (bytes == 4) {
        memcpy(member, &half, sizeof half);
    } else {
        memcpy(member, &value, sizeof value);
    }
}

/* Checks the header alone, and computes the size of the rest. */
static carry_status check_header(carry_ctx *ctx, const carry_layout *l, const unsigned char *header, uint32_t *specs,
                                 size_t *tensors, size_t *follow) {
    if (memcmp(header, l->magic, 4) != 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "the message starts with bytes %02x %02x %02x %02x: an %s starts with %s",
                          header[0], header[1], header[2], header[3], l->name, l->magic);
    }
    const uint32_t version = (uint32_t)get(header + 4, 4);
    if (version != CARRY_ENVELOPE_VERSION) {
        return carry_fail(ctx, CARRY_EFORMAT, "the %s is of version %" PRIu32 ", and this program speaks %d", l->name,
                          version, CARRY_ENVELOPE_VERSION);
    }
    const uint32_t crc = carry_crc32c(0, header, 28);
    if (crc != get(header + 28, 4)) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "the header of the %s is damaged: its CRC is %08" PRIx64 ", not %08" PRIx32, l->name,
                          get(header + 28, 4), crc);
    }
    const uint64_t metadata = get(header + 8, 4);
    const uint64_t count = get(header + 12, 4);
    const uint64_t bytes = get(header + 16, 8);
    if (metadata != l->metadata || count > (uint64_t)l->parts || bytes > CARRY_ENVELOPE_BYTES || bytes % 8 != 0) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "the %s claims %" PRIu64 " bytes of metadata, %" PRIu64 " tensors and %" PRIu64
                          " bytes of them: it has %" PRIu32 ", up to %d, and up to %zu",
                          l->name, metadata, count, bytes, l->metadata, l->parts, CARRY_ENVELOPE_BYTES);
    }
    *specs = (uint32_t)count;
    *tensors = (size_t)bytes;
    *follow = l->metadata + (size_t)count * CARRY_SPEC_BYTES + (size_t)bytes;
    return CARRY_OK;
}

carry_status carry_envelope_follows(carry_ctx *ctx, size_t *bytes, const void *header, size_t most, bool is_result) {
    const carry_layout *l = carry_layout_of(is_result);
    uint32_t specs;
    size_t tensors;
    size_t follow = 0;
    *bytes = 0;
    CARRY_TRY(check_header(ctx, l, header, &specs, &tensors, &follow));
    if (follow > most || follow > CARRY_ENVELOPE_BYTES - CARRY_ENVELOPE_HEADER) {
        return carry_fail(ctx, CARRY_ERANGE, "%zu bytes follow the header of the %s: at most %zu are taken", follow,
                          l->name, most);
    }
    *bytes = follow;
    return CARRY_OK;
}

/* Unused bits of the flag word and padding must be zero. */
static carry_status take_fields(carry_ctx *ctx, const carry_layout *l, void *object, const unsigned char *metadata) {
    uint32_t known = 0;
    unsigned flags_at = 0;
    for (int i = 0; i < l->fields; i++) {
        const carry_field *f = &l->field[i];
        unsigned char *member = (unsigned char *)object + f->in;
        const int bytes = carry_field_bytes(f->kind);
        const uint64_t value = get(metadata + f->at, bytes);
        if (f->kind == CARRY_FIELD_FLAG) {
            *(bool *)member = (value >> f->bit & 1) != 0;
            known |= 1U << f->bit;
            flags_at = f->at;
        } else if (f->kind != CARRY_FIELD_ZERO) {
            store(member, value, bytes);
        } else if (value != 0) {
            return carry_fail(ctx, CARRY_EFORMAT, "the %s has %08" PRIx64 " at byte %u of its metadata, which is 0",
                              l->name, value, f->at);
        }
    }
    const uint32_t flags = known != 0 ? (uint32_t)get(metadata + flags_at, 4) : 0;
    if ((flags & ~known) != 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "the %s has flags %08" PRIx32 ", of which only %08" PRIx32 " are known",
                          l->name, flags, known);
    }
    return CARRY_OK;
}

/* Finds the tensor that a spec names. The search starts at *part, since specs come in the order of the table. */
static carry_status take_spec(carry_ctx *ctx, const carry_layout *l, const carry_part **part, carry_tensor *tensor,
                              const unsigned char *spec) {
    const carry_part *p = *part;
    while (p < l->part + l->parts && memcmp(spec, p->tag, 4) != 0) {
        p++;
    }
    if (p == l->part + l->parts) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "the %s has a tensor %02x %02x %02x %02x, which is unknown, there twice or not at its place",
                          l->name, spec[0], spec[1], spec[2], spec[3]);
    }
    *part = p + 1;
    if (memcmp(spec + 4, carry_part_type(p), 4) != 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s has type %02x %02x %02x %02x where %s is needed", p->name, spec[4],
                          spec[5], spec[6], spec[7], carry_part_type(p));
    }
    const uint64_t rank = get(spec + 8, 4);
    if (rank != (uint64_t)p->rank || get(spec + 12, 4) != 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s has rank %" PRIu64 " where %d is needed", p->name, rank, p->rank);
    }
    int64_t shape[CARRY_SPEC_RANK];
    for (int i = 0; i < CARRY_SPEC_RANK; i++) {
        shape[i] = (int64_t)get(spec + 16 + 8 * i, 8);
        if (shape[i] < 0 || (i >= p->rank && shape[i] != 0)) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s has size %" PRId64 " at index %d of its shape", p->name, shape[i],
                              i);
        }
    }
    size_t bytes = 0;
    size_t filled = 0;
    if (!carry_part_bytes(&bytes, &filled, p->rank, shape, p->dtype) || bytes != get(spec + 48, 8)) {
        char text[CARRY_SHAPE_TEXT];
        return carry_fail(ctx, CARRY_EFORMAT, "%s claims %" PRIu64 " bytes, which its shape %s does not have", p->name,
                          get(spec + 48, 8), carry_shape_text(text, p->rank, shape));
    }
    *tensor = carry_view(NULL, p->dtype, p->rank, shape);
    return CARRY_OK;
}

static carry_status take_tensors(carry_ctx *ctx, const carry_layout *l, void *object, const unsigned char *spec,
                                 uint32_t specs, size_t left) {
    const unsigned char *data = spec + (size_t)specs * CARRY_SPEC_BYTES;
    const carry_part *part = l->part;
    for (uint32_t i = 0; i < specs; i++, spec += CARRY_SPEC_BYTES) {
        carry_tensor tensor;
        CARRY_TRY(take_spec(ctx, l, &part, &tensor, spec));
        const carry_part *p = part - 1;
        size_t bytes = 0;
        size_t filled = 0;
        /* take_spec has checked it. */
        (void)carry_part_bytes(&bytes, &filled, tensor.rank, tensor.shape, tensor.dtype);
        if (filled > left) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s claims %zu bytes where %zu are left", p->name, filled, left);
        }
        for (size_t at = bytes; at < filled; at++) {
            if (data[at] != 0) {
                return carry_fail(ctx, CARRY_EFORMAT, "%s is filled up with a byte that is not 0", p->name);
            }
        }
        tensor.data = (void *)(uintptr_t)data;
        memcpy((unsigned char *)object + p->in, &tensor, sizeof tensor);
        data += filled;
        left -= filled;
    }
    return left == 0 ? CARRY_OK
                     : carry_fail(ctx, CARRY_EFORMAT, "%zu bytes of the %s belong to no tensor", left, l->name);
}

static carry_status decode(carry_ctx *ctx, const carry_layout *l, void *object, const unsigned char *message,
                           size_t bytes) {
    uint32_t specs = 0;
    size_t tensors = 0;
    size_t follow = 0;
    memset(object, 0, l->object);
    if ((uintptr_t)message % 8 != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the %s is at an address that is not a multiple of 8", l->name);
    }
    if (bytes < CARRY_ENVELOPE_HEADER) {
        return carry_fail(ctx, CARRY_EFORMAT, "the %s has %zu bytes, and its header alone %d", l->name, bytes,
                          CARRY_ENVELOPE_HEADER);
    }
    CARRY_TRY(check_header(ctx, l, message, &specs, &tensors, &follow));
    if (bytes - CARRY_ENVELOPE_HEADER != follow) {
        return carry_fail(ctx, CARRY_EFORMAT, "the %s has %zu bytes after its header, which says %zu", l->name,
                          bytes - CARRY_ENVELOPE_HEADER, follow);
    }
    const unsigned char *metadata = message + CARRY_ENVELOPE_HEADER;
    const uint32_t crc = carry_crc32c(0, metadata, follow);
    if (crc != get(message + 24, 4)) {
        return carry_fail(ctx, CARRY_EFORMAT, "the %s is damaged: its CRC is %08" PRIx64 ", not %08" PRIx32, l->name,
                          get(message + 24, 4), crc);
    }
    CARRY_TRY(carry_message_refuse_host(ctx, l, tensors));
    CARRY_TRY(take_fields(ctx, l, object, metadata));
    return take_tensors(ctx, l, object, metadata + l->metadata, specs, tensors);
}

carry_status carry_envelope_decode(carry_ctx *ctx, carry_envelope *envelope, const void *message, size_t bytes) {
    carry_status status = decode(ctx, carry_layout_of(false), envelope, message, bytes);
    envelope->version = CARRY_ENVELOPE_VERSION; /* check_header accepts no other */
    if (status == CARRY_OK) {
        status = carry_envelope_validate(ctx, envelope);
    }
    if (status != CARRY_OK) {
        *envelope = (carry_envelope){0};
    }
    return status;
}

carry_status carry_result_decode(carry_ctx *ctx, carry_result *result, const void *message, size_t bytes) {
    carry_status status = decode(ctx, carry_layout_of(true), result, message, bytes);
    result->version = CARRY_ENVELOPE_VERSION;
    if (status == CARRY_OK) {
        status = carry_result_validate(ctx, result);
    }
    if (status != CARRY_OK) {
        *result = (carry_result){0};
    }
    return status;
}
