/* Reads the commit from api/models/NAME/revision/REVISION, and the files, in pages, from
   api/models/NAME/tree/COMMIT. */
#include "hub/list.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "hub/transfer.h"

#define FILES_MOST 100000
#define PAGES_MOST 1000
#define URL_MOST 4096

/* True for a path inside the snapshot's folder: not absolute, without `..` and without control characters. */
static bool is_safe(const char *path) {
    bool safe = path[0] != '\0' && path[0] != '/' && strlen(path) < 1024;
    for (const char *at = path; *at != '\0' && safe; at++) {
        bool starts = at == path || at[-1] == '/';
        bool is_dots = starts && (strcmp(at, "..") == 0 || strncmp(at, "../", 3) == 0 || strcmp(at, ".") == 0 ||
                                  strncmp(at, "./", 2) == 0);
        safe = (unsigned char)*at >= 0x20 && *at != 0x7F && *at != '\\' && !is_dots && !(starts && *at == '/');
    }
    return safe && path[strlen(path) - 1] != '/';
}

static bool is_wanted(const carry_hub_pull *pull, const char *path) {
    bool wanted = pull->includes == 0;
    for (int i = 0; i < pull->includes && !wanted; i++) {
        wanted = fnmatch(pull->include[i], path, 0) == 0;
    }
    return wanted;
}

static carry_status add_file(carry_ctx *ctx, carry_hub_pull *pull, const carry_json *node, const char *url) {
    const carry_json *lfs = carry_json_find(node, "lfs");
    const char *path = carry_json_string(carry_json_find(node, "path"));
    bool is_large = lfs != NULL && lfs->kind == CARRY_JSON_OBJECT;
    const carry_json *size = carry_json_find(is_large ? lfs : node, "size");
    const char *hash = carry_json_string(carry_json_find(is_large ? lfs : node, "oid"));
    if (carry_json_is_text(carry_json_find(node, "type"), "directory") || (path != NULL && !is_wanted(pull, path))) {
        return CARRY_OK;
    }
    if (path == NULL || !is_safe(path) || hash == NULL || !carry_hub_is_hash(hash, is_large ? 64 : 40) ||
        size == NULL || !size->whole || size->as.number.integer < 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s, line %u: expected a file with a plain path, a size and a hash", url,
                          node->line);
    }
    if (pull->count == FILES_MOST) {
        return carry_fail(ctx, CARRY_ESIZE, "%s has more than %d files", pull->model.name, FILES_MOST);
    }
    if ((pull->count & (pull->count - 1)) == 0) { /* full: the list doubles at powers of two */
        size_t room = pull->count > 0 ? 2 * (size_t)pull->count : 1;
        carry_hub_file *grown = realloc(pull->files, room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a list of files");
        }
        pull->files = grown;
    }
    carry_hub_file *file = &pull->files[pull->count];
    *file = (carry_hub_file){.path = strdup(path), .size = size->as.number.integer};
    (void)snprintf(file->hash, sizeof file->hash, "%s", hash);
    pull->count++;
    return file->path == NULL || __builtin_add_overflow(pull->bytes, file->size, &pull->bytes)
               ? carry_fail(ctx, CARRY_ESIZE, "the files of %s are too large", pull->model.name)
               : CARRY_OK;
}

/* Gets one answer of the interface, as JSON of this kind. */
static carry_status ask(carry_ctx *ctx, const carry_hub_pull *pull, const char *url, carry_json_kind kind,
                        carry_json **root, char *next) {
    char *text;
    size_t length;
    CARRY_TRY(carry_hub_get(ctx, pull, url, &text, &length, next, URL_MOST));
    carry_status status = carry_json_parse(ctx, root, text, length, url);
    free(text);
    if (status == CARRY_OK && (*root)->kind != kind) {
        carry_json_free(*root);
        *root = NULL;
        status = carry_fail(ctx, CARRY_EFORMAT, "%s: the hub answers something other than a list of files", url);
    }
    return status;
}

static carry_status find_commit(carry_ctx *ctx, carry_hub_pull *pull) {
    char url[URL_MOST], next[URL_MOST];
    carry_json *root;
    char *escaped = curl_easy_escape(NULL, pull->model.revision, 0);
    (void)snprintf(url, sizeof url, "%s/api/models/%s/revision/%s", pull->endpoint, pull->model.name,
                   escaped != NULL ? escaped : "");
    curl_free(escaped);
    CARRY_TRY(ask(ctx, pull, url, CARRY_JSON_OBJECT, &root, next));
    const char *commit = carry_json_string(carry_json_find(root, "sha"));
    bool is_commit = commit != NULL && carry_hub_is_hash(commit, 40);
    if (is_commit) {
        memcpy(pull->commit, commit, 41);
    }
    carry_json_free(root);
    return is_commit ? CARRY_OK : carry_fail(ctx, CARRY_EFORMAT, "%s: the answer has no commit (sha)", url);
}

carry_status carry_hub_list(carry_ctx *ctx, carry_hub_pull *pull) {
    char url[URL_MOST], next[URL_MOST];
    CARRY_TRY(find_commit(ctx, pull));
    (void)snprintf(url, sizeof url, "%s/api/models/%s/tree/%s?recursive=true", pull->endpoint, pull->model.name,
                   pull->commit);
    for (int page = 0; url[0] != '\0'; page++) {
        carry_json *root;
        if (page == PAGES_MOST) {
            return carry_fail(ctx, CARRY_ESIZE, "the list of files of %s has more than %d pages", pull->model.name,
                              PAGES_MOST);
        }
        CARRY_TRY(ask(ctx, pull, url, CARRY_JSON_ARRAY, &root, next));
        carry_status status = CARRY_OK;
        for (const carry_json *one = carry_json_first(root); one != NULL && status == CARRY_OK; one = one->next) {
            status = add_file(ctx, pull, one, url);
        }
        carry_json_free(root);
        CARRY_TRY(status);
        memcpy(url, next, sizeof url);
    }
    return pull->count > 0
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ENOTFOUND, "%s has no file that --include selects", pull->model.name);
}
