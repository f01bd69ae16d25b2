/* Shared by the files of this folder. */
#ifndef CARRY_HUB_TRANSFER_H
#define CARRY_HUB_TRANSFER_H

#include <curl/curl.h>

#include "hub/hub.h"

/* Gets a whole answer of at most `limit` bytes; the caller frees *text. next: the address of the next page, or "". */
carry_status carry_hub_get(carry_ctx *ctx, const carry_hub_pull *pull, const char *url, char **text, size_t *length,
                           char *next, size_t next_size);
/* Sets the options that all requests have: redirects, time limits, the token. */
struct curl_slist *carry_hub_prepare(const carry_hub_pull *pull, CURL *curl, const char *url);
carry_status carry_hub_refusal(carry_ctx *ctx, const carry_hub_pull *pull, long code, const char *what);
/* Fetches every range that is missing. */
carry_status carry_hub_transfer(carry_ctx *ctx, carry_hub_pull *pull, const char *folder);
/* Makes the path of a blob's temporary file or of its list of ranges, in blobs/. */
carry_status carry_hub_blob(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder, const carry_hub_file *file,
                            const char *suffix);
#define CARRY_HUB_DATA ".carry"
#define CARRY_HUB_LIST ".carry.parts"

#endif
