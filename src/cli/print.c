/* Printing: JSON lines, colour, times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static bool first_field;

static void key_of(const char *key) {
    (void)printf("%s\"%s\": ", first_field ? "" : ", ", key);
    first_field = false;
}

void cli_json_open(void) {
    (void)putchar('{');
    first_field = true;
}

void cli_json_text(const char *key, const char *value) {
    key_of(key);
    (void)putchar('"');
    for (const unsigned char *at = (const unsigned char *)value; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            (void)printf("\\%c", *at);
        } else if (*at < 0x20) {
            (void)printf("\\u%04x", *at);
        } else {
            (void)putchar(*at);
        }
    }
    (void)putchar('"');
}

void cli_json_number(const char *key, double value) {
    key_of(key);
    if (isfinite(value)) {
        (void)printf("%.9g", value);
    } else {
        (void)fputs("null", stdout);
    }
}

void cli_json_integer(const char *key, int64_t value) {
    key_of(key);
    (void)printf("%lld", (long long)value);
}

void cli_json_bool(const char *key, bool value) {
    key_of(key);
    (void)fputs(value ? "true" : "false", stdout);
}

void cli_json_close(void) {
    (void)puts("}");
    (void)fflush(stdout); /* a reader of a pipe sees each line when it is done */
}

const char *cli_together(char text[CLI_TOGETHER], int ranks, double received, double exposed, double waited) {
    text[0] = '\0';
    if (ranks > 0 && exposed >= 0.0) {
        (void)snprintf(text, CLI_TOGETHER, "received %.4g MB  exposed %.1f %%  waits %.0f %%  ", 1e-6 * received,
                       100.0 * exposed, 100.0 * waited);
    } else if (ranks > 0) {
        (void)snprintf(text, CLI_TOGETHER, "received %.4g MB  ", 1e-6 * received);
    }
    return text;
}

static const char *colour(const char *sequence) {
    const char *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && (no_color == NULL || *no_color == '\0') ? sequence : "";
}

const char *cli_bold(void) {
    return colour("\033[1m");
}

const char *cli_green(void) {
    return colour("\033[32m");
}

const char *cli_red(void) {
    return colour("\033[31m");
}

const char *cli_dim(void) {
    return colour("\033[2m");
}

const char *cli_plain(void) {
    return colour("\033[0m");
}
