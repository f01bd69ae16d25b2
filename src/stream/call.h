/* The start of every log line about a call: its group, call_id, chunk_index and cache_epoch. */
#ifndef CARRY_STREAM_CALL_H
#define CARRY_STREAM_CALL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"

typedef struct carry_call {
    const char *group; /* "stage0" or "mesh" */
    uint64_t call_id, chunk_index, cache_epoch;
} carry_call;

#define CARRY_CALL_TEXT 112

static inline const char *carry_call_text(char text[CARRY_CALL_TEXT], const carry_call *call) {
    (void)snprintf(text, CARRY_CALL_TEXT, "%s: call_id %llu, chunk_index %llu, cache_epoch %llu", call->group,
                   (unsigned long long)call->call_id, (unsigned long long)call->chunk_index,
                   (unsigned long long)call->cache_epoch);
    return text;
}

/* Prefixes the context's error message with the call's text, unless it has that prefix already. Returns `status`. */
static inline carry_status carry_call_fail(carry_ctx *ctx, carry_status status, const carry_call *call) {
    char why[sizeof ctx->error];
    char text[CARRY_CALL_TEXT];
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
    return strstr(why, "mesh: call_id ") != NULL || strstr(why, "stage0: call_id ") != NULL
               ? status
               : carry_fail(ctx, status, "%s: %s", carry_call_text(text, call), why);
}

#endif
