/* The operator table: one const struct of functions per backend; table.c is the only list.

   The public function of an operator, declared in carry/nn.h, carry/ops.h or a header of ops/, checks shapes, types,
   devices and workspaces for all backends, and calls the entry of the backend that its tensors are on. The tables of
   ops/cpu.c and ops/cuda/cuda.c are made from the list below: entries are carry_cpu_NAME and carry_cuda_NAME, mostly
   in files of the same stem (norm.c, norm.cu). An entry may rely on the checks. On a GPU it enqueues its work on the
   context's stream of the device and does not wait for it. Most entries allocate no memory, apart from the context's
   buffers at their first use; some do, such as carry_cpu_random_part and the entries that decode quantised weights
   on a GPU. If a backend has no entry (NULL), the public function fails with CARRY_EUNSUPPORTED and the operator's
   name. */
#ifndef CARRY_OPS_TABLE_H
#define CARRY_OPS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/nn.h"
#include "ops/video.h"
#include "carry/ops.h"
#include "core/launching.h"
#include "ops/conv2d.h"
#include "ops/device.h"
#include "ops/experts.h"
#include "ops/fp8.h"
#include "ops/fp8_rows.h"
#include "ops/picture.h"
#include "ops/pool.h"
#include "ops/sampler.h"
#include "ops/decay.h"
#include "ops/ssm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, types, parameters): every operator, with the types of its activations; NULL: they depend on the backend. */
#define CARRY_REAL "f32 bf16 f16"
#define CARRY_OPERATOR_LIST(X)                                                                                         \
    X(fill, "f32 bf16 f16 i64 f64", (carry_ctx * ctx, carry_tensor to, const unsigned char *bits))                     \
    X(convert, CARRY_REAL, (carry_ctx * ctx, carry_tensor to, carry_tensor from))                                      \
    X(elementwise, CARRY_REAL,                                                                                         \
      (carry_ctx * ctx, carry_elementwise_op op, carry_tensor to, carry_tensor x, carry_tensor y))                     \
    X(matmul, NULL,                                                                                                    \
      (carry_ctx * ctx, carry_tensor c, carry_tensor a, carry_tensor b, const carry_matmul_options *options))          \
    X(linear, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate))          \
    X(linear_backward, CARRY_REAL,                                                                                     \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy, carry_tensor x, carry_tensor W,             \
       bool accumulate))                                                                                               \
    X(linear_add, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor base))    \
    X(merged_linear, CARRY_REAL, (carry_ctx * ctx, const carry_merged_linear_args *args))                              \
    X(merged_linear_backward, CARRY_REAL, (carry_ctx * ctx, const carry_merged_linear_backward_args *args))            \
    X(rms_norm, CARRY_REAL,                                                                                            \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor z, float eps))                    \
    X(rms_norm_backward, CARRY_REAL,                                                                                   \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor dw, carry_tensor dz, carry_tensor dy, carry_tensor x,            \
       carry_tensor w, carry_tensor z, float eps, bool accumulate, void *workspace))                                   \
    X(activate, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_activation activation))            \
    X(activate_backward, CARRY_REAL,                                                                                   \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor dy, carry_tensor x, carry_activation activation))                \
    X(add_bias, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor b))                                         \
    X(add_bias_backward, CARRY_REAL, (carry_ctx * ctx, carry_tensor db, carry_tensor dy))                              \
    X(gated_add, CARRY_REAL, (carry_ctx * ctx, carry_tensor x, carry_tensor y, carry_tensor g))                        \
    X(gated_add_backward, CARRY_REAL,                                                                                  \
      (carry_ctx * ctx, carry_tensor dy, carry_tensor dg, carry_tensor dx, carry_tensor y, carry_tensor g))            \
    X(layer_norm, CARRY_REAL,                                                                                          \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor w, carry_tensor b, float plus, float eps))        \
    X(layer_norm_backward, CARRY_REAL,                                                                                 \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor dw, carry_tensor db, carry_tensor dy, carry_tensor x,            \
       carry_tensor w, float plus, float eps, bool accumulate, void *workspace))                                       \
    X(row_squares, CARRY_REAL, (carry_ctx * ctx, carry_tensor sums, carry_tensor x))                                   \
    X(rms_scale, CARRY_REAL,                                                                                           \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor sums, carry_tensor w, int64_t whole, float eps))  \
    X(rotary, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse))         \
    X(rotary_halves, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor table, bool inverse))  \
    X(copy_columns, CARRY_REAL,                                                                                        \
      (carry_ctx * ctx, carry_tensor to, int64_t into, carry_tensor from, int64_t first, int64_t width))               \
    X(swiglu, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor gate, carry_tensor up))                       \
    X(swiglu_backward, CARRY_REAL,                                                                                     \
      (carry_ctx * ctx, carry_tensor dgate, carry_tensor dup, carry_tensor dy, carry_tensor gate, carry_tensor up))    \
    X(conv, CARRY_REAL, (carry_ctx * ctx, const carry_conv_args *args))                                                \
    X(conv_backward, CARRY_REAL, (carry_ctx * ctx, const carry_conv_backward_args *args, void *workspace))             \
    X(embed, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor table, carry_tensor ids))                      \
    X(embed_backward, CARRY_REAL, (carry_ctx * ctx, carry_tensor dtable, carry_tensor dy, carry_tensor ids))           \
    X(cross_entropy, CARRY_REAL,                                                                                       \
      (carry_ctx * ctx, carry_tensor losses, carry_tensor dlogits, carry_tensor logits, carry_tensor targets,          \
       float scale))                                                                                                   \
    X(linear_cross_entropy, CARRY_REAL,                                                                                \
      (carry_ctx * ctx, carry_tensor losses, carry_tensor dx, carry_tensor dW, carry_tensor x, carry_tensor W,         \
       carry_tensor targets, float scale, void *workspace, size_t workspace_bytes))                                    \
    X(sum_losses, "f32",                                                                                               \
      (carry_ctx * ctx, carry_tensor total, carry_tensor losses, carry_tensor targets, bool accumulate))               \
    X(squared_error, CARRY_REAL,                                                                                       \
      (carry_ctx * ctx, carry_tensor total, carry_tensor losses, carry_tensor dy, carry_tensor y, carry_tensor target, \
       carry_tensor weight, double scale))                                                                             \
    X(patchify, "f32",                                                                                                 \
      (carry_ctx * ctx, carry_tensor patches, carry_tensor latents, const int64_t patch[2], bool by_head))             \
    X(unpatchify, "f32",                                                                                               \
      (carry_ctx * ctx, carry_tensor latents, carry_tensor patches, const int64_t patch[2], bool by_head))             \
    X(flow_step, "f32", (carry_ctx * ctx, const carry_flow_step_args *args))                                           \
    X(random_fill, CARRY_REAL,                                                                                         \
      (carry_ctx * ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean, float deviation))                \
    X(random_part, CARRY_REAL, (carry_ctx * ctx, const carry_random_part_args *args))                                  \
    X(dropout, CARRY_REAL,                                                                                             \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, double share, uint64_t seed, uint64_t stream))                 \
    X(sum_squares, "f32", (carry_ctx * ctx, carry_tensor sum, carry_tensor x, bool accumulate, void *workspace))       \
    X(clip_factor, "f32", (carry_ctx * ctx, carry_tensor factor, carry_tensor squares, double limit))                  \
    X(skip_guard, "f32", (carry_ctx * ctx, carry_tensor factor, carry_tensor bad, int64_t limit))                      \
    X(adamw_step, "f32",                                                                                               \
      (carry_ctx * ctx, carry_tensor w, carry_tensor m, carry_tensor v, carry_tensor low, carry_tensor g,              \
       const carry_adamw *options))                                                                                    \
    X(muon_momentum, "f32",                                                                                            \
      (carry_ctx * ctx, carry_tensor u, carry_tensor m, carry_tensor g, carry_tensor clip, carry_tensor step,          \
       double momentum))                                                                                               \
    X(muon_normalise, CARRY_REAL,                                                                                      \
      (carry_ctx * ctx, carry_tensor x, carry_tensor u, carry_tensor squares, bool transposed))                        \
    X(blend, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor z, double a, double b))        \
    X(muon_update, CARRY_REAL,                                                                                         \
      (carry_ctx * ctx, carry_tensor w, carry_tensor low, carry_tensor o, carry_tensor rates, carry_tensor clip,       \
       double scale, bool transposed))                                                                                 \
    X(conv2d_pack, "f32 bf16",                                                                                         \
      (carry_ctx * ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form, int64_t first))                    \
    X(conv2d, "f32 bf16", (carry_ctx * ctx, const carry_conv2d_args *args))                                            \
    X(picture_read, CARRY_REAL, (carry_ctx * ctx, carry_tensor picture, carry_tensor planes, carry_picture_map map))   \
    X(picture_write, CARRY_REAL, (carry_ctx * ctx, carry_tensor planes, carry_tensor picture, carry_picture_map map))  \
    X(picture_bytes, "f32 bf16", (carry_ctx * ctx, unsigned char *bytes, carry_tensor picture, carry_picture_map map)) \
    X(rms_norm_silu, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor w, float eps))         \
    X(affine, CARRY_REAL,                                                                                              \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b, carry_activation activation,   \
       bool accumulate))                                                                                               \
    X(add_layer_norm, CARRY_REAL,                                                                                      \
      (carry_ctx * ctx, carry_tensor h, carry_tensor x, carry_tensor y, carry_tensor g, carry_tensor w,                \
       carry_tensor b, float plus, float eps))                                                                         \
    X(qk_norm_rotary, CARRY_REAL, (carry_ctx * ctx, const carry_qk_norm_rotary_args *args))                            \
    X(key_weights, CARRY_REAL, (carry_ctx * ctx, const carry_key_weights_args *args))                                  \
    X(relative_softmax, CARRY_REAL,                                                                                    \
      (carry_ctx * ctx, carry_tensor p, carry_tensor scores, carry_tensor bias, int64_t keys))                         \
    X(conv_step, CARRY_REAL, (carry_ctx * ctx, const carry_conv_step_args *args))                                      \
    X(conv_pieces, CARRY_REAL, (carry_ctx * ctx, const carry_conv_pieces_args *args))                                  \
    X(copy_slots, CARRY_REAL,                                                                                          \
      (carry_ctx * ctx, carry_tensor pool, const int32_t *to, const int32_t *from, int64_t count))                     \
    X(take_slots, CARRY_REAL, (carry_ctx * ctx, carry_tensor to, carry_tensor pool, const int32_t *slots))             \
    X(put_slots, CARRY_REAL, (carry_ctx * ctx, carry_tensor pool, carry_tensor from, const int32_t *slots))            \
    X(put_rows, CARRY_REAL, (carry_ctx * ctx, carry_tensor to, carry_tensor from, const int64_t *rows))                \
    X(take_pages, CARRY_REAL, (carry_ctx * ctx, carry_tensor to, carry_tensor from, const int32_t *pages))             \
    X(put_rows_f8, CARRY_REAL, (carry_ctx * ctx, carry_f8_pool to, carry_tensor from, const int64_t *rows))            \
    X(take_pages_f8, CARRY_REAL, (carry_ctx * ctx, carry_tensor to, carry_f8_pool from, const int32_t *pages))         \
    X(rotary_turns, "f32", (carry_ctx * ctx, carry_tensor table, const int64_t *positions, const float *rates))        \
    X(route, CARRY_REAL,                                                                                               \
      (carry_ctx * ctx, carry_tensor weights, carry_tensor chosen, carry_tensor logits, carry_tensor bias,             \
       const carry_router *router))                                                                                    \
    X(route_backward, CARRY_REAL,                                                                                      \
      (carry_ctx * ctx, carry_tensor dlogits, carry_tensor dweights, carry_tensor logits, carry_tensor chosen,         \
       const carry_router *router))                                                                                    \
    X(sort_experts, "i64",                                                                                             \
      (carry_ctx * ctx, carry_tensor pair, carry_tensor place, carry_tensor offsets, carry_tensor chosen))             \
    X(gather_pairs, CARRY_REAL,                                                                                        \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor pair, carry_tensor weights))                      \
    X(combine_pairs, CARRY_REAL,                                                                                       \
      (carry_ctx * ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor place, carry_tensor weights))  \
    X(combine_pairs_backward, CARRY_REAL,                                                                              \
      (carry_ctx * ctx, carry_tensor dweights, carry_tensor dy, carry_tensor x, carry_tensor place))                   \
    X(row_gate, CARRY_REAL, (carry_ctx * ctx, carry_tensor y, carry_tensor base, carry_tensor x, carry_tensor s))      \
    X(row_gate_backward, CARRY_REAL,                                                                                   \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor ds, carry_tensor dy, carry_tensor x, carry_tensor s))            \
    X(grouped_linear, CARRY_REAL,                                                                                      \
      (carry_ctx * ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor offsets))                         \
    X(grouped_linear_backward, CARRY_REAL,                                                                             \
      (carry_ctx * ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy, carry_tensor x, carry_tensor W,             \
       carry_tensor offsets, bool accumulate))                                                                         \
    X(ssm, CARRY_REAL, (carry_ctx * ctx, const carry_ssm_args *args, void *workspace))                                 \
    X(ssm_backward, CARRY_REAL, (carry_ctx * ctx, const carry_ssm_backward_args *args, void *workspace))               \
    X(decay_gate, CARRY_REAL,                                                                                          \
      (carry_ctx * ctx, carry_tensor g, carry_tensor a, carry_tensor A_log, carry_tensor dt_bias, float bound))        \
    X(decay_gate_backward, CARRY_REAL, (carry_ctx * ctx, const carry_decay_gate_backward_args *args))                  \
    X(fp8_round, "bf16", (carry_ctx * ctx, carry_fp8 to, carry_tensor x, bool transposed))                             \
    X(fp8_measure, "bf16", (carry_ctx * ctx, carry_tensor scale, carry_tensor x))                                      \
    X(fp8_scales, "f32", (carry_ctx * ctx, carry_tensor scales))                                                       \
    X(fp8_product, "bf16 f16", (carry_ctx * ctx, carry_tensor c, carry_fp8 a, carry_fp8 b, carry_tensor base))         \
    X(fp8_loss, "f16",                                                                                                 \
      (carry_ctx * ctx, carry_tensor losses, carry_tensor logits, carry_tensor targets, carry_fp8 codes, float scale)) \
    X(fp8_rms_norm, "bf16",                                                                                            \
      (carry_ctx * ctx, carry_tensor y, carry_fp8 codes, carry_tensor x, carry_tensor w, float eps))                   \
    X(fp8_swiglu, "bf16", (carry_ctx * ctx, carry_tensor y, carry_fp8 codes, carry_tensor gate, carry_tensor up))      \
    X(fp8_swiglu_backward, "bf16",                                                                                     \
      (carry_ctx * ctx, carry_tensor dgate, carry_tensor dup, carry_fp8 codes, carry_tensor dy, carry_tensor gate,     \
       carry_tensor up))                                                                                               \
    X(fp8_rows_round, "bf16", (carry_ctx * ctx, carry_fp8_rows to, carry_tensor x))                                    \
    X(fp8_rows_affine, "bf16",                                                                                         \
      (carry_ctx * ctx, carry_tensor y, carry_fp8_rows x, carry_fp8_rows W, carry_tensor b,                            \
       carry_activation activation, bool accumulate))                                                                  \
    X(quantised_pack, "quantised", (carry_ctx * ctx, carry_tensor W, const void *blocks))

