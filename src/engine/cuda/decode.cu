/* The launcher of the decoding kernel. */
#include "engine/cuda/decode_attend.cuh"

#include "device/cuda.h"

namespace decode {

static __device__ void consume(const carry_decode_call &call, const view &v) {
    unsigned filled = 0; /* slots of the ring, by the operations so far */
    if (threadIdx.x < 32) {
        fetch(&v.head->op[0], call.ops, threadIdx.x);
    }
    consumers_sync();
    for (int i = 0; i < call.count; i++) {
        const carry_decode_op &op = v.head->op[i % 2];
        if (threadIdx.x / 32 == WARPS - 1 && i + 1 < call.count) {
            fetch(&v.head->op[(i + 1) % 2], call.ops + i + 1, threadIdx.x % 32);
        }
        if (op.kind == CARRY_DECODE_PRODUCT) {
            run_product(call, op, i, v, filled);
        } else if (op.kind == CARRY_DECODE_DELTA) {
            run_delta(call, op, i, v);
        } else if (op.kind == CARRY_DECODE_ATTEND) {
            run_attend(call, op, i, v);
        } else if (op.kind == CARRY_DECODE_COMBINE) {
            run_combine(call, op, i);
        } else {
            run_embed(call, op, i);
        }
    }
}

static __global__ __launch_bounds__(ALL, 1) void step(const __grid_constant__ carry_decode_call call, int slots,
                                                      int x_stride) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    const view v = {(shared_head *)memory, memory + HEAD_BYTES,
                    (__nv_bfloat16 *)(memory + HEAD_BYTES + (size_t)slots * SLOT_BYTES), slots, x_stride};
    if (threadIdx.x == 0) {
        for (int i = 0; i < slots; i++) {
            hopper::barrier_init(hopper::shared_address(&v.head->full[i]), 1);
            hopper::barrier_init(hopper::shared_address(&v.head->empty[i]), WARPS);
        }
        hopper::fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        hopper::registers_give<40>();
        if (threadIdx.x < THREADS + 32) {
            produce(call, v);
        }
    } else {
        hopper::registers_take<232>();
        consume(call, v);
    }
#endif
}

} // namespace decode

extern "C" int carry_decode_blocks(int ordinal) {
    cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, ordinal) == cudaSuccess && p.major == 9 ? p.multiProcessorCount : 0;
}

extern "C" int carry_decode_slots(int sequences, int columns) {
    const int left = 227 * 1024 - decode::HEAD_BYTES - sequences * (columns + decode::X_PAD) * 2;
    const int slots = left / decode::SLOT_BYTES;
    return slots < decode::MAX_SLOTS ? slots : decode::MAX_SLOTS;
}

extern "C" int carry_decode_team(const carry_decode_product *product, int tiles, int blocks, int slots) {
    const int each = (product->output == CARRY_DECODE_SWIGLU ? 2 : 1) *
                     ((product->columns + CARRY_DECODE_COLUMNS - 1) / CARRY_DECODE_COLUMNS);
    int team = 1;
    while (team < decode::WARPS && (decode::WARPS / team * each > slots || decode::WARPS / team > (tiles - 1) / blocks + 1)) {
        team *= 2;
    }
    return team;
}

extern "C" carry_status carry_decode_launch(carry_ctx *ctx, int ordinal, carry_stream *stream,
                                            const carry_decode_call *call, int columns) {
    const int stride = columns + decode::X_PAD;
    const int slots = carry_decode_slots(call->sequences, columns);
    if (call->sequences < 1 || call->sequences > CARRY_DECODE_SEQUENCES || slots < 2) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%d sequences of products of %d columns do not fit the decoding kernel",
                          call->sequences, columns);
    }
    const size_t bytes = decode::HEAD_BYTES + (size_t)slots * decode::SLOT_BYTES + (size_t)call->sequences * stride * 2;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(decode::step, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                   "preparing the decoding kernel");
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)carry_decode_blocks(ordinal));
    config.blockDim = dim3(decode::ALL);
    config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, decode::step, *call, slots, stride), "launching the decoding kernel");
    return CARRY_OK;
}
