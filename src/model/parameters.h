/* The parameters of a model: a list of named tensors, and flat f32 buffers on one device that hold all of them, so that
   optimizers, reductions and files see arrays. Language models and video transformers share this module.

   A model adds its parameters one after the other, then allocates. carry_parameters_start computes start values on the
   host and uploads them: they have the same bits on every device. The f32 weights are the masters; where a device
   computes in 16 bits there are copies of them (`low`). Loading, carry_parameters_start and the optimizer update the
   copies too; after other changes the caller calls carry_parameters_round. */
#ifndef CARRY_MODEL_PARAMETERS_H
#define CARRY_MODEL_PARAMETERS_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "file/weights.h"

/* How ranks share a parameter: every rank has all of it, or each has a part of its first or second index. */
typedef enum carry_parameter_cut { CARRY_CUT_NONE, CARRY_CUT_ROWS, CARRY_CUT_COLUMNS } carry_parameter_cut;

/* The order of a tensor's rows in files, where it differs from the order in memory. A file has `groups` groups; each
   has rows[0] rows of block 0, then rows[1] rows of block 1, and so on. In memory the rows of block i are adjacent and
   start at row first[i]. */
#define CARRY_ROW_BLOCKS 4
typedef struct carry_row_order {
    int64_t groups; /* 0: the order is the same */
    int64_t rows[CARRY_ROW_BLOCKS], first[CARRY_ROW_BLOCKS];
} carry_row_order;

typedef struct carry_parameter {
    char name[96];
    int rank;
    int64_t shape[5];
    int64_t offset, count; /* elements in the flat buffers; offsets are multiples of 16, and the gaps between parameters
                              are always zero */
    bool decays;           /* weight decay applies to it */
    bool is_table;         /* embeddings and heads: rows are looked up by token id, or give the scores of token ids */
    int start;             /* how it is initialised: a constant of the model */
    carry_parameter_cut cut;
    carry_row_order order; /* row order of the whole tensor; a parameter with one is never cut */
    bool may_be_narrow;    /* only products use it, so it may be kept in 16 bits */
    int64_t wide;          /* its offset in the f32 buffers: equal to `offset` unless carry_parameters_narrow was
                              called; -1: it is not in them */
    const void *mapped; /* its elements in a mapped file, for models that are only read; NULL: it is in the buffers */
    carry_dtype mapped_dtype;
    const carry_quant_format *format; /* where mapped_dtype is CARRY_QUANTISED */
    void *blocks;         /* blocks converted from the file's layout, on the parameters' device; then `mapped` points to
                             them. NULL: not converted */
    bool may_be_square;   /* every slot starts at a row that is a multiple of 128 */
    bool is_square;       /* its 8-bit floats have one scale for 128 x 128 elements (CARRY_QUANT_SQUARE) */
    bool may_be_tiled;    /* only operators that accept quantised matrices use it, and every slot starts at a row that
                             is a multiple of 16 */
    int64_t listed;       /* its offset before quantised parameters left the buffers of a GPU */
    uint64_t blocks_hash; /* hash of the blocks in the file, for a parameter that is quantised on a GPU */
} carry_parameter;

typedef struct carry_parameters {
    carry_ctx *ctx;
    int device;      /* of the buffers */
    int rank, ranks; /* this rank, and the number of ranks that share the cut parameters (0 means 1) */
    int64_t parameters;
    carry_parameter *parameter;
    int64_t count;   /* elements of each flat buffer */
    int64_t trained; /* the same without the gaps: the number of trained values */
    float *weights;
    float *gradients; /* NULL until wanted */
    void *low;        /* the weights in low_dtype; NULL until asked for */
    carry_dtype low_dtype;
    carry_weights files; /* stay open while parameters are mapped */
    int64_t stored[3];   /* number of elements that the files have in f32, bf16 and f16 */
    int64_t quantised;   /* number of elements that the files have in quantised blocks; they are also counted as bf16 */
    size_t tiled_bytes;  /* device memory of parameters that are quantised on a GPU */
    bool is_narrow;      /* carry_parameters_narrow was called */
    int64_t wide_count;  /* elements of the f32 buffer if is_narrow */
    bool reads_only;     /* carry_parameters_map was called: the weights do not change after loading */
    /* Gives other names of a tensor in files; NULL: they have no other names. `other` is called with `names` and which
       = 0, 1, ..., writes a name to `to`, and returns false after the last. With `pieces` the names are those of
       consecutive rows of the tensor. */
    bool (*other)(const void *names, const char *name, int which, bool pieces, char *to, size_t size);
    const void *names;
} carry_parameters;