typedef struct carry_operators {
    const char *backend; /* its name in the device table */
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none */
#define X(name, types, parameters) carry_status(*name) parameters;
    CARRY_OPERATOR_LIST(X)
#undef X
    const char *matmul_types; /* the only operator whose types differ between backends */
    /* The implementations ("ways") of a product, the name of the one that is chosen, and the product by a given way;
       way NULL is the chosen one. CARRY_EUNSUPPORTED if a way does not support the product. All are NULL if
       carry_matmul is the only one. */
    const char *const *ways; /* ends with NULL */
    const char *(*product_choice)(carry_ctx *ctx, const carry_device_product *product);
    carry_status (*product)(carry_ctx *ctx, const carry_device_product *product, const char *way);
    /* True if steps of a few tokens read quantised matrices without decoding them first; models then keep them
       quantised. NULL: false. */
    bool (*reads_quantised)(int ordinal);
    /* Why products of 8-bit floats, or those with a scale for each row, are slow on the device; NULL if they are fast
       (carry_fp8_is_fast). NULL as an entry: they are slow. */
    const char *(*fp8_absence)(carry_ctx *ctx, int ordinal, bool by_rows);
} carry_operators;

/* Finds the table of a device; *ordinal, unless NULL, is set to the device's number in its backend.
   CARRY_EUNSUPPORTED, with the operator's name, if the device does not exist or has no operators. */
