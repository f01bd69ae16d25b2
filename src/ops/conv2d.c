/* Convolutions of pictures: the order of weights, checks, and rows of products over threads. */
#include "ops/conv2d.h"

#include <inttypes.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

/* What a piece of rows reads and writes should stay in the second cache beside a panel of weights. */
#define STRIP_BYTES (256 << 10)

/* How the windows of a form lie: rows and columns of pixels, and the step from one to the next. */
typedef struct window {
    int rows, columns, step;
} window;

static const window windows[] = {[CARRY_CONV2D_SAME] = {3, 3, 1},
                                 [CARRY_CONV2D_HALF] = {3, 3, 2},
                                 [CARRY_CONV2D_DOUBLE] = {2, 2, 1},
                                 [CARRY_CONV2D_POINT] = {1, 1, 1}};

typedef struct input {
    const float *data;
    int64_t channels, pitch; /* of a row, in numbers */
} input;

typedef struct job {
    const carry_kernels *kernels;
    carry_conv2d_form form;
    window window;
    input x, past;
    float *y;
    const float *w, *bias, *add;
    int64_t in, out, width, pitch; /* width and pitch of y */
    bool relu;
} job;

int64_t carry_conv2d_packed(carry_conv2d_form form, int64_t out, int64_t in) {
    const window *o = &windows[form];
    return (form == CARRY_CONV2D_DOUBLE ? 4 : 1) * o->rows * o->columns * in * out;
}

/* The weight of one pixel of a window. A doubled picture's window of three has two different pixels: at an even place
   the first, and the second twice; at an odd one the first twice, and the second. */
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

carry_status carry_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form,
                               int64_t first) {
    CARRY_OPERATOR(ctx, operators, conv2d_pack, &to)
    CARRY_TRY(carry_expect_rank(ctx, "from", &from, 4));
    int64_t out = from.shape[0];
    int64_t in = from.shape[1];
    int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    CARRY_TRY(carry_expect_f32(ctx, "from", &from, 4, (const int64_t[]){out, in, side, side}, to.device));
    const int64_t count = carry_conv2d_packed(form, out, in);
    CARRY_TRY(carry_expect_f32(ctx, "to", &to, 1, &count, to.device));
    if (first < 1 || first > in) {
        return carry_fail(ctx, CARRY_ESHAPE, "x has %" PRId64 " channels of the %" PRId64 " that the weights are for",
                          first, in);
    }
    return operators->conv2d_pack(ctx, to, from, form, first);
}

