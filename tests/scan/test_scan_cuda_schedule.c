/* The order in which dense scans on GPUs combine elements (scan/dense_levels.h), with numbers in place of matrices: for
   every length and many heights of visits it gives the recurrence, without touching a step that does not exist. */
#include <math.h>

#include "scan/dense_levels.h"
#include "support.h"

#define MOST 300

typedef struct tree {
    carry_dense_level levels[CARRY_DENSE_MAX_LEVELS];
    int count;
    double A[CARRY_DENSE_MAX_LEVELS][MOST];    /* the elements of each level */
    double made[CARRY_DENSE_MAX_LEVELS][MOST]; /* the node that ends at odd element e is number (e-1)/2 */
    double values[MOST];                       /* in place, over steps */
} tree;

static double *value(tree *t, int k, int64_t element) {
    int64_t step = carry_dense_step(&t->levels[k], element);
    assert_in_range(step, 0, MOST - 1);
    return &t->values[step];
}

/* Combines pairs, and the nodes that each pair completes, as a block does. */
static void climb(tree *t, int k, int64_t visit) {
    const carry_dense_level *at = &t->levels[k];
    int64_t first = visit * at->radix;
    int64_t members = carry_dense_members(at, at->complete, visit);
    for (int64_t pair = 0; pair < members / 2; pair++) {
        double later = t->A[k][first + 2 * pair + 1];
        double made = later * t->A[k][first + 2 * pair];
        *value(t, k, first + 2 * pair + 1) += later * *value(t, k, first + 2 * pair);
        for (int height = 1; height <= carry_dense_carries(pair); height++) {
            int64_t odd = pair >> (height - 1);
            int64_t before = first + (odd << height) - 1;
            *value(t, k, first + ((odd + 1) << height) - 1) += made * *value(t, k, before);
            made *= t->made[k][(before - 1) / 2];
        }
        t->made[k][first / 2 + pair] = made;
    }
}

static void descend(tree *t, int k, int64_t visit, double h0) {
    const carry_dense_level *at = &t->levels[k];
    int64_t first = visit * at->radix;
    int64_t members = carry_dense_members(at, at->complete, visit);
    for (int height = at->height - (k == t->count - 1 ? 0 : 1); height >= 0; height--) {
        for (int64_t i = 0; i < carry_dense_even_nodes(members, height); i++) {
            int64_t end = first + carry_dense_even_end(i, height);
            int64_t before = end - ((int64_t)1 << height);
            double A = height == 0 ? t->A[k][end] : t->made[k][(end - 1) / 2];
            *value(t, k, end) += A * (before < 0 ? h0 : *value(t, k, before));
        }
    }
}

static void check(int64_t steps, const int *heights, int given) {
    static tree t;
    static double b[MOST];
    memset(&t, 0, sizeof t);
    for (int64_t s = 0; s < steps; s++) {
        t.A[0][s] = 0.5 + 0.4 * sin((double)s);
        t.values[s] = b[s] = cos((double)(3 * s));
    }
    for (int64_t stride = 1;; t.count++) {
        int height = heights[t.count % given];
        t.levels[t.count] = carry_dense_level_of(steps, stride, height, (int64_t)1 << height);
        stride <<= height;
        if (t.levels[t.count].count <= t.levels[t.count].radix) {
            break;
        }
    }
    t.count++;
    for (int k = 0; k < t.count; k++) {
        for (int64_t e = 0; k > 0 && e < t.levels[k].complete; e++) {
            t.A[k][e] = t.made[k - 1][(e + 1) * t.levels[k - 1].radix / 2 - 1];
        }
        for (int64_t visit = 0; visit < t.levels[k].visits; visit++) {
            climb(&t, k, visit);
        }
    }
    for (int k = t.count - 1; k >= 0; k--) {
        for (int64_t visit = 0; visit < t.levels[k].visits; visit++) {
            descend(&t, k, visit, 0.7);
        }
    }
    double h = 0.7;
    for (int64_t s = 0; s < steps; s++) {
        h = t.A[0][s] * h + b[s];
        if (!(fabs(h - t.values[s]) < 1e-12)) {
            fail_msg("%lld steps, heights from %d on: step %lld is %g and should be %g", (long long)steps, heights[0],
                     (long long)s, t.values[s], h);
        }
    }
}

static void every_length_and_height_gives_the_recurrence(void **unused) {
    (void)unused;
    static const int heights[][3] = {{1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {5, 4, 4}, {4, 1, 2}, {1, 3, 2}, {2, 5, 1}};
    for (int64_t steps = 1; steps < MOST; steps++) {
        for (size_t i = 0; i < sizeof heights / sizeof heights[0]; i++) {
            check(steps, heights[i], 3);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_and_height_gives_the_recurrence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
