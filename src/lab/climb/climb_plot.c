/* Throughput over iterations, drawn by gnuplot. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_internal.h"

#define PLOT_SECONDS 60.0
#define PLOT_BYTES ((size_t)16 << 20)

/* Draws the baseline's throughput times the chained gain, which excludes drift of the machine. */
static void print_block(FILE *to, const carry_climb_log *log, const char *name, bool refused) {
    (void)fprintf(to, "$%s << END\n", name);
    int lines = 0;
    for (int i = 0; i < log->count; i++) {
        const carry_climb_entry *e = &log->entry[i];
        if ((strcmp(e->decision, "refused") == 0) == refused && isfinite(e->gain_baseline)) {
            (void)fprintf(to, "%d %.9g\n", e->number, log->entry[0].median * e->gain_baseline);
            lines++;
        }
    }
    if (lines == 0) { /* for gnuplot an empty block is an error, an undefined point is not */
        (void)fputs("0 NaN\n", to);
    }
    (void)fputs("END\n", to);
}

static char *script_of(const carry_climb_log *log, size_t *length) {
    char *script = NULL;
    FILE *to = open_memstream(&script, length);
    if (to == NULL) {
        return NULL;
    }
    print_block(to, log, "kept", false);
    print_block(to, log, "refused", true);
    (void)fprintf(to,
                  "set terminal svg size 900,500 dynamic enhanced font 'sans-serif,14' background '#ffffff'\n"
                  "set xlabel 'iteration'\n"
                  "set ylabel 'throughput'\n"
                  "set title 'Climb: %+.1f %% over the baseline after %d iterations'\n"
                  "set key left top\n"
                  "set grid lc rgb '#dddddd'\n"
                  "set xrange [-0.5:%d.5]\n"
                  "set xtics %d\n"
                  "set yrange [0:*]\n"
                  "plot $kept using 1:2 with linespoints lw 2 pt 7 ps 0.8 lc rgb '#1b6ca8' title 'kept', \\\n"
                  "     $refused using 1:2 with points pt 2 ps 0.8 lw 2 lc rgb '#c0392b' title 'refused'\n",
                  100.0 * (log->entry[log->best].gain_baseline - 1.0), log->count - 1, log->count - 1,
                  log->count < 20 ? 1 : log->count / 10);
    if (fclose(to) != 0) {
        free(script);
        return NULL;
    }
    return script;
}

carry_status carry_climb_plot(carry_climb *climb, const char *path) {
    const carry_climb_log *log;
    CARRY_TRY(carry_climb_log_of(climb, &log));
    size_t length = 0;
    char *script = script_of(log, &length);
    if (script == NULL) {
        return carry_fail(climb->ctx, CARRY_EMEMORY, "out of memory: a plot");
    }
    carry_process_result ran;
    carry_status status = carry_process_run(climb->ctx, &ran,
                                            &(carry_process){.arguments = (const char *const[]){"gnuplot", "-", NULL},
                                                             .input = script,
                                                             .input_length = length,
                                                             .limit = PLOT_BYTES,
                                                             .seconds = PLOT_SECONDS,
                                                             .stop = climb->options.stop});
    free(script);
    if (status == CARRY_ENOTFOUND) {
        return carry_fail(climb->ctx, status, "gnuplot is not installed: it draws the plot");
    }
    CARRY_TRY(status);
    if (ran.code != 0 || strstr(ran.output, "</svg>") == NULL) {
        char said[200];
        (void)carry_climb_line(said, sizeof said, ran.errors);
        status = carry_fail(climb->ctx, CARRY_EIO, "gnuplot drew nothing (exit %d): %s", ran.code, said);
    } else {
        status = carry_file_replace(climb->ctx, path, ran.output, ran.output_length);
    }
    carry_process_free(&ran);
    return status;
}
