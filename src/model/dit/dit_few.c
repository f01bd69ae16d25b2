/* Cross-attention over a few keys, on a GPU. For each head, attention's output is a sum over keys of weights times
   values. The output projection is linear, so it is applied to the values instead, once for a text. Each token then
   needs a product with heads times keys terms instead of heads times 128. For a prompt of 20 words that is a fifth. */
#include "model/dit/dit_block.h"

#include "carry/ops.h"
#include "core/error.h"

/* `out` of a block: [dim, heads stride]. */
static carry_tensor few_out(const carry_dit *dit, const carry_dit_few *few, int64_t block) {
    const int64_t dim = dit->config.dim;
    const int64_t columns_of = dit->config.num_heads * few->stride;
    const carry_tensor flat = carry_reshape_1d(few->out, carry_tensor_count(&few->out));
    const int64_t room = flat.shape[0] / dit->config.num_layers;
    return carry_reshape_2d(carry_slice(flat, block * room, dim * columns_of), dim, columns_of);
}

/* A view of one matrix per head in one memory: matrices are `apart` elements apart, and rows `row` elements. */
static carry_tensor per_head(carry_tensor matrix, int64_t heads, int64_t rows, int64_t width, int64_t apart,
                             int64_t row) {
    carry_tensor view = matrix;
    view.rank = 3;
    view.shape[0] = heads, view.shape[1] = rows, view.shape[2] = width;
    view.stride[0] = apart, view.stride[1] = row, view.stride[2] = 1;
    return view;
}

/* out[:, h] = W[:, h] v[:, h]^T, where W is the product after attention. */
carry_status carry_dit_text_out(carry_dit *dit, int64_t block, const carry_dit_few *few, carry_tensor cv) {
    const int64_t dim = dit->config.dim;
    const int64_t heads = dit->config.num_heads;
    const int64_t head = carry_dit_head(dit);
    const carry_tensor W = carry_dit_product(dit, dit->block[block][CARRY_DIT_CROSS_O], cv.dtype);
    return carry_matmul(dit->ctx,
                        per_head(few_out(dit, few, block), heads, dim, few->stride, few->stride, heads * few->stride),
                        per_head(W, heads, dim, head, head, dim), per_head(cv, heads, few->stride, head, head, dim),
                        &(carry_matmul_options){CARRY_INIT(carry_matmul_options), .b_transposed = true});
}

carry_status carry_dit_attend_few(const carry_dit_call *call, int64_t block, const carry_dit_rows *r) {
    carry_dit *dit = call->dit;
    const carry_dit_few *few = &call->few;
    const int64_t rows = r->cq.shape[0];
    const int64_t width = dit->config.num_heads * few->stride;
    const carry_tensor flat = carry_reshape_1d(r->co, carry_tensor_count(&r->co));
    const carry_tensor p = carry_reshape_2d(carry_slice(flat, 0, rows * width), rows, width);
    const int64_t length = dit->config.text_len;
    CARRY_TRY(carry_key_weights(
        dit->ctx, &(carry_key_weights_args){.p = p,
                                            .q = r->cq_in,
                                            .k = carry_slice(few->k, block * length, few->stride),
                                            .w = carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_NORM_Q),
                                            .heads = dit->config.num_heads,
                                            .keys = few->keys,
                                            .last = few->last,
                                            .eps = (float)dit->config.eps}));
    return carry_affine(dit->ctx, r->x2, p, few_out(dit, few, block),
                        carry_dit_product(dit, dit->block[block][carry_dit_bias(CARRY_DIT_CROSS_O)], p.dtype),
                        CARRY_NO_ACTIVATION, true);
}
