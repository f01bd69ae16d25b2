/* Lists the files of a revision through the hub's interface. */
#ifndef CARRY_HUB_LIST_H
#define CARRY_HUB_LIST_H

#include "hub/hub.h"

/* Fills commit, files, count and bytes with the files that --include selects. Paths, hashes and sizes are checked. */
carry_status carry_hub_list(carry_ctx *ctx, carry_hub_pull *pull);

#endif
