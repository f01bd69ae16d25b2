/* Parses options, makes the context from them, and prints refusals. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/ranks.h"
#include "core/nearest.h"
#include "core/span.h"
#include "core/threads.h"

#define FEW_THREADS 64 /* a number that every machine accepts, for tests of many threads */

/* Set before the verb runs, and constant afterwards. */
static carry_recorder *spans_to;

static const cli_option *find(const cli_option *options, const char *name, size_t length, char letter) {
    for (const cli_option *o = options; o != NULL && o->name != NULL; o++) {
        if (letter != 0 ? o->letter == letter : strlen(o->name) == length && strncmp(o->name, name, length) == 0) {
            return o;
        }
    }
    return NULL;
}

/* Parses "512M" and similar. Returns false for anything else, for 0, and for values beyond size_t. */
static bool parse_bytes(size_t *bytes, const char *value) {
    static const char units[] = "KMGT";
    char *end;
    double number = strtod(value, &end);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (end == value || value[strspn(value, "0123456789.")] != *end) {
        return false;
    }
    if (unit != NULL) {
        number = ldexp(number, 10 * (int)(unit - units + 1));
        end++;
        end += *end == 'i' && end[1] == 'B' ? 1 : 0;
    }
    end += *end == 'B' ? 1 : 0;
    const bool fits = *end == '\0' && number >= 1.0 && number < 9007199254740992.0; /* 2^53: exact in a double */
    *bytes = fits ? (size_t)number : 0;
    return fits;
}

static bool store_value(const cli_option *option, const char *value) {
    char *end;
    errno = 0;
    if (option->kind == CLI_BYTES) {
        return parse_bytes(option->target, value);
    }
    if (option->kind == CLI_TEXT) {
        *(const char **)option->target = value;
        return *value != '\0';
    }
    if (option->kind == CLI_TEXTS) {
        cli_texts *texts = option->target;
        texts->text[texts->count++] = value;
        return true;
    }
    if (option->kind == CLI_NUMBER || option->kind == CLI_POSITIVE) {
        long long number = strtoll(value, &end, 10);
        *(int64_t *)option->target = number;
        return errno == 0 && end != value && *end == '\0' && number >= (option->kind == CLI_POSITIVE ? 1 : 0);
    }
    double number = strtod(value, &end);
    *(double *)option->target = number;
    return errno == 0 && end != value && *end == '\0' && isfinite(number) && (option->kind == CLI_REAL || number > 0.0);
}

static void refuse_option(const cli_verb *verb, const cli_option *own, const cli_option *common, const char *text) {
    char shown[64];
    char hint[CARRY_NEAREST_HINT];
    char name[CARRY_NEAREST_WORD] = "";
    if (strncmp(text, "--ranks", 7) == 0 && (text[7] == '\0' || text[7] == '=')) {
        (void)cli_refuse("--ranks comes before the verb: carry --ranks N %s ...", verb->name);
        return;
    }
    if (text[1] == '-') {
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 2, "="), text + 2);
    }
    carry_nearest near = carry_nearest_to(name);
    for (const cli_option *o = own; o != NULL && o->name != NULL; o++) {
        carry_nearest_offer(&near, o->name);
    }
    for (const cli_option *o = common; o->name != NULL; o++) {
        carry_nearest_offer(&near, o->name);
    }
    (void)cli_refuse("%s has no option '%s'%s (carry %s --help lists them)", verb->name, cli_shown(shown, text),
                     carry_nearest_hint(hint, &near, "--"), verb->name);
}

/* Refuses a value of the wrong form; NULL: none was given. */
static void refuse_value(const cli_option *option, const char *value) {
    static const char *const forms[] = {[CLI_NUMBER] = "a whole number, 0 or more",
                                        [CLI_POSITIVE] = "a whole number, 1 or more",
                                        [CLI_REAL] = "a number",
                                        [CLI_SECONDS] = "a positive number",
                                        [CLI_BYTES] = "bytes above 0, as in 512M or 2G"};
    const char *form = forms[option->kind]; /* NULL: a text */
    char shown[64];
    if (value == NULL) {
        (void)cli_refuse("the option --%s needs a value%s%s", option->name, form != NULL ? ": " : "",
                         form != NULL ? form : "");
    } else if (form == NULL) {
        (void)cli_refuse("the option --%s has an empty value", option->name);
    } else {
        (void)cli_refuse("the option --%s needs %s, not '%s'", option->name, form, cli_shown(shown, value));
    }
}

