/* Convolutions of pictures: the layout of weights, checks, and rows of products over threads. */
#include "ops/conv2d.h"

#include <inttypes.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

/* Bytes of the inputs and outputs of a piece of rows, which should stay in the second-level cache together with a
   panel of weights. */
#define STRIP_BYTES (256 << 10)

#define INPUTS 3

/* The windows of a form: rows and columns of pixels, and the step from one window to the next. */
typedef struct window {
    int rows, columns, step;
} window;

static const window windows[] = {[CARRY_CONV2D_SAME] = {3, 3, 1},
                                 [CARRY_CONV2D_HALF] = {3, 3, 2},
                                 [CARRY_CONV2D_DOUBLE] = {2, 2, 1},
                                 [CARRY_CONV2D_POINT] = {1, 1, 1},
                                 [CARRY_CONV2D_AHEAD] = {3, 3, 2}};

typedef struct input {
    const float *data;
    int64_t channels, pitch; /* pitch: elements from row to row */
} input;

typedef struct job {
    const carry_kernels *kernels;
    carry_conv2d_form form;
    window window;
    input from[INPUTS]; /* x, past, older; no data: absent */
    float *y;
    const float *w, *bias, *add;
    int64_t in, out, width, pitch; /* width and pitch of y */
    bool relu;
} job;

int64_t carry_conv2d_packed(carry_conv2d_form form, int64_t out, int64_t in) {
    const window *o = &windows[form];
    return (form == CARRY_CONV2D_DOUBLE ? 4 : 1) * o->rows * o->columns * in * out;
}

/* The weight of one pixel of a window. In a doubled picture, a window of three covers only two different pixels: at
   an even position the first one once and the second twice, at an odd one the first twice and the second once. */
static float weight(const float *taps, carry_conv2d_form form, int phase, int row, int column) {
    if (form == CARRY_CONV2D_POINT) {
        return taps[0];
    }
    if (form != CARRY_CONV2D_DOUBLE) {
        return taps[3 * row + column];
    }
    double sum = 0.0;
    for (int i = 0; i < 9; i++) {
        bool of_row = (i / 3 + 1 - phase / 2) / 2 == row;
        bool of_column = (i % 3 + 1 - phase % 2) / 2 == column;
        sum += of_row && of_column ? (double)taps[i] : 0.0;
    }
    return (float)sum;
}

/* f32 or bf16. */
static carry_status expect_picture(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                   const int64_t *shape, carry_dtype dtype, int device) {
    CARRY_TRY(carry_expect_activation(ctx, name, tensor, rank, shape, device));
    if (tensor->dtype != dtype || (dtype != CARRY_F32 && dtype != CARRY_BF16)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s: pictures and their weights are all f32, or all bf16", name,
                          carry_dtype_name(tensor->dtype));
    }
    return CARRY_OK;
}

/* Channels of input `which`: x, past or older. */
static int64_t channels_of(int64_t in, int64_t first, int which) {
    if (in == INPUTS * first || which == 0) {
        return first;
    }
    return which == 1 ? in - first : 0;
}

carry_status carry_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form,
                               int64_t first) {
    CARRY_OPERATOR(ctx, operators, conv2d_pack, &to)
    CARRY_TRY(carry_expect_rank(ctx, "from", &from, 4));
    int64_t out = from.shape[0];
    int64_t in = from.shape[1];
    int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    CARRY_TRY(carry_expect_f32(ctx, "from", &from, 4, (const int64_t[]){out, in, side, side}, to.device));
    const int64_t count = carry_conv2d_packed(form, out, in);
    CARRY_TRY(expect_picture(ctx, "to", &to, 1, &count, to.dtype, to.device));
    if (first < 1 || first > in) {
        return carry_fail(ctx, CARRY_ESHAPE, "x has %" PRId64 " channels of the %" PRId64 " that the weights are for",
                          first, in);
    }
    return operators->conv2d_pack(ctx, to, from, form, first);
}

/* bf16 exists for comparison with GPUs: weights have the GPU's layout, one row for each phase and output channel, and
   the convolution is a plain loop. */
