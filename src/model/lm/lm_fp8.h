/* Products of a training pass in 8-bit floats (ops/fp8.h).

   A layer has four sites: the maps of its mixer's input (qkv) and of its feed-forward's input (up), and their maps back
   (o, down). The fifth site is the head. Each site may use 8-bit floats forward (x and W in e4m3) and for the gradient
   of its input (dx: dy in e5m2, W in e4m3). Gradients of weights stay in bf16. A site has a scale for x, for W and for
   dy, so it is one product: maps that a part multiplies one by one (carry_lm_project) stay in bf16. Weights are rounded
   for every product: their codes are read at once and not kept.

   Codes of activations are in memory that all sites share. An operator that writes an activation may round it in the
   same pass; `ready` then names the tensor, and the product that follows does not round it again. */
#ifndef CARRY_MODEL_LM_FP8_H
#define CARRY_MODEL_LM_FP8_H

#include "model/lm/lm.h"
#include "model/lm/part.h"
#include "ops/fp8.h"

typedef enum carry_lm_fp8_site {
    CARRY_LM_FP8_QKV,
    CARRY_LM_FP8_O,
    CARRY_LM_FP8_UP,
    CARRY_LM_FP8_DOWN,
    CARRY_LM_FP8_HEAD,
    CARRY_LM_FP8_SITES
} carry_lm_fp8_site;

typedef enum carry_lm_fp8_role {
    CARRY_LM_FP8_X,
    CARRY_LM_FP8_W,
    CARRY_LM_FP8_DY,
    CARRY_LM_FP8_ROLES
} carry_lm_fp8_role;

/* The sites that use 8-bit floats, as bits 1 << site, and the scales. It outlives the pass. */
typedef struct carry_lm_fp8 {
    unsigned forward, dx;
    carry_tensor scales; /* [count, CARRY_FP8_NUMBERS], on the model's device */
    bool is_known;       /* scales are those of a step; otherwise matrices are measured before they are rounded */
} carry_lm_fp8;

/* Parses "all", or names of sites separated by commas; NAME:forward and NAME:dx mean one direction only. The head
   computes dx in 8-bit floats only if it also has its logits from them. */
carry_status carry_lm_fp8_parse(carry_ctx *ctx, carry_lm_fp8 *fp8, const char *list);
int64_t carry_lm_fp8_count(const carry_lm *lm); /* number of scales */
/* Allocates the scales, which are not known, on the model's device. */
carry_status carry_lm_fp8_open(carry_lm_fp8 *fp8, const carry_lm *lm);
void carry_lm_fp8_close(carry_lm_fp8 *fp8, const carry_lm *lm);

/* Memory of a pass for codes: of activations, with the rows of all tokens, and of a weight. */
typedef struct carry_lm_fp8_memory {
    unsigned char *codes, *weight;
    size_t codes_bytes, weight_bytes;
    const void *ready;    /* the tensor whose codes are in `codes`; NULL: none */
    unsigned forward, dx; /* sites that had a product in 8-bit floats in some call, as bits */
} carry_lm_fp8_memory;

/* Called at the start of a call with backward: makes the scales of this step from the step before. */
carry_status carry_lm_fp8_begin(carry_lm_pass *pass, const carry_lm_args *args);
void carry_lm_fp8_take(carry_lm_pass *pass, carry_arena *arena);
size_t carry_lm_fp8_head_bytes(const carry_lm_pass *pass); /* workspace of carry_lm_fp8_head; 0: not used */

/* Writes the names of sites in the list that had no product in 8-bit floats so far, like "qkv, head:dx", or "". */
void carry_lm_fp8_unused(const carry_lm_pass *pass, char *text, size_t size);

/* The site of a call's input or output maps. */
carry_lm_fp8_site carry_lm_fp8_site_of(const carry_lm_call *call, bool out);

/* The matrix of codes that an operator which writes x (or dy) of a site should fill, [tokens, columns]; codes NULL: it
   should not. After the operator, carry_lm_fp8_wrote says which tensor it was. In the first step, whose scales are not
   known, these codes are not used, but the same kernels run as in the steps after it, which are recorded. */
carry_fp8 carry_lm_fp8_wanted(const carry_lm_call *call, bool out, carry_lm_fp8_role role, int64_t columns);
void carry_lm_fp8_wrote(const carry_lm_call *call, carry_tensor x);

/* y = base + W x and dx = W^T dy in 8-bit floats, if the site uses them and sizes fit; else *done is false and nothing
   was done. */
carry_status carry_lm_fp8_linear(const carry_lm_call *call, bool out, carry_tensor y, carry_tensor x, carry_tensor W,
                                 carry_tensor base, bool *done);
carry_status carry_lm_fp8_linear_dx(const carry_lm_call *call, bool out, carry_tensor dx, carry_tensor dy,
                                    carry_tensor W, bool *done);
/* carry_linear_cross_entropy of the head; likewise. */
carry_status carry_lm_fp8_head(carry_lm_pass *pass, const carry_lm_args *args,
                               const carry_linear_cross_entropy_args *head, bool *done);

/* For the code of sites. The matrix of site `number` (layer * 4 + site, or after all layers the head) and role.
   round: in the first step x is measured before. turn: the transposed codes of W; unless its largest element is
   recorded elsewhere, it is recorded here. */
bool carry_lm_fp8_uses(const carry_lm_pass *pass, const carry_lm_args *args, carry_lm_fp8_site site, bool dx);
carry_fp8 carry_lm_fp8_matrix(const carry_lm_pass *pass, int64_t number, carry_lm_fp8_role role, unsigned char *codes,
                              int64_t rows, int64_t columns);
carry_status carry_lm_fp8_round(const carry_lm_pass *pass, carry_fp8 to, carry_tensor x);
carry_status carry_lm_fp8_turn(const carry_lm_pass *pass, carry_fp8 to, carry_tensor W, bool is_recorded);

/* Joins maps that are adjacent in memory, like carry_merged_linear; false: they are not. */
bool carry_lm_fp8_join(const carry_tensor *y, const carry_tensor *W, int maps, carry_tensor *all_y,
                       carry_tensor *all_W);

#endif
