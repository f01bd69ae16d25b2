/* The output of carry profile. */
#ifndef CARRY_CLI_PROFILE_H
#define CARRY_CLI_PROFILE_H

#include "lab/profile/hotspots.h"

#define CLI_PROFILE_TRACE "trace.json.gz" /* the trace's file name, and its name in the store */

/* Compares two traces, each a file or a stored run. Returns an exit code. */
int profile_diff(char **traces, int count, const char *store, bool json, int top);

/* Prints the hotspots by category, then the top places and all places with tokens, then the top kernels. */
void cli_profile_print(carry_ctx *ctx, const carry_hotspots *hotspots, bool json, int top);
/* Prints the locations of the trace and the run. trace may be NULL (none was written), and so may store. */
void cli_profile_print_end(const carry_hotspots *hotspots, bool json, const char *trace, int64_t run,
                           const char *store);
carry_status cli_profile_print_diff(carry_ctx *ctx, const carry_hotspots *a, const carry_hotspots *b, bool json,
                                    int top);

#endif
