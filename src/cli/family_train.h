/* The problem family that connects the lab and training; main registers it. */
#ifndef CARRY_CLI_FAMILY_TRAIN_H
#define CARRY_CLI_FAMILY_TRAIN_H

#include "cli/cli.h"
#include "bench/family/family.h"

extern const carry_family carry_family_train;

#endif