/* Parses the option at arguments[*at], and moves *at past its value. */
static bool parse_one(const cli_verb *verb, const cli_option *own, const cli_option *common, char **arguments,
                      int count, int *at) {
    const char *text = arguments[*at];
    bool is_long = text[1] == '-';
    size_t length = is_long ? strcspn(text + 2, "=") : 1;
    const char *name = is_long ? text + 2 : text + 1;
    char letter = (char)(is_long ? 0 : text[1]);
    const cli_option *option = find(own, name, length, letter);
    if (option == NULL) {
        option = find(common, name, length, letter);
    }
    bool repeated = option != NULL && !is_long && option->kind == CLI_COUNT &&
                    strspn(text + 1, (char[]){letter, '\0'}) == strlen(text + 1);
    if (option == NULL || (!is_long && text[2] != '\0' && !repeated)) {
        refuse_option(verb, own, common, text);
        return false;
    }
    const char *value = is_long && name[length] == '=' ? name + length + 1 : NULL;
    if (option->kind == CLI_FLAG || option->kind == CLI_COUNT) {
        if (value != NULL) {
            (void)cli_refuse("the option --%s takes no value", option->name);
            return false;
        }
        if (option->kind == CLI_FLAG) {
            *(bool *)option->target = true;
        } else {
            *(int *)option->target += is_long ? 1 : (int)strlen(text + 1);
        }
        return true;
    }
    if (value == NULL) {
        value = *at + 1 < count ? arguments[++*at] : NULL;
    }
    if (value == NULL || !store_value(option, value)) {
        refuse_value(option, value);
        return false;
    }
    return true;
}

/* Prints the help of options. Common options that the verb defines itself are left out. */
static void print_options(const cli_option *options, const cli_option *own) {
    for (const cli_option *o = options; o != NULL && o->name != NULL; o++) {
        if (find(own, o->name, strlen(o->name), 0) != NULL) {
            continue;
        }
        char left[48];
        (void)snprintf(left, sizeof left, "%s%c%s--%s%s%s", o->letter != 0 ? "-" : " ",
                       o->letter != 0 ? o->letter : ' ', o->letter != 0 ? ", " : "  ", o->name,
                       o->argument != NULL ? " " : "", o->argument != NULL ? o->argument : "");
        (void)printf("  %-24s %s\n", left, o->help);
    }
}

static void print_help(const cli_verb *verb, const cli_option *own, const cli_option *common) {
    (void)printf("carry %s %s\n\n%s\n\n%s\n", verb->name, verb->arguments, verb->summary, verb->details);
    (void)printf("\nOptions:\n");
    print_options(own, NULL);
    print_options(common, own);
    (void)printf("\nExample:\n  %s\n", verb->example);
}

#define COMMON 9

static void list_common(cli_option all[COMMON], cli_common *common, bool on_ranks) {
    const cli_option list[COMMON] = {
        {"json", 0, CLI_FLAG, &common->json, NULL, "one JSON object per line"},
        {"threads", 0, CLI_NUMBER, &common->threads, "N", "threads to use (every core)"},
        {"kernels", 0, CLI_TEXT, &common->kernels, "NAME", "kernels to use (the fastest; see carry list kernels)"},
        {"wisdom", 0, CLI_TEXT, &common->wisdom, "FILE",
         "file that keeps measured rates and plans; none: keep nothing"},
        {"seed", 0, CLI_NUMBER, &common->seed, "N", "seed of the random inputs (1)"},
        {"verbose", 'v', CLI_COUNT, &common->verbose, NULL, "print what was chosen and why; twice for more"},
        {"help", 'h', CLI_FLAG, &common->help, NULL, "print this text"},
        {on_ranks ? "deadline" : NULL, 0, CLI_SECONDS, &common->deadline, "S", "seconds to wait for another rank (60)"},
        {0},
    };
    memcpy(all, list, sizeof list);
}

int cli_common_takes(const char *text) {
    cli_common common;
    cli_option all[COMMON];
    list_common(all, &common, true);
    const bool is_long = text[0] == '-' && text[1] == '-';
    const size_t length = is_long ? strcspn(text + 2, "=") : 1;
    if (text[0] != '-' || text[1] == '\0' || length == 0) {
        return 0;
    }
    const cli_option *option = find(all, text + 2, length, (char)(is_long ? 0 : text[1]));
    if (option == NULL) {
        return 0;
    }
    return option->kind == CLI_FLAG || option->kind == CLI_COUNT || text[2 + length] == '=' ? 1 : 2;
}