/* Makes an empty list with capacity for `most` parameters. ctx and device are used by all functions below. */
carry_status carry_parameters_open(carry_ctx *ctx, carry_parameters *own, int device, int64_t most);
/* Appends a parameter; its offset follows the previous one's. `shape` is that of the whole tensor and is cut for this
   rank. Returns the index, or -1 if p has rank 0: it is not in the model. The caller must bound the sum of all
   sizes. */
int64_t carry_parameters_add(carry_parameters *own, carry_parameter p);
int64_t carry_parameters_room(int64_t count); /* elements of a flat buffer that a parameter of `count` elements takes,
                                                 with its gap */
/* Allocates the weights and zeroes them. If the device has too little memory, the message says how much is needed and
   how much is free. */
carry_status carry_parameters_allocate(carry_parameters *own);
/* Call before memory is allocated, for a model that is only read. With several ranks it maps nothing. On the CPU,
   matrices (rank 2) that the folder has in bf16, in f16 or in quantised blocks, and parameters of rank 3 with
   may_be_narrow that it has in bf16 or f16, are used directly in the mapped file and take no space in the buffers.
   Parameters that the file has in pieces or in another order of rows are not mapped. Matrices quantised in another
   layout are converted to blocks. On a GPU that reads quantised matrices (ops/quantised/tiles.h), matrices that may be
   tiled are allocated separately, and on every GPU experts of rank 3 that may be tiled and are quantised in one format;
   all others, and all of them for training, are decoded. */
carry_status carry_parameters_map(carry_parameters *own, const char *folder);
/* The same without a folder: every matrix that may be tiled is allocated for this format. */
carry_status carry_parameters_tile(carry_parameters *own, const carry_quant_format *format);
/* Returns the offset of an element of the flat buffers after carry_parameters_map or carry_parameters_tile took
   quantised parameters out of them, on a GPU. `place` is its offset before. */
int64_t carry_parameters_moved(const carry_parameters *own, int64_t place);
/* Fills a quantised parameter from `rows` rows of blocks in host memory. The rows repeat if the parameter has more. */
carry_status carry_parameters_put_blocks(carry_parameters *own, int64_t index, const void *blocks, int64_t rows);
/* Call before memory is allocated, for a model that is only read: parameters that may be narrow are stored in bf16 or
   f16 only, without f32 masters; the others are stored in both types. */
void carry_parameters_narrow(carry_parameters *own, carry_dtype dtype);
/* True if f32 masters and copies in 16 bits would not fit into the free memory of the device. */
bool carry_parameters_exceed(const carry_parameters *own);
carry_status carry_parameters_want_gradients(carry_parameters *own); /* allocates and zeroes them */
carry_status carry_parameters_zero_gradients(carry_parameters *own);
/* want_low makes copies in bf16 or f16; round updates existing copies from the current weights. */
carry_status carry_parameters_want_low(carry_parameters *own, carry_dtype dtype);
carry_status carry_parameters_round(carry_parameters *own);
void carry_parameters_free(carry_parameters *own);

/* view: parameter `index` in one of the flat buffers. If the buffer is the weights, a mapped parameter is viewed in its
   mapped memory, in the type stored there, and a parameter without f32 masters in its 16-bit memory. flat: elements
   [first, first + count) of a buffer. */
