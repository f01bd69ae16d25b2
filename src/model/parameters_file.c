/* Parameters from and to a model's folder. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "model/parameters.h"
#include "model/parameters_quantised.h"

#define LARGEST 1e8f /* of a weight; those of models that work are below 1e3 */

/* One element; of f16 0 for those that are numbers. */
static float value_at(const void *data, carry_dtype dtype, int64_t index) {
    const unsigned char *at = (const unsigned char *)data + (size_t)index * carry_dtype_size(dtype);
    uint16_t half;
    uint32_t bits;
    float value;
    if (dtype == CARRY_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == CARRY_F16) { /* none is too large: NaN and infinity alone have this exponent */
        return (half & 0x7C00u) == 0x7C00u ? (half & 0x3FFu) != 0 ? NAN : INFINITY : 0.0f;
    }
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define SOME 4096 /* elements looked at together */
#define LANES 32
#define GRAIN ((int64_t)32) /* of those, worth handing to a thread */

typedef struct value_check {
    const void *data;
    carry_dtype dtype;
    int64_t count;
    _Atomic int64_t wrong; /* a block with such a value; -1: none */
} value_check;

/* Bits without the sign order as magnitudes do. 1e8 is 0x4CBEBC20; in bf16 the next below is 0x4CBE. Lanes of a fixed
   number become vectors at any level of optimisation. */
static bool half_is_fine(const uint16_t *at, int64_t count, uint16_t largest) {
    uint16_t most[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            const uint16_t bits = at[i + lane] & 0x7FFFu;
            most[lane] = bits > most[lane] ? bits : most[lane];
        }
    }
    bool is_fine = true;
    for (int lane = 0; lane < LANES; lane++) {
        is_fine = is_fine && most[lane] <= largest;
    }
    for (; i < count; i++) {
        is_fine = is_fine && (at[i] & 0x7FFFu) <= largest;
    }
    return is_fine;
}

static bool float_is_fine(const uint32_t *at, int64_t count) {
    bool is_fine = true;
    for (int64_t i = 0; i < count; i++) {
        is_fine &= (at[i] & 0x7FFFFFFFu) <= 0x4CBEBC20u;
    }
    return is_fine;
}

static void check_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    value_check *c = argument;
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * SOME;
        const int64_t count = c->count - first < SOME ? c->count - first : SOME;
        const bool is_fine = c->dtype == CARRY_F32 ? float_is_fine((const uint32_t *)c->data + first, count)
                                                   : half_is_fine((const uint16_t *)c->data + first, count,
                                                                  c->dtype == CARRY_BF16 ? 0x4CBEu : 0x7BFFu);
        if (!is_fine) {
            atomic_store(&c->wrong, block);
        }
    }
}

/* A damaged file would otherwise be used: one flipped bit of an exponent makes every result wrong. */
static carry_status check_values(const carry_parameters *own, const carry_tensor *from, const char *name,
                                 const char *folder) {
    value_check c = {.data = from->data, .dtype = from->dtype, .count = carry_tensor_count(from), .wrong = -1};
    carry_parallel(own->ctx, (c.count + SOME - 1) / SOME, GRAIN, check_blocks, &c);
    for (int64_t i = 0; atomic_load(&c.wrong) >= 0 && i < c.count; i++) {
        const float value = value_at(from->data, from->dtype, i);
        if (!(fabsf(value) <= LARGEST)) {
            return carry_fail(own->ctx, CARRY_EFORMAT,
                              "%s: element %lld of %s is %g: weights are finite and at most %g", folder, (long long)i,
                              name, (double)value, (double)LARGEST);
        }
    }
    return CARRY_OK;
}

/* By its name or another one; NULL: none. */
static const carry_tensor *find_named(const carry_parameters *own, const carry_weights *weights, const char *name) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *found = carry_weights_find(weights, name);
    for (int i = 0; found == NULL && own->other != NULL && own->other(own->names, name, i, false, other, sizeof other);
         i++) {
        found = carry_weights_find(weights, other);
    }
    return found;
}

/* Piece `which` of a tensor that a file has in pieces: consecutive rows of it or, of a tensor of rank 3, of its
   matrices. False past the last. *piece is NULL where the file has no tensor of its name. */
static bool find_piece(const carry_parameters *own, const carry_weights *weights, const char *name, int which,
                       const carry_tensor **piece, char other[CARRY_SAFETENSORS_NAME]) {
    *piece = NULL;
    if (own->other == NULL || !own->other(own->names, name, which, true, other, CARRY_SAFETENSORS_NAME)) {
        return false;
    }
    *piece = find_named(own, weights, other);
    return true;
}

/* f32, bf16, f16, or quantised. */
static bool is_weight(carry_dtype dtype) {
    return carry_dtype_is_real(dtype) || dtype == CARRY_QUANTISED;
}

