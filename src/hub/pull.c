/* Makes a snapshot from a list of files: missing files, free space, ranges, hashes, links. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sha.h"
#include "hub/list.h"
#include "hub/transfer.h"

#define READ_BYTES ((size_t)1 << 20)
#define SPARE_BYTES ((int64_t)64 << 20) /* must stay free on the disk */

/* Makes the parent folders of a path. */
static carry_status make_folders(carry_ctx *ctx, const char *path) {
    char part[CARRY_FILE_PATH];
    (void)snprintf(part, sizeof part, "%s", path);
    for (char *at = strchr(part + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            return carry_fail(ctx, CARRY_EIO, "the folder %s cannot be made: %s", part, strerror(errno));
        }
        *at = '/';
    }
    return CARRY_OK;
}

static int64_t size_of(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) ? (int64_t)found.st_size : -1;
}

/* Plans the ranges of a file, and marks those that an earlier call fetched. */
static carry_status plan_file(carry_ctx *ctx, const carry_hub_pull *pull, const char *folder, carry_hub_file *file) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_hub_blob(ctx, path, folder, file, ""));
    file->is_present = file->is_copy || size_of(path) == file->size;
    file->part = pull->part > 0 ? pull->part : CARRY_HUB_PART;
    file->parts = file->size > 0 ? (file->size - 1) / file->part + 1 : 0;
    file->parts_done = 0;
    free(file->done);
    file->done = calloc((size_t)file->parts + 1, 1);
    if (file->done == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", file->path);
    }
    CARRY_TRY(carry_hub_blob(ctx, path, folder, file, CARRY_HUB_DATA));
    int64_t here = size_of(path);
    CARRY_TRY(carry_hub_blob(ctx, path, folder, file, CARRY_HUB_LIST));
    int list = here >= 0 && !file->is_present ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t known = list >= 0 ? read(list, file->done, (size_t)file->parts) : 0;
    if (list >= 0) {
        (void)close(list);
    }
    for (int64_t i = 0; i < file->parts; i++) {
        int64_t end = i + 1 < file->parts ? (i + 1) * file->part : file->size;
        file->done[i] = i < known && file->done[i] == '1' && end <= here;
        file->parts_done += file->done[i];
    }
    return CARRY_OK;
}

static carry_status plan(carry_ctx *ctx, carry_hub_pull *pull, const char *folder) {
    struct statvfs disk;
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder, "blobs/x"));
    CARRY_TRY(make_folders(ctx, path));
    pull->missing_bytes = 0;
    for (int64_t i = 0; i < pull->count; i++) {
        carry_hub_file *file = &pull->files[i];
        CARRY_TRY(plan_file(ctx, pull, folder, file));
        int64_t fetched = file->parts_done * file->part;
        pull->missing_bytes += file->is_present ? 0 : file->size - (fetched < file->size ? fetched : file->size);
    }
    if (statvfs(folder, &disk) == 0) {
        double available = (double)disk.f_bavail * (double)disk.f_frsize;
        if ((double)pull->missing_bytes + (pull->missing_bytes > 0 ? (double)SPARE_BYTES : 0) > available) {
            return carry_fail(ctx, CARRY_EIO, "%s needs %.3g GB more on the disk of %s, which has %.3g GB free",
                              pull->model.name, (double)pull->missing_bytes / 1e9, folder, available / 1e9);
        }
    }
    return CARRY_OK;
}

static carry_status hash_file(carry_ctx *ctx, const carry_hub_file *file, const char *path, char text[CARRY_SHA_TEXT]) {
    carry_sha sha;
    char header[64];
    bool is_256 = strlen(file->hash) == 64;
    carry_sha_start(&sha, is_256);
    if (!is_256) { /* Git hashes the kind and size, a NUL, then the bytes */
        int length = snprintf(header, sizeof header, "blob %lld", (long long)file->size);
        carry_sha_add(&sha, header, (size_t)length + 1);
    }
    int data = open(path, O_RDONLY | O_CLOEXEC);
    char *bytes = malloc(READ_BYTES);
    ssize_t now = data >= 0 && bytes != NULL ? 1 : -1;
    while (now > 0) {
        now = read(data, bytes, READ_BYTES);
        carry_sha_add(&sha, bytes, now > 0 ? (size_t)now : 0);
    }
    free(bytes);
    if (data >= 0) {
        (void)close(data);
    }
    (void)carry_sha_text(&sha, text);
    return now == 0 ? CARRY_OK : carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(errno));
}

