/* Small files: bounded reads, atomic replacement, a checksum. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

#define PATH_LIMIT CARRY_FILE_PATH

carry_status carry_file_temporary_folder(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *name) {
    const char *above = getenv("TMPDIR");
    const int length =
        snprintf(path, CARRY_FILE_PATH, "%s/%s-XXXXXX", above != NULL && *above == '/' ? above : "/tmp", name);
    if (length >= CARRY_FILE_PATH) {
        return carry_fail(ctx, CARRY_ESIZE, "TMPDIR is longer than a path may be");
    }
    if (mkdtemp(path) == NULL) {
        return carry_fail(ctx, CARRY_EIO, "the temporary folder %s cannot be made: %s", path, strerror(errno));
    }
    return CARRY_OK;
}

/* Why a path cannot be opened. If its folder does not exist, the message names the folder. */
static const char *reason(char why[PATH_LIMIT + 32], const char *path, int code) {
    char folder[PATH_LIMIT];
    struct stat about;
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (code == ENOENT && slash != NULL && slash != folder) {
        *slash = '\0';
        if (stat(folder, &about) != 0 && errno == ENOENT) {
            (void)snprintf(why, PATH_LIMIT + 32, "there is no folder %s", folder);
            return why;
        }
    }
    return strerror(code);
}

static carry_status open_for_reading(carry_ctx *ctx, int *file, size_t *size, const char *path, size_t limit) {
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*file < 0) {
        char why[PATH_LIMIT + 32];
        const int code = errno;
        const carry_status status = code == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO;
        return carry_fail(ctx, status, "%s cannot be read: %s", path, reason(why, path, code));
    }
    struct stat about;
    if (fstat(*file, &about) != 0 || !S_ISREG(about.st_mode)) {
        (void)close(*file);
        return carry_fail(ctx, CARRY_EIO, "%s is not a regular file", path);
    }
    if ((uint64_t)about.st_size > limit) {
        (void)close(*file);
        return carry_fail(ctx, CARRY_ESIZE, "%s has %lld bytes, more than the %zu that are read", path,
                          (long long)about.st_size, limit);
    }
    *size = (size_t)about.st_size;
    return CARRY_OK;
}

static bool read_fully(int file, char *to, size_t size, size_t *got) {
    *got = 0;
    while (*got < size) {
        ssize_t more = read(file, to + *got, size - *got);
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more < 0) {
            return false;
        }
        if (more == 0) {
            break; /* the file shrank while it was read: return the bytes that were read */
        }
        *got += (size_t)more;
    }
    return true;
}

static bool write_fully(int file, const char *from, size_t size) {
    while (size > 0) {
        ssize_t done = write(file, from, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return false;
        }
        from += done;
        size -= (size_t)done;
    }
    return true;
}

static void make_folders(const char *path) {
    char partial[PATH_LIMIT];
    (void)snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = strchr(partial + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(partial, 0777); /* a failure shows when the file is opened */
        *slash = '/';
    }
}

/* The rename is stored in the folder: without this it may be lost in a power failure. */
static void sync_folder_of(const char *path) {
    char folder[PATH_LIMIT];
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        (void)snprintf(folder, sizeof folder, ".");
    } else {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened >= 0) {
        (void)fsync(opened);
        (void)close(opened);
    }
}

carry_status carry_file_in(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder, const char *name) {
    if (snprintf(path, CARRY_FILE_PATH, "%s/%s", folder, name) >= CARRY_FILE_PATH) {
        return carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is too long", folder);
    }
    return CARRY_OK;
}

carry_status carry_file_read(carry_ctx *ctx, char **text, size_t *length, const char *path, size_t limit) {
    int file;
    size_t size = 0;
    *text = NULL;
    CARRY_TRY(open_for_reading(ctx, &file, &size, path, limit));
    char *bytes = malloc(size + 1);
    bool complete = bytes != NULL && read_fully(file, bytes, size, length);
    int code = errno;
    (void)close(file);
    if (!complete) {
        free(bytes);
        return bytes == NULL ? carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s (%zu bytes)", path, size)
                             : carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(code));
    }
    bytes[*length] = '\0';
    *text = bytes;
    return CARRY_OK;
}

static carry_status cannot_write(carry_ctx *ctx, carry_file_writing *writing, int code) {
    char why[PATH_LIMIT + 32];
    carry_file_abandon(writing);
    return carry_fail(ctx, CARRY_EIO, "%s cannot be written: %s", writing->path, reason(why, writing->path, code));
}

/* Like mkostemp, but with the permissions that the umask allows. */
static void open_beside(carry_file_writing *writing) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char *name = writing->beside + strlen(writing->beside) - 6;
    for (int tries = 0; tries < 100; tries++) {
        unsigned char dice[6];
        if (getrandom(dice, sizeof dice, 0) != (ssize_t)sizeof dice) {
            break;
        }
        for (size_t i = 0; i < sizeof dice; i++) {
            name[i] = letters[dice[i] % 32];
        }
        writing->file = open(writing->beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (writing->file >= 0 || errno != EEXIST) {
            break;
        }
    }
}

carry_status carry_file_begin(carry_ctx *ctx, carry_file_writing *writing, const char *path) {
    writing->path = path;
    writing->file = -1;
    if (*path == '\0') {
        return carry_fail(ctx, CARRY_EIO, "a file cannot be written without a name");
    }
    if (snprintf(writing->beside, sizeof writing->beside, "%s.XXXXXX", path) >= (int)sizeof writing->beside) {
        return carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is longer than %d characters", path, PATH_LIMIT - 8);
    }
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) { /* a device or a pipe would be replaced by a file */
        return carry_fail(ctx, CARRY_EIO, "%s is not a regular file", path);
    }
    make_folders(path);
    open_beside(writing);
    return writing->file >= 0 ? CARRY_OK
                              : carry_fail(ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
}

carry_status carry_file_write(carry_ctx *ctx, carry_file_writing *writing, const void *bytes, size_t length) {
    if (writing->file < 0 || !write_fully(writing->file, bytes, length)) {
        return cannot_write(ctx, writing, writing->file < 0 ? EBADF : errno);
    }
    return CARRY_OK;
}

carry_status carry_file_commit(carry_ctx *ctx, carry_file_writing *writing) {
    if (writing->file < 0 || fsync(writing->file) != 0) {
        return cannot_write(ctx, writing, writing->file < 0 ? EBADF : errno);
    }
    int file = writing->file;
    writing->file = -1;
    if (close(file) != 0 || rename(writing->beside, writing->path) != 0) {
        int code = errno;
        (void)unlink(writing->beside);
        return cannot_write(ctx, writing, code);
    }
    sync_folder_of(writing->path);
    return CARRY_OK;
}

void carry_file_abandon(carry_file_writing *writing) {
    if (writing->file >= 0) {
        (void)close(writing->file);
        (void)unlink(writing->beside);
        writing->file = -1;
    }
}

carry_status carry_file_replace(carry_ctx *ctx, const char *path, const void *bytes, size_t length) {
    carry_file_writing writing;
    CARRY_TRY(carry_file_begin(ctx, &writing, path));
    CARRY_TRY(carry_file_write(ctx, &writing, bytes, length));
    return carry_file_commit(ctx, &writing);
}
