/* Copying from a device to the host. */
#ifndef CARRY_MODEL_HOST_H
#define CARRY_MODEL_HOST_H

#include "carry/tensor.h"

/* carry_copy of a tensor to one in host memory, and then the wait for it: the work before it on the device's stream is
   done on return. */
carry_status carry_read(carry_ctx *ctx, carry_tensor to, carry_tensor from);

#endif
