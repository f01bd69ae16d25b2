/* The output of carry profile. */
#ifndef CARRY_CLI_PROFILE_H
#define CARRY_CLI_PROFILE_H

#include "lab/profile/hotspots.h"

#define CLI_PROFILE_TRACE "trace.json.gz" /* its file, and its name in the store */

/* Two traces, files or stored runs. An exit code. */
int profile_diff(char **traces, int count, const char *store, bool json, int top);

/* Hotspots by category, then the top places and those that have tokens, then the top kernels. */
void cli_profile_print(carry_ctx *ctx, const carry_hotspots *hotspots, bool json, int top);
/* Where the trace and the run are; trace (none was written) and store may be NULL. */
void cli_profile_print_end(const carry_hotspots *hotspots, bool json, const char *trace, int64_t run,
                           const char *store);
carry_status cli_profile_print_diff(carry_ctx *ctx, const carry_hotspots *a, const carry_hotspots *b, bool json,
                                    int top);

#endif