static void pack_bf16(uint16_t *next, carry_tensor from, carry_conv2d_form form, int64_t first) {
    const window *o = &windows[form];
    const int64_t in = from.shape[1];
    const int64_t area = from.shape[2] * from.shape[3];
    for (int phase = 0; phase < (form == CARRY_CONV2D_DOUBLE ? 4 : 1); phase++) {
        for (int64_t c = 0; c < from.shape[0]; c++) {
            for (int which = 0; which < INPUTS; which++) {
                const int64_t channels = channels_of(in, first, which);
                for (int64_t k = 0; k < o->rows * o->columns * channels; k++) {
                    const int pixel = (int)(k / channels);
                    const float *taps = (const float *)from.data + (c * in + which * first + k % channels) * area;
                    *next++ = carry_bf16_from_f32(weight(taps, form, phase, pixel / o->columns, pixel % o->columns));
                }
            }
        }
    }
}

carry_status carry_cpu_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form,
                                   int64_t first) {
    const carry_kernels *kernels;
    if (to.dtype == CARRY_BF16) {
        pack_bf16(to.data, from, form, first);
        return CARRY_OK;
    }
    CARRY_TRY(carry_kernels_of(ctx, &kernels));
    const int64_t out = from.shape[0];
    const int64_t in = from.shape[1];
    const int64_t side = from.shape[2];
    const window *o = &windows[form];
    const float *taps = from.data;
    float *next = to.data;
    for (int phase = 0; phase < (form == CARRY_CONV2D_DOUBLE ? 4 : 1); phase++) {
        for (int64_t panel = 0; panel < out; panel += kernels->columns) {
            int64_t end = out - panel < kernels->columns ? out : panel + kernels->columns;
            for (int which = 0; which < INPUTS; which++) {
                const int64_t begin = which * first;
                const int64_t stop = begin + channels_of(in, first, which);
                for (int pixel = 0; pixel < o->rows * o->columns; pixel++) {
                    for (int64_t i = begin; i < stop; i++) {
                        for (int64_t c = panel; c < end; c++) {
                            *next++ = weight(taps + (c * in + i) * side * side, form, phase, pixel / o->columns,
                                             pixel % o->columns);
                        }
                    }
                }
            }
        }
    }
    return CARRY_OK;
}

/* Adds an input's products to a row of y; base is what the first of them is added to. */
static void add_products(const job *j, carry_product *p, const input *in, int64_t row, int64_t column) {
    p->k = j->window.columns * in->channels;
    p->a = in->data + row * in->pitch + column * in->channels;
    p->a_row = j->window.step * in->channels;
    p->a_next = in->pitch;
    p->b_next = p->k * p->n;
    p->count = 1; /* the first adds to its base, the others add to c */
    j->kernels->product(p);
    p->base = p->c;
    p->base_row = p->c_row;
    p->a += p->a_next;
    p->b += p->b_next;
    p->count = j->window.rows - 1;
    if (p->count > 0) {
        j->kernels->product(p);
    }
    p->b += p->count * p->b_next;
}

/* Computes a row of output pixels, or every second one of it, for output channels panel..panel+n-1. */
static void row_panel(const job *j, int64_t y, int side, int64_t panel, int64_t n) {
    bool twice = j->form == CARRY_CONV2D_DOUBLE;
    int64_t inside = j->form == CARRY_CONV2D_POINT || j->form == CARRY_CONV2D_AHEAD; /* no padding before a window */
    int64_t phase = twice ? y % 2 * 2 + side : 0;
    int64_t taps = (int64_t)j->window.rows * j->window.columns * j->in;
    int64_t row = twice ? y / 2 + y % 2 : y * j->window.step + inside;
    int64_t column = twice ? side : inside;
    int64_t at = (y + 1) * j->pitch + (1 + side) * j->out + panel;
    carry_product p = {.m = twice ? j->width / 2 : j->width,
                       .n = n,
                       .b = j->w + phase * taps * j->out + panel * taps,
                       .b_row = n,
                       .c = j->y + at,
                       .c_row = twice ? 2 * j->out : j->out};
    p.base = j->add != NULL ? j->add + at : j->bias != NULL ? j->bias + panel : NULL;
    p.base_row = j->add != NULL ? p.c_row : 0;
    for (int i = 0; i < INPUTS && j->from[i].data != NULL; i++) {
        add_products(j, &p, &j->from[i], row, column);
    }
}

