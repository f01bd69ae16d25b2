/* Convolutions of pictures on NVIDIA GPUs: the products of conv2d.c, with all rows of a picture in one batch. The
   values that the products are added to are written first, and relu is applied afterwards.

   f32 weights have the layout that conv2d.c packs with one panel of all output channels. bf16 has its own kernels
   (conv2d_bf16.cu, conv2d_hopper.cu) and weights in their layout. */
#include "ops/cuda/conv2d.cuh"

struct frame {
    float *y;
    const float *bias, *add;
    int64_t rows, width, out; /* sizes without the frame */
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

/* Like weight() of conv2d.c. */
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

/* Channels of an input, and of all inputs before it, like channels_of() of conv2d.c. */
struct parts {
    int64_t in, first;
    __host__ __device__ int64_t channels(int which) const {
        return which == 0 || in == CONV2D_INPUTS * first ? first : which == 1 ? in - first : 0;
    }
};

/* The weight at index `place`, counted over inputs, pixels of a window and channels. */
static __device__ float weight_at(const float *taps, parts p, int form, int window, int phase, int64_t place) {
    const int64_t pixels = (int64_t)window * window;
    int which = 0;
    int64_t before = 0;
    while (which + 1 < CONV2D_INPUTS && place >= pixels * (before + p.channels(which))) {
        before += p.channels(which);
        which++;
    }
    const int64_t inner = place - pixels * before, pixel = inner / p.channels(which);
    const int64_t i = before + inner % p.channels(which);
    const int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    return weight_of(taps + i * side * side, form, phase, (int)(pixel / window), (int)(pixel % window));
}

/* f32: output channels vary fastest; bf16: one row of all places per output channel. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pack_kernel(row_of<T> to, const float *from, parts p, int form, int window, int64_t out, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    const int64_t depth = (int64_t)window * window * p.in;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {
        const int phase = (int)(at / (depth * out));
        const bool rows = sizeof(typename T::stored) == 2;
        const int64_t c = rows ? at / depth % out : at % out, place = rows ? at % depth : at / out % depth;
        to.put(at, weight_at(from + c * p.in * side * side, p, form, window, phase, place));
    }
}

extern "C" carry_status carry_cuda_conv2d_pack(carry_ctx *ctx, carry_tensor to, carry_tensor from,
                                               carry_conv2d_form form, int64_t first) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    const int64_t count = to.shape[0];
    if (count == 0) {
        return CARRY_OK;
    }
    with_type(to.dtype, [&](auto type) {
        using T = decltype(type);
        pack_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            row<T>(to), (const float *)from.data, parts{from.shape[1], first}, (int)form, window_of(form).side,
            from.shape[0], count);
    });
    return launched(ctx, at, "conv2d_pack cannot be launched");
}

/* Adds the products of one input with its weights, for the output pixels of one phase. Every row is an item of the
   batch. */
static carry_status add_products(carry_ctx *ctx, const place &at, const carry_conv2d_args *a, const carry_tensor *from,
                                 const float *w, int phase) {
    const bool twice = a->form == CARRY_CONV2D_DOUBLE;
    const conv2d_window window = window_of(a->form);
    const int64_t channels = from->shape[2], pitch = from->shape[1] * channels;
    const int64_t out = a->y.shape[2], y_pitch = a->y.shape[1] * out;
    const int64_t down = phase / 2, side = phase % 2; /* of a doubled picture */
    carry_device_product p = {};
    p.m = (a->y.shape[1] - 2) / (twice ? 2 : 1);
    p.count = (a->y.shape[0] - 2) / (twice ? 2 : 1);
    p.n = out;
    p.k = window.side * channels;
    p.a_row = window.step * channels;
    p.a_next = window.step * pitch;
    p.b_row = out;
    p.c = (float *)a->y.data + (1 + down) * y_pitch + (1 + side) * out;
    p.c_row = twice ? 2 * out : out;
    p.c_next = twice ? 2 * y_pitch : y_pitch;
    p.type = p.c_type = CARRY_F32;
    p.accumulate = true;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    for (int r = 0; r < window.side; r++) {
        p.a = (const float *)from->data + (window.start + down + r) * pitch + (window.start + side) * channels;
        p.b = w + r * p.k * out;
        CARRY_TRY(carry_cuda_product(ctx, &p, "tensor_cores")); /* rows of a overlap, which cuBLASLt does not accept */
    }
    return CARRY_OK;
}

static carry_status conv2d_f32(carry_ctx *ctx, const carry_conv2d_args *a, const place &at) {
    const conv2d_window window = window_of(a->form);
    const frame f = {(float *)a->y.data,
                     (const float *)a->bias.data,
                     (const float *)a->add.data,
                     a->y.shape[0] - 2,
                     a->y.shape[1] - 2,
                     a->y.shape[2],
                     a->relu};
    const carry_tensor *from[CONV2D_INPUTS] = {&a->x, &a->past, &a->older};
    const int64_t count = f.rows * f.width * f.out;
    const int64_t pixels = (int64_t)window.side * window.side;
    inside_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(f, true);
    CARRY_TRY(launched(ctx, at, "conv2d cannot be launched"));
    for (int phase = 0; phase < window.phases; phase++) {
        const float *w = (const float *)a->w.data + phase * pixels * a->in * f.out;
        for (int i = 0; i < CONV2D_INPUTS && from[i]->data != NULL; i++) {
            CARRY_TRY(add_products(ctx, at, a, from[i], w, phase));
            w += pixels * from[i]->shape[2] * f.out;
        }
    }
    if (a->relu) {
        inside_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(f, false);
    }
    return launched(ctx, at, "conv2d cannot be launched");
}

static conv2d_job job_of(const carry_conv2d_args *a) {
    const carry_tensor *from[CONV2D_INPUTS] = {&a->x, &a->past, &a->older};
    const bool twice = a->form == CARRY_CONV2D_DOUBLE;
    conv2d_job job = {};
    while (job.inputs < CONV2D_INPUTS && from[job.inputs]->data != NULL) {
        job.from[job.inputs] = (const uint16_t *)from[job.inputs]->data;
        job.channels[job.inputs] = (int)from[job.inputs]->shape[2];
        job.inputs++;
    }
    job.y = (uint16_t *)a->y.data;
    job.w = (const uint16_t *)a->w.data;
    job.add = (const uint16_t *)a->add.data;
    job.bias = (const float *)a->bias.data;
    job.x_height = (int)a->x.shape[0];
    job.x_width = (int)a->x.shape[1];
    job.height = (int)(a->y.shape[0] - 2) / (twice ? 2 : 1);
    job.width = (int)(a->y.shape[1] - 2) / (twice ? 2 : 1);
    job.out = (int)a->y.shape[2];
    job.window = window_of(a->form);
    job.depth = job.window.side * job.window.side * (int)a->in;
    job.relu = a->relu;
    return job;
}

extern "C" carry_status carry_cuda_conv2d(carry_ctx *ctx, const carry_conv2d_args *a) {
    place at = {};
    bool done = false;
    CARRY_TRY(open_place(ctx, &at, a->y.device));
    if (a->y.dtype == CARRY_F32) {
        return conv2d_f32(ctx, a, at);
    }
    if (a->y.shape[0] * a->y.shape[1] > INT32_MAX || carry_tensor_count(&a->w) > INT32_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "conv2d: a picture or its weights have more than 2^31 - 1 elements");
    }
    const conv2d_job job = job_of(a);
    CARRY_TRY(carry_conv2d_hopper(ctx, job, at, &done));
    return done ? CARRY_OK : carry_conv2d_bf16(ctx, job, at);
}
