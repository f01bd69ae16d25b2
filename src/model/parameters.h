/* The parameters of a model: a list of named tensors, and flat f32 buffers on one device that hold all of them, so that
   optimizers, reductions and files see arrays. Language models and video transformers share this module.

   A model adds its parameters one after the other, then allocates. Start values are computed on the host and uploaded:
   they are the same bits on every device. The f32 weights are the masters; where a device computes in 16 bits there are
   copies of them (`low`), which follow every change that is made through this module or by the optimizer. */
#ifndef CARRY_MODEL_PARAMETERS_H
#define CARRY_MODEL_PARAMETERS_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "file/weights.h"

/* How ranks share a parameter: each has all of it, or a part of its first or second index. */
typedef enum carry_parameter_cut { CARRY_CUT_NONE, CARRY_CUT_ROWS, CARRY_CUT_COLUMNS } carry_parameter_cut;

/* The order of a tensor's rows in files, where it is not the order here. A file has `groups` groups of rows[0] rows of
   a first block, rows[1] of a second, and so on; here the rows of a block lie together, from row first[i] on. */
#define CARRY_ROW_BLOCKS 4
typedef struct carry_row_order {
    int64_t groups; /* 0: the order is the same */
    int64_t rows[CARRY_ROW_BLOCKS], first[CARRY_ROW_BLOCKS];
} carry_row_order;

typedef struct carry_parameter {
    char name[96];
    int rank;
    int64_t shape[5];
    int64_t offset, count; /* elements in the flat buffers; offsets are multiples of 16, the gaps are zero for good */
    bool decays;           /* does weight decay reach it? */
    bool is_table;         /* rows are looked up by id, or are scores of ids: embeddings and heads */
    int start;             /* how it starts: the model's own */
    carry_parameter_cut cut;
    carry_row_order order; /* of the whole tensor, which is then not cut */
    bool may_be_narrow;    /* products alone use it: it may be kept in 16 bits */
    int64_t wide;          /* its place in the f32 buffers: offset, but for carry_parameters_narrow; -1: none */
    const void *mapped; /* its elements in a file that is mapped, for models that are only read; NULL: in the buffers */
    carry_dtype mapped_dtype;
    const carry_quant_format *format; /* where mapped_dtype is CARRY_QUANTISED */
    void *blocks;         /* made from the file's layout, on the parameters' device; mapped points to them, or NULL */
    bool may_be_tiled;    /* operators that accept quantised matrices alone use it, in rows from a multiple of 16 on */
    int64_t listed;       /* its offset before quantised parameters left the buffers of a GPU */
    uint64_t blocks_hash; /* of the blocks in the file, of a parameter that is quantised on a GPU */
} carry_parameter;

typedef struct carry_parameters {
    carry_ctx *ctx;
    int device;      /* of the buffers */
    int rank, ranks; /* that share parameters which are cut; ranks 0: one */
    int64_t parameters;
    carry_parameter *parameter;
    int64_t count;   /* elements of each flat buffer */
    int64_t trained; /* of those, without the gaps: the number of parameters */
    float *weights;
    float *gradients; /* NULL until wanted */
    void *low;        /* the weights in low_dtype; NULL until wanted */
    carry_dtype low_dtype;
    carry_weights files; /* stay open while parameters are mapped */
    int64_t stored[3];   /* elements that the files have in f32, bf16 and f16 */
    int64_t quantised;   /* elements that the files have in quantised blocks; counted in bf16, too */
    bool is_narrow;      /* carry_parameters_narrow was called */
    int64_t wide_count;  /* elements of the f32 buffer then */
    bool reads_only;     /* carry_parameters_map was called: the weights do not change after loading */
    /* Other names of a tensor in files. NULL: none. `other` is called with names and which = 0, 1, ..., and returns
       false after the last; with `pieces` they are consecutive rows of the tensor. */
    bool (*other)(const void *names, const char *name, int which, bool pieces, char *to, size_t size);
    const void *names;
} carry_parameters;

/* An empty list with room for `most`. ctx and device are for everything that follows. */
carry_status carry_parameters_open(carry_ctx *ctx, carry_parameters *own, int device, int64_t most);
/* The next of the list; its place follows the last one's. shape is of the whole tensor, and is cut for this rank.
   Returns its index; -1 if p has rank 0: not in the model. The caller has bounded the sum of all. */
int64_t carry_parameters_add(carry_parameters *own, carry_parameter p);
int64_t carry_parameters_room(int64_t count); /* elements of a buffer that a parameter of `count` takes */
/* Weights, all zero. Refused with what is needed and free when the device has too little memory. */
carry_status carry_parameters_allocate(carry_parameters *own);
/* Before memory is allocated, for a model on the CPU that is only read: matrices (rank 2) that a folder has in bf16 or
   f16, or in quantised blocks, are used where the file is mapped, and have no room in the buffers. Those that are
   quantised in another layout are converted to blocks. On a GPU that reads quantised matrices as they are
   (ops/quantised/tiles.h) those that may be tiled have memory of their own; others, and all of them for training, are
   decoded. */
