/* Downloads checkpoints from the Hugging Face hub, with libcurl. */
#ifndef CARRY_HUB_HUB_H
#define CARRY_HUB_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "file/hub_cache.h"

#define CARRY_HUB_PART ((int64_t)32 << 20) /* default size of a range, in bytes */
#define CARRY_HUB_CONNECTIONS 8

typedef struct carry_hub_file {
    char *path;    /* path in the repository */
    char hash[65]; /* SHA-256, or Git's SHA-1 */
    int64_t size;
    bool is_present;           /* was in the cache */
    bool is_copy;              /* has the same bytes as an earlier file */
    int64_t part;              /* bytes of a range */
    int64_t parts, parts_done; /* ranges */
    unsigned char *done;       /* one byte per range */
    int attempts;              /* how often the whole file was fetched */
} carry_hub_file;

typedef struct carry_hub_pull {
    carry_hub_model model;
    const char *endpoint, *token; /* if NULL: HF_ENDPOINT or https://huggingface.co; HF_TOKEN or no token */
    const char *const *include;   /* patterns of paths; NULL: all files */
    int includes;
    int64_t part; /* 0: CARRY_HUB_PART */
    double stall; /* seconds without a byte after which a range is requested again; 0: 60 */
    bool (*on_progress)(void *user, int64_t done, int64_t total); /* returning false stops; may be NULL */
    void *user;
    /* results */
    char commit[41], folder[CARRY_FILE_PATH]; /* commit and folder of the snapshot */
    carry_hub_file *files;
    int64_t count, bytes, missing_bytes, fetched_bytes; /* missing at the start; fetched by this call */
} carry_hub_pull;

/* Lists the files, checks the free space, fetches missing files, checks the hashes and links the snapshot. The next
   call resumes a call that was killed. The caller calls carry_hub_pull_free after success and after failure. */
carry_status carry_hub_fetch(carry_ctx *ctx, carry_hub_pull *pull);
void carry_hub_pull_free(carry_hub_pull *pull);

#endif
