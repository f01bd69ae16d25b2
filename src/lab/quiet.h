/* Did other processes use the machine during a measurement? Computed from the processor times that the kernel
   reports. */
#ifndef CARRY_LAB_QUIET_H
#define CARRY_LAB_QUIET_H

/* The metric under which a run keeps it; its step is the place of the first result that it is about. */
#define CARRY_CONTENTION "contention"

#define CARRY_NOT_QUIET \
    0.15 /* contention, or drift between the ceilings of two runs, from which on people are warned */

typedef struct carry_quiet {
    double wall, busy, own; /* seconds: of the clock, of all cores not idle, of this process */
} carry_quiet;

carry_quiet carry_quiet_now(void);
/* The share of what `threads` threads wanted that other processes had instead since then: 0 on a quiet machine, or
   where nothing is known. Below a fifth of a second the kernel's ticks say nothing, and it is 0. */
double carry_quiet_contention(carry_quiet since, int threads);

#endif
