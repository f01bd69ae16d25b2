/* Reading and writing small files without losing data. */
#ifndef CARRY_CORE_FILE_H
#define CARRY_CORE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "core/crc32c.h"

#define CARRY_FILE_PATH 4096

/* Writes folder/name to path. */
carry_status carry_file_in(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder, const char *name);

/* Makes a new folder with this name and six random letters, in $TMPDIR if that is an absolute path, else in /tmp. */
carry_status carry_file_temporary_folder(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *name);

/* Reads a whole regular file of at most limit bytes and puts a 0 byte after its end; the caller frees *text.
   CARRY_ENOTFOUND if the file does not exist; the message is set in that case too. */
carry_status carry_file_read(carry_ctx *ctx, char **text, size_t *length, const char *path, size_t limit);

/* Replaces the file by these bytes: they are written to a file beside it, which is synced and renamed. A crash
   leaves the old file or the new one. Missing folders are made. */
carry_status carry_file_replace(carry_ctx *ctx, const char *path, const void *bytes, size_t length);

/* The same for data that comes in pieces. A successful begin must be followed by commit or abandon; the path is
   borrowed until then. A failed write abandons the file, and later writes and the commit fail. */
typedef struct carry_file_writing {
    const char *path;
    int file; /* -1: abandoned */
    char beside[CARRY_FILE_PATH];
} carry_file_writing;

carry_status carry_file_begin(carry_ctx *ctx, carry_file_writing *writing, const char *path);
carry_status carry_file_write(carry_ctx *ctx, carry_file_writing *writing, const void *bytes, size_t length);
carry_status carry_file_commit(carry_ctx *ctx, carry_file_writing *writing);
void carry_file_abandon(carry_file_writing *writing);

#endif
