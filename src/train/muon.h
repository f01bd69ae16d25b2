/* Muon: momentum whose step is orthogonalised, for the matrices of the layers. For the gradient g, after clipping:

       m' = momentum m + g,  u = g + momentum m'
       w' = w - rate (0.2 sqrt(max(rows, columns)) O + decay w)

   O is approximately the orthogonal matrix nearest to u: u with all singular values replaced by 1. It comes from five
   steps of a Newton-Schulz iteration, on the transpose of u if u has more rows than columns:

       X = u / |u|, the Frobenius norm;  each step: X' = a X + (b A + c A^2) X,  A = X X^T

   It is computed in bf16 if the model has bf16 copies of its weights, else in f32. The factor 0.2 sqrt(...) gives the
   step the root mean square of AdamW's steps, so that rate and decay are the same for both. AdamW updates embeddings,
   the head, norms, convolutions and other vectors. m is stored like AdamW's m; v of these matrices stays 0. */
#ifndef CARRY_TRAIN_MUON_H
#define CARRY_TRAIN_MUON_H

#include "core/memory.h"
#include "model/parameters.h"

#define CARRY_MUON_RATES 3 /* rate, rate times decay, and the low 24 bits of the step's number */

typedef struct carry_muon {
    carry_ctx *ctx;
    const carry_parameters *model;
    double momentum;
    carry_dtype dtype;             /* of the iteration */
    int64_t most, side;            /* elements of the largest matrix; maximum over all matrices of the smaller side */
    carry_tensor u, x, next, a, b; /* memory for one matrix at a time */
    carry_tensor squares, rates;   /* [1], f64; [CARRY_MUON_RATES] */
    void *workspace;
    size_t workspace_bytes;
} carry_muon;

/* True if this parameter is a matrix of a layer, or a stack of such matrices. */
bool carry_muon_takes(const carry_parameter *p);

void carry_muon_init(carry_muon *muon, carry_ctx *ctx, const carry_parameters *model, double momentum);
void carry_muon_place(carry_muon *muon, carry_arena *arena); /* if the arena's memory is NULL, only counts */
/* One step over all matrices. m has the layout of the model's flat buffers and is f32 or bf16; clip is as in
   carry_adamw. */
carry_status carry_muon_step(carry_muon *muon, carry_tensor m, carry_tensor clip);

#endif
