/* Parameters from and to a model's folder. */
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/parameters.h"
#include "model/parameters_file.h"
#include "model/parameters_quantised.h"

/* Finds a tensor by its name or one of its other names, or returns NULL. */
static const carry_tensor *find_named(const carry_parameters *own, const carry_weights *weights, const char *name) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *found = carry_weights_find(weights, name);
    for (int i = 0; found == NULL && own->other != NULL && own->other(own->names, name, i, false, other, sizeof other);
         i++) {
        found = carry_weights_find(weights, other);
    }
    return found;
}

/* Finds piece `which` of a tensor that a file stores in pieces: consecutive rows or, for a tensor of rank 3,
   consecutive rows of its matrices. Returns false past the last; *piece is NULL if the file has no tensor of that
   name. */
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

/* The text after the number of an expert in a name: ".up_proj.weight" of "experts.3.up_proj.weight"; the whole name if
   it has no number between two dots. */
static const char *after_number(const char *name) {
    for (const char *at = name + strlen(name); at > name; at--) {
        const char *first = at;
        while (first > name && first[-1] >= '0' && first[-1] <= '9') {
            first--;
        }
        if (*at == '.' && first < at && first > name && first[-1] == '.') {
            return at;
        }
    }
    return name;
}

/* The number of pieces of one matrix of a parameter of rank 3: 2 if a file has gate and up of each expert. */
static int pieces_of_matrix(const carry_parameters *own, const char *name) {
    char first[CARRY_SAFETENSORS_NAME];
    char other[CARRY_SAFETENSORS_NAME];
    int pieces = 1;
    if (!own->other(own->names, name, 0, true, first, sizeof first)) {
        return 1;
    }
    while (own->other(own->names, name, pieces, true, other, sizeof other) &&
           strcmp(after_number(other), after_number(first)) != 0) {
        pieces++;
    }
    return pieces;
}

/* Checks the type and the shape of a piece. A piece of rank 2 of a tensor of rank 3 is some rows of a matrix; of
   another piece only the rows are free, since the sum of all is checked later. */
static carry_status check_piece(const carry_parameters *own, const carry_parameter *p, const carry_tensor *piece,
                                const char *name, const char *folder, int64_t left) {
    char needs[CARRY_SHAPE_TEXT];
    char has[CARRY_SHAPE_TEXT];
    const int each = p->rank == 3 ? pieces_of_matrix(own, p->name) : 1;
    const bool is_matrix = p->rank == 3 && piece->rank == 2 && p->shape[1] % each == 0;
    int64_t shape[5];
    memcpy(shape, p->shape, sizeof shape);
    if (is_matrix) {
        shape[0] = p->shape[1] / each;
        shape[1] = p->shape[2];
    } else if (piece->rank == p->rank) {
        shape[0] = piece->shape[0];
    }
    const int rank = is_matrix ? 2 : p->rank;
    if (piece->rank != rank || memcmp(piece->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        return carry_fail(own->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the configuration needs %s", folder, name,
                          carry_shape_text(has, piece->rank, piece->shape), carry_shape_text(needs, rank, shape));
    }
    if (carry_tensor_count(piece) > left) {
        return carry_fail(own->ctx, CARRY_ESHAPE, "%s: %s of shape %s is more than is left of %s of shape %s", folder,
                          name, carry_shape_text(has, piece->rank, piece->shape), p->name,
                          carry_shape_text(needs, p->rank, p->shape));
    }
    return is_weight(piece->dtype) ? CARRY_OK
                                   : carry_fail(own->ctx, CARRY_EDTYPE, "%s: %s is %s: f32, bf16 or f16 is needed",
                                                folder, name, carry_dtype_name(piece->dtype));
}

/* True if the folder has a piece of the parameter other than the first. */
static bool has_later_piece(const carry_parameters *own, const carry_weights *weights, const carry_parameter *p) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *piece = NULL;
    const int64_t most = p->rank == 3 ? p->shape[0] * pieces_of_matrix(own, p->name) : p->shape[0];
    int i = 1;
    while (piece == NULL && i < most && find_piece(own, weights, p->name, i, &piece, other)) {
        i++;
    }
    return piece != NULL;
}

