/* The operators of NVIDIA GPUs. */
#include "ops/cuda/cuda.h"

#if defined(CARRY_HAVE_CUDA)

#include "device/backend.h"

extern const carry_operators carry_operators_cuda;

carry_status carry_cuda_matmul(carry_ctx *ctx, carry_tensor c, carry_tensor a, carry_tensor b,
                               const carry_matmul_options *o) {
    int ordinal = 0;
    (void)carry_backend_of(c.device, &ordinal);
    carry_device_product product = {.m = c.shape[1],
                                    .n = c.shape[2],
                                    .k = a.shape[o->a_transposed ? 1 : 2],
                                    .count = c.shape[0],
                                    .a = a.data,
                                    .b = b.data,
                                    .c = c.data,
                                    .a_row = a.stride[1],
                                    .b_row = b.stride[1],
                                    .c_row = c.stride[1],
                                    .a_next = a.stride[0],
                                    .b_next = b.stride[0],
                                    .c_next = c.stride[0],
                                    .type = a.dtype,
                                    .c_type = c.dtype,
                                    .a_transposed = o->a_transposed,
                                    .b_transposed = o->b_transposed,
                                    .accumulate = o->accumulate,
                                    .ordinal = ordinal,
                                    .stream = carry_ctx_stream(ctx, c.device)};
    return carry_cuda_product(ctx, &product, NULL);
}

const carry_operators carry_operators_cuda = {
    .backend = "cuda",
    .fill = carry_cuda_fill,
    .convert = carry_cuda_convert,
    .elementwise = carry_cuda_elementwise,
    .matmul = carry_cuda_matmul,
    .linear = carry_cuda_linear,
    .linear_backward = carry_cuda_linear_backward,
    .linear_add = carry_cuda_linear_add,
    .merged_linear = carry_cuda_merged_linear,
    .merged_linear_backward = carry_cuda_merged_linear_backward,
    .rms_norm = carry_cuda_rms_norm,
    .rms_norm_backward = carry_cuda_rms_norm_backward,
    .activate = carry_cuda_activate,
    .activate_backward = carry_cuda_activate_backward,
    .add_bias = carry_cuda_add_bias,
    .add_bias_backward = carry_cuda_add_bias_backward,
    .gated_add = carry_cuda_gated_add,
    .gated_add_backward = carry_cuda_gated_add_backward,
    .layer_norm = carry_cuda_layer_norm,
    .layer_norm_backward = carry_cuda_layer_norm_backward,
    .row_squares = carry_cuda_row_squares,
    .rms_scale = carry_cuda_rms_scale,
    .rotary = carry_cuda_rotary,
    .rotary_halves = carry_cuda_rotary_halves,
    .copy_columns = carry_cuda_copy_columns,
    .swiglu = carry_cuda_swiglu,
    .swiglu_backward = carry_cuda_swiglu_backward,
    .conv = carry_cuda_conv,
    .conv_backward = carry_cuda_conv_backward,
    .embed = carry_cuda_embed,
    .embed_backward = carry_cuda_embed_backward,
    .cross_entropy = carry_cuda_cross_entropy,
    .linear_cross_entropy = carry_cuda_linear_cross_entropy,
    .sum_losses = carry_cuda_sum_losses,
    .squared_error = carry_cuda_squared_error,
    .patchify = carry_cuda_patchify,
    .unpatchify = carry_cuda_unpatchify,
    .flow_step = carry_cuda_flow_step,
    .random_fill = carry_cuda_random_fill,
    .sum_squares = carry_cuda_sum_squares,
    .clip_factor = carry_cuda_clip_factor,
    .skip_guard = carry_cuda_skip_guard,
    .adamw_step = carry_cuda_adamw_step,
    .conv2d_pack = carry_cuda_conv2d_pack,
    .conv2d = carry_cuda_conv2d,
    .picture_read = carry_cuda_picture_read,
    .picture_write = carry_cuda_picture_write,
    .picture_bytes = carry_cuda_picture_bytes,
    .rms_norm_silu = carry_cuda_rms_norm_silu,
    .affine = carry_cuda_affine,
    .add_layer_norm = carry_cuda_add_layer_norm,
    .qk_norm_rotary = carry_cuda_qk_norm_rotary,
    .key_weights = carry_cuda_key_weights,
    .relative_softmax = carry_cuda_relative_softmax,
    .matmul_types = CARRY_REAL,
    .ways = carry_cuda_ways,
    .product_choice = carry_cuda_product_choice,
    .product = carry_cuda_product,
};

#endif
