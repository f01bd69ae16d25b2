/* Finds pages that cite an exported run (docs/results/runs/NAME.json) of an experiment that was run again later:
   their figures may still be true, but the newest run decides. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "lab/cards/cards.h"

#define FOLDER "docs/results/runs"
#define RUN_BYTES ((size_t)64 << 20)
#define NAME_BYTES 128

typedef struct exported {
    char file[NAME_BYTES], experiment[NAME_BYTES];
    double started;
} exported;

/* The value of `name:` in the YAML text of an experiment. */
static void experiment_of(char to[NAME_BYTES], const char *spec) {
    const char *at = strncmp(spec, "name:", 5) == 0 ? spec : strstr(spec, "\nname:");
    to[0] = '\0';
    if (at != NULL) {
        at = strchr(at, ':') + 1;
        at += strspn(at, " \"'");
        (void)snprintf(to, NAME_BYTES, "%.*s", (int)strcspn(at, " \"'\r\n"), at);
    }
}

/* Reads an exported run. Returns false for other files, which the folder also contains. */
static bool read_run(carry_ctx *ctx, exported *run, const char *folder, const char *file) {
    char path[4096];
    char *text = NULL;
    size_t length = 0;
    carry_json *json = NULL;
    const int wanted = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (strlen(file) >= sizeof run->file || wanted < 0 || (size_t)wanted >= sizeof path ||
        carry_file_read(ctx, &text, &length, path, RUN_BYTES) != CARRY_OK) {
        return false;
    }
    const bool whole = carry_json_parse(ctx, &json, text, length, file) == CARRY_OK;
    const char *spec = whole ? carry_json_string(carry_json_find(json, "spec")) : NULL;
    *run = (exported){.started = carry_json_number(whole ? carry_json_find(json, "started") : NULL)};
    memcpy(run->file, file, strlen(file) + 1); /* it fits: see above */
    experiment_of(run->experiment, spec != NULL ? spec : "");
    carry_json_free(json);
    free(text);
    return run->experiment[0] != '\0' && !isnan(run->started);
}

static int is_json(const struct dirent *entry) {
    const size_t length = strlen(entry->d_name);
    return length > 5 && strcmp(entry->d_name + length - 5, ".json") == 0;
}

/* Reads all exported runs. A folder that does not exist has no runs. */
static carry_status read_runs(carry_ctx *ctx, exported **runs, int *count, const carry_library *library) {
    char folder[4096];
    struct dirent **entry = NULL;
    (void)snprintf(folder, sizeof folder, "%.4000s/../" FOLDER, library->folder);
    const int entries = scandir(folder, &entry, is_json, alphasort);
    *runs = calloc(entries > 0 ? (size_t)entries : 1, sizeof **runs);
    *count = 0;
    for (int i = 0; i < entries; i++) {
        *count += *runs != NULL && read_run(ctx, &(*runs)[*count], folder, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    return *runs != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d exported runs", entries);
}

static bool cites(const carry_page *page, const exported *run) {
    char name[NAME_BYTES + 8];
    (void)snprintf(name, sizeof name, "runs/%s", run->file);
    return strstr(page->text, name) != NULL;
}

static const exported *newest_of(const exported *runs, int count, const char *experiment) {
    const exported *newest = NULL;
    for (int i = 0; i < count; i++) {
        if (strcmp(runs[i].experiment, experiment) == 0 && (newest == NULL || runs[i].started > newest->started)) {
            newest = &runs[i];
        }
    }
    return newest;
}

carry_status carry_library_superseded(carry_ctx *ctx, const carry_library *library, carry_library_warning **all,
                                      int *count) {
    exported *runs;
    int known;
    *all = NULL;
    *count = 0;
    CARRY_TRY(read_runs(ctx, &runs, &known, library));
    *all = calloc((size_t)library->count * (size_t)(known + 1) + 1, sizeof **all);
    for (int i = 0; *all != NULL && i < library->count; i++) {
        for (int j = 0; j < known; j++) {
            const carry_page *page = &library->page[i];
            const exported *newest = newest_of(runs, known, runs[j].experiment);
            if (newest != &runs[j] && cites(page, &runs[j]) && !cites(page, newest)) {
                carry_library_warning *w = &(*all)[(*count)++];
                (void)snprintf(w->path, sizeof w->path, "%s", page->path);
                (void)snprintf(w->message, sizeof w->message,
                               "cites " FOLDER "/%s, and %s of the same experiment (%s) is newer", runs[j].file,
                               newest->file, runs[j].experiment);
            }
        }
    }
    free(runs);
    return *all != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d pages", library->count);
}
