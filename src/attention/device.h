/* Attention on devices other than the CPU: one const struct for each backend. device_table.c is the only list.

   Callers have checked shapes, types, strides and runs, that all tensors and the workspace are on one device, and
   that the workspace has the size that the entry returned. An entry refuses only what it does not support (a type, a
   D), with an error message. Entries enqueue their work on the stream and return. */
#ifndef CARRY_ATTENTION_DEVICE_H
#define CARRY_ATTENTION_DEVICE_H

#include "attention/attention.h"
#include "carry/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_attention_device {
    const char *backend; /* its name in the device table */
    size_t (*workspace)(const carry_attention_args *args);
    carry_status (*forward)(carry_ctx *ctx, const carry_attention_args *args, int ordinal, carry_stream *stream,
                            void *workspace, size_t bytes);
    size_t (*backward_workspace)(const carry_attention_backward_args *args);
    carry_status (*backward)(carry_ctx *ctx, const carry_attention_backward_args *args,
                             const carry_attention_documents *documents, void *workspace, size_t bytes);
    /* The name of the kernels for a backward pass: "wgmma", "mma" or "plain". The tensors need no data. */
    const char *(*backward_method)(const carry_attention_backward_args *args);
    /* A step of generation (attention.h). */
    bool (*steps)(const carry_attention_step_args *args, int ordinal);
    size_t (*step_workspace)(const carry_attention_step_args *args, int ordinal);
    carry_status (*step)(carry_ctx *ctx, const carry_attention_step_args *args, int ordinal, carry_stream *stream,
                         void *workspace);
} carry_attention_device;

/* Returns NULL if the device does not exist or attention has no entry for it. */
const carry_attention_device *carry_attention_device_of(int device, int *ordinal);

#ifdef __cplusplus
}
#endif
#endif
