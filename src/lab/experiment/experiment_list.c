/* Lists the experiments of a project. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "core/file.h"
#include "core/shared.h"
#include "lab/experiment/experiment.h"

#define MOST_BYTES ((size_t)1 << 20)
#define MOST_MESSAGE 240

/* Finds experiments/ in this folder or the nearest parent that has it, else those installed with the program. */
static carry_status find_folder(carry_ctx *ctx, char folder[CARRY_FILE_PATH]) {
    char here[4000];
    if (getcwd(here, sizeof here) == NULL) {
        return carry_fail(ctx, CARRY_EIO, "this folder has no name: %s", strerror(errno));
    }
    for (;;) {
        struct stat about;
        (void)snprintf(folder, CARRY_FILE_PATH, "%s/experiments", here);
        if (stat(folder, &about) == 0 && S_ISDIR(about.st_mode)) {
            return CARRY_OK;
        }
        char *slash = strrchr(here, '/');
        if (slash == NULL || here[0] == '\0') {
            return carry_file_shared(folder, "experiments")
                       ? CARRY_OK
                       : carry_fail(ctx, CARRY_ENOTFOUND,
                                    "there is no folder experiments here or above, and none came with the program");
        }
        *slash = '\0';
    }
}

static int is_yaml(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 5 && strcmp(entry->d_name + length - 5, ".yaml") == 0;
}

/* Copies the text up to the first full stop or colon that ends a word; a long text is cut. */
static void first_sentence(char message[MOST_MESSAGE], const char *text) {
    size_t length = 0;
    while (text[length] != '\0' && !(strchr(".:", text[length]) != NULL && strchr(" \n", text[length + 1]) != NULL)) {
        length++;
    }
    (void)snprintf(message, MOST_MESSAGE, "%.*s", (int)(length < MOST_MESSAGE ? length : MOST_MESSAGE), text);
    message[strcspn(message, "\n")] = '\0';
}

/* Reports the name and the hypothesis, or the error if the file cannot be read. */
static void tell_one(carry_ctx *ctx, const char *path, carry_experiment_row tell, void *user) {
    char *text = NULL;
    size_t length = 0;
    carry_yaml *root = NULL;
    char message[MOST_MESSAGE];
    carry_status status = carry_file_read(ctx, &text, &length, path, MOST_BYTES);
    status = status == CARRY_OK ? carry_yaml_parse(ctx, &root, text, length, path) : status;
    const carry_yaml *name = carry_yaml_get(root, "name");
    const carry_yaml *hypothesis = carry_yaml_get(root, "hypothesis");
    if (status != CARRY_OK) {
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(ctx));
    } else if (hypothesis == NULL || hypothesis->kind != CARRY_YAML_SCALAR) {
        (void)snprintf(message, sizeof message, "it has no hypothesis");
    } else {
        first_sentence(message, hypothesis->text);
    }
    const char *slash = strrchr(path, '/');
    tell(user, name != NULL && name->kind == CARRY_YAML_SCALAR ? name->text : slash + 1, message, path);
    carry_yaml_free(root);
    free(text);
}

carry_status carry_experiment_list(carry_ctx *ctx, carry_experiment_row tell, void *user) {
    char folder[CARRY_FILE_PATH];
    struct dirent **entries;
    CARRY_TRY(find_folder(ctx, folder));
    int count = scandir(folder, &entries, is_yaml, alphasort);
    if (count < 0) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", folder, strerror(errno));
    }
    for (int i = 0; i < count; i++) {
        char path[4096 + 260];
        (void)snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        tell_one(ctx, path, tell, user);
        free(entries[i]);
    }
    free(entries);
    return CARRY_OK;
}
