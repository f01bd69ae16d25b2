/* Streams that have a share of a GPU's multiprocessors: two stages of a pipeline then do not take each other's. */
#ifndef CARRY_DEVICE_SHARE_H
#define CARRY_DEVICE_SHARE_H

#include <stdbool.h>

#include "carry/device.h"

/* Makes a stream whose kernels run on `multiprocessors` of the GPU or, if `rest` is set, on all others. The driver
   rounds the number up to a multiple that the GPU requires; the same number always gives the same division, so that the
   streams of the two parts have no multiprocessor in common. The stream is freed by carry_stream_free. CARRY_EARGUMENT
   if a part would be empty, CARRY_EUNSUPPORTED if the device or its driver does not support this. */
carry_status carry_stream_new_share(carry_ctx *ctx, carry_stream **stream, int device, int multiprocessors, bool rest);

#endif