int cli_parse(const cli_verb *verb, int count, char **arguments, const cli_option *own, cli_common *common) {
    cli_option all[COMMON];
    list_common(all, common, verb->on_ranks);
    common->seed = 1;
    int words = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(arguments[i], "--") == 0) {
            for (i++; i < count; i++) {
                arguments[words++] = arguments[i];
            }
        } else if (arguments[i][0] != '-' || arguments[i][1] == '\0') {
            arguments[words++] = arguments[i];
        } else if (!parse_one(verb, own, all, arguments, count, &i)) {
            return -1;
        }
    }
    if (common->help) {
        print_help(verb, own, all);
    }
    return words;
}

const char *cli_command(char *text, size_t size, const char *verb, int count, char **arguments) {
    size_t length = (size_t)snprintf(text, size, "carry %s", verb);
    for (int i = 0; i < count && length < size; i++) {
        bool quoted = arguments[i][0] == '\0' || strpbrk(arguments[i], " \t\n\"\\$*?;&|<>()") != NULL;
        length += (size_t)snprintf(text + length, size - length, quoted ? " '%s'" : " %s", arguments[i]);
    }
    return text;
}

void cli_set_recorder(carry_recorder *recorder) {
    spans_to = recorder;
}

bool cli_has_recorder(void) {
    return spans_to != NULL;
}

carry_ctx *cli_open(const cli_common *common) {
    return cli_open_rank(common, 0);
}

carry_ctx *cli_open_rank(const cli_common *common, int rank) {
    char path[4096];
    const char *wisdom = common->wisdom;
    if (wisdom == NULL) {
        wisdom = carry_wisdom_path(path, sizeof path);
    } else if (strcmp(wisdom, "none") == 0) {
        wisdom = NULL;
    }
    const int most = 4 * carry_cores() > FEW_THREADS ? 4 * carry_cores() : FEW_THREADS;
    if (common->threads > most) {
        (void)cli_refuse("--threads %lld: expected at most %d on a machine with %d core%s", (long long)common->threads,
                         most, carry_cores(), carry_cores() == 1 ? "" : "s");
        return NULL;
    }
    carry_ctx *ctx;
    carry_status status = carry_ctx_new(
        &ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = cli_threads_of_rank(common, rank),
                                   .kernels = common->kernels, .wisdom = wisdom,
                                   .log_level = common->verbose > 1   ? CARRY_LOG_DEBUG
                                                : common->verbose > 0 ? CARRY_LOG_INFO
                                                                      : CARRY_LOG_WARNING});
    if (ctx == NULL) {
        (void)cli_refuse("%s", carry_status_text(status));
        return NULL;
    }
    if (status == CARRY_OK && strcmp(carry_ctx_kernels(ctx), "none") != 0 &&
        (spans_to == NULL || carry_recorder_attach(spans_to, ctx, rank) == CARRY_OK)) {
        return ctx;
    }
    (void)cli_failed(ctx);
    carry_ctx_free(ctx);
    return NULL;
}

const char *cli_shown(char shown[64], const char *text) {
    (void)snprintf(shown, 64, "%s", text);
    for (char *at = shown; *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at);
    }
    return shown;
}

char *cli_make_plain(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        if (*at < 0x20 || *at == 0x7f) {
            *at = '?';
        } else if (*at == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0) {
            /* An 8-bit (C1) control character, encoded as UTF-8. */
            at[0] = at[1] = '?';
        }
    }
    return text;
}

int cli_refuse(const char *format, ...) {
    if (cli_process_rank() > 0) {
        return CLI_IMPOSSIBLE;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)fflush(stdout);
    (void)fputs("carry: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    return CLI_IMPOSSIBLE;
}

int cli_store_there(const char *path) {
    char shown[64];
    const char *named = path == NULL ? getenv("CARRY_STORE") : path;
    if (named == NULL || (path == NULL && *named == '\0') || access(named, F_OK) == 0) {
        return CLI_DONE;
    }
    return cli_refuse("there is no run store %s%s", cli_shown(shown, named), path == NULL ? " (CARRY_STORE)" : "");
}

int cli_failed(carry_ctx *ctx) {
    if (cli_process_rank() < 0) {
        return cli_refuse("%s", carry_ctx_error(ctx));
    }
    (void)fflush(stdout);
    (void)fprintf(stderr, "carry: rank %d: %s\n", cli_process_rank(), carry_ctx_error(ctx));
    return CLI_IMPOSSIBLE;
}

int cli_finish(int code) {
    bool lost = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) != 0 || lost) {
        return cli_refuse("standard output could not be written: %s", errno != 0 ? strerror(errno) : "a write failed");
    }
    return code;
}