/* Turns a complete file into a blob if its hash is right; otherwise removes it, so that it is fetched again. */
static carry_status keep(carry_ctx *ctx, carry_hub_file *file, const char *folder) {
    char data[CARRY_FILE_PATH], list[CARRY_FILE_PATH], blob[CARRY_FILE_PATH], found[CARRY_SHA_TEXT];
    CARRY_TRY(carry_hub_blob(ctx, data, folder, file, CARRY_HUB_DATA));
    CARRY_TRY(carry_hub_blob(ctx, list, folder, file, CARRY_HUB_LIST));
    CARRY_TRY(carry_hub_blob(ctx, blob, folder, file, ""));
    if (file->size == 0) {
        int empty = open(data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (empty >= 0) {
            (void)close(empty);
        }
    }
    CARRY_TRY(hash_file(ctx, file, data, found));
    (void)unlink(list);
    if (strcmp(found, file->hash) != 0) {
        (void)unlink(data);
        file->attempts++;
        return carry_fail(ctx, CARRY_EFORMAT, "%s was damaged on the way: its hash is %s, expected %s", file->path,
                          found, file->hash);
    }
    int written = open(data, O_RDONLY | O_CLOEXEC);
    if (written >= 0) {
        (void)fsync(written);
        (void)close(written);
    }
    file->is_present = rename(data, blob) == 0;
    return file->is_present ? CARRY_OK : carry_fail(ctx, CARRY_EIO, "%s cannot be written: %s", blob, strerror(errno));
}

/* snapshots/COMMIT/a/b -> ../../../blobs/HASH */
static carry_status link_file(carry_ctx *ctx, const carry_hub_pull *pull, const carry_hub_file *file) {
    char path[CARRY_FILE_PATH], target[CARRY_FILE_PATH], beside[CARRY_FILE_PATH + 16];
    char *to = stpcpy(target, "../../");
    CARRY_TRY(carry_file_in(ctx, path, pull->folder, file->path));
    CARRY_TRY(make_folders(ctx, path));
    for (const char *at = file->path; *at != '\0'; at++) {
        to = *at == '/' ? stpcpy(to, "../") : to;
    }
    (void)snprintf(to, 128, "blobs/%s", file->hash);
    (void)snprintf(beside, sizeof beside, "%s.carry", path);
    (void)unlink(beside);
    if (symlink(target, beside) != 0 || rename(beside, path) != 0) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be linked: %s", path, strerror(errno));
    }
    return CARRY_OK;
}

/* Fetches missing files and checks them; a damaged file is fetched once more. */
static carry_status fetch_missing(carry_ctx *ctx, carry_hub_pull *pull, const char *folder) {
    for (;;) {
        bool again = false;
        carry_status status = carry_hub_transfer(ctx, pull, folder);
        if (status == CARRY_EUNSUPPORTED && pull->part != INT64_MAX / 2) { /* no ranges: fetch whole files */
            pull->part = INT64_MAX / 2;
            CARRY_TRY(plan(ctx, pull, folder));
            continue;
        }
        CARRY_TRY(status);
        for (int64_t i = 0; i < pull->count; i++) {
            carry_hub_file *file = &pull->files[i];
            if (!file->is_present) {
                status = keep(ctx, file, folder);
                if (status != CARRY_OK && (status != CARRY_EFORMAT || file->attempts > 1)) {
                    return status;
                }
                again = again || status != CARRY_OK;
            }
            if (status != CARRY_OK) {
                CARRY_TRY(plan_file(ctx, pull, folder, file));
                status = CARRY_OK;
            }
        }
        if (!again) {
            return CARRY_OK;
        }
    }
}