/* Has a piece the type and, but for its first index, the shape that it needs? The pieces of matrices are all equal. */
static bool piece_fits(const carry_parameter *p, const carry_tensor *piece, const carry_tensor *first) {
    const int less = p->rank - piece->rank; /* 1: rows of matrices */
    return is_weight(piece->dtype) && piece->rank >= 1 &&
           (less == 0 || (less == 1 && p->rank == 3 && piece->shape[0] == first->shape[0])) &&
           memcmp(piece->shape + 1, p->shape + 1 + less, (size_t)(piece->rank - 1) * sizeof *p->shape) == 0;
}

/* Do the pieces make up the parameter? Otherwise the first that is missing or does not fit is named. *pieces is their
   number, 0 where the file has not the first. */
static carry_status check_pieces(const carry_parameters *own, const carry_weights *weights, const carry_parameter *p,
                                 const char *folder, int *pieces) {
    char other[CARRY_SAFETENSORS_NAME];
    char needs[CARRY_SHAPE_TEXT];
    char has[CARRY_SHAPE_TEXT];
    const carry_tensor *piece;
    const carry_tensor *first = NULL;
    int64_t count = 0;
    *pieces = 0;
    while (find_piece(own, weights, p->name, *pieces, &piece, other) &&
           !(first != NULL && first->rank < p->rank && count == p->count)) {
        if (piece == NULL && *pieces == 0) {
            return CARRY_OK;
        }
        if (piece == NULL) {
            return carry_fail(own->ctx, CARRY_EFORMAT, "%s has no tensor %s, a part of %s of shape %s", folder, other,
                              p->name, carry_shape_text(needs, p->rank, p->shape));
        }
        first = first != NULL ? first : piece;
        if (!piece_fits(p, piece, first) || carry_tensor_count(piece) > p->count - count) {
            return carry_fail(own->ctx, CARRY_ESHAPE,
                              "%s: %s of shape %s (%s) does not fit into %s of shape %s in f32, bf16 or f16", folder,
                              other, carry_shape_text(has, piece->rank, piece->shape), carry_dtype_name(piece->dtype),
                              p->name, carry_shape_text(needs, p->rank, p->shape));
        }
        count += carry_tensor_count(piece);
        (*pieces)++;
    }
    return *pieces == 0 || count == p->count
               ? CARRY_OK
               : carry_fail(own->ctx, CARRY_ESHAPE, "%s: the %d pieces of %s do not make up its shape %s", folder,
                            *pieces, p->name, carry_shape_text(needs, p->rank, p->shape));
}

/* The tensor of a parameter, of the right shape and type. NULL: it is there in pieces, which fit. */
static carry_status find_one(const carry_parameters *own, const carry_weights *weights, int64_t index,
                             const char *folder, const carry_tensor **found) {
    const carry_parameter *p = &own->parameter[index];
    const carry_tensor *from = find_named(own, weights, p->name);
    int pieces = 0;
    int64_t shape[5];
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    memcpy(shape, p->shape, sizeof shape);
    if (p->cut != CARRY_CUT_NONE && own->ranks > 1) {
        shape[p->cut == CARRY_CUT_ROWS ? 0 : 1] *= own->ranks;
    }
    if (from == NULL) {
        CARRY_TRY(check_pieces(own, weights, p, folder, &pieces));
    }
    if (pieces > 0) {
        *found = NULL;
        return CARRY_OK;
    }
    if (from == NULL) {
        return carry_fail(own->ctx, CARRY_EFORMAT, "%s has no tensor %s, which the configuration needs with shape %s",
                          folder, p->name, carry_shape_text(needs, p->rank, shape));
    }
    if (from->rank != p->rank || memcmp(from->shape, shape, (size_t)p->rank * sizeof *shape) != 0) {
        return carry_fail(own->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the configuration needs %s", folder,
                          p->name, carry_shape_text(has, from->rank, from->shape),
                          carry_shape_text(needs, p->rank, shape));
    }
    if (!is_weight(from->dtype)) {
        return carry_fail(own->ctx, CARRY_EDTYPE, "%s: %s is %s: f32, bf16 or f16 is needed", folder, p->name,
                          carry_dtype_name(from->dtype));
    }
    *found = from;
    return CARRY_OK;
}

