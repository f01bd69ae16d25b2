/* Operators on pools of states on NVIDIA GPUs (ops/pool.h). A launch does not depend on the contents of its lists,
   so calls can be recorded in graphs. */
#include "ops/cuda/nn.cuh"

template <typename T> struct conv_step_map {
    row_of<T> y, x;
    mixed w;
    float *tails;
    int64_t channels, x_row;
    int activation;
};

template <typename T> struct conv_step_job {
    conv_step_map<T> map[CARRY_CONV_STEP_MAPS];
    const int32_t *slots, *from;
    int64_t batch;
    int width;
};

/* A thread has one channel of one sequence; blockIdx.y is the map. */
template <typename T>
__global__ void __launch_bounds__(THREADS) conv_step_kernel(const __grid_constant__ conv_step_job<T> job) {
    const conv_step_map<T> &map = job.map[blockIdx.y];
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= job.batch * map.channels) {
        return;
    }
    const int width = job.width;
    const int64_t b = i / map.channels, c = i % map.channels;
    const float *tail = map.tails + (int64_t)job.from[b] * (width - 1) * map.channels + c;
    float *moved = map.tails + (int64_t)job.slots[b] * (width - 1) * map.channels + c;
    const float next = map.x.get(b * map.x_row + c);
    float sum = 0.0f;
    for (int k = 0; k < width - 1; k++) {
        const float seen = tail[k * map.channels];
        sum = fmaf(map.w[c * width + k], seen, sum);
        if (k > 0) {
            moved[(k - 1) * map.channels] = seen;
        }
    }
    if (width > 1) {
        moved[(width - 2) * map.channels] = next;
    }
    map.y.put(i, activate_one(fmaf(map.w[c * width + width - 1], next, sum), map.activation));
}

extern "C" carry_status carry_cuda_conv_step(carry_ctx *ctx, const carry_conv_step_args *args) {
    place at = {};
    const carry_conv_step_map &first = args->map[0];
    CARRY_TRY(open_place(ctx, &at, first.x.device));
    with_type(first.x.dtype, [&](auto type) {
        using T = decltype(type);
        conv_step_job<T> job = {};
        int64_t most = 0;
        job.slots = args->slots;
        job.from = args->from != NULL ? args->from : args->slots;
        job.batch = first.x.shape[0];
        job.width = (int)first.w.shape[first.w.rank - 1];
        for (int i = 0; i < args->maps; i++) {
            const carry_conv_step_map &map = args->map[i];
            job.map[i] = {row<T>(map.y),  row<T>(map.x),   mixed_of(map.w),    (float *)map.tails.data,
                          map.x.shape[1], row_step(map.x), (int)map.activation};
            most = map.x.shape[1] > most ? map.x.shape[1] : most;
        }
        const dim3 grid((unsigned)((job.batch * most + THREADS - 1) / THREADS), (unsigned)args->maps);
        if (job.batch * most > 0) {
            conv_step_kernel<T><<<grid, THREADS, 0, at.stream>>>(job);
        }
    });
    return launched(ctx, at, "conv_step cannot be launched");
}

/* Copies rows of `units` elements of type U: row i of `from` to row rows[i] of `to`; take_pages_kernel: token t in the
   pages of `from` to row t of `to`. */
template <typename U>
__global__ void __launch_bounds__(THREADS)
    put_rows_kernel(U *to, const U *from, const int64_t *rows, int64_t count, int64_t units) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * units; i += step) {
        to[rows[i / units] * units + i % units] = from[i];
    }
}

template <typename U>
__global__ void __launch_bounds__(THREADS)
    take_pages_kernel(U *to, const U *from, const int32_t *pages, int64_t count, int64_t units) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * units; i += step) {
        const int64_t t = i / units;
        const int64_t row = (int64_t)pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
        to[i] = from[row * units + i % units];
    }
}

/* Calls f with a value of the type to copy by, and the number of such units in a row: uint4 if 16 divides the bytes of
   a row and both addresses, else uint16_t. */
template <typename F> static void with_unit(const carry_tensor &a, const carry_tensor &b, F f) {
    const size_t bytes = (size_t)a.shape[1] * carry_dtype_size(a.dtype);
    if ((bytes | (uintptr_t)a.data | (uintptr_t)b.data) % sizeof(uint4) == 0) {
        f(uint4{}, (int64_t)(bytes / sizeof(uint4)));
    } else {
        f((uint16_t)0, (int64_t)(bytes / sizeof(uint16_t)));
    }
}

/* blockIdx.y is the row. */
template <typename U>
__global__ void __launch_bounds__(THREADS)
    copy_slots_kernel(U *pool, const int32_t *to, const int32_t *from, int64_t units) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    U *into = pool + to[blockIdx.y] * units;
    const U *source = pool + from[blockIdx.y] * units;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < units; i += step) {
        into[i] = source[i];
    }
}

extern "C" carry_status carry_cuda_copy_slots(carry_ctx *ctx, carry_tensor pool, const int32_t *to, const int32_t *from,
                                              int64_t count) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, pool.device));
    if (count * pool.shape[1] > 0) {
        with_unit(pool, pool, [&](auto unit, int64_t units) {
            using U = decltype(unit);
            const dim3 grid((unsigned)blocks_for(units, THREADS), (unsigned)count);
            copy_slots_kernel<U><<<grid, THREADS, 0, at.stream>>>((U *)pool.data, to, from, units);
        });
    }
    return launched(ctx, at, "copy_slots cannot be launched");
}

