/* Checks against vectors from other programs: a .safetensors file of delta-rule cases with tensors named
   case.tensor, or a folder with a model and its expected results. */
#ifndef CARRY_LAB_GOLDEN_H
#define CARRY_LAB_GOLDEN_H

#include <stdbool.h>

#include "carry/tensor.h"

/* One comparison of a tensor of a case. The error is the relative RMS error, except for the loss and the gradients of a
   language model (golden_lm.c). */
typedef struct carry_golden_line {
    const char *name; /* the case */
    const char *method;
    const char *tensor;
    carry_dtype dtype;
    double error, bound;
    int column; /* width of the longest tensor name, for a table; 0: 15 */
} carry_golden_line;

/* Runs every case in f32 and in bf16, forward and backward, by every method of the device, and reports each tensor. */
carry_status carry_golden_delta(carry_ctx *ctx, const char *path, int device,
                                void (*report)(void *user, const carry_golden_line *line), void *user);

/* Checks a file of delta-rule cases as carry_golden_delta does, or a folder with config.json, model.safetensors and
   expected.safetensors, whose config decides its kind (golden_folder.c has the list). Folders are checked in f32 and,
   on a GPU, video models and text encoders also in bf16.
   device -1: the first GPU if there is one and this kind runs on it. */
carry_status carry_golden(carry_ctx *ctx, const char *path, int device,
                          void (*report)(void *user, const carry_golden_line *line), void *user);

/* The function that carry_golden calls for a folder. name: the name of the case. */
typedef carry_status (*carry_golden_folder)(carry_ctx *ctx, const char *folder, const char *name, int device,
                                            void (*report)(void *user, const carry_golden_line *line), void *user);

/* A language model: input_ids, logits, loss, and grad.NAME for every parameter. */
carry_status carry_golden_lm(carry_ctx *ctx, const char *folder, const char *name, int device,
                             void (*report)(void *user, const carry_golden_line *line), void *user);
/* A tiny video autoencoder: latents and their decoded frames, in one call and as stream0, stream1, ...; pixels and
   their encoding. */
carry_status carry_golden_tae(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user);

/* Wan's autoencoder: latents and the video that they decode to; a video and the mean of its encoded latents. */
carry_status carry_golden_wan_vae(carry_ctx *ctx, const char *folder, const char *name, int device,
                                  void (*report)(void *user, const carry_golden_line *line), void *user);

/* A video transformer: latents, context and t, and the resulting velocity. */
carry_status carry_golden_dit(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user);

/* A text encoder: input_ids, attention_mask and the resulting last_hidden_state. */
carry_status carry_golden_umt5(carry_ctx *ctx, const char *folder, const char *name, int device,
                               void (*report)(void *user, const carry_golden_line *line), void *user);

/* Relative RMS error, or the RMS if the expected values are all zero; both have the same number of elements. */
double carry_golden_error(const carry_tensor *wanted, const carry_tensor *got);

#endif
