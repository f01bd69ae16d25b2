/* Quantised weights: kept as blocks, or decoded. */
#include "model/parameters_quantised.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/quantised/tiles.h"

#define GRAIN 8                       /* rows handed to a thread */
#define PIECE_BYTES ((size_t)1 << 26) /* bytes of blocks uploaded at once, to be packed into tiles */

/* Gives the blocks of a tensor: those in the file, or new ones converted from the file's layout. The caller frees
 *made, which is NULL in the first case. */
static carry_status take_blocks(carry_ctx *ctx, const carry_tensor *from, const char *name, carry_tensor *blocks,
                                void **made) {
    const carry_quant_source *source = carry_quant_source_of(from);
    size_t bytes;
    *made = NULL;
    *blocks = *from;
    if (source == NULL) {
        return CARRY_OK;
    }
    *made = carry_quant_bytes(&bytes, source->format, source->rows, source->columns) ? carry_aligned_new(bytes) : NULL;
    if (*made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", name);
    }
    *blocks = carry_quant_view(*made, source->format, source->rows, source->columns);
    return carry_quant_convert(ctx, source, *made);
}

typedef struct decode_job {
    const carry_tensor *W;
    float *to;
} decode_job;

static void decode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const decode_job *j = argument;
    for (int64_t row = begin; row < end; row++) {
        carry_quant_decode(j->W, row, 0, j->W->shape[1], j->to + row * j->W->shape[1]);
    }
}

/* Checks a tensor; the error message names the folder too. */
static carry_status check(carry_ctx *ctx, const char *folder, const char *name, const carry_tensor *W) {
    char whole[512];
    (void)snprintf(whole, sizeof whole, "%.380s: %.120s", folder, name);
    return carry_quant_check(ctx, whole, W);
}

carry_status carry_parameters_decode(const carry_parameters *own, const carry_tensor *from, const char *name,
                                     const char *folder, float *to) {
    carry_tensor W;
    void *made;
    carry_status status = take_blocks(own->ctx, from, name, &W, &made);
    status = status == CARRY_OK ? check(own->ctx, folder, name, &W) : status;
    if (status == CARRY_OK) {
        decode_job j = {.W = &W, .to = to};
        carry_parallel(own->ctx, W.shape[0], GRAIN, decode_rows, &j);
    }
    free(made);
    return status;
}

/* Rows of a parameter; those of all matrices of a stack. */
static int64_t rows_of(const carry_parameter *p) {
    return p->rank == 3 ? p->shape[0] * p->shape[1] : p->shape[0];
}

/* A quantised parameter as one matrix. The tiles of a stack follow each other, because its matrices have a whole number
   of them. */
static carry_tensor matrix_of(const carry_parameters *own, int64_t index) {
    const carry_parameter *p = &own->parameter[index];
    return p->rank == 3 ? carry_quant_view_on(own->device, p->mapped, p->format, rows_of(p), p->shape[2])
                        : carry_parameters_view(own, own->weights, index);
}

static carry_status refuse_size(const carry_parameters *own, const carry_parameter *p, size_t bytes) {
    size_t available = 0;
    size_t total = 0;
    (void)carry_device_memory(own->ctx, &available, &total, own->device);
    return carry_fail(
        own->ctx, CARRY_EMEMORY,
        "out of memory: %s needs %.2f GB in %s, after %.2f GB of other quantised weights, and %.2f GB are "
        "free",
        p->name, 1e-9 * (double)bytes, p->format->name, 1e-9 * (double)own->tiled_bytes, 1e-9 * (double)available);
}

/* Allocates device memory for a quantised parameter. */
static carry_status tile(carry_parameters *own, carry_parameter *p, const carry_quant_format *format) {
    size_t bytes;
    p->format = format;
    if (!carry_quant_bytes_on(&bytes, own->device, format, rows_of(p), p->shape[p->rank - 1])) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    if (own->device != 0) {
        if (carry_device_alloc(own->ctx, &p->blocks, own->device, bytes) != CARRY_OK) {
            return refuse_size(own, p, bytes);
        }
        own->tiled_bytes += bytes;
    } else if ((p->blocks = carry_aligned_new(bytes)) == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    p->mapped = p->blocks;
    p->mapped_dtype = CARRY_QUANTISED;
    return CARRY_OK;
}

int64_t carry_parameters_moved(const carry_parameters *own, int64_t place) {
    int64_t moved = place;
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        moved -= p->mapped != NULL && p->listed < place ? carry_parameters_room(p->count) : 0;
    }
    return moved;
}

void carry_parameters_move(carry_parameters *own) {
    for (int64_t i = 0; i < own->parameters; i++) {
        own->parameter[i].listed = own->parameter[i].offset;
    }
    own->count = carry_parameters_moved(own, own->count);
    for (int64_t i = 0; i < own->parameters; i++) {
        carry_parameter *p = &own->parameter[i];
        p->offset = p->wide = carry_parameters_moved(own, p->listed);
    }
}