/* Checks that the pieces make up the parameter; the error names the first that is missing or does not fit. *pieces is
   their number, or 0 if the file does not have any. */
static carry_status check_pieces(const carry_parameters *own, const carry_weights *weights, const carry_parameter *p,
                                 const char *folder, int *pieces) {
    char other[CARRY_SAFETENSORS_NAME];
    char needs[CARRY_SHAPE_TEXT];
    const carry_tensor *piece;
    const carry_tensor *first = NULL;
    int64_t count = 0;
    *pieces = 0;
    while (find_piece(own, weights, p->name, *pieces, &piece, other) &&
           !(first != NULL && first->rank < p->rank && count == p->count)) {
        if (piece == NULL && *pieces == 0 && !has_later_piece(own, weights, p)) {
            return CARRY_OK;
        }
        if (piece == NULL) {
            return carry_fail(own->ctx, CARRY_EFORMAT, "%s has no tensor %s, a part of %s of shape %s", folder, other,
                              p->name, carry_shape_text(needs, p->rank, p->shape));
        }
        first = first != NULL ? first : piece;
        CARRY_TRY(check_piece(own, p, piece, other, folder, p->count - count));
        count += carry_tensor_count(piece);
        (*pieces)++;
    }
    return *pieces == 0 || count == p->count
               ? CARRY_OK
               : carry_fail(own->ctx, CARRY_ESHAPE, "%s: the %d pieces of %s do not make up its shape %s", folder,
                            *pieces, p->name, carry_shape_text(needs, p->rank, p->shape));
}

/* Finds the tensor of a parameter and checks its shape and type. *found is NULL if the file has it in pieces, which are
   checked too. */
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

/* Copies the file's elements directly to their destination, without conversion or a copy on the host. */
static carry_status put_as_they_are(carry_parameters *own, const carry_parameter *p, int64_t at,
                                    const carry_tensor *from) {
    const int64_t count = carry_tensor_count(from);
    return carry_copy(own->ctx, carry_parameters_low(own, p->offset + at, count),
                      carry_view_1d(from->data, from->dtype, count));
}

static bool stays(const carry_parameters *own, const carry_parameter *p, const carry_tensor *from) {
    return p->wide < 0 && own->ranks <= 1 && p->order.groups == 0 && from->dtype == own->low_dtype;
}

/* Copies pieces that find_one has checked, if all have the type in which the parameter is kept. *done is false if one
   has another type. */
static carry_status put_pieces(carry_parameters *own, const carry_weights *weights, const carry_parameter *p,
                               const char *folder, bool *done) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *piece;
    int64_t at = 0;
    *done = true;
    for (int i = 0; *done && at < p->count && find_piece(own, weights, p->name, i, &piece, other); i++) {
        *done = stays(own, p, piece);
        at += carry_tensor_count(piece);
    }
    at = 0;
    for (int i = 0; *done && at < p->count && find_piece(own, weights, p->name, i, &piece, other); i++) {
        CARRY_TRY(carry_parameters_check_values(own, piece, other, folder));
        CARRY_TRY(put_as_they_are(own, p, at, piece));
        own->stored[piece->dtype] += carry_tensor_count(piece);
        at += carry_tensor_count(piece);
    }
    return CARRY_OK;
}

/* Stores pieces that find_one has checked in the tiles of experts. */
static carry_status load_quantised_pieces(carry_parameters *own, const carry_weights *weights, int64_t index,
                                          const char *folder) {
    const carry_parameter *p = &own->parameter[index];
    const size_t bytes = (size_t)p->shape[1] * carry_quant_row_bytes(p->format, p->shape[2]);
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *piece;
    carry_status status = CARRY_OK;
    void *beside;
    int64_t at = 0;
    CARRY_TRY(carry_device_alloc(own->ctx, &beside, own->device, bytes));
    for (int i = 0; status == CARRY_OK && at < p->count && find_piece(own, weights, p->name, i, &piece, other); i++) {
        status = carry_parameters_load_piece(own, index, at / p->shape[2], piece, other, folder, beside);
        at += carry_tensor_count(piece);
    }
    carry_device_free(own->ctx, own->device, beside);
    own->stored[CARRY_BF16] += p->count;
    own->quantised += p->count;
    return status;
}