/* Allows only one call at a time per model. The lock is released when the process ends. */
static carry_status lock(carry_ctx *ctx, const char *folder, int *held) {
    char path[CARRY_FILE_PATH];
    const char *name = strrchr(folder, '/') + 1;
    (void)snprintf(path, sizeof path, "%.*s.locks/%s/carry.lock", (int)(name - folder), folder, name);
    CARRY_TRY(make_folders(ctx, path));
    *held = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*held < 0 || flock(*held, LOCK_EX | LOCK_NB) != 0) {
        carry_status status =
            *held < 0 ? carry_fail(ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno))
                      : carry_fail(ctx, CARRY_EARGUMENT, "another carry pull fetches this model now (%s)", path);
        if (*held >= 0) {
            (void)close(*held);
        }
        return status;
    }
    return CARRY_OK;
}

static int by_hash(const void *a, const void *b) {
    const carry_hub_file *const *first = a;
    const carry_hub_file *const *second = b;
    const int order = strcmp((*first)->hash, (*second)->hash);
    return order != 0 ? order : (*first > *second) - (*first < *second);
}

/* Files with the same bytes are one blob, which is fetched once. */
static carry_status mark_copies(carry_ctx *ctx, const carry_hub_pull *pull) {
    carry_hub_file **sorted = malloc((size_t)(pull->count + 1) * sizeof(carry_hub_file *));
    if (sorted == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the list of files");
    }
    for (int64_t i = 0; i < pull->count; i++) {
        sorted[i] = &pull->files[i];
    }
    qsort(sorted, (size_t)pull->count, sizeof(carry_hub_file *), by_hash);
    for (int64_t i = 1; i < pull->count; i++) {
        sorted[i]->is_copy = strcmp(sorted[i]->hash, sorted[i - 1]->hash) == 0;
    }
    free(sorted);
    return CARRY_OK;
}

static carry_status fetch(carry_ctx *ctx, carry_hub_pull *pull, const char *folder) {
    char name[CARRY_HUB_NAME + 16], path[CARRY_FILE_PATH];
    CARRY_TRY(carry_hub_list(ctx, pull));
    CARRY_TRY(mark_copies(ctx, pull));
    CARRY_TRY(plan(ctx, pull, folder));
    (void)snprintf(name, sizeof name, "snapshots/%s", pull->commit);
    CARRY_TRY(carry_file_in(ctx, pull->folder, folder, name));
    CARRY_TRY(fetch_missing(ctx, pull, folder));
    for (int64_t i = 0; i < pull->count; i++) {
        CARRY_TRY(link_file(ctx, pull, &pull->files[i]));
    }
    if (strcmp(pull->model.revision, pull->commit) != 0) {
        (void)snprintf(name, sizeof name, "refs/%s", pull->model.revision);
        CARRY_TRY(carry_file_in(ctx, path, folder, name));
        CARRY_TRY(carry_file_replace(ctx, path, pull->commit, strlen(pull->commit)));
    }
    return CARRY_OK;
}

carry_status carry_hub_fetch(carry_ctx *ctx, carry_hub_pull *pull) {
    char folder[CARRY_FILE_PATH];
    int held;
    const char *endpoint = getenv("HF_ENDPOINT");
    pull->endpoint = pull->endpoint != NULL                  ? pull->endpoint
                     : endpoint != NULL && *endpoint != '\0' ? endpoint
                                                             : "https://huggingface.co";
    pull->token = pull->token != NULL ? pull->token : getenv("HF_TOKEN");
    if (strlen(pull->endpoint) > 1024 ||
        (strncmp(pull->endpoint, "http://", 7) != 0 && strncmp(pull->endpoint, "https://", 8) != 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the endpoint '%.80s': expected http://... or https://...",
                          pull->endpoint);
    }
    CARRY_TRY(carry_hub_model_folder(ctx, folder, &pull->model));
    CARRY_TRY(lock(ctx, folder, &held));
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    carry_status status = fetch(ctx, pull, folder);
    (void)close(held);
    return status;
}

void carry_hub_pull_free(carry_hub_pull *pull) {
    for (int64_t i = 0; i < pull->count; i++) {
        free(pull->files[i].path);
        free(pull->files[i].done);
    }
    free(pull->files);
    pull->files = NULL;
    pull->count = 0;
}