carry_status carry_parameters_tile(carry_parameters *own, const carry_quant_format *format) {
    own->reads_only = true;
    for (int64_t i = 0; i < own->parameters; i++) {
        if (own->parameter[i].may_be_tiled && (own->parameter[i].rank == 2 || own->device != 0)) {
            CARRY_TRY(tile(own, &own->parameter[i], format));
            own->quantised += own->parameter[i].count;
            own->stored[CARRY_BF16] += own->parameter[i].count;
        }
    }
    carry_parameters_move(own);
    return CARRY_OK;
}

/* Stores `count` rows of blocks from host memory as rows first, first + 1, ... of W; `first` is a multiple of 16.
   `beside` is a device buffer of at least `bytes` bytes; the CPU does not use it. */
static carry_status put_rows(const carry_parameters *own, carry_tensor W, int64_t first, int64_t count,
                             const void *blocks, size_t bytes, void *beside) {
    const carry_tensor part = carry_slice(W, first, count);
    if (own->device == 0) {
        return carry_quant_pack(own->ctx, part, blocks);
    }
    CARRY_TRY(
        carry_device_copy(own->ctx, beside, own->device, blocks, 0, bytes, carry_ctx_stream(own->ctx, own->device)));
    return carry_quant_pack(own->ctx, part, beside);
}

/* Fills the matrix by repeating its first `rows` rows, a whole number of tiles, which are there. */
static carry_status repeat_tiles(const carry_parameters *own, carry_tensor W, int64_t rows) {
    const size_t tile_bytes = (size_t)W.stride[0] * CARRY_QUANT_TILE_ROWS;
    const int64_t tiles = (W.shape[0] + CARRY_QUANT_TILE_ROWS - 1) / CARRY_QUANT_TILE_ROWS;
    unsigned char *data = W.data;
    for (int64_t have = rows / CARRY_QUANT_TILE_ROWS, some; have > 0 && have < tiles; have += some) {
        some = have < tiles - have ? have : tiles - have;
        CARRY_TRY(carry_device_copy(own->ctx, data + (size_t)have * tile_bytes, own->device, data, own->device,
                                    (size_t)some * tile_bytes, carry_ctx_stream(own->ctx, own->device)));
    }
    return CARRY_OK;
}

carry_status carry_parameters_put_blocks(carry_parameters *own, int64_t index, const void *blocks, int64_t rows) {
    carry_parameter *p = &own->parameter[index];
    const carry_tensor W = matrix_of(own, index);
    const size_t row = carry_quant_row_bytes(p->format, W.shape[1]);
    const int64_t filled = own->device != 0 ? rows : W.shape[0]; /* the rest is copied on the device */
    int64_t piece = (int64_t)(PIECE_BYTES / (row + 1)) / CARRY_QUANT_TILE_ROWS * CARRY_QUANT_TILE_ROWS;
    void *beside = NULL;
    carry_status status = CARRY_OK;
    piece = piece < CARRY_QUANT_TILE_ROWS ? CARRY_QUANT_TILE_ROWS : piece;
    piece = piece < rows ? piece : rows; /* a whole number of tiles, except for the last rows */
    p->is_square = p->may_be_square && own->device != 0 && carry_quant_is_square(p->format, blocks, rows, W.shape[1]);
    p->blocks_hash = carry_hash(0, blocks, (size_t)rows * row);
    if (own->device != 0) {
        CARRY_TRY(carry_device_alloc(own->ctx, &beside, own->device, (size_t)piece * row));
    }
    for (int64_t first = 0, some; status == CARRY_OK && first < filled; first += some) {
        const int64_t from = first % rows; /* index in the rows that repeat */
        some = piece < rows - from ? piece : rows - from;
        some = some < filled - first ? some : filled - first;
        status = put_rows(own, W, first, some, (const char *)blocks + (size_t)from * row, (size_t)some * row, beside);
    }
    status = status == CARRY_OK ? repeat_tiles(own, W, filled) : status;
    if (beside != NULL) {
        carry_device_free(own->ctx, own->device, beside);
    }
    return status;
}

/* The format of the blocks of a tensor in a file. */
static const carry_quant_format *format_in_file(const carry_tensor *from) {
    const carry_quant_source *source = carry_quant_source_of(from);
    return source != NULL ? source->format : carry_quant_format_of(from);
}

