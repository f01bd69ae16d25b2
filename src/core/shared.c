/* Finds files that were installed with the program. */
#include "core/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_there(char found[CARRY_FILE_PATH], const char *folder, const char *between, const char *name) {
    const int length = snprintf(found, CARRY_FILE_PATH, "%s%s%s", folder, between, name);
    return length > 0 && length < CARRY_FILE_PATH && access(found, R_OK) == 0;
}

bool carry_file_shared(char found[CARRY_FILE_PATH], const char *name) {
    char at[CARRY_FILE_PATH];
    const char *data = getenv("CARRY_DATA");
    if (data != NULL && *data != '\0') {
        return is_there(found, data, "/", name);
    }
    const ssize_t length = readlink("/proc/self/exe", at, sizeof at - 1);
    if (length <= 0) {
        return false;
    }
    at[length] = '\0';
    for (char *slash = strrchr(at, '/'); slash != NULL; slash = strrchr(at, '/')) {
        *slash = '\0';
        if (is_there(found, at, "/share/carry/", name) || is_there(found, at, "/", name)) {
            return true;
        }
    }
    return false;
}
