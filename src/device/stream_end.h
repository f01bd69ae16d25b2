/* A hook that is called before a stream of a GPU is destroyed, so that memory kept for this stream can be given to
   another. */
#ifndef CARRY_DEVICE_STREAM_END_H
#define CARRY_DEVICE_STREAM_END_H

#include "carry/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL if not set. It has one user: the workspaces of products (ops/cuda/blaslt.cu). */
extern void (*carry_cuda_stream_ends)(carry_ctx *ctx, int ordinal, carry_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
