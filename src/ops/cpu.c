/* The operators of the CPU: all of CARRY_OPERATOR_LIST. An operator without a CPU entry would be "#define
   carry_cpu_<name> NULL" here. */
#include "ops/cpu.h"

extern const carry_operators carry_operators_cpu;

#define X(name, types, parameters) .name = carry_cpu_##name,
const carry_operators carry_operators_cpu = {.backend = "cpu", .matmul_types = "f32", CARRY_OPERATOR_LIST(X)};
