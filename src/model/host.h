/* Copying from a device to the host. */
#ifndef CARRY_MODEL_HOST_H
#define CARRY_MODEL_HOST_H

#include "carry/tensor.h"

/* Copies a tensor to one in host memory and waits for it: all earlier work on the device's stream is done on return. */
carry_status carry_read(carry_ctx *ctx, carry_tensor to, carry_tensor from);

#endif
