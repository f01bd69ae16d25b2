/* Finds files by walking folders. */
#include "tokenizer/text_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/context.h"
#include "tokenizer/tokenizer_internal.h"

#define DEPTH_MOST 32
#define FILES_MOST ((int64_t)1 << 24)

static carry_status add_file(carry_ctx *ctx, carry_file_list *list, const char *path, int64_t bytes) {
    if (list->count >= FILES_MOST ||
        !carry_list_grow(&list->file, &list->room, (size_t)list->count, 1, sizeof *list->file)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the names of more than %lld files",
                          (long long)list->count);
    }
    list->file[list->count] = (carry_listed_file){strdup(path), bytes};
    if (list->file[list->count].path == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the name of %.200s", path);
    }
    list->count++;
    return CARRY_OK;
}

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Links to files are followed. Links to folders are not, since they may form a cycle. */
static bool is_folder_itself(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static carry_status add_folder(carry_ctx *ctx, carry_file_list *list, const char *path, int depth);

static carry_status add_inside(carry_ctx *ctx, carry_file_list *list, const char *path, int depth) {
    struct stat about;
    if (is_folder_itself(path)) {
        return add_folder(ctx, list, path, depth + 1);
    }
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0) {
        carry_log(ctx, CARRY_LOG_INFO, "%s is empty or not a regular file: skipped", path);
        return CARRY_OK;
    }
    return add_file(ctx, list, path, (int64_t)about.st_size);
}

// NOLINTNEXTLINE(misc-no-recursion): DEPTH_MOST bounds it
static carry_status add_folder(carry_ctx *ctx, carry_file_list *list, const char *path, int depth) {
    if (depth > DEPTH_MOST) {
        return carry_fail(ctx, CARRY_ESIZE, "%.200s lies more than %d folders deep", path, DEPTH_MOST);
    }
    struct dirent **entry;
    int count = scandir(path, &entry, is_shown, by_bytes);
    if (count < 0) {
        return carry_fail(ctx, CARRY_EIO, "the folder %s cannot be read: %s", path, strerror(errno));
    }
    carry_status status = CARRY_OK;
    for (int i = 0; i < count; i++) {
        char inside[4096];
        int length = snprintf(inside, sizeof inside, "%s/%s", path, entry[i]->d_name);
        if (status == CARRY_OK && (length < 0 || (size_t)length >= sizeof inside)) {
            status = carry_fail(ctx, CARRY_ESIZE, "a path in %.200s is longer than %zu bytes", path, sizeof inside);
        }
        if (status == CARRY_OK) {
            status = add_inside(ctx, list, inside, depth);
        }
        free(entry[i]);
    }
    free(entry);
    return status;
}

static carry_status add_named(carry_ctx *ctx, carry_file_list *list, const char *path) {
    struct stat about;
    if (stat(path, &about) != 0) {
        if (errno == ENOENT) {
            return carry_fail(ctx, CARRY_ENOTFOUND, "there is no file or folder %s", path);
        }
        return carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(errno));
    }
    if (S_ISDIR(about.st_mode)) {
        int64_t before = list->count;
        CARRY_TRY(add_folder(ctx, list, path, 0));
        return list->count > before
                   ? CARRY_OK
                   : carry_fail(ctx, CARRY_EFORMAT, "the folder %s has no file with something in it", path);
    }
    if (!S_ISREG(about.st_mode)) {
        return carry_fail(ctx, CARRY_EIO, "%s is neither a regular file nor a folder", path);
    }
    if (about.st_size == 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s is empty: there is nothing to learn from", path);
    }
    return add_file(ctx, list, path, (int64_t)about.st_size);
}

carry_status carry_file_list_find(carry_ctx *ctx, carry_file_list *list, const char *const *paths, int count) {
    *list = (carry_file_list){0};
    if (count < 1) {
        return carry_fail(ctx, CARRY_EARGUMENT, "no file or folder with text is named");
    }
    for (int i = 0; i < count; i++) {
        CARRY_TRY(add_named(ctx, list, paths[i]));
    }
    return CARRY_OK;
}

void carry_file_list_free(carry_file_list *list) {
    for (int64_t i = 0; i < list->count; i++) {
        free(list->file[i].path);
    }
    free(list->file);
    *list = (carry_file_list){0};
}
