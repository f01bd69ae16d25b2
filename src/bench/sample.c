/* Medians and the bootstrap. */
#include "bench/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLINGS 1000

/* A NaN, which may come from a damaged store, is sorted after all numbers. */
static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return isnan(x) || isnan(y) ? isnan(x) - isnan(y) : (x > y) - (x < y);
}

static double median_of_sorted(const double *samples, int count) {
    return count % 2 == 1 ? samples[count / 2] : 0.5 * (samples[count / 2 - 1] + samples[count / 2]);
}

/* SplitMix64: the bootstrap needs indices, not the library's random stream for inputs. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void swap(double *a, double *b) {
    double kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves the k-th smallest sample to index k, with no larger one before it (Hoare's selection). It takes a tenth of
   the time of sorting, and a comparison of two runs selects a hundred thousand times. */
static double select_kth(double *samples, int count, int k) {
    int low = 0;
    int high = count - 1;
    while (low < high) {
        double pivot = samples[low + (high - low) / 2];
        int i = low;
        int j = high;
        while (i <= j) {
            while (samples[i] < pivot) {
                i++;
            }
            while (samples[j] > pivot) {
                j--;
            }
            if (i <= j) {
                swap(&samples[i++], &samples[j--]);
            }
        }
        if (k <= j) {
            high = j;
        } else if (k >= i) {
            low = i;
        } else {
            break;
        }
    }
    return samples[k];
}

static double median_of(double *samples, int count) {
    double upper = select_kth(samples, count, count / 2);
    if (count % 2 == 1) {
        return upper;
    }
    double lower = samples[0];
    for (int i = 1; i < count / 2; i++) {
        lower = fmax(lower, samples[i]);
    }
    return 0.5 * (lower + upper);
}

/* Draws blocks of about the square root of the count, or a tenth of it if that is more: a method is timed in turns
   of many runs, and only blocks as long as a turn show disturbances of whole turns. Blocks wrap around the end. */
static double resampled_median(const double *samples, int count, double *scratch, uint64_t *state) {
    int block = (int)fmax(1.0, floor(fmax(sqrt((double)count), 0.1 * (double)count)));
    for (int filled = 0; filled < count;) {
        int from = (int)(next_random(state) % (uint64_t)count);
        for (int i = 0; i < block && filled < count; i++) {
            scratch[filled++] = samples[(from + i) % count];
        }
    }
    return median_of(scratch, count);
}

carry_summary carry_summarise(double *samples, int count) {
    qsort(samples, (size_t)count, sizeof *samples, compare_doubles);
    carry_summary s = {.median = median_of_sorted(samples, count),
                       .quartile_low = samples[count / 4],
                       .quartile_high = samples[(3 * count) / 4],
                       .least = samples[0]};
    s.spread = (s.quartile_high - s.quartile_low) / s.median;
    return s;
}

carry_ratio carry_ratio_of(const double *a, int a_count, const double *b, int b_count, double slack, uint64_t seed) {
    carry_ratio r = {.ratio = NAN, .low = NAN, .high = NAN, .within_noise = true};
    if (a_count < 1 || b_count < 1) {
        return r;
    }
    int most = a_count > b_count ? a_count : b_count;
    double *scratch = malloc((size_t)most * sizeof *scratch);
    double *ratios = malloc(RESAMPLINGS * sizeof *ratios);
    if (scratch != NULL && ratios != NULL) {
        memcpy(scratch, a, (size_t)a_count * sizeof *a);
        double a_median = carry_summarise(scratch, a_count).median;
        memcpy(scratch, b, (size_t)b_count * sizeof *b);
        r.ratio = a_median / carry_summarise(scratch, b_count).median;
        uint64_t state = seed;
        for (int i = 0; i < RESAMPLINGS; i++) {
            double top = resampled_median(a, a_count, scratch, &state);
            ratios[i] = top / resampled_median(b, b_count, scratch, &state);
        }
        qsort(ratios, RESAMPLINGS, sizeof *ratios, compare_doubles);
        r.low = ratios[RESAMPLINGS / 40];
        r.high = ratios[RESAMPLINGS - 1 - RESAMPLINGS / 40];
        bool known = isfinite(r.low) && isfinite(r.high); /* otherwise a median is 0, and nothing can be concluded */
        r.within_noise = !known || (r.low / (1.0 + slack) <= 1.0 && r.high * (1.0 + slack) >= 1.0);
    }
    free(scratch);
    free(ratios);
    return r;
}