/* Converts pieces that find_one has checked to f32: in place on the CPU, in a temporary buffer for other devices. */
static carry_status load_pieces(carry_parameters *own, const carry_weights *weights, int64_t index,
                                const char *folder) {
    const carry_parameter *p = &own->parameter[index];
    const bool in_place = own->device == 0 && p->wide >= 0;
    char other[CARRY_SAFETENSORS_NAME];
    bool done;
    if (p->mapped != NULL) {
        return load_quantised_pieces(own, weights, index, folder);
    }
    CARRY_TRY(put_pieces(own, weights, p, folder, &done));
    if (done) {
        return CARRY_OK;
    }
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
        own->stored[piece->dtype] += count; /* f32, bf16 or f16, as checked before */
        status = carry_parameters_check_values(own, piece, other, folder);
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

/* Loads a tensor whose rows are in another order in the file. */
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

carry_status carry_parameters_load_one(carry_parameters *own, const carry_weights *weights, int64_t index,
                                       const char *folder) {
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
    CARRY_TRY(carry_parameters_check_values(own, from, own->parameter[index].name, folder));
    own->stored[from->dtype] += carry_tensor_count(from);
    if (own->parameter[index].mapped != NULL) {
        return CARRY_OK;
    }
    if (own->parameter[index].order.groups > 0) {
        return load_ordered(own, index, from);
    }
    if (stays(own, &own->parameter[index], from)) {
        return put_as_they_are(own, &own->parameter[index], 0, from);
    }
    return carry_parameters_put(own, index, from->data, from->dtype);
}

/* The first tensor that a parameter is read from, or NULL. */
static const carry_tensor *first_tensor(const carry_parameters *own, const carry_weights *weights,
                                        const carry_parameter *p) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *found = find_named(own, weights, p->name);
    if (found == NULL) {
        (void)find_piece(own, weights, p->name, 0, &found, other);
    }
    return found;
}

int64_t carry_parameters_file_of(const carry_parameters *own, const carry_weights *weights, int64_t index) {
    const carry_tensor *first = first_tensor(own, weights, &own->parameter[index]);
    return first != NULL ? carry_weights_file_of(weights, first->data) : -1;
}

carry_status carry_parameters_check(carry_parameters *own, const char *folder) {
    carry_weights weights;
    const carry_tensor *found;
    carry_status status = CARRY_OK;
    CARRY_TRY(carry_weights_open(own->ctx, &weights, folder));
    memset(own->stored, 0, sizeof own->stored);
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        status = find_one(own, &weights, i, folder, &found);
        found = status == CARRY_OK ? first_tensor(own, &weights, &own->parameter[i]) : NULL;
        if (found != NULL) {
            own->stored[found->dtype == CARRY_QUANTISED ? CARRY_BF16 : found->dtype] += own->parameter[i].count;
        }
    }
    carry_weights_close(&weights);
    return status;
}

/* Allocates device memory for experts that the folder has in pieces, all quantised in one format. */
static carry_status map_pieces(carry_parameters *own, const carry_weights *weights, int64_t index) {
    const carry_parameter *p = &own->parameter[index];
    const carry_quant_format *format = NULL;
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *piece;
    bool fits = true;
    int64_t at = 0;
    for (int i = 0; fits && at < p->count && find_piece(own, weights, p->name, i, &piece, other); i++) {
        fits = carry_parameters_piece_fits(p, piece, &format);
        at += carry_tensor_count(piece);
    }
    return fits && at == p->count ? carry_parameters_map_pieces(own, index, format) : CARRY_OK;
}

/* On a GPU: allocates device memory for quantised matrices; it is filled when the folder is loaded. */
static carry_status map_tiles(carry_parameters *own, const char *folder) {
    carry_weights weights;
    carry_status status = CARRY_OK;
    CARRY_TRY(carry_weights_open(own->ctx, &weights, folder));
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_tensor *found;
        status = find_one(own, &weights, i, folder, &found);
        if (status == CARRY_OK && found != NULL && found->dtype == CARRY_QUANTISED) {
            status = carry_parameters_map_quantised(own, i, found);
        } else if (status == CARRY_OK && found == NULL) {
            status = map_pieces(own, &weights, i);
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

/* The total number of elements of parameters whose rows have another order in files. */
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
