/* carry profile diff A B. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/lab/profile.h"
#include "cli/ranks.h"
#include "core/file.h"
#include "lab/profile/trace.h"
#include "lab/store/store.h"

/* Loads a trace file, or the trace of a stored run. */
static carry_status load_trace(carry_ctx *ctx, carry_hotspots *hotspots, const char *text, const char *store_path) {
    struct stat about;
    bool is_path = strchr(text, '/') != NULL || strchr(text, '.') != NULL;
    char *bytes = NULL;
    void *artefact = NULL;
    size_t length = 0;
    carry_status status;
    if (is_path || stat(text, &about) == 0) {
        status = carry_file_read(ctx, &bytes, &length, text, CARRY_TRACE_BYTES);
        status = status == CARRY_OK ? carry_trace_read(ctx, hotspots, bytes, length, text) : status;
        free(bytes);
        return status;
    }
    carry_store *store = NULL;
    int64_t run;
    char name[96];
    (void)snprintf(name, sizeof name, "the trace of run %.40s", text);
    status = carry_store_open(ctx, &store, store_path);
    status = status == CARRY_OK ? carry_store_find(store, &run, text) : status;
    status = status == CARRY_OK ? carry_store_artefact_read(store, run, CLI_PROFILE_TRACE, &artefact, &length) : status;
    status = status == CARRY_OK ? carry_trace_read(ctx, hotspots, artefact, length, name) : status;
    free(artefact);
    carry_store_close(store);
    return status;
}

int profile_diff(char **traces, int count, const char *store, bool json, int top) {
    if (cli_ranks() > 1) {
        return cli_refuse("profile diff does not run on ranks");
    }
    if (count != 2) {
        return cli_refuse("profile diff needs two traces, files or stored runs: carry profile diff A B");
    }
    if (cli_store_there(store) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    carry_ctx *ctx = cli_open(&(cli_common){.threads = 1, .wisdom = "none"});
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    carry_hotspots a = {0};
    carry_hotspots b = {0};
    carry_status status = load_trace(ctx, &a, traces[0], store);
    status = status == CARRY_OK ? load_trace(ctx, &b, traces[1], store) : status;
    status = status == CARRY_OK ? cli_profile_print_diff(ctx, &a, &b, json, top) : status;
    int code = status == CARRY_OK ? CLI_DONE : cli_failed(ctx);
    carry_hotspots_free(&a);
    carry_hotspots_free(&b);
    carry_ctx_free(ctx);
    return code;
}
