/* Printing: JSON lines, colour, times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/ranks.h"
#include "core/clock.h"
#include "train/tokenizer/utf8.h"

#define WHOLE 9007199254740992.0 /* 2^53: every whole number below it is exact */

static bool first_field;

static void key_of(const char *key) {
    (void)printf("%s\"%s\": ", first_field ? "" : ", ", key);
    first_field = false;
}

void cli_json_open(void) {
    (void)putchar('{');
    first_field = true;
}

void cli_json_bytes(const char *key, const char *value, size_t length) {
    key_of(key);
    (void)putchar('"');
    int taken = 1;
    for (size_t i = 0; i < length; i += (size_t)taken) {
        unsigned char byte = (unsigned char)value[i];
        taken = carry_utf8_at((const unsigned char *)value + i, length - i);
        if (taken != 1) { /* a path or a name of a job may hold any byte, and a parser takes UTF-8 only */
            (void)fwrite(taken > 0 ? value + i : "\xEF\xBF\xBD", 1, taken > 0 ? (size_t)taken : 3, stdout);
            taken = taken > 0 ? taken : 1;
        } else if (byte == '"' || byte == '\\') {
            (void)printf("\\%c", byte);
        } else if (byte < 0x20) {
            (void)printf("\\u%04x", byte);
        } else {
            (void)putchar(byte);
        }
    }
    (void)putchar('"');
}

void cli_json_text(const char *key, const char *value) {
    cli_json_bytes(key, value, strlen(value));
}

void cli_json_number(const char *key, double value) {
    key_of(key);
    if (isfinite(value)) { /* times since 1970 and bytes have more digits than a measurement */
        (void)printf(fabs(value) < WHOLE && value == trunc(value) ? "%.0f" : "%.9g", value);
    } else {
        (void)fputs("null", stdout);
    }
}

void cli_json_integer(const char *key, int64_t value) {
    key_of(key);
    (void)printf("%lld", (long long)value);
}

void cli_json_numbers(const char *key, const uint32_t *values, size_t count) {
    key_of(key);
    (void)putchar('[');
    for (size_t i = 0; i < count; i++) {
        (void)printf("%s%u", i > 0 ? ", " : "", values[i]);
    }
    (void)putchar(']');
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

const char *cli_use(char text[CLI_FIGURE], double share) {
    text[0] = '\0';
    if (!isnan(share)) {
        (void)snprintf(text, CLI_FIGURE, "use %3.0f %%  ", 100.0 * share);
    }
    return text;
}

const char *cli_error(char text[CLI_FIGURE], double error) {
    (void)snprintf(text, CLI_FIGURE, isnan(error) ? "not compared" : "error %.1e", error);
    return text;
}

const char *cli_overlapped(char text[CLI_TOGETHER], double overlap, double slower_stage) {
    char time[32];
    text[0] = '\0';
    if (slower_stage > 0.0) {
        (void)snprintf(text, CLI_TOGETHER, "overlap %.2f  slower stage %s  ", overlap,
                       carry_time_text(time, slower_stage));
    }
    return text;
}

/* Launchers give a process a terminal of their own and pass on what it prints, to wherever that goes. */
static const char *colour(const char *sequence) {
    const char *no_color = getenv("NO_COLOR");
    const bool is_plain = (no_color != NULL && *no_color != '\0') || cli_process_rank() >= 0;
    return isatty(STDOUT_FILENO) && !is_plain ? sequence : "";
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