carry_tensor carry_parameters_view(const carry_parameters *own, float *buffer, int64_t index);
carry_tensor carry_parameters_flat(const carry_parameters *own, float *buffer, int64_t first, int64_t count);
/* Elements [first, first + count) of the copies in 16 bits; an absent tensor if there are no copies. */
carry_tensor carry_parameters_low(const carry_parameters *own, int64_t first, int64_t count);
/* The weight as input of a product: its 16-bit copy if there are copies, else the weight itself. */
carry_tensor carry_parameters_product(const carry_parameters *own, int64_t index);
/* The ranges without weight decay among elements [first, first + count), in the form of carry_adamw.spared: pairs of
   begin and end, counted from `first`. spared returns how many numbers that is; put_spared writes them to `to`, a
   tensor of that length on the model's device. */
int64_t carry_parameters_spared(const carry_parameters *own, int64_t first, int64_t count);
carry_status carry_parameters_put_spared(const carry_parameters *own, carry_tensor to, int64_t first, int64_t count);
const carry_parameter *carry_parameters_find(const carry_parameters *own, const char *name); /* NULL: none */

/* Stores this rank's part of parameter `index`, given the whole packed tensor in host memory. The 16-bit copies change
   only when carry_parameters_round is called. */
carry_status carry_parameters_put(carry_parameters *own, int64_t index, const void *whole, carry_dtype dtype);

/* The same, given only this rank's part: f32 in host memory. */
carry_status carry_parameters_put_part(carry_parameters *own, int64_t index, float *part);

/* Copies a whole packed parameter and changes its rows from the file's order to the order in memory, or back. */
void carry_parameters_reorder(const carry_parameter *p, void *to, const void *from, carry_dtype dtype, bool to_file);

/* Sets the start values. `fill` writes the whole tensor of a parameter as f32 in host memory. */
carry_status carry_parameters_start(carry_parameters *own,
                                    carry_status (*fill)(const void *model, const carry_parameter *p,
                                                         carry_tensor whole, uint64_t seed),
                                    const void *model, uint64_t seed);

/* Copies elements [first, first + count) between host memory and a flat buffer. The host memory may be reused on
   return. */
carry_status carry_parameters_upload(const carry_parameters *own, float *buffer, int64_t first, const float *from,
                                     int64_t count);
carry_status carry_parameters_download(const carry_parameters *own, float *to, float *buffer, int64_t first,
                                       int64_t count);

/* Copies the first `count` elements of a parameter's weight to host memory as f32. */
carry_status carry_parameters_sample(const carry_parameters *own, float *to, int64_t index, int64_t count);

/* Computes a hash of all names, shapes and weights. Equal weights have the same hash on any device and in any type that
   holds them exactly. Parameters that are kept quantised are hashed as blocks; decoded, they have another hash. */
carry_status carry_parameters_hash(const carry_parameters *own, uint64_t *hash);

/* Makes a flat buffer readable in host memory. *seen points to the buffer itself or to a copy; *copied is the copy,
   which the caller frees, or NULL if none was made. */
carry_status carry_parameters_see(const carry_parameters *own, float *buffer, const float **seen, float **copied);

/* Checks that a folder has all parameters, by name, shape and type. Call it before allocating memory: the sizes in a
   configuration are not trusted until the files have tensors of those sizes. */
carry_status carry_parameters_check(carry_parameters *own, const char *folder);
/* Loads the weights of a folder (file/weights.h), in f32, bf16, f16 or quantised. A missing, surplus or wrongly shaped
   tensor is an error that names it; `spare` says which surplus tensors are allowed (NULL: none). */
carry_status carry_parameters_load(carry_parameters *own, const char *folder,
                                   bool (*spare)(const void *model, const carry_weights *weights, const char *name),
                                   const void *model);
carry_dtype carry_parameters_stored(const carry_parameters *own); /* the type of most elements in the files */
/* Writes model.safetensors in a folder, replacing the file as a whole. It does not support parameters that are cut over
   ranks. CARRY_EUNSUPPORTED: parameters are narrow, or quantised on a GPU. */
carry_status carry_parameters_save(const carry_parameters *own, const char *folder, carry_dtype dtype);

#endif
