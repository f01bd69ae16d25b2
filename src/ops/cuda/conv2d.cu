/* Convolutions of pictures on NVIDIA GPUs: the products of conv2d.c, all rows of a picture in one batch. What the
   products are added to is written first, and relu is applied afterwards.

   Weights lie as conv2d.c packs them with one panel of all output channels. */
#include "ops/cuda/nn.cuh"

struct frame {
    float *y;
    const float *bias, *add;
    int64_t rows, width, out; /* inside the frame */
    bool relu;
};

/* before: y = bias + add; else y = max(y, 0). */
__global__ void __launch_bounds__(THREADS) inside_kernel(frame f, bool before) {
    const int64_t count = f.rows * f.width * f.out;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const int64_t c = i % f.out, x = i / f.out % f.width, y = i / f.out / f.width;
        const int64_t at = ((y + 1) * (f.width + 2) + x + 1) * f.out + c;
        if (before) {
            f.y[at] = (f.add != NULL ? f.add[at] : 0.0f) + (f.bias != NULL ? f.bias[c] : 0.0f);
        } else {
            f.y[at] = f.y[at] < 0.0f ? 0.0f : f.y[at];
        }
    }
}

/* As weight() of conv2d.c. */
static __device__ float weight_of(const float *taps, int form, int phase, int row, int column) {
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

__global__ void __launch_bounds__(THREADS)
    pack_kernel(float *to, const float *from, int form, int rows, int columns, int64_t out, int64_t in, int64_t first,
                int64_t count) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    const int64_t pixels = (int64_t)rows * columns;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {
        const int64_t c = at % out, phase = at / (pixels * in * out), place = at / out % (pixels * in);
        const bool past = place >= pixels * first;
        const int64_t channels = past ? in - first : first, inner = past ? place - pixels * first : place;
        const int64_t pixel = inner / channels, i = (past ? first : 0) + inner % channels;
        to[at] = weight_of(from + (c * in + i) * side * side, form, (int)phase, (int)(pixel / columns),
                           (int)(pixel % columns));
    }
}

static void window_of(carry_conv2d_form form, int *rows, int *columns, int *step) {
    *rows = *columns = form == CARRY_CONV2D_POINT ? 1 : form == CARRY_CONV2D_DOUBLE ? 2 : 3;
    *step = form == CARRY_CONV2D_HALF ? 2 : 1;
}

extern "C" carry_status carry_cuda_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from,
                                               carry_conv2d_form form, int64_t first) {
    place at = {};
    int rows, columns, step;
    CARRY_TRY(open_place(ctx, &at, to.device));
    window_of(form, &rows, &columns, &step);
    const int64_t count = to.shape[0];
    if (count == 0) {
        return CARRY_OK;
    }
    pack_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>((float *)to.data, (const float *)from.data,
                                                                       (int)form, rows, columns, from.shape[0],
                                                                       from.shape[1], first, count);
    return launched(ctx, at, "conv2d_pack cannot be launched");
}

/* The products of one input with its weights, for the output pixels of one phase: every row is an item of the batch. */
static carry_status add_products(carry_ctx *ctx, const place &at, const carry_conv2d_args *a, const carry_tensor *from,
                                 const float *w, int phase) {
    const bool twice = a->form == CARRY_CONV2D_DOUBLE, point = a->form == CARRY_CONV2D_POINT;
    int rows, columns, step;
    window_of(a->form, &rows, &columns, &step);
    const int64_t channels = from->shape[2], pitch = from->shape[1] * channels;
    const int64_t out = a->y.shape[2], y_pitch = a->y.shape[1] * out;
    const int64_t down = phase / 2, side = phase % 2; /* of a doubled picture */
    carry_device_product p = {};
    p.m = (a->y.shape[1] - 2) / (twice ? 2 : 1);
    p.count = (a->y.shape[0] - 2) / (twice ? 2 : 1);
    p.n = out;
    p.k = columns * channels;
    p.a_row = step * channels;
    p.a_next = step * pitch;
    p.b_row = out;
    p.c = (float *)a->y.data + (1 + down) * y_pitch + (1 + side) * out;
    p.c_row = twice ? 2 * out : out;
    p.c_next = twice ? 2 * y_pitch : y_pitch;
    p.type = p.c_type = CARRY_F32;
    p.accumulate = true;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    const int64_t row0 = twice ? down : point, column0 = twice ? side : point;
    for (int r = 0; r < rows; r++) {
        p.a = (const float *)from->data + (row0 + r) * pitch + column0 * channels;
        p.b = w + r * p.k * out;
        CARRY_TRY(carry_cuda_product(ctx, &p, "tensor_cores")); /* rows of a overlap, which cuBLASLt does not take */
    }
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_conv2d(carry_ctx *ctx, const carry_conv2d_args *a) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, a->y.device));
    int rows, columns, step;
    window_of(a->form, &rows, &columns, &step);
    const frame f = {(float *)a->y.data,    (const float *)a->bias.data, (const float *)a->add.data,
                     a->y.shape[0] - 2, a->y.shape[1] - 2,           a->y.shape[2],
                     a->relu};
    const int64_t count = f.rows * f.width * f.out;
    const int64_t pixels = (int64_t)rows * columns;
    inside_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(f, true);
    CARRY_TRY(launched(ctx, at, "conv2d cannot be launched"));
    for (int phase = 0; phase < (a->form == CARRY_CONV2D_DOUBLE ? 4 : 1); phase++) {
        const float *w = (const float *)a->w.data + phase * pixels * a->in * f.out;
        CARRY_TRY(add_products(ctx, at, a, &a->x, w, phase));
        if (a->past.data != NULL) {
            CARRY_TRY(add_products(ctx, at, a, &a->past, w + pixels * a->x.shape[2] * f.out, phase));
        }
    }
    if (a->relu) {
        inside_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(f, false);
    }
    return launched(ctx, at, "conv2d cannot be launched");
}
