/* Prints JSON lines, colours and times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/ranks.h"
#include "core/clock.h"
#include "core/json_write.h"

#define WHOLE 9007199254740992.0 /* 2^53: every whole number below it is exact */

static carry_json_text line; /* the line being built */

void cli_json_open(void) {
    line.spaced = true;
    carry_json_begin(&line, NULL, '{');
}

void cli_json_bytes(const char *key, const char *value, size_t length) {
    carry_json_add_key(&line, key);
    carry_json_put_bytes(&line, value, length);
}

void cli_json_text(const char *key, const char *value) {
    cli_json_bytes(key, value, strlen(value));
}

void cli_json_number(const char *key, double value) {
    carry_json_add_key(&line, key);
    if (!isfinite(value)) {
        carry_json_put_raw(&line, "null");
    } else if (fabs(value) < WHOLE && value == trunc(value)) {
        /* Prints all digits of whole numbers, such as times since 1970 and bytes. */
        carry_json_put_raw(&line, "%.0f", value);
    } else {
        carry_json_put_raw(&line, "%.9g", value);
    }
}

void cli_json_integer(const char *key, int64_t value) {
    carry_json_add_integer(&line, key, value);
}

void cli_json_numbers(const char *key, const uint32_t *values, size_t count) {
    carry_json_begin(&line, key, '[');
    for (size_t i = 0; i < count; i++) {
        carry_json_add_integer(&line, NULL, values[i]);
    }
    carry_json_end(&line, ']');
}

void cli_json_bool(const char *key, bool value) {
    carry_json_add_bool(&line, key, value);
}

void cli_json_close(void) {
    carry_json_end(&line, '}');
    (void)puts(line.failed ? "{\"error\": \"out of memory\"}" : line.bytes);
    carry_json_text_free(&line);
    (void)fflush(stdout); /* the reader of a pipe sees each line when it is done */
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

/* "" for ranks of a launcher: it may give a process a terminal and send its output to a file or pipe. */
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

void cli_print_text(const char *text, size_t length, bool on_terminal) {
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)text[i];
        const bool is_long = byte == 0xC2 && i + 1 < length && (unsigned char)text[i + 1] < 0xA0; /* U+0080 to U+009F */
        const bool acts = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || is_long;
        (void)putchar(on_terminal && acts ? '?' : byte);
        i += on_terminal && is_long;
    }
}
