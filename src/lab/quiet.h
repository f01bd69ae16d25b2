/* Measures how much other processes used the machine during a measurement, from the processor times that the kernel
   reports. */
#ifndef CARRY_LAB_QUIET_H
#define CARRY_LAB_QUIET_H

/* The metric under which a run stores it. Its step is the index of the first result that it applies to. */
#define CARRY_CONTENTION "contention"

#define CARRY_NOT_QUIET 0.15 /* warn from this contention, or drift between the ceilings of two runs, on */

typedef struct carry_quiet {
    double wall, busy, own; /* seconds: wall clock, busy time of all cores, processor time of this process */
} carry_quiet;

carry_quiet carry_quiet_now(void);
/* The share of the processor time wanted by `threads` threads that other processes used instead since `since`, at most
   0.9; 0 on a quiet machine, or if unknown. It is also 0 for less than a fifth of a second, which is too short for the
   kernel's ticks. */
double carry_quiet_contention(carry_quiet since, int threads);

#endif
