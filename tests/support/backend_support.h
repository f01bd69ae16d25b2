/* Shared by the tests that compare devices: operands on the CPU and twice on another device, the same call on all
   three, and a table of how far results are apart. An operator's result on a device must be near the CPU's, and have
   the same bits when it is repeated. */
#ifndef CARRY_TESTS_BACKEND_SUPPORT_H
#define CARRY_TESTS_BACKEND_SUPPORT_H

#include "nn_support.h"

#include "carry/device.h"
#include "carry/ops.h"

enum { SIDES = 3, OPERANDS = 256 }; /* the CPU; the device; the device again */

static int device_tested;
static carry_ctx *ctx;
static void *device_kept[OPERANDS * SIDES];
static int device_kept_count;
static double worst; /* the largest ratio of difference to bound for the current operator and type */
static char worst_what[64];
static int failures;

typedef struct operand {
    carry_tensor t[SIDES];
} operand;

static void *on_device(size_t bytes) {
    void *data;
    assert_in_range(device_kept_count, 0, OPERANDS * SIDES - 1);
    assert_ok(ctx, carry_device_alloc(ctx, &data, device_tested, bytes + 8));
    return device_kept[device_kept_count++] = data;
}

static void free_operands(void) {
    while (device_kept_count > 0) {
        carry_device_free(ctx, device_tested, device_kept[--device_kept_count]);
    }
    (void)free_kept(NULL);
}

/* An operand with the same bits on every side. */
static operand spread(carry_tensor here) {
    operand o = {.t = {here, here, here}};
    for (int side = 1; side < SIDES; side++) {
        o.t[side].device = device_tested;
        o.t[side].data = on_device((size_t)carry_tensor_count(&here) * carry_dtype_size(here.dtype));
        assert_ok(ctx, carry_copy(ctx, o.t[side], here));
    }
    return o;
}

static operand given(carry_dtype type, int rank, const int64_t *shape, float low, float high) {
    return spread(random_array(type, rank, shape, low, high).t);
}

/* Poisoned: NaN everywhere. */
static operand wanted(carry_dtype type, int rank, const int64_t *shape) {
    return spread(poisoned(type, rank, shape).t);
}

static operand missing(void) {
    return (operand){0};
}

static operand integers(const int64_t *from, int64_t count) {
    int64_t *copy = keep(malloc((size_t)(count + 1) * sizeof *copy));
    memcpy(copy, from, (size_t)count * sizeof *copy);
    return spread(carry_view_1d(copy, CARRY_I64, count));
}

/* A workspace on one side, filled with NaN. */
static void *room(int side, size_t bytes) {
    void *data = side == 0 ? keep(malloc(bytes + 8)) : on_device(bytes);
    assert_ok(ctx, carry_device_fill(ctx, data, side == 0 ? 0 : device_tested, 255, bytes, NULL));
    return data;
}

static double number_at(const carry_tensor *t, int64_t i) {
    return t->dtype == CARRY_F64 ? ((const double *)t->data)[i] : carry_tensor_at(t, i);
}

static void note(const char *what, double ratio) {
    if (!(ratio <= worst)) {
        worst = isnan(ratio) ? INFINITY : ratio;
        (void)snprintf(worst_what, sizeof worst_what, "%s", what);
    }
}

/* Both results are rounded to the type, and may differ by `bound` before that: they must be equal or neighbours. bound
   0: the same bits. */
static void compare(const char *what, const operand *o, double bound) {
    const size_t bytes = (size_t)carry_tensor_count(&o->t[0]) * carry_dtype_size(o->t[0].dtype);
    carry_tensor back[SIDES] = {o->t[0], o->t[0], o->t[0]};
    for (int side = 1; side < SIDES; side++) {
        back[side].data = keep(malloc(bytes + 8));
        assert_ok(ctx, carry_copy(ctx, back[side], o->t[side]));
    }
    if (memcmp(back[1].data, back[2].data, bytes) != 0) {
        note("not the same bits when made again", INFINITY);
    }
    if (bound == 0.0) {
        note(what, memcmp(back[0].data, back[1].data, bytes) == 0 ? 0.0 : INFINITY);
        return;
    }
    const double u = o->t[0].dtype == CARRY_F64 ? 0x1p-50 : 2.0 * rounding(o->t[0].dtype);
    const double least = o->t[0].dtype == CARRY_F16 ? 0x1p-24 : 0.0;
    for (int64_t i = 0; i < carry_tensor_count(&o->t[0]); i++) {
        const double want = number_at(&back[0], i), have = number_at(&back[1], i);
        note(what, fabs(have - want) / (u * fabs(want) + bound * (1.0 + u) + least));
    }
}

typedef void (*backend_case)(carry_dtype type);

/* Prints a line of the table: the largest ratio of difference to bound, for each type. CARRY_CASE=NAME in the
   environment runs the cases whose name contains NAME, CARRY_CASE==NAME only the one of that name. */
static void run_case(const char *name, backend_case function, int type_count) {
    const char *only = getenv("CARRY_CASE");
    if (only != NULL && (only[0] == '=' ? strcmp(name, only + 1) != 0 : strstr(name, only) == NULL)) {
        return;
    }
    (void)printf("%-22s", name);
    for (int i = 0; i < type_count; i++) {
        worst = 0.0;
        worst_what[0] = '\0';
        function(types[i]);
        free_operands();
        failures += worst > 1.0;
        (void)printf(" %-4s %s %.2f", carry_dtype_name(types[i]), worst > 1.0 ? "FAIL" : "ok", worst);
        if (worst > 1.0) {
            (void)printf(" (%s)", worst_what);
        }
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

#define EACH_SIDE for (int side = 0; side < SIDES; side++)
#define CALL(expression) assert_ok(ctx, expression)

static int open_all(void **state) {
    (void)open_contexts(state);
    ctx = ctxs[1];
    return 0;
}

#endif