carry_status carry_parameters_map(carry_parameters *own, const char *folder);
/* The same without a folder: every matrix that may be tiled gets memory for this format. */
carry_status carry_parameters_tile(carry_parameters *own, const carry_quant_format *format);
/* Where an element of the buffers is after one of the two, on a GPU. */
int64_t carry_parameters_moved(const carry_parameters *own, int64_t place);
/* Fills a quantised parameter from `rows` rows of blocks in host memory, which repeat until all rows are there. */
carry_status carry_parameters_put_blocks(carry_parameters *own, int64_t index, const void *blocks, int64_t rows);
/* Before memory is allocated, for a model that is only read: parameters that may be narrow have no f32 master, only
   their elements in bf16 or f16; the others have both. */
void carry_parameters_narrow(carry_parameters *own, carry_dtype dtype);
/* True if f32 masters and copies in 16 bits would not fit into the free memory of the device. */
bool carry_parameters_exceed(const carry_parameters *own);
carry_status carry_parameters_want_gradients(carry_parameters *own); /* allocates and zeroes them */
carry_status carry_parameters_zero_gradients(carry_parameters *own);
/* Makes copies in bf16 or f16; and updates existing copies from the current weights. */
carry_status carry_parameters_want_low(carry_parameters *own, carry_dtype dtype);
carry_status carry_parameters_round(carry_parameters *own);
void carry_parameters_free(carry_parameters *own);

/* Parameter `index` in one of the flat buffers (mapped weights: in the file, in its type); elements [first, first +
   count) of one. */
carry_tensor carry_parameters_view(const carry_parameters *own, float *buffer, int64_t index);
carry_tensor carry_parameters_flat(const carry_parameters *own, float *buffer, int64_t first, int64_t count);
/* Elements of the copies in 16 bits; absent without copies. */
carry_tensor carry_parameters_low(const carry_parameters *own, int64_t first, int64_t count);
/* The weight as products want it: its copy in 16 bits if there are copies, else as it is. */
carry_tensor carry_parameters_product(const carry_parameters *own, int64_t index);
/* Where weight decay does not reach in elements [first, first + count), as carry_adamw.spared wants it: how many
   numbers that are, counted from `first`, and a tensor of as many on the model's device that gets them. */
int64_t carry_parameters_spared(const carry_parameters *own, int64_t first, int64_t count);
carry_status carry_parameters_put_spared(const carry_parameters *own, carry_tensor to, int64_t first, int64_t count);
const carry_parameter *carry_parameters_find(const carry_parameters *own, const char *name); /* NULL: none */

/* This rank's part of parameter `index`, from the whole tensor in host memory, packed; the copies in 16 bits wait for
   carry_parameters_round. */
carry_status carry_parameters_put(carry_parameters *own, int64_t index, const void *whole, carry_dtype dtype);

/* The same of this rank's part, f32 in host memory. */
carry_status carry_parameters_put_part(carry_parameters *own, int64_t index, float *part);

/* Copies a whole parameter, packed: from the order of rows in files to the order here, or back. */
void carry_parameters_reorder(const carry_parameter *p, void *to, const void *from, carry_dtype dtype, bool to_file);

/* Start values: `fill` writes the whole tensor of a parameter, f32 in host memory. */
carry_status carry_parameters_start(carry_parameters *own,
                                    carry_status (*fill)(const void *model, const carry_parameter *p,
                                                         carry_tensor whole, uint64_t seed),
                                    const void *model, uint64_t seed);

/* Between host memory, which may be used again on return, and a flat buffer: elements [first, first + count). */
carry_status carry_parameters_upload(const carry_parameters *own, float *buffer, int64_t first, const float *from,
                                     int64_t count);
carry_status carry_parameters_download(const carry_parameters *own, float *to, float *buffer, int64_t first,
                                       int64_t count);

/* The first `count` elements of a parameter's weight, in f32, to host memory. */
carry_status carry_parameters_sample(const carry_parameters *own, float *to, int64_t index, int64_t count);

/* A hash of all names, shapes and weights: the same for equal weights on any device, in any type that holds them. */
carry_status carry_parameters_hash(const carry_parameters *own, uint64_t *hash);

/* A flat buffer in host memory: where it is, or a copy, which the caller frees (NULL: none was made). */
carry_status carry_parameters_see(const carry_parameters *own, float *buffer, const float **seen, float **copied);

/* Does a folder have all of the list, by name, shape and type? To be asked before memory is: a configuration is a few
   bytes, and what it asks for must be in the files. */
carry_status carry_parameters_check(carry_parameters *own, const char *folder);
/* From a folder's weights (file/weights.h), in f32, bf16 or f16. Wrong shapes, missing and surplus tensors are refused
   by name; `spare` (NULL: none) says which surplus ones may be there. */
carry_status carry_parameters_load(carry_parameters *own, const char *folder,
                                   bool (*spare)(const void *model, const carry_weights *weights, const char *name),
                                   const void *model);
carry_dtype carry_parameters_stored(const carry_parameters *own); /* the type that the files have most elements in */
/* model.safetensors in a folder, replaced as a whole. Not of a rank's part. */
carry_status carry_parameters_save(const carry_parameters *own, const char *folder, carry_dtype dtype);

#endif
