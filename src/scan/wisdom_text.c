/* Reads and writes the text of a wisdom file. */
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/crc32c.h"
#include "scan/wisdom.h"

#define HEADER "carry-wisdom 1"
#define LINE_LIMIT 320
#define MOST_THREADS 1024
#define MOST_CHUNK ((int64_t)1 << 40)
#define HOW 80

/* Copies one line without its newline to `line`. Returns the start of the next line, or NULL if this one is too long,
   has no newline or contains a zero byte. */
static const char *next_line(char line[LINE_LIMIT], const char *at, const char *end) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    if (newline == NULL || newline - at >= LINE_LIMIT || memchr(at, '\0', (size_t)(newline - at)) != NULL) {
        return NULL;
    }
    memcpy(line, at, (size_t)(newline - at));
    line[newline - at] = '\0';
    return newline + 1;
}

static bool parse_threads(const char **at, int *threads) {
    char *end;
    errno = 0;
    long value = strtol(*at, &end, 10);
    if (errno != 0 || end == *at || *end != ' ' || value < 1 || value > MOST_THREADS) {
        return false;
    }
    *threads = (int)value;
    *at = end + 1;
    return true;
}

static bool parse_word(const char **at, char *word, size_t size) {
    size_t length = strcspn(*at, " ");
    if (length == 0 || length >= size || (*at)[length] != ' ') {
        return false;
    }
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length + 1;
    return true;
}

static bool parse_number(const char *at, double *number) {
    char *end;
    errno = 0;
    *number = strtod(at, &end);
    return errno == 0 && end != at && *end == '\0' && isfinite(*number) && *number >= 0.0;
}

carry_rates_table *carry_wisdom_rates_for(carry_wisdom *wisdom, int threads, const char *kernels, bool make) {
    for (int i = 0; i < wisdom->rates; i++) {
        if (wisdom->rate[i].threads == threads && strcmp(wisdom->rate[i].kernels, kernels) == 0) {
            return &wisdom->rate[i].table;
        }
    }
    if (!make || wisdom->rates == CARRY_WISDOM_RATES) {
        return NULL;
    }
    wisdom->rate[wisdom->rates].threads = threads;
    (void)snprintf(wisdom->rate[wisdom->rates].kernels, sizeof wisdom->rate[0].kernels, "%s", kernels);
    wisdom->rate[wisdom->rates].table = (carry_rates_table){0};
    return &wisdom->rate[wisdom->rates++].table;
}

static bool parse_rate(carry_wisdom *wisdom, const char *at) {
    int threads;
    char kernels[16];
    char word[32];
    double value;
    if (!parse_threads(&at, &threads) || !parse_word(&at, kernels, sizeof kernels) ||
        !parse_word(&at, word, sizeof word) || !parse_number(at, &value)) {
        return false;
    }
    carry_rates_table *table = carry_wisdom_rates_for(wisdom, threads, kernels, true);
    if (table == NULL) {
        return false;
    }
    char name[32];
    const char *unit;
    double *number;
    for (int i = 0; (number = carry_rates_number(table, i, name, &unit)) != NULL; i++) {
        if (strcmp(name, word) == 0) {
            *number = value;
            return true;
        }
    }
    return false;
}

/* Parses ",NAME=NUMBER" at the start of *at. */
static bool parse_extra(const char **at, const char *name, int64_t most, int64_t *number) {
    const size_t length = strlen(name);
    char *end;
    *number = 0;
    if (strncmp(*at, name, length) != 0) {
        return true;
    }
    const char *digits = *at + length;
    errno = 0;
    const long long value = *digits >= '1' && *digits <= '9' ? strtoll(digits, &end, 10) : 0;
    if (errno != 0 || value < 1 || value > most) {
        return false;
    }
    *number = value;
    *at = end;
    return true;
}

/* Parses "chunkwise", "chunkwise,chunk=512" or "chunkwise,chunk=512,threads=1". */
static bool parse_how(carry_wisdom_plan *plan, const char *word) {
    const size_t length = strcspn(word, ",");
    int64_t used = 0;
    if (length == 0 || length >= sizeof plan->algorithm) {
        return false;
    }
    (void)snprintf(plan->algorithm, sizeof plan->algorithm, "%.*s", (int)length, word);
    const char *at = word + length;
    if (!parse_extra(&at, ",chunk=", MOST_CHUNK, &plan->chunk) || !parse_extra(&at, ",threads=", MOST_THREADS, &used)) {
        return false;
    }
    plan->used = (int)used;
    return *at == '\0';
}

static bool parse_plan(carry_wisdom *wisdom, const char *at) {
    char how[HOW];
    if (wisdom->plans == CARRY_WISDOM_PLANS) {
        return false;
    }
    carry_wisdom_plan *plan = &wisdom->plan[wisdom->plans];
    if (!parse_threads(&at, &plan->threads) || !parse_word(&at, plan->kernels, sizeof plan->kernels) ||
        !parse_word(&at, plan->key, sizeof plan->key) || !parse_word(&at, how, sizeof how) || !parse_how(plan, how) ||
        !parse_number(at, &plan->seconds)) {
        return false;
    }
    wisdom->plans++;
    return true;
}

