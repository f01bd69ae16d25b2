/* The mixers of mixer_scan.c on a GPU: the same recurrence as a dense scan, with the scans and kernels of the
   device. */
#ifndef CARRY_MODEL_MIXER_SCAN_DEVICE_H
#define CARRY_MODEL_MIXER_SCAN_DEVICE_H

#include "model/lm/mixer.h"

carry_status carry_mixer_device_open(carry_ctx *ctx, void **opened, const carry_delta_problem *problem,
                                     const char *algorithm, bool linear);
void carry_mixer_device_close(void *opened);
const char *carry_mixer_device_plan(const void *opened);
size_t carry_mixer_device_workspace(const void *opened);
carry_status carry_mixer_device_forward(void *opened, const carry_delta_forward_args *args, void *workspace,
                                        size_t bytes);
carry_status carry_mixer_device_backward(void *opened, const carry_delta_backward_args *args, void *workspace,
                                         size_t bytes);

#endif
