/* Vectors made elsewhere: a .safetensors file of delta-rule cases, tensors named case.tensor; or a folder with a
   model and what it should give. */
#ifndef CARRY_LAB_GOLDEN_H
#define CARRY_LAB_GOLDEN_H

#include <stdbool.h>

#include "carry/tensor.h"

/* One comparison: the relative RMS error of a tensor of a case. */
typedef struct carry_golden_line {
    const char *name; /* the case */
    const char *method;
    const char *tensor;
    carry_dtype dtype;
    double error, bound;
    int column; /* the widest tensor's name, for a table; 0: 15 */
} carry_golden_line;

/* Runs every case in f32 and in bf16, forward and backward, by every method of the device, and reports each tensor. */
carry_status carry_golden_delta(carry_ctx *ctx, const char *path, int device,
                                void (*report)(void *user, const carry_golden_line *line), void *user);

/* Whichever path is: such a file, or a folder with config.json, model.safetensors and expected.safetensors, whose
   config decides what it is (golden_folder.c has the list). In f32, and on a GPU models of videos and text encoders in
   bf16 too; device -1: the first GPU where there is one and this kind runs on it. */
carry_status carry_golden(carry_ctx *ctx, const char *path, int device,
                          void (*report)(void *user, const carry_golden_line *line), void *user);

/* The function that carry_golden calls for a folder; name is the name of the case. */
typedef carry_status (*carry_golden_folder)(carry_ctx *ctx, const char *folder, const char *name, int device,
                                            void (*report)(void *user, const carry_golden_line *line), void *user);

/* A language model: input_ids, logits, loss, grad.NAME of every parameter. */
carry_status carry_golden_lm(carry_ctx *ctx, const char *folder, const char *name, int device,
                             void (*report)(void *user, const carry_golden_line *line), void *user);
/* A tiny video autoencoder: latents and the frames they give, at once and as stream0, stream1, ...; pixels and what
   they are encoded to. */
carry_status carry_golden_tae(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user);

/* Wan's autoencoder: latents and the video they decode to; a video and the mean of the latents it is encoded to. */
carry_status carry_golden_wan_vae(carry_ctx *ctx, const char *folder, const char *name, int device,
                                  void (*report)(void *user, const carry_golden_line *line), void *user);

/* A video transformer: latents, context and t, and the velocity they give. */
carry_status carry_golden_dit(carry_ctx *ctx, const char *folder, const char *name, int device,
                              void (*report)(void *user, const carry_golden_line *line), void *user);

/* A text encoder: input_ids, attention_mask and the last_hidden_state they give. */
carry_status carry_golden_umt5(carry_ctx *ctx, const char *folder, const char *name, int device,
                               void (*report)(void *user, const carry_golden_line *line), void *user);

/* Relative RMS error, or the RMS if the expected values are all zero; both have the same number of elements. */
double carry_golden_error(const carry_tensor *wanted, const carry_tensor *got);

#endif
