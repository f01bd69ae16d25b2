/* The problem family that connects the lab and streaming; main registers it. */
#ifndef CARRY_CLI_FAMILY_STREAM_H
#define CARRY_CLI_FAMILY_STREAM_H

#include "cli/cli.h"
#include "bench/family/family.h"

extern const carry_family carry_family_stream;

#endif