/* Pieces that find_one has checked, into f32: in place on the CPU, elsewhere beside. */
static carry_status load_pieces(carry_parameters *own, const carry_weights *weights, int64_t index,
                                const char *folder) {
    const carry_parameter *p = &own->parameter[index];
    const bool in_place = own->device == 0 && p->wide >= 0;
    char other[CARRY_SAFETENSORS_NAME];
    float *whole = in_place ? own->weights + p->wide : carry_aligned_new((size_t)p->count * sizeof *whole);
    carry_status status = whole != NULL ? CARRY_OK : carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    const carry_tensor *piece;
    int64_t at = 0;
    for (int i = 0; status == CARRY_OK && at < p->count && find_piece(own, weights, p->name, i, &piece, other); i++) {
        const int64_t count = carry_tensor_count(piece);
        if (piece->dtype == CARRY_QUANTISED) {
            own->stored[CARRY_BF16] += count;
            own->quantised += count;
            status = carry_parameters_decode(own, piece, other, folder, whole + at);
            at += count;
            continue;
        }
        own->stored[piece->dtype] += count; /* f32, bf16 or f16: checked before */
        status = check_values(own, piece, other, folder);
        status = status == CARRY_OK ? carry_convert(own->ctx, carry_view_1d(whole + at, CARRY_F32, count),
                                                    carry_view_1d(piece->data, piece->dtype, count))
                                    : status;
        at += count;
    }
    if (!in_place) {
        status = status == CARRY_OK ? carry_parameters_put(own, index, whole, CARRY_F32) : status;
        free(whole);
    }
    return status;
}

void carry_parameters_reorder(const carry_parameter *p, void *to, const void *from, carry_dtype dtype, bool to_file) {
    const carry_row_order *order = &p->order;
    const size_t row = (size_t)(p->count / p->shape[0]) * carry_dtype_size(dtype);
    int64_t at = 0; /* the row in the file */
    for (int64_t group = 0; group < order->groups; group++) {
        for (int i = 0; i < CARRY_ROW_BLOCKS; i++) {
            const size_t there = (size_t)at * row;
            const size_t here = (size_t)(order->first[i] + group * order->rows[i]) * row;
            memcpy((char *)to + (to_file ? there : here), (const char *)from + (to_file ? here : there),
                   (size_t)order->rows[i] * row);
            at += order->rows[i];
        }
    }
}

/* A tensor whose rows have another order in the file. */
static carry_status load_ordered(carry_parameters *own, int64_t index, const carry_tensor *from) {
    const carry_parameter *p = &own->parameter[index];
    void *whole = carry_aligned_new((size_t)p->count * carry_dtype_size(from->dtype));
    if (whole == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    carry_parameters_reorder(p, whole, from->data, from->dtype, false);
    const carry_status status = carry_parameters_put(own, index, whole, from->dtype);
    free(whole);
    return status;
}

static carry_status load_one(carry_parameters *own, const carry_weights *weights, int64_t index, const char *folder) {
    const carry_tensor *from;
    CARRY_TRY(find_one(own, weights, index, folder, &from));
    if (from == NULL) {
        return load_pieces(own, weights, index, folder);
    }
    if (from->dtype == CARRY_QUANTISED) {
        own->stored[CARRY_BF16] += carry_tensor_count(from);
        own->quantised += carry_tensor_count(from);
        return carry_parameters_load_quantised(own, index, from, folder);
    }
    CARRY_TRY(check_values(own, from, own->parameter[index].name, folder));
    own->stored[from->dtype] += carry_tensor_count(from);
    if (own->parameter[index].mapped != NULL) {
        return CARRY_OK;
    }
    if (own->parameter[index].order.groups > 0) {
        return load_ordered(own, index, from);
    }
    return carry_parameters_put(own, index, from->data, from->dtype);
}

carry_status carry_parameters_check(const carry_parameters *own, const char *folder) {
    carry_weights weights;
    const carry_tensor *found;
    carry_status status = CARRY_OK;
    CARRY_TRY(carry_weights_open(own->ctx, &weights, folder));
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        status = find_one(own, &weights, i, folder, &found);
    }
    carry_weights_close(&weights);
    return status;
}

/* On a GPU: quantised matrices get memory there, which is filled when the folder is loaded. */
static carry_status map_tiles(carry_parameters *own, const char *folder) {
    carry_weights weights;
    carry_status status = CARRY_OK;
    CARRY_TRY(carry_weights_open(own->ctx, &weights, folder));
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_tensor *found;
        status = find_one(own, &weights, i, folder, &found);
        if (status == CARRY_OK && found != NULL && found->dtype == CARRY_QUANTISED) {
            status = carry_parameters_map_quantised(own, i, found);
        }
    }
    carry_weights_close(&weights);
    carry_parameters_move(own);
    return status;
}

