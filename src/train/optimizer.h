/* AdamW over the flat buffers of a model (model/parameters.h), with its state divided among ranks; or, on one rank,
   Muon (muon.h) for the matrices and AdamW for the rest.

   Every rank has all weights, and the gradients of its own tokens. The flat buffers are divided into one contiguous
   slice per rank, and rank r owns slice r: it receives the sum of all ranks' gradients there, keeps m and v for it, and
   updates its weights, which all ranks then gather. It does not matter here which rows and columns of a batch a rank
   has, so data ranks and sequence ranks both own a slice.

   The exchange overlaps with backward: as soon as a range of the gradients is complete (carry_lm_args.ready,
   carry_dit_pass_args.ready), its parts are sent to their owners, and no rank waits before the end. The owner adds in
   rank order, whatever arrives first, so the same number of ranks gives the same bits. */
#ifndef CARRY_TRAIN_OPTIMIZER_H
#define CARRY_TRAIN_OPTIMIZER_H

#include "carry/comm.h"
#include "model/parameters.h"
#include "train/muon.h"

typedef struct carry_optimizer_options {
    double b1, b2, eps;
    double decay;    /* applied only where the parameter list says so */
    double momentum; /* momentum of Muon; 0: AdamW for all parameters */
    bool narrow;     /* m and v in bf16 instead of f32 */
    double clip;     /* maximum norm of all gradients together; 0: no limit */
    int64_t skips;   /* number of consecutive steps with non-finite gradients that may be skipped; after one more, the
                        weights no longer change */
} carry_optimizer_options;

typedef struct carry_optimizer {
    carry_ctx *ctx;
    const carry_parameters *model; /* borrowed */
    carry_comm *comm;
    carry_optimizer_options options;
    int64_t step; /* step and rate are set by carry_optimizer_set */
    double rate;
    int rank, ranks;
    int64_t first, count;     /* this rank's slice */
    carry_tensor m, v;        /* [count], on the model's device: f32, or bf16 if options.narrow */
    float *received;          /* [ranks - 1][count]: gradients of the other ranks for this slice */
    carry_tensor clip, bad;   /* [1], f32: factor on the gradients; number of consecutive non-finite steps */
    carry_tensor factors;     /* [CARRY_ADAMW_FACTORS], on a GPU; else absent */
    carry_tensor spared;      /* elements of the slice without decay (carry_adamw); absent if all decay */
    float *uploaded;          /* factors in pinned memory, for CARRY_OPTIMIZER_AHEAD steps; NULL on the CPU */
    carry_muon muon;          /* used if options.momentum is not 0 */
    carry_tensor ranges;      /* with Muon: the range (0, count) of each parameter, for those without decay */
    void *memory, *workspace; /* memory of all tensors on the device; workspace of sums */
    size_t workspace_bytes;
    carry_request *request;
    int64_t requests, room;
} carry_optimizer;

/* The model must have gradients; it and comm must outlive the optimizer. With several ranks, comm must be able to move
   memory of the model's device. */
carry_status carry_optimizer_new(carry_ctx *ctx, carry_optimizer **optimizer, const carry_parameters *model,
                                 carry_comm *comm, const carry_optimizer_options *options);
void carry_optimizer_free(carry_optimizer *optimizer);

/* Rank `rank` has elements [*first, *first + *count) of flat buffers with `whole` elements. */
void carry_optimizer_slice(int64_t whole, int rank, int ranks, int64_t *first, int64_t *count);

/* The `ready` callback of a pass, with the optimizer as user, for the backward pass that completes the gradients. A
   range has at least one parameter; all ranks must report the same ranges in the same order. */
carry_status carry_optimizer_ready(void *optimizer, int64_t first, int64_t count);
/* Call it after that backward pass: the gradients of the slice become the sum over ranks; squares ([1], f64, on the
   model's device) gets the sum of squares over this rank's slice only. */
carry_status carry_optimizer_collect(carry_optimizer *optimizer, carry_tensor squares);
/* Finds the first parameter, in the order of backward, whose gradient is not finite; -1: all are finite. A
   collective. */
carry_status carry_optimizer_bad(carry_optimizer *optimizer, int64_t *parameter);
/* Sets the factors of the next step; step counts from 1. On a GPU they are uploaded in stream order, so that a recorded
   step reads them when it is replayed; at most CARRY_OPTIMIZER_AHEAD calls may be made between waits for the stream. */
#define CARRY_OPTIMIZER_AHEAD 64
carry_status carry_optimizer_set(carry_optimizer *optimizer, int64_t step, double rate);
/* squares is the sum over all gradients and all ranks. If it is not finite, nothing is changed. A collective:
   afterwards all ranks have the same weights. */
carry_status carry_optimizer_step(carry_optimizer *optimizer, carry_tensor squares);

/* Copies m and v of the whole model, [model.count] each, to host memory of rank 0 as f32; other ranks may pass NULL. A
   collective. */
carry_status carry_optimizer_gather(carry_optimizer *optimizer, float *m, float *v);
/* Sets elements [first, first + count) of m or v of this rank's slice from host memory. f32 numbers that are not bf16
   are rounded to nearest if the state is bf16. */
carry_status carry_optimizer_put(const carry_optimizer *optimizer, carry_tensor state, int64_t first, const float *from,
                                 int64_t count);

#endif
