/* The hash of a model's weights. A block of 16384 elements is hashed as bf16 if all of them are exact in bf16, else as
   f32; quantised parameters are hashed as stored, without decoding. So weights that are bf16 in the file have the same
   hash if they are read from the mapped file or were widened to f32 on a device. All threads hash the blocks of a
   parameter; on a GPU they are downloaded in pieces. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "model/host.h"
#include "model/parameters.h"

#define BLOCK 16384              /* elements hashed together */
#define PIECE ((int64_t)1 << 24) /* elements downloaded together, a multiple of BLOCK */
#define GRAIN 16                 /* blocks handed to a thread */

typedef struct block_hashes {
    const void *data; /* host memory */
    carry_dtype dtype;
    int64_t count;
    uint64_t *hash; /* of each block */
} block_hashes;

static uint64_t hash_bf16(const void *data, int64_t count) {
    return carry_hash(CARRY_BF16, data, (size_t)count * sizeof(uint16_t));
}

static uint64_t hash_f32(const uint32_t *bits, int64_t count) {
    uint16_t upper[BLOCK];
    uint32_t lower = 0;
    for (int64_t i = 0; i < count; i++) {
        lower |= bits[i] & 0xFFFFu;
        upper[i] = (uint16_t)(bits[i] >> 16);
    }
    return lower == 0 ? hash_bf16(upper, count) : carry_hash(CARRY_F32, bits, (size_t)count * sizeof *bits);
}

static uint64_t hash_f16(const uint16_t *halves, int64_t count) {
    uint32_t bits[BLOCK];
    for (int64_t i = 0; i < count; i++) {
        const float value = carry_f32_from_f16(halves[i]);
        memcpy(&bits[i], &value, sizeof value);
    }
    return hash_f32(bits, count);
}

static void hash_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const block_hashes *h = argument;
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * BLOCK;
        const int64_t count = h->count - first < BLOCK ? h->count - first : BLOCK;
        const unsigned char *at = (const unsigned char *)h->data + (size_t)first * carry_dtype_size(h->dtype);
        h->hash[block] = h->dtype == CARRY_BF16  ? hash_bf16(at, count)
                         : h->dtype == CARRY_F16 ? hash_f16((const uint16_t *)(const void *)at, count)
                                                 : hash_f32((const uint32_t *)(const void *)at, count);
    }
}

/* Hashes the elements of one parameter, on the host or on a device. */
static carry_status hash_weight(const carry_parameters *own, carry_tensor weight, uint64_t *hash, void *room) {
    const int64_t count = carry_tensor_count(&weight);
    const carry_tensor flat = carry_reshape_1d(weight, count);
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t some = count - first < PIECE ? count - first : PIECE;
        const carry_tensor piece = carry_slice(flat, first, some);
        if (room != NULL) {
            CARRY_TRY(carry_read(own->ctx, carry_view_1d(room, weight.dtype, some), piece));
        }
        block_hashes h = {.data = room != NULL ? room : piece.data,
                          .dtype = weight.dtype,
                          .count = some,
                          .hash = hash + first / BLOCK};
        carry_parallel(own->ctx, (some + BLOCK - 1) / BLOCK, GRAIN, hash_blocks, &h);
    }
    return CARRY_OK;
}

carry_status carry_parameters_hash(const carry_parameters *own, uint64_t *hash) {
    int64_t most = 1;
    for (int64_t i = 0; i < own->parameters; i++) {
        most = own->parameter[i].count > most ? own->parameter[i].count : most;
    }
    const size_t piece = (size_t)(most < PIECE ? most : PIECE) * sizeof(float);
    const size_t blocks = (size_t)((most + BLOCK - 1) / BLOCK);
    void *room = own->device != 0 ? carry_aligned_new(piece) : NULL;
    uint64_t *of = calloc(blocks, sizeof *of);
    carry_status status = of != NULL && (room != NULL || own->device == 0)
                              ? CARRY_OK
                              : carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: hashing the weights");
    uint64_t all = 0;
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const carry_tensor weight = carry_parameters_view(own, own->weights, i);
        if (weight.dtype == CARRY_QUANTISED) { /* hash the blocks, not their decoded values */
            memset(of, 0, blocks * sizeof *of);
            of[0] = own->device == 0 ? carry_hash(0, weight.data, (size_t)(weight.shape[0] * weight.stride[0]))
                                     : p->blocks_hash;
        } else {
            status = hash_weight(own, weight, of, room);
        }
        all = carry_hash(all, p->name, strlen(p->name));
        all = carry_hash_ids(all, p->shape, p->rank);
        all = carry_hash_ids(all, (const int64_t *)(const void *)of, (p->count + BLOCK - 1) / BLOCK);
    }
    free(room);
    free(of);
    *hash = all;
    return status;
}
