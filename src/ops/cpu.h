/* The CPU's entries of the operator table, each in the file of its stem. A file that has a public operator includes
   this for the table too. */
#ifndef CARRY_OPS_CPU_H
#define CARRY_OPS_CPU_H

#include "ops/table.h"

#define X(name, types, parameters) carry_status carry_cpu_##name parameters;
CARRY_OPERATOR_LIST(X)
#undef X

#endif