static carry_status damaged(carry_ctx *ctx, carry_wisdom *wisdom, int line, const char *what) {
    wisdom->plans = wisdom->rates = 0;
    return carry_fail(ctx, CARRY_EFORMAT, "line %d %s", line, what);
}

static carry_status parse_text(carry_ctx *ctx, carry_wisdom *wisdom, const char *text, size_t length) {
    const char *end = text + length;
    const char *at = text;
    char line[LINE_LIMIT];
    wisdom->plans = wisdom->rates = 0;
    for (int number = 1;; number++) {
        const char *start = at;
        at = next_line(line, at, end);
        if (at == NULL) {
            return damaged(ctx, wisdom, number, "is missing, cut off or too long");
        }
        if (number == 1) {
            if (strcmp(line, HEADER) != 0) {
                return damaged(ctx, wisdom, number, "is not '" HEADER "'");
            }
        } else if (number == 2) {
            if (strncmp(line, "machine ", 8) != 0 || strcmp(line + 8, wisdom->machine) != 0) {
                return carry_fail(ctx, CARRY_EUNSUPPORTED, "it is from another machine or build (%s; this is %s)",
                                  strncmp(line, "machine ", 8) == 0 ? line + 8 : "unknown", wisdom->machine);
            }
        } else if (strncmp(line, "end ", 4) == 0) {
            char expected[16];
            (void)snprintf(expected, sizeof expected, "%08" PRIx32, carry_crc32c(0, text, (size_t)(start - text)));
            if (strcmp(line + 4, expected) != 0 || at != end) {
                return damaged(ctx, wisdom, number, "does not match the lines before it");
            }
            return CARRY_OK;
        } else if (!(strncmp(line, "rate ", 5) == 0 && parse_rate(wisdom, line + 5)) &&
                   !(strncmp(line, "plan ", 5) == 0 && parse_plan(wisdom, line + 5))) {
            return damaged(ctx, wisdom, number, "is neither a rate nor a plan");
        }
    }
}

static carry_status print_text(carry_ctx *ctx, const carry_wisdom *wisdom, char **text, size_t *length) {
    *text = NULL;
    FILE *to = open_memstream(text, length);
    if (to == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing wisdom");
    }
    (void)fprintf(to, HEADER "\nmachine %s\n", wisdom->machine);
    for (int i = 0; i < wisdom->rates; i++) {
        carry_rates_table table = wisdom->rate[i].table;
        char name[32];
        const char *unit;
        double *number;
        for (int j = 0; (number = carry_rates_number(&table, j, name, &unit)) != NULL; j++) {
            (void)fprintf(to, "rate %d %s %s %.17g\n", wisdom->rate[i].threads, wisdom->rate[i].kernels, name, *number);
        }
    }
    for (int i = 0; i < wisdom->plans; i++) {
        const carry_wisdom_plan *plan = &wisdom->plan[i];
        (void)fprintf(to, "plan %d %s %s %s", plan->threads, plan->kernels, plan->key, plan->algorithm);
        if (plan->chunk > 0) {
            (void)fprintf(to, ",chunk=%" PRId64, plan->chunk);
        }
        if (plan->used > 0) {
            (void)fprintf(to, ",threads=%d", plan->used);
        }
        (void)fprintf(to, " %.17g\n", plan->seconds);
    }
    (void)fflush(to);
    uint32_t crc = *text != NULL ? carry_crc32c(0, *text, *length) : 0;
    (void)fprintf(to, "end %08" PRIx32 "\n", crc);
    if (fclose(to) != 0 || *text == NULL) {
        free(*text);
        *text = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing wisdom");
    }
    return CARRY_OK;
}

/* Numbers in a file have a decimal point in every locale of the host program. */
static locale_t begin_plain_numbers(locale_t *before) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *before = plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
    return plain;
}

static void end_plain_numbers(locale_t plain, locale_t before) {
    if (plain != (locale_t)0) {
        (void)uselocale(before);
        freelocale(plain);
    }
}

carry_status carry_wisdom_parse(carry_ctx *ctx, carry_wisdom *wisdom, const char *text, size_t length) {
    locale_t before;
    locale_t plain = begin_plain_numbers(&before);
    carry_status status = parse_text(ctx, wisdom, text, length);
    end_plain_numbers(plain, before);
    return status;
}

carry_status carry_wisdom_print(carry_ctx *ctx, const carry_wisdom *wisdom, char **text, size_t *length) {
    locale_t before;
    locale_t plain = begin_plain_numbers(&before);
    carry_status status = print_text(ctx, wisdom, text, length);
    end_plain_numbers(plain, before);
    return status;
}
