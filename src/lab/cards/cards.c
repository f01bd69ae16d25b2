/* Reads the library: folders, files, front matter. */
#include "lab/cards/cards.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "core/shared.h"
#include "lab/cards/cards_field.h"
#include "lab/yaml.h"

#define PAGE_BYTES ((size_t)1 << 20)
#define FRONT_BYTES ((size_t)64 << 10) /* far more than any card has; a mapping with many keys is slow to read */
#define PAGES 4096
#define PATH_LIMIT 4096

static const struct {
    const char *name, *folder;
} kinds[CARRY_PAGE_KINDS] = {{"card", "cards"}, {"topic", "topics"}, {"finding", "findings"}};

/* The front matter is everything before the second line of three dashes. The first such line also starts a YAML
   document and is kept, so that reported line numbers are those of the file. */
static const char *front_end(const char *text) {
    if (strncmp(text, "---\n", 4) != 0) {
        return NULL;
    }
    for (const char *line = text + 4; line != NULL && *line != '\0';) {
        if (strncmp(line, "---", 3) == 0 && (line[3] == '\n' || line[3] == '\0')) {
            return line;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return NULL;
}

/* Texts are shown on terminals, so control characters are refused, even if they come from YAML escapes. */
static bool is_plain(const char *text) {
    for (; *text != '\0'; text++) {
        if (((unsigned char)*text < 0x20 && *text != '\n' && *text != '\t') || *text == 0x7f) {
            return false;
        }
    }
    return true;
}

static carry_status read_text(carry_ctx *ctx, const char **text, const carry_yaml *node, const char *path) {
    CARRY_TRY(carry_yaml_text(ctx, text, node, path));
    return is_plain(*text) ? CARRY_OK : carry_yaml_fail(ctx, node, path, "a text has a control character");
}

/* The length of the UTF-8 character at `at`, 0 if it is invalid. */
static size_t character_length(const unsigned char *at) {
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

static carry_status require_plain_text(carry_ctx *ctx, const char *text, size_t length, const char *path) {
    const unsigned char *at = (const unsigned char *)text;
    const unsigned char *end = at + length;
    int line = 1;
    while (at < end) {
        size_t wide = character_length(at);
        if (wide == 0 || (*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s:%d:1: this line is not plain UTF-8 text (byte %02x)", path, line,
                              *at);
        }
        line += *at == '\n';
        at += wide;
    }
    return CARRY_OK;
}

static carry_status read_item(carry_ctx *ctx, carry_page_item *item, const carry_field *field, carry_yaml *node,
                              const char *path) {
    *item = (carry_page_item){.line = node->line};
    if (field->parts[0] == NULL) {
        return read_text(ctx, &item->part[0], node, path);
    }
    if (node->kind != CARRY_YAML_MAPPING) {
        return carry_yaml_fail(ctx, node, path, "an entry of %s must be a mapping with %s", field->key,
                               field->parts[0]);
    }
    for (int i = 0; i < CARRY_ITEM_PARTS && field->parts[i] != NULL; i++) {
        carry_yaml *part = carry_yaml_get(node, field->parts[i]);
        if (part != NULL) {
            CARRY_TRY(read_text(ctx, &item->part[i], part, path));
        }
    }
    return CARRY_OK;
}

static carry_status read_list(carry_ctx *ctx, carry_page_list *list, const carry_field *field, carry_yaml *node,
                              const char *path) {
    if (node->kind != CARRY_YAML_SEQUENCE) {
        return carry_yaml_fail(ctx, node, path, "%s must be a list", field->key);
    }
    if (node->count == 0) {
        return CARRY_OK;
    }
    list->item = calloc((size_t)node->count, sizeof *list->item);
    if (list->item == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the %d entries of %s in %s", node->count, field->key,
                          path);
    }
    for (carry_yaml *entry = node->first; entry != NULL; entry = entry->next) {
        CARRY_TRY(read_item(ctx, &list->item[list->count], field, entry, path));
        list->count++;
    }
    return CARRY_OK;
}

/* Returns 1, 2 or 3, or 0 for anything else, which carry_library_check reports. */
static int level_of(const char *text) {
    return text != NULL && text[0] >= '1' && text[0] <= '3' && text[1] == '\0' ? text[0] - '0' : 0;
}

static carry_status read_front(carry_ctx *ctx, carry_page *page) {
    if (page->front->kind != CARRY_YAML_MAPPING) {
        return carry_yaml_fail(ctx, page->front, page->path, "the front matter must be a mapping");
    }
    for (const carry_field *field = carry_fields(page->kind); field->key != NULL; field++) {
        carry_yaml *node = carry_yaml_get(page->front, field->key);
        if (node == NULL) {
            continue;
        }
        char *target = (char *)page + field->offset;
        if (field->is_list) {
            CARRY_TRY(read_list(ctx, (carry_page_list *)(void *)target, field, node, page->path));
        } else {
            CARRY_TRY(read_text(ctx, (const char **)(void *)target, node, page->path));
        }
    }
    page->tier = level_of(page->tier_text);
    page->priority = level_of(page->priority_text);
    if (page->id == NULL || page->id[0] == '\0') {
        return carry_yaml_fail(ctx, page->front, page->path, "a page needs an id");
    }
    return CARRY_OK;
}

static carry_status parse(carry_ctx *ctx, carry_page *page, const char *path, const char *text, size_t length) {
    page->path = strdup(path);
    page->text = malloc(length + 1);
    if (page->path == NULL || page->text == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s (%zu bytes)", path, length);
    }
    memcpy(page->text, text, length);
    page->text[length] = '\0';
    CARRY_TRY(require_plain_text(ctx, page->text, length, path));
    const char *end = front_end(page->text);
    if (end == NULL) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s:1:1: a page starts with its front matter between two lines of ---",
                          path);
    }
    if ((size_t)(end - page->text) > FRONT_BYTES) {
        return carry_fail(ctx, CARRY_ESIZE, "%s has %zu bytes of front matter, more than the %zu that are read", path,
                          (size_t)(end - page->text), FRONT_BYTES);
    }
    page->body = end[3] == '\0' ? end + 3 : end + 4;
    CARRY_TRY(carry_yaml_parse(ctx, &page->front, page->text, (size_t)(end - page->text), path));
    return read_front(ctx, page);
}