static void run_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int sides = j->form == CARRY_CONV2D_DOUBLE ? 2 : 1;
    for (int64_t panel = 0; panel < j->out; panel += j->kernels->columns) {
        int64_t n = j->out - panel < j->kernels->columns ? j->out - panel : j->kernels->columns;
        for (int64_t y = begin; y < end; y++) {
            for (int side = 0; side < sides; side++) {
                row_panel(j, y, side, panel, n);
            }
        }
    }
    for (int64_t y = begin; y < end; y++) {
        float *row = j->y + (y + 1) * j->pitch + j->out;
        for (int64_t x = 0; j->add != NULL && j->bias != NULL && x < j->width; x++) {
            j->kernels->rows->add(row + x * j->out, j->bias, j->out);
        }
        if (j->relu) {
            j->kernels->rows->activate(row, row, j->width * j->out, CARRY_RELU);
        }
    }
}

/* Height or width of the result for a picture of this height or width. */
static int64_t side_of(carry_conv2d_form form, int64_t side) {
    switch (form) {
    case CARRY_CONV2D_HALF:
        return (side + 1) / 2;
    case CARRY_CONV2D_AHEAD:
        return side / 2;
    case CARRY_CONV2D_DOUBLE:
        return 2 * side;
    default:
        return side;
    }
}

static carry_status check_inputs(carry_ctx *ctx, const carry_conv2d_args *a) {
    const carry_tensor *inputs[INPUTS] = {&a->x, &a->past, &a->older};
    static const char *const names[INPUTS] = {"x", "past", "older"};
    const int64_t given = a->x.shape[2];
    if (given > a->in) {
        return carry_fail(ctx, CARRY_ESHAPE, "x has %" PRId64 " channels and w is for %" PRId64, given, a->in);
    }
    if (carry_is_here(&a->older) && !carry_is_here(&a->past)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "older is given and past is not: frames follow each other");
    }
    for (int i = 0; i < INPUTS; i++) {
        if (i > 0 && !carry_is_here(inputs[i])) {
            continue;
        }
        const int64_t shape[] = {a->x.shape[0], a->x.shape[1], channels_of(a->in, given, i)};
        CARRY_TRY(carry_expect_rank(ctx, names[i], inputs[i], 3));
        CARRY_TRY(expect_picture(ctx, names[i], inputs[i], 3, shape, a->y.dtype, a->y.device));
    }
    return CARRY_OK;
}

static carry_status check(carry_ctx *ctx, const carry_conv2d_args *a) {
    const int device = a->y.device;
    CARRY_TRY(carry_expect_rank(ctx, "x", &a->x, 3));
    CARRY_TRY(carry_expect_rank(ctx, "y", &a->y, 3));
    const int64_t height = a->x.shape[0] - 2;
    const int64_t width = a->x.shape[1] - 2;
    const int64_t least = a->form == CARRY_CONV2D_AHEAD ? 2 : 1;
    if (height < least || width < least || a->x.shape[2] < 1 || a->y.shape[2] < 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "x and y must have a pixel inside the frame, and a channel");
    }
    const int64_t out = a->y.shape[2];
    const int64_t shape[] = {side_of(a->form, height) + 2, side_of(a->form, width) + 2, out};
    const int64_t weights = carry_conv2d_packed(a->form, out, a->in);
    CARRY_TRY(expect_picture(ctx, "y", &a->y, 3, shape, a->y.dtype, device));
    CARRY_TRY(expect_picture(ctx, "w", &a->w, 1, &weights, a->y.dtype, device));
    CARRY_TRY(check_inputs(ctx, a));
    if (carry_is_here(&a->bias)) {
        CARRY_TRY(carry_expect_f32(ctx, "bias", &a->bias, 1, &out, device));
    }
    return carry_is_here(&a->add) ? expect_picture(ctx, "add", &a->add, 3, shape, a->y.dtype, device) : CARRY_OK;
}

static input as_input(const carry_tensor *picture) {
    input made = {0};
    if (carry_is_here(picture)) {
        made.data = picture->data;
        made.channels = picture->shape[2];
        made.pitch = picture->shape[1] * picture->shape[2];
    }
    return made;
}

carry_status carry_conv2d(carry_ctx *ctx, const carry_conv2d_args *args) {
    CARRY_OPERATOR(ctx, operators, conv2d, &args->y)
    CARRY_TRY(check(ctx, args));
    return operators->conv2d(ctx, args);
}