carry_status carry_operators_at(carry_ctx *ctx, const carry_operators **operators, const char *name, const char *place,
                                int device, int *ordinal);
#define carry_operators_of(ctx, operators, name, device, ordinal) \
    carry_operators_at(ctx, operators, name, CARRY_PLACE, device, ordinal)
carry_status carry_operator_missing(carry_ctx *ctx, const carry_operators *operators, const char *name);

/* The start of a public function: declares `operators`, the table of the tensor's device, and fails unless it has an
   entry `name`. */
/* NOLINTBEGIN(bugprone-macro-parentheses): names of members and of a variable */
#define CARRY_OPERATOR(ctx, operators, name, tensor)                               \
    const carry_operators *operators;                                              \
    CARRY_TRY(carry_operators_of(ctx, &operators, #name, (tensor)->device, NULL)); \
    if (operators->name == NULL) {                                                 \
        return carry_operator_missing(ctx, operators, #name);                      \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

/* For `carry list ops`: the operators by number; NULL past the end. */
const char *carry_operator_name(int index);
/* Types that operator `index` accepts on backend number `backend`; "" if it has no entry there; NULL past the last
   operator or backend. *name is set to the backend's name. */
const char *carry_operator_types(int index, int backend, const char **name);

/* Names of the implementations of a product over all backends; NULL past the end. */
const char *carry_device_way(int index);

#ifdef __cplusplus
}
#endif
#endif
