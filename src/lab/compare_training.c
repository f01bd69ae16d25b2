/* Compares two trainings. Losses of neighbouring steps are correlated, so the interval of their difference comes
   from a bootstrap over blocks of neighbours; the same samples give the same interval. */
#include "lab/compare_training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define SLACK 0.05
#define RESAMPLINGS 1000
#define FEWEST 10     /* minimum number of steps whose losses are averaged, if there are that many */
#define ROUNDING 1e-6 /* relative difference of a loss caused by another order of sums in f32 */

bool carry_is_training(const carry_run *run) {
    return run->results == 0 && run->metrics > 0 && strcmp(run->kind, "train") == 0;
}

/* The values of one metric in the order of steps, which the caller frees. *count is 0 if the run lacks the metric. */
static const carry_run_metric *series(const carry_run *run, const char *name, int *count) {
    const carry_run_metric *first = NULL;
    *count = 0;
    for (int i = 0; i < run->metrics; i++) {
        if (strcmp(run->metric[i].name, name) == 0) {
            first = first == NULL ? &run->metric[i] : first;
            (*count)++;
        }
    }
    return first;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The 95 % interval of the mean of the differences. */
static void bootstrap(const double *difference, int count, double *low, double *high) {
    double means[RESAMPLINGS];
    uint64_t state = 1;
    const int block = count > 8 ? (int)sqrt((double)count) : 1;
    for (int r = 0; r < RESAMPLINGS; r++) {
        double sum = 0.0;
        int taken = 0;
        while (taken < count) {
            const int from = (int)(next_random(&state) % (uint64_t)(count - block + 1));
            for (int i = 0; i < block && taken < count; i++, taken++) {
                sum += difference[from + i];
            }
        }
        means[r] = sum / count;
    }
    qsort(means, RESAMPLINGS, sizeof means[0], compare_doubles);
    *low = means[RESAMPLINGS / 40];
    *high = means[RESAMPLINGS - 1 - RESAMPLINGS / 40];
}

static void average(carry_loss_pair *pair, const double *difference) {
    const int tenth = pair->steps / 10 > FEWEST ? pair->steps / 10 : FEWEST;
    pair->averaged = tenth < pair->steps ? tenth : pair->steps;
    const double *from = difference + (pair->steps - pair->averaged);
    double sum = 0.0;
    for (int i = 0; i < pair->averaged; i++) {
        sum += from[i];
    }
    pair->difference = sum / pair->averaged;
    bootstrap(from, pair->averaged, &pair->low, &pair->high);
    const double rounding = ROUNDING * fabs(pair->a);
    pair->within_noise = pair->low <= rounding && pair->high >= -rounding;
}

static carry_status compare_losses(carry_ctx *ctx, carry_loss_pair *pair, const carry_run *a, const carry_run *b,
                                   const char *name) {
    int a_count;
    int b_count;
    const carry_run_metric *x = series(a, name, &a_count);
    const carry_run_metric *y = series(b, name, &b_count);
    *pair = (carry_loss_pair){0};
    double *difference = calloc((size_t)(a_count > 0 ? a_count : 1), sizeof *difference);
    if (difference == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: comparing the losses of %d steps", a_count);
    }
    for (int i = 0, j = 0; i < a_count && j < b_count;) {
        if (x[i].step == y[j].step && isfinite(x[i].value) && isfinite(y[j].value)) {
            difference[pair->steps++] = y[j].value - x[i].value;
            pair->last = x[i].step;
            pair->a = x[i].value;
            pair->b = y[j].value;
        }
        const int64_t here = x[i].step;
        i += here <= y[j].step;
        j += y[j].step <= here;
    }
    if (pair->steps > 0) {
        average(pair, difference);
    }
    free(difference);
    return CARRY_OK;
}

/* Seconds per token, without the first value, during which caches and clocks settle. The caller frees them. */
static double *token_times(const carry_run *run, int *count) {
    int all;
    const carry_run_metric *m = series(run, "tokens_per_s", &all);
    double *times = calloc((size_t)(all > 0 ? all : 1), sizeof *times);
    *count = 0;
    for (int i = all > 1 ? 1 : 0; times != NULL && i < all; i++) {
        if (isfinite(m[i].value) && m[i].value > 0.0) {
            times[(*count)++] = 1.0 / m[i].value;
        }
    }
    return times;
}

static carry_status compare_speed(carry_ctx *ctx, carry_training_pair *pair, const carry_run *a, const carry_run *b,
                                  double slack) {
    int a_count;
    int b_count;
    double *x = token_times(a, &a_count);
    double *y = token_times(b, &b_count);
    carry_status status = CARRY_OK;
    pair->a_tokens = pair->b_tokens = NAN;
    if (x == NULL || y == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: comparing the speeds of two trainings");
    } else if (a_count > 0 && b_count > 0) {
        pair->speed = carry_ratio_of(x, a_count, y, b_count, slack > 0.0 ? slack : SLACK, 1);
        pair->a_tokens = 1.0 / carry_summarise(x, a_count).median;
        pair->b_tokens = 1.0 / carry_summarise(y, b_count).median;
    }
    free(x);
    free(y);
    return status;
}

static double most_of(const carry_run *run, const char *name) {
    int count;
    const carry_run_metric *m = series(run, name, &count);
    double most = NAN;
    for (int i = 0; i < count; i++) {
        most = isnan(most) || m[i].value > most ? m[i].value : most;
    }
    return most;
}

static const char *fact(const carry_run *run, const char *name) {
    for (int i = 0; i < run->facts; i++) {
        if (strcmp(run->fact[i].name, name) == 0) {
            return run->fact[i].value;
        }
    }
    return "";
}

static bool same_fact(const carry_run *a, const carry_run *b, const char *name) {
    return strcmp(fact(a, name), fact(b, name)) == 0;
}

carry_status carry_compare_training(carry_ctx *ctx, carry_training_pair *pair, const carry_run *a, const carry_run *b,
                                    double slack) {
    *pair = (carry_training_pair){.a_memory = most_of(a, "memory"), .b_memory = most_of(b, "memory")};
    CARRY_TRY(compare_speed(ctx, pair, a, b, slack));
    CARRY_TRY(compare_losses(ctx, &pair->loss, a, b, "loss"));
    CARRY_TRY(compare_losses(ctx, &pair->held_out, a, b, "eval_loss"));
    pair->same_machine =
        same_fact(a, b, "cpu") && same_fact(a, b, "cores") && same_fact(a, b, "device") && same_fact(a, b, "threads");
    pair->same_options = strcmp(a->spec, b->spec) == 0;
    return pair->loss.steps > 0 || !isnan(pair->a_tokens)
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT,
                            "the trainings %lld and %lld have neither a step nor a speed in common", (long long)a->id,
                            (long long)b->id);
}
