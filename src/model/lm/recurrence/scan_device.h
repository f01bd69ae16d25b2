/* The dense scans of scan.c on a GPU, with the scans and kernels of the device. */
#ifndef CARRY_MODEL_RECURRENCE_SCAN_DEVICE_H
#define CARRY_MODEL_RECURRENCE_SCAN_DEVICE_H

#include "model/lm/recurrence/recurrence.h"

carry_status carry_recurrence_device_open(carry_ctx *ctx, void **opened, const carry_delta_problem *problem,
                                          const char *algorithm, bool linear);
void carry_recurrence_device_close(void *opened);
const char *carry_recurrence_device_plan(const void *opened);
size_t carry_recurrence_device_workspace(const void *opened);
carry_status carry_recurrence_device_forward(void *opened, const carry_delta_forward_args *args, void *workspace,
                                             size_t bytes);
carry_status carry_recurrence_device_backward(void *opened, const carry_delta_backward_args *args, void *workspace,
                                              size_t bytes);

#endif