carry_status carry_parameters_map_quantised(carry_parameters *own, int64_t index, const carry_tensor *from) {
    carry_parameter *p = &own->parameter[index];
    carry_tensor W;
    if (p->rank != 2 || p->order.groups != 0) {
        return CARRY_OK;
    }
    if (own->device != 0) {
        return p->may_be_tiled && carry_quant_is_read_on(own->ctx, own->device) ? tile(own, p, format_in_file(from))
                                                                                : CARRY_OK;
    }
    CARRY_TRY(take_blocks(own->ctx, from, p->name, &W, &p->blocks));
    p->mapped = W.data;
    p->mapped_dtype = CARRY_QUANTISED;
    p->format = carry_quant_format_of(&W);
    return CARRY_OK;
}

bool carry_parameters_piece_fits(const carry_parameter *p, const carry_tensor *piece,
                                 const carry_quant_format **format) {
    const carry_quant_format *own = piece->dtype == CARRY_QUANTISED && piece->rank == 2 ? format_in_file(piece) : NULL;
    *format = *format == NULL ? own : *format;
    return own != NULL && own == *format && p->rank == 3 && piece->shape[0] % CARRY_QUANT_TILE_ROWS == 0 &&
           piece->shape[0] <= p->shape[1] && piece->shape[1] == p->shape[2];
}

carry_status carry_parameters_map_pieces(carry_parameters *own, int64_t index, const carry_quant_format *format) {
    carry_parameter *p = &own->parameter[index];
    return p->may_be_tiled && own->device != 0 ? tile(own, p, format) : CARRY_OK;
}

carry_status carry_parameters_load_piece(carry_parameters *own, int64_t index, int64_t first, const carry_tensor *from,
                                         const char *name, const char *folder, void *beside) {
    carry_parameter *p = &own->parameter[index];
    carry_tensor W;
    void *made;
    carry_status status = take_blocks(own->ctx, from, name, &W, &made);
    status = status == CARRY_OK ? check(own->ctx, folder, name, &W) : status;
    if (status == CARRY_OK) {
        const size_t bytes = (size_t)W.shape[0] * carry_quant_row_bytes(p->format, p->shape[2]);
        p->blocks_hash = carry_hash(first > 0 ? p->blocks_hash : 0, W.data, bytes);
        status = put_rows(own, matrix_of(own, index), first, W.shape[0], W.data, bytes, beside);
    }
    free(made);
    return status;
}

static carry_status load_tiles(carry_parameters *own, int64_t index, const carry_tensor *from, const char *folder) {
    const char *name = own->parameter[index].name;
    carry_tensor W;
    void *made;
    carry_status status = take_blocks(own->ctx, from, name, &W, &made);
    status = status == CARRY_OK ? check(own->ctx, folder, name, &W) : status;
    status = status == CARRY_OK ? carry_parameters_put_blocks(own, index, W.data, W.shape[0]) : status;
    free(made);
    return status;
}

carry_status carry_parameters_load_quantised(carry_parameters *own, int64_t index, const carry_tensor *from,
                                             const char *folder) {
    const carry_parameter *p = &own->parameter[index];
    if (p->mapped != NULL && own->device != 0) {
        return load_tiles(own, index, from, folder);
    }
    if (p->mapped != NULL) {
        const carry_tensor W = carry_parameters_view(own, own->weights, index);
        return check(own->ctx, folder, p->name, &W);
    }
    const size_t count = (size_t)carry_tensor_count(from);
    float *whole = carry_aligned_new(count * sizeof *whole);
    float *ordered = p->order.groups > 0 ? carry_aligned_new(count * sizeof *ordered) : NULL;
    carry_status status = CARRY_OK;
    if (whole == NULL || (p->order.groups > 0 && ordered == NULL)) {
        status = carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    status = status == CARRY_OK ? carry_parameters_decode(own, from, p->name, folder, whole) : status;
    if (status == CARRY_OK && ordered != NULL) {
        carry_parameters_reorder(p, ordered, whole, CARRY_F32, false);
    }
    status =
        status == CARRY_OK ? carry_parameters_put(own, index, ordered != NULL ? ordered : whole, CARRY_F32) : status;
    free(ordered);
    free(whole);
    return status;
}

carry_status carry_parameters_sample_quantised(const carry_parameters *own, float *to, int64_t index, int64_t count) {
    const carry_tensor W = carry_parameters_view(own, own->weights, index);
    const int64_t columns = W.shape[1];
    if (own->device != 0) {
        return carry_fail(own->ctx, CARRY_EUNSUPPORTED, "%s is quantised on a GPU, from which it is not read",
                          own->parameter[index].name);
    }
    float *row = malloc((size_t)columns * sizeof *row);
    if (row == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", own->parameter[index].name);
    }
    for (int64_t at = 0; at < count; at += columns) {
        carry_quant_decode(&W, at / columns, 0, columns, row);
        memcpy(to + at, row, (size_t)(count - at < columns ? count - at : columns) * sizeof *row);
    }
    free(row);
    return CARRY_OK;
}
