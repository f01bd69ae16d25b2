/* The CPU entries of the operator table, defined in the .c files of this folder and of its subfolders. Files that
   define a public operator also include this header to call through the table. */
#ifndef CARRY_OPS_CPU_H
#define CARRY_OPS_CPU_H

#include "ops/table.h"

#define X(name, types, parameters) carry_status carry_cpu_##name parameters;
CARRY_OPERATOR_LIST(X)
#undef X

#endif