/* The same between a pool and an array of rows; one of the lists is NULL: the rows in order. */
template <typename U>
__global__ void __launch_bounds__(THREADS)
    move_slots_kernel(U *to, const U *from, const int32_t *into, const int32_t *out, int64_t units) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    to += (into != NULL ? into[blockIdx.y] : (int64_t)blockIdx.y) * units;
    from += (out != NULL ? out[blockIdx.y] : (int64_t)blockIdx.y) * units;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < units; i += step) {
        to[i] = from[i];
    }
}

/* The same with a pool in bf16 and rows in f32. */
template <typename U, typename V>
__global__ void __launch_bounds__(THREADS)
    convert_slots_kernel(row_of<U> to, row_of<V> from, const int32_t *into, const int32_t *out, int64_t n) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const int64_t to_row = (into != NULL ? into[blockIdx.y] : (int64_t)blockIdx.y) * n;
    const int64_t from_row = (out != NULL ? out[blockIdx.y] : (int64_t)blockIdx.y) * n;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        to.put(to_row + i, from.get(from_row + i));
    }
}

template <typename U, typename V>
static void convert_slots(const place &at, const carry_tensor &to, const carry_tensor &from, const int32_t *into,
                          const int32_t *out, int64_t count) {
    const dim3 grid((unsigned)blocks_for(to.shape[1], THREADS), (unsigned)count);
    convert_slots_kernel<U, V><<<grid, THREADS, 0, at.stream>>>(row<U>(to), row<V>(from), into, out, to.shape[1]);
}

static carry_status move_slots(carry_ctx *ctx, const carry_tensor &to, const carry_tensor &from, const int32_t *into,
                               const int32_t *out, int64_t count) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    if (count * to.shape[1] > 0 && to.dtype != from.dtype) {
        to.dtype == CARRY_F32 ? convert_slots<type_f32, type_bf16>(at, to, from, into, out, count)
                              : convert_slots<type_bf16, type_f32>(at, to, from, into, out, count);
    } else if (count * to.shape[1] > 0) {
        with_unit(to, from, [&](auto unit, int64_t units) {
            using U = decltype(unit);
            const dim3 grid((unsigned)blocks_for(units, THREADS), (unsigned)count);
            move_slots_kernel<U><<<grid, THREADS, 0, at.stream>>>((U *)to.data, (const U *)from.data, into, out, units);
        });
    }
    return launched(ctx, at, "states cannot be copied");
}

extern "C" carry_status carry_cuda_take_slots(carry_ctx *ctx, carry_tensor to, carry_tensor pool,
                                              const int32_t *slots) {
    return move_slots(ctx, to, pool, NULL, slots, to.shape[0]);
}

extern "C" carry_status carry_cuda_put_slots(carry_ctx *ctx, carry_tensor pool, carry_tensor from,
                                             const int32_t *slots) {
    return move_slots(ctx, pool, from, slots, NULL, from.shape[0]);
}

extern "C" carry_status carry_cuda_put_rows(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int64_t *rows) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    const int64_t count = from.shape[0];
    if (count * from.shape[1] > 0) {
        with_unit(to, from, [&](auto unit, int64_t units) {
            using U = decltype(unit);
            put_rows_kernel<U><<<blocks_for(count * units, THREADS), THREADS, 0, at.stream>>>(
                (U *)to.data, (const U *)from.data, rows, count, units);
        });
    }
    return launched(ctx, at, "put_rows cannot be launched");
}

extern "C" carry_status carry_cuda_take_pages(carry_ctx *ctx, carry_tensor to, carry_tensor from,
                                              const int32_t *pages) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, to.device));
    const int64_t count = to.shape[0];
    if (count * to.shape[1] > 0) {
        with_unit(to, from, [&](auto unit, int64_t units) {
            using U = decltype(unit);
            take_pages_kernel<U><<<blocks_for(count * units, THREADS), THREADS, 0, at.stream>>>(
                (U *)to.data, (const U *)from.data, pages, count, units);
        });
    }
    return launched(ctx, at, "take_pages cannot be launched");
}

__global__ void __launch_bounds__(THREADS)
    rotary_turns_kernel(float2 *table, const int64_t *positions, const float *rates, int64_t tokens, int64_t half) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < tokens * half; i += step) {
        const float angle = (float)positions[i / half] * rates[i % half];
        double sine, cosine;
        sincos((double)angle, &sine, &cosine);
        table[i] = make_float2((float)cosine, (float)sine);
    }
}

extern "C" carry_status carry_cuda_rotary_turns(carry_ctx *ctx, carry_tensor table, const int64_t *positions,
                                                const float *rates) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, table.device));
    const int64_t tokens = table.shape[0], half = table.shape[1];
    if (tokens * half > 0) {
        rotary_turns_kernel<<<blocks_for(tokens * half, THREADS), THREADS, 0, at.stream>>>(
            (float2 *)table.data, positions, rates, tokens, half);
    }
    return launched(ctx, at, "rotary_turns cannot be launched");
}
