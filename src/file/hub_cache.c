/* Parses names of models on the hub, and finds their folders in its cache. */
#include "file/hub_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"

bool carry_hub_is_hash(const char *text, size_t digits) {
    return strspn(text, "0123456789abcdef") == digits && text[digits] == '\0';
}

/* True if the text has only letters, digits, `-`, `_`, `.` and at most `slashes` slashes, without `..`, `--` or an
   empty part, and does not start with a dot. */
static bool is_plain(const char *text, int slashes) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./";
    int found = 0;
    for (const char *at = text; *at != '\0'; at++) {
        found += *at == '/';
    }
    size_t length = strlen(text);
    return length > 0 && strspn(text, allowed) == length && strstr(text, "..") == NULL && strstr(text, "//") == NULL &&
           strstr(text, "--") == NULL && text[0] != '/' && text[0] != '.' && text[length - 1] != '/' &&
           found <= slashes;
}

carry_status carry_hub_parse(carry_ctx *ctx, carry_hub_model *model, const char *text) {
    const size_t prefix = strlen(CARRY_HUB_PREFIX);
    const char *name = strncmp(text, CARRY_HUB_PREFIX, prefix) == 0 ? text + prefix : text;
    const char *at = strchr(name, '@');
    size_t length = at != NULL ? (size_t)(at - name) : strlen(name);
    *model = (carry_hub_model){.revision = "main"};
    if (length < CARRY_HUB_NAME && (at == NULL || strlen(at + 1) < CARRY_HUB_NAME)) {
        memcpy(model->name, name, length);
        (void)snprintf(model->revision, sizeof model->revision, "%s", at != NULL ? at + 1 : "main");
    }
    if (!is_plain(model->name, 1) || !is_plain(model->revision, 8)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "'%.80s' is not a model of the hub: expected OWNER/NAME or OWNER/NAME@REVISION", text);
    }
    return CARRY_OK;
}

static carry_status find_root(carry_ctx *ctx, char path[CARRY_FILE_PATH]) {
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME");
    const char *user = getenv("HOME");
    const bool has_hub = hub != NULL && *hub != '\0', has_home = home != NULL && *home != '\0';
    const bool has_cache = cache != NULL && *cache != '\0';
    int length = has_hub     ? snprintf(path, CARRY_FILE_PATH, "%s", hub)
                 : has_home  ? snprintf(path, CARRY_FILE_PATH, "%s/hub", home)
                 : has_cache ? snprintf(path, CARRY_FILE_PATH, "%s/huggingface/hub", cache)
                             : snprintf(path, CARRY_FILE_PATH, "%s/.cache/huggingface/hub", user != NULL ? user : "");
    return length < CARRY_FILE_PATH / 2 ? CARRY_OK : carry_fail(ctx, CARRY_EARGUMENT, "HF_HOME is too long a path");
}

carry_status carry_hub_model_folder(carry_ctx *ctx, char path[CARRY_FILE_PATH], const carry_hub_model *model) {
    CARRY_TRY(find_root(ctx, path));
    char *to = stpcpy(path + strlen(path), "/models--");
    for (const char *at = model->name; *at != '\0'; at++) {
        to = *at == '/' ? stpcpy(to, "--") : (*to = *at, to + 1);
    }
    *to = '\0';
    return CARRY_OK;
}

carry_status carry_hub_resolve(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder) {
    if (strncmp(folder, CARRY_HUB_PREFIX, strlen(CARRY_HUB_PREFIX)) != 0) {
        return (size_t)snprintf(path, CARRY_FILE_PATH, "%s", folder) < CARRY_FILE_PATH
                   ? CARRY_OK
                   : carry_fail(ctx, CARRY_EARGUMENT, "'%.80s...' is too long a path", folder);
    }
    carry_hub_model model;
    char root[CARRY_FILE_PATH], name[CARRY_HUB_NAME + 16], commit[64] = "", *text;
    size_t length;
    CARRY_TRY(carry_hub_parse(ctx, &model, folder));
    CARRY_TRY(carry_hub_model_folder(ctx, root, &model));
    (void)snprintf(name, sizeof name, "refs/%s", model.revision);
    CARRY_TRY(carry_file_in(ctx, path, root, name));
    if (carry_hub_is_hash(model.revision, 40)) {
        memcpy(commit, model.revision, 41);
    } else if (carry_file_read(ctx, &text, &length, path, 128) == CARRY_OK) {
        text[strcspn(text, " \r\n")] = '\0';
        (void)snprintf(commit, sizeof commit, "%.60s", text);
        free(text);
    }
    (void)snprintf(name, sizeof name, "snapshots/%s", commit);
    CARRY_TRY(carry_file_in(ctx, path, root, name));
    struct stat found;
    if (!carry_hub_is_hash(commit, 40) || stat(path, &found) != 0 || !S_ISDIR(found.st_mode)) {
        bool is_main = strcmp(model.revision, "main") == 0;
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "%s is not in the cache of the hub (%.200s): fetch it with carry pull %s%s%s", folder, root,
                          model.name, is_main ? "" : "@", is_main ? "" : model.revision);
    }
    return CARRY_OK;
}
