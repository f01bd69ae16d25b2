/* A row of the support matrix: devices and types. A family of problems or a verb has one, and `carry list problems
   --json`, `carry list verbs --json` and the table in README.md (tools/support-matrix) print it, whether or not this
   build has CUDA.

   cpu, cuda: the types of its activations on that device; NULL: it does not run there.
   cpu_backward, cuda_backward: those of its gradients; NULL: no gradients there.
   ranks: the devices on which several ranks can work on it together; NULL: one rank alone. */
#ifndef CARRY_BENCH_SUPPORT_H
#define CARRY_BENCH_SUPPORT_H

typedef struct carry_support {
    const char *cpu, *cuda;
    const char *cpu_backward, *cuda_backward;
    const char *ranks;
} carry_support;

#endif
