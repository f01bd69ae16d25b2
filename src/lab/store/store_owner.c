/* Checks who owns a store. A store found in the working folder or a parent is used only if it belongs to the user,
   as git does with repositories (safe.directory). Otherwise, commands in a folder below one that has another user's
   .carry would write to that user's store and queue jobs beside theirs. A store that is named (--store, CARRY_STORE) is
   used without this check. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lab/store/store_internal.h"

/* The user who called sudo, since root then works in that user's folders; -1: none. */
static long long sudo_user(void) {
    const char *text = geteuid() == 0 ? getenv("SUDO_UID") : NULL;
    size_t digits = text != NULL ? strspn(text, "0123456789") : 0;
    return digits > 0 && digits < 12 && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1;
}

static carry_status check_one(carry_ctx *ctx, const char *path) {
    struct stat about;
    if (stat(path, &about) != 0 || about.st_uid == geteuid() || (long long)about.st_uid == sudo_user()) {
        return CARRY_OK; /* a store that does not exist yet will belong to the user */
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s belongs to user %lld, not to you (user %lld): name a store by --store or CARRY_STORE", path,
                      (long long)about.st_uid, (long long)geteuid());
}

carry_status carry_store_check_owner(carry_ctx *ctx, const char *path) {
    char other[4200];
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) : 0;
    (void)snprintf(other, sizeof other, "%.*s", folder, path);
    CARRY_TRY(check_one(ctx, other));
    CARRY_TRY(check_one(ctx, path));
    (void)snprintf(other, sizeof other, "%s-wal", path);
    CARRY_TRY(check_one(ctx, other));
    (void)snprintf(other, sizeof other, "%.*s/jobs", folder, path);
    return check_one(ctx, other);
}