/* The sum for output channel c at (y, x), before anything is added to it. */
static float sum_bf16(const carry_conv2d_args *a, int64_t y, int64_t x, int64_t c) {
    const carry_tensor *inputs[INPUTS] = {&a->x, &a->past, &a->older};
    const window *o = &windows[a->form];
    const bool twice = a->form == CARRY_CONV2D_DOUBLE;
    const int64_t inside = a->form == CARRY_CONV2D_POINT || a->form == CARRY_CONV2D_AHEAD;
    const int64_t row = twice ? y / 2 + y % 2 : y * o->step + inside;
    const int64_t column = twice ? x / 2 + x % 2 : x * o->step + inside;
    const int64_t phase = twice ? y % 2 * 2 + x % 2 : 0;
    const uint16_t *w = (const uint16_t *)a->w.data + (phase * a->y.shape[2] + c) * o->rows * o->columns * a->in;
    float sum = 0.0f;
    for (int i = 0; i < INPUTS && carry_is_here(inputs[i]); i++) {
        const int64_t channels = inputs[i]->shape[2];
        for (int64_t k = 0; k < o->rows * o->columns * channels; k++) {
            const int64_t pixel = k / channels;
            const int64_t at = (row + pixel / o->columns) * inputs[i]->shape[1] + column + pixel % o->columns;
            const uint16_t value = ((const uint16_t *)inputs[i]->data)[at * channels + k % channels];
            sum += carry_f32_from_bf16(*w++) * carry_f32_from_bf16(value);
        }
    }
    return sum;
}

static void run_rows_bf16(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const carry_conv2d_args *a = argument;
    const int64_t out = a->y.shape[2];
    const int64_t width = a->y.shape[1] - 2;
    for (int64_t i = begin * width * out; i < end * width * out; i++) {
        const int64_t y = i / out / width;
        const int64_t x = i / out % width;
        const int64_t at = ((y + 1) * (width + 2) + x + 1) * out + i % out;
        float value = sum_bf16(a, y, x, i % out);
        value += carry_is_here(&a->bias) ? ((const float *)a->bias.data)[i % out] : 0.0f;
        value += carry_is_here(&a->add) ? carry_f32_from_bf16(((const uint16_t *)a->add.data)[at]) : 0.0f;
        ((uint16_t *)a->y.data)[at] = carry_bf16_from_f32(a->relu && value < 0.0f ? 0.0f : value);
    }
}

carry_status carry_cpu_conv2d(carry_ctx *ctx, const carry_conv2d_args *args) {
    if (args->y.dtype == CARRY_BF16) {
        carry_conv2d_args a = *args;
        CARRY_SPAN(ctx, "ops", "conv2d");
        carry_parallel(ctx, a.y.shape[0] - 2, 1, run_rows_bf16, &a);
        return CARRY_OK;
    }
    job j = {.form = args->form, .window = windows[args->form], .relu = args->relu, .in = args->in};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    CARRY_SPAN(ctx, "ops", "conv2d");
    j.from[0] = as_input(&args->x);
    j.from[1] = as_input(&args->past);
    j.from[2] = as_input(&args->older);
    j.y = args->y.data;
    j.w = args->w.data;
    j.bias = args->bias.data;
    j.add = args->add.data;
    j.out = args->y.shape[2];
    j.width = args->y.shape[1] - 2;
    j.pitch = args->y.shape[1] * j.out;
    int64_t rows = args->y.shape[0] - 2;
    int64_t channels = j.from[0].channels + j.from[1].channels + j.from[2].channels;
    int64_t seen = j.window.rows * j.window.columns * channels;
    carry_span_work(ctx, 2.0 * (double)rows * (double)j.width * (double)seen * (double)j.out, 0.0);
    int64_t bytes =
        (j.pitch + j.window.step * (j.from[0].pitch + j.from[1].pitch + j.from[2].pitch)) * (int64_t)sizeof(float);
    int64_t strip = STRIP_BYTES / bytes;
    int64_t fair = (rows + carry_ctx_threads(ctx) - 1) / carry_ctx_threads(ctx);
    strip = strip < 1 ? 1 : strip > fair ? fair : strip;
    carry_parallel(ctx, rows, strip, run_rows, &j);
    return CARRY_OK;
}
