/* Times work on a GPU: a graph of several runs is launched between two events, so that the time includes neither
   launches from the CPU nor the resolution of the events. */
#ifndef CARRY_LAB_TIMER_H
#define CARRY_LAB_TIMER_H

#include "carry/device.h"

typedef struct carry_timer carry_timer;

/* Makes a stream and sets it as the context's for this device, until the timer is freed. */
carry_status carry_timer_new(carry_ctx *ctx, carry_timer **timer, int device);
void carry_timer_free(carry_timer *timer);
/* Call when the work of run has changed: it is recorded again next time. NULL is allowed. */
void carry_timer_reset(carry_timer *timer);
/* Measures the seconds of one run: the mean over a graph of as many runs as take about two milliseconds, at most
   500. With a NULL timer, work runs on the CPU, and the clock is read before and after one run. */
carry_status carry_timer_time(carry_timer *timer, double *seconds, carry_status (*run)(void *user), void *user);

#endif