carry_status carry_parameters_map(carry_parameters *own, const char *folder) {
    own->reads_only = true;
    if (own->ranks > 1) {
        return CARRY_OK;
    }
    if (own->device != 0) {
        return map_tiles(own, folder);
    }
    CARRY_TRY(carry_weights_open(own->ctx, &own->files, folder));
    own->count = 0;
    for (int64_t i = 0; i < own->parameters; i++) {
        carry_parameter *p = &own->parameter[i];
        const carry_tensor *found;
        CARRY_TRY(find_one(own, &own->files, i, folder, &found));
        if (found != NULL && found->dtype == CARRY_QUANTISED) {
            CARRY_TRY(carry_parameters_map_quantised(own, i, found));
        } else if ((p->rank == 2 || (p->rank == 3 && p->may_be_narrow)) && p->order.groups == 0 && found != NULL &&
                   found->dtype != CARRY_F32 && (uintptr_t)found->data % 2 == 0) {
            p->mapped = found->data;
            p->mapped_dtype = found->dtype;
        }
        p->offset = p->wide = own->count;
        own->count += p->mapped == NULL ? carry_parameters_room(p->count) : 0;
    }
    return CARRY_OK;
}

/* The files of a folder: those that are mapped already, else opened. */
static carry_status open_files(const carry_parameters *own, carry_weights *weights, const char *folder) {
    if (own->files.files == 0) {
        return carry_weights_open(own->ctx, weights, folder);
    }
    *weights = own->files;
    return CARRY_OK;
}

carry_dtype carry_parameters_stored(const carry_parameters *own) {
    const int64_t *of = own->stored;
    return of[CARRY_BF16] > of[CARRY_F32] && of[CARRY_BF16] > of[CARRY_F16] ? CARRY_BF16
           : of[CARRY_F16] > of[CARRY_F32]                                  ? CARRY_F16
                                                                            : CARRY_F32;
}

carry_status carry_parameters_load(carry_parameters *own, const char *folder,
                                   bool (*spare)(const void *model, const carry_weights *weights, const char *name),
                                   const void *model) {
    carry_weights weights;
    CARRY_TRY(open_files(own, &weights, folder));
    carry_status status = CARRY_OK;
    memset(own->stored, 0, sizeof own->stored);
    own->quantised = 0;
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        status = load_one(own, &weights, i, folder);
    }
    /* All parameters were found: any other tensor is surplus. */
    const bool renames = own->other != NULL; /* then equal numbers prove nothing */
    for (int64_t i = 0; status == CARRY_OK && (renames || weights.count != own->parameters) && i < weights.count; i++) {
        const char *name = carry_weights_name(&weights, i);
        if (carry_parameters_find(own, name) == NULL && (spare == NULL || !spare(model, &weights, name))) {
            const carry_tensor *tensor = carry_weights_find(&weights, name);
            char has[CARRY_SHAPE_TEXT];
            status = carry_fail(own->ctx, CARRY_EFORMAT,
                                "%s: the tensor %.80s of shape %s has no place in the configured model", folder, name,
                                carry_shape_text(has, tensor->rank, tensor->shape));
        }
    }
    if (own->files.files == 0) {
        carry_weights_close(&weights);
    }
    return status == CARRY_OK ? carry_parameters_round(own) : status;
}

/* Elements of the parameters whose rows have another order in files. */
static int64_t ordered_count(const carry_parameters *own) {
    int64_t count = 0;
    for (int64_t i = 0; i < own->parameters; i++) {
        count += own->parameter[i].order.groups > 0 ? own->parameter[i].count : 0;
    }
    return count;
}

carry_status carry_parameters_save(const carry_parameters *own, const char *folder, carry_dtype dtype) {
    static const char *const notes[] = {"format", "pt", NULL}; /* transformers asks for it */
    char path[CARRY_FILE_PATH];
    const float *weights;
    float *copied;
    if (own->is_narrow || (own->device != 0 && own->quantised > 0)) {
        return carry_fail(own->ctx, CARRY_EUNSUPPORTED, "%s: a model without f32 weights is not saved", folder);
    }
    CARRY_TRY(carry_file_in(own->ctx, path, folder, "model.safetensors"));
    carry_status status = carry_parameters_see(own, own->weights, &weights, &copied);
    carry_safetensors_item *items = calloc((size_t)own->parameters, sizeof *items);
    float *ordered = carry_aligned_new((size_t)ordered_count(own) * sizeof *ordered + 1);
    int64_t at = 0;
    if (status == CARRY_OK && (items == NULL || ordered == NULL)) {
        status = carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const void *data = p->mapped != NULL ? p->mapped : weights + p->offset;
        const carry_dtype type = p->mapped != NULL ? p->mapped_dtype : CARRY_F32;
        if (p->order.groups > 0) {
            carry_parameters_reorder(p, ordered + at, data, CARRY_F32, true);
            data = ordered + at;
            at += p->count;
        }
        items[i] = (carry_safetensors_item){
            .name = p->name, .tensor = carry_view((void *)(uintptr_t)data, type, p->rank, p->shape), .dtype = dtype};
    }
    status = status == CARRY_OK ? carry_safetensors_write(own->ctx, path, items, own->parameters, notes) : status;
    free(ordered);
    free(items);
    free(copied);
    return status;
}
