/* The CPU entries of the operator table, each defined in the file named after its operator. Files with a public
   operator include this header for the table too. */
#ifndef CARRY_OPS_CPU_H
#define CARRY_OPS_CPU_H

#include "ops/table.h"

#define X(name, types, parameters) carry_status carry_cpu_##name parameters;
CARRY_OPERATOR_LIST(X)
#undef X

#endif