static carry_status add_page(carry_ctx *ctx, carry_library *library, carry_page_kind kind, const char *name) {
    char path[512];
    char inside[PATH_LIMIT];
    char *text = NULL;
    size_t length = 0;
    (void)snprintf(path, sizeof path, "%s/%s", kinds[kind].folder, name);
    (void)snprintf(inside, sizeof inside, "%s/%s", library->folder, path);
    carry_page page;
    carry_status status = carry_file_read(ctx, &text, &length, inside, PAGE_BYTES);
    if (status == CARRY_OK) {
        status = carry_page_parse(ctx, &page, kind, path, text, length);
    }
    free(text);
    if (status != CARRY_OK) {
        char message[512];
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(ctx));
        return status == CARRY_EMEMORY ? status
                                       : carry_library_problem_add(ctx, library, path, 0, "unreadable", "%s", message);
    }
    carry_page *grown = realloc(library->page, (size_t)(library->count + 1) * sizeof *grown);
    if (grown == NULL) {
        carry_page_clear(&page);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d pages", library->count + 1);
    }
    library->page = grown;
    library->page[library->count++] = page;
    return CARRY_OK;
}

static int is_page(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 3 && strcmp(entry->d_name + length - 3, ".md") == 0;
}

/* Adds the pages of a folder. Only the folder cards must exist: a library may have no findings, for example. */
static carry_status add_folder(carry_ctx *ctx, carry_library *library, carry_page_kind kind) {
    char folder[PATH_LIMIT];
    struct dirent **entry = NULL;
    (void)snprintf(folder, sizeof folder, "%s/%s", library->folder, kinds[kind].folder);
    errno = 0;
    int count = scandir(folder, &entry, is_page, alphasort);
    if (count < 0) {
        const int error = errno;
        return error == ENOENT && kind != CARRY_PAGE_CARD
                   ? CARRY_OK
                   : carry_fail(ctx, error == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be read: %s", folder,
                                strerror(error));
    }
    carry_status status = CARRY_OK;
    if (count > PAGES) {
        status = carry_fail(ctx, CARRY_ESIZE, "%s has %d pages, more than the %d that are read", folder, count, PAGES);
    }
    for (int i = 0; i < count; i++) {
        if (status == CARRY_OK) {
            status = add_page(ctx, library, kind, entry[i]->d_name);
        }
        free(entry[i]);
    }
    free(entry);
    return status;
}

static bool has_cards(const char *folder) {
    char cards[PATH_LIMIT];
    struct stat about;
    int length = snprintf(cards, sizeof cards, "%s/cards", folder);
    return length > 0 && (size_t)length < sizeof cards && stat(cards, &about) == 0 && S_ISDIR(about.st_mode);
}