carry_status carry_cpu_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from, carry_conv2d_form form,
                                   int64_t first) {
    const carry_kernels *kernels;
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
            for (int past = 0; past < 2; past++) {
                for (int pixel = 0; pixel < o->rows * o->columns; pixel++) {
                    for (int64_t i = past ? first : 0; i < (past ? in : first); i++) {
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

/* Adds an input's products to a row of y; base says what they are added to. */
static void add_products(const job *j, carry_product *p, const input *in, int64_t row, int64_t column) {
    p->k = j->window.columns * in->channels;
    p->a = in->data + row * in->pitch + column * in->channels;
    p->a_row = j->window.step * in->channels;
    p->a_next = in->pitch;
    p->b_next = p->k * p->n;
    p->count = 1; /* the first with its base, the others with what is there by then */
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

/* A row of output pixels, or every second one of it; output channels panel..panel+n-1. */
static void row_panel(const job *j, int64_t y, int side, int64_t panel, int64_t n) {
    bool twice = j->form == CARRY_CONV2D_DOUBLE;
    int64_t phase = twice ? y % 2 * 2 + side : 0;
    int64_t taps = (int64_t)j->window.rows * j->window.columns * j->in;
    int64_t row = twice ? y / 2 + y % 2 : j->form == CARRY_CONV2D_POINT ? y + 1 : y * j->window.step;
    int64_t column = twice ? side : j->form == CARRY_CONV2D_POINT;
    int64_t at = (y + 1) * j->pitch + (1 + side) * j->out + panel;
    carry_product p = {.m = twice ? j->width / 2 : j->width,
                       .n = n,
                       .b = j->w + phase * taps * j->out + panel * taps,
                       .b_row = n,
                       .c = j->y + at,
                       .c_row = twice ? 2 * j->out : j->out};
    p.base = j->add != NULL ? j->add + at : j->bias != NULL ? j->bias + panel : NULL;
    p.base_row = j->add != NULL ? p.c_row : 0;
    add_products(j, &p, &j->x, row, column);
    if (j->past.data != NULL) {
        add_products(j, &p, &j->past, row, column);
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

static carry_status check(carry_ctx *ctx, const carry_conv2d_args *a) {
    const int device = a->y.device;
    CARRY_TRY(carry_expect_rank(ctx, "x", &a->x, 3));
    CARRY_TRY(carry_expect_rank(ctx, "y", &a->y, 3));
    int64_t height = a->x.shape[0] - 2;
    int64_t width = a->x.shape[1] - 2;
    if (height < 1 || width < 1 || a->x.shape[2] < 1 || a->y.shape[2] < 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "x and y must have a pixel inside the frame, and a channel");
    }
    int64_t out = a->y.shape[2];
    bool half = a->form == CARRY_CONV2D_HALF;
    int64_t factor = a->form == CARRY_CONV2D_DOUBLE ? 2 : 1;
    const int64_t shape[] = {(half ? (height + 1) / 2 : factor * height) + 2,
                             (half ? (width + 1) / 2 : factor * width) + 2, out};
    const int64_t weights = carry_conv2d_packed(a->form, out, a->in);
    CARRY_TRY(carry_expect_f32(ctx, "x", &a->x, 3, a->x.shape, device));
    CARRY_TRY(carry_expect_f32(ctx, "y", &a->y, 3, shape, device));
    CARRY_TRY(carry_expect_f32(ctx, "w", &a->w, 1, &weights, device));
    int64_t given = a->x.shape[2];
    if (carry_is_here(&a->past)) {
        CARRY_TRY(carry_expect_rank(ctx, "past", &a->past, 3));
        const int64_t past[] = {height + 2, width + 2, a->in - given};
        CARRY_TRY(carry_expect_f32(ctx, "past", &a->past, 3, past, device));
    } else if (given > a->in) {
        return carry_fail(ctx, CARRY_ESHAPE, "x has %" PRId64 " channels and w is for %" PRId64, given, a->in);
    }
    if (carry_is_here(&a->bias)) {
        CARRY_TRY(carry_expect_f32(ctx, "bias", &a->bias, 1, &out, device));
    }
    return carry_is_here(&a->add) ? carry_expect_f32(ctx, "add", &a->add, 3, shape, device) : CARRY_OK;
}

static input as_input(const carry_tensor *picture) {
    return (input){
        .data = picture->data, .channels = picture->shape[2], .pitch = picture->shape[1] * picture->shape[2]};
}

carry_status carry_conv2d(carry_ctx *ctx, const carry_conv2d_args *args) {
    CARRY_OPERATOR(ctx, operators, conv2d, &args->y)
    CARRY_TRY(check(ctx, args));
    return operators->conv2d(ctx, args);
}

carry_status carry_cpu_conv2d(carry_ctx *ctx, const carry_conv2d_args *args) {
    job j = {.form = args->form, .window = windows[args->form], .relu = args->relu, .in = args->in};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    CARRY_SPAN(ctx, "ops", "conv2d");
    j.x = as_input(&args->x);
    j.past = carry_is_here(&args->past) ? as_input(&args->past) : (input){0};
    j.y = args->y.data;
    j.w = args->w.data;
    j.bias = args->bias.data;
    j.add = args->add.data;
    j.out = args->y.shape[2];
    j.width = args->y.shape[1] - 2;
    j.pitch = args->y.shape[1] * j.out;
    int64_t rows = args->y.shape[0] - 2;
    int64_t seen = j.window.rows * j.window.columns * (j.x.channels + j.past.channels);
    carry_span_work(ctx, 2.0 * (double)rows * (double)j.width * (double)seen * (double)j.out, 0.0);
    int64_t bytes = (j.pitch + j.window.step * (j.x.pitch + j.past.pitch)) * (int64_t)sizeof(float);
    int64_t strip = STRIP_BYTES / bytes;
    int64_t fair = (rows + carry_ctx_threads(ctx) - 1) / carry_ctx_threads(ctx);
    strip = strip < 1 ? 1 : strip > fair ? fair : strip;
    carry_parallel(ctx, rows, strip, run_rows, &j);
    return CARRY_OK;
}