static carry_status locate(carry_ctx *ctx, char path[PATH_LIMIT], const char *folder) {
    if (folder != NULL) {
        if (strlen(folder) > PATH_LIMIT - 600) {
            return carry_fail(ctx, CARRY_ESIZE, "the library's path has %zu characters: too long", strlen(folder));
        }
        (void)snprintf(path, PATH_LIMIT, "%s", folder);
        return has_cards(path)
                   ? CARRY_OK
                   : carry_fail(ctx, CARRY_ENOTFOUND, "%s is not a library: it has no folder 'cards'", path);
    }
    char here[PATH_LIMIT - 600];
    if (getcwd(here, sizeof here) == NULL) {
        return carry_fail(ctx, CARRY_EIO, "the current folder cannot be determined: %s", strerror(errno));
    }
    for (;;) {
        (void)snprintf(path, PATH_LIMIT, "%s/library", strcmp(here, "/") == 0 ? "" : here);
        if (has_cards(path)) {
            return CARRY_OK;
        }
        char *slash = strrchr(here, '/');
        if (slash == NULL || here[1] == '\0') {
            return carry_file_shared(path, "library")
                       ? CARRY_OK
                       : carry_fail(ctx, CARRY_ENOTFOUND,
                                    "no folder from here upwards has a library (a folder library/cards), and none came "
                                    "with the program: name one with --library");
        }
        slash[slash == here ? 1 : 0] = '\0';
    }
}

const char *carry_page_kind_name(carry_page_kind kind) {
    return kinds[kind].name;
}

const char *carry_page_folder(carry_page_kind kind) {
    return kinds[kind].folder;
}

carry_status carry_page_parse(carry_ctx *ctx, carry_page *page, carry_page_kind kind, const char *path,
                              const char *text, size_t length) {
    *page = (carry_page){.kind = kind};
    carry_status status = parse(ctx, page, path, text, length);
    if (status != CARRY_OK) {
        carry_page_clear(page);
    }
    return status;
}

void carry_page_clear(carry_page *page) {
    carry_page_list *const lists[] = {&page->topics, &page->claims, &page->actionables, &page->related,
                                      &page->needs,  &page->also,   &page->cards,       &page->figures};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        free(lists[i]->item);
    }
    carry_yaml_free(page->front);
    free(page->path);
    free(page->text);
    *page = (carry_page){.kind = page->kind};
}

carry_status carry_library_problem_add(carry_ctx *ctx, carry_library *library, const char *path, int line,
                                       const char *rule, const char *format, ...) {
    carry_library_problem *grown = realloc(library->problem, (size_t)(library->problems + 1) * sizeof *grown);
    if (grown == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d problems", library->problems + 1);
    }
    library->problem = grown;
    carry_library_problem *problem = &grown[library->problems++];
    *problem = (carry_library_problem){.line = line, .rule = rule};
    (void)snprintf(problem->path, sizeof problem->path, "%s", path);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(problem->message, sizeof problem->message, format, arguments);
    va_end(arguments);
    for (char *at = problem->message; *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at);
    }
    return CARRY_OK;
}

carry_status carry_library_open(carry_ctx *ctx, carry_library **library, const char *folder) {
    char path[PATH_LIMIT];
    *library = NULL;
    CARRY_TRY(locate(ctx, path, folder));
    carry_library *made = calloc(1, sizeof *made);
    if (made == NULL || (made->folder = strdup(path)) == NULL) {
        free(made);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the library");
    }
    carry_status status = CARRY_OK;
    for (int kind = 0; kind < CARRY_PAGE_KINDS && status == CARRY_OK; kind++) {
        status = add_folder(ctx, made, (carry_page_kind)kind);
    }
    if (status != CARRY_OK) {
        carry_library_close(made);
        return status;
    }
    *library = made;
    return CARRY_OK;
}

void carry_library_close(carry_library *library) {
    if (library == NULL) {
        return;
    }
    for (int i = 0; i < library->count; i++) {
        carry_page_clear(&library->page[i]);
    }
    free(library->page);
    free(library->problem);
    free(library->folder);
    free(library);
}

const carry_page *carry_library_page(const carry_library *library, const char *id) {
    for (int i = 0; i < library->count; i++) {
        if (strcmp(library->page[i].id, id) == 0) {
            return &library->page[i];
        }
    }
    for (int i = 0; i < library->count; i++) {
        const carry_page_list *also = &library->page[i].also;
        for (int j = 0; j < also->count; j++) {
            if (also->item[j].part[CARRY_ITEM_ID] != NULL && strcmp(also->item[j].part[CARRY_ITEM_ID], id) == 0) {
                return &library->page[i];
            }
        }
    }
    return NULL;
}
