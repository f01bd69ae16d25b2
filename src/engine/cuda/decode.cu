/* The launcher of the decoding kernel. */
#include "engine/cuda/decode_attend.cuh"
#include "engine/cuda/decode_delta.cuh"
#include "engine/cuda/decode_product.cuh"

#include "device/cuda.h"

namespace decode {

template <bool MANY> [[maybe_unused]] static __device__ void consume(const carry_decode_call &call, const view &v) {
    unsigned filled = 0; /* number of ring slots filled by the operations so far */
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
            run_product<MANY>(call, op, i, v, filled);
        } else if (op.kind == CARRY_DECODE_DELTA) {
            run_delta(call, op, i, v);
        } else if (op.kind == CARRY_DECODE_ATTEND) {
            run_attend(call, op, i, v);
        } else if (op.kind == CARRY_DECODE_COMBINE) {
            run_combine(call, op, i);
        } else {
            run_embed(call, op, i);
        }
        consumers_sync(); /* after it, the operation and its shared memory may be overwritten */
    }
}

template <bool MANY>
static __global__ __launch_bounds__(ALL, 1) void step(const __grid_constant__ carry_decode_call call, int slots,
                                                      int x_stride) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ shared_head head; /* static: its size shows whether the kernel is in this build (blocks) */
    const view v = {&head, memory, (__nv_bfloat16 *)(memory + (size_t)slots * SLOT_BYTES), slots, x_stride};
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
        consume<MANY>(call, v);
    }
#endif
}

/* Adds new pages of sequences to the table, before the step. */
static __global__ void put_pages(int32_t *table, int pages_each, const carry_decode_turn *turn) {
    for (int i = threadIdx.x; i < turn->page_count; i += blockDim.x) {
        const carry_decode_page &p = turn->page[i];
        table[(size_t)p.slot * pages_each + p.index] = p.page;
    }
}

/* The kernel has code only for sm_90a, which a build may lack. */
static int blocks(int ordinal) {
    int count = 0, major = 0;
    cudaFuncAttributes attributes;
    const bool works = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                       major == 9 && cudaFuncGetAttributes(&attributes, step<false>) == cudaSuccess &&
                       attributes.sharedSizeBytes > 0 &&
                       cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess;
    (void)cudaGetLastError();
    return works ? count : 0;
}

static int slots_of(int sequences, int columns) {
    const int most = 227 * 1024 - (int)sizeof(shared_head) - 1024; /* the runtime reserves 1,024 */
    const int slots = (most - sequences * (columns + X_PAD) * 2) / SLOT_BYTES;
    return slots < MAX_SLOTS ? slots : MAX_SLOTS;
}

/* Returns the number of warps in a team: the smallest for which every team has a tile and the ring is large enough,
   otherwise WARPS, a single team.

   A tile fills `each` slots of the ring. A warp skips the slots of other teams. The parity of a slot distinguishes only
   one round of the ring from the next, so when a warp waits for a slot, the slot must already have been filled in the
   round before. With several teams this needs two conditions. First, the ring holds one tile of every team. Second, it
   holds one tile of every other team, the slot that the warp waits for, and IN_FLIGHT slots that are being copied. A
   single team needs neither, since its warps use every slot. */
static int team_of(const carry_decode_product *p, int tiles, int blocks_, int slots) {
    const int each =
        (p->output == CARRY_DECODE_SWIGLU ? 2 : 1) * ((p->columns + CARRY_DECODE_COLUMNS - 1) / CARRY_DECODE_COLUMNS);
    const int of_block = (tiles + blocks_ - 1) / blocks_;
    int team = 1;
    while (team < WARPS) {
        const int teams = WARPS / team;
        if (teams <= of_block && teams * each <= slots && (teams - 1) * each + 1 + IN_FLIGHT <= slots) {
            break;
        }
        team *= 2;
    }
    return team;
}

template <bool MANY>
static carry_status launch_step(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_decode_call *call,
                                int columns) {
    const int stride = columns + X_PAD, slots = slots_of(call->sequences, columns);
    const size_t bytes = (size_t)slots * SLOT_BYTES + (size_t)call->sequences * stride * 2;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(step<MANY>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                   "shared memory of the decoding kernel");
    cudaLaunchAttribute attribute; /* all blocks must be resident, since they wait for one another */
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks(ordinal));
    config.blockDim = dim3(ALL);
    config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, step<MANY>, *call, slots, stride),
                   "the decoding kernel could not be launched");
    return CARRY_OK;
}

static carry_status launch(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_decode_call *call,
                           int columns, int new_pages) {
    if (call->sequences < 1 || call->sequences > CARRY_DECODE_SEQUENCES || slots_of(call->sequences, columns) < 2) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the decoding kernel has no space for %d sequences and products of %d columns",
                          call->sequences, columns);
    }
    if (new_pages > 0) {
        put_pages<<<1, 256, 0, (cudaStream_t)stream>>>(call->table, call->pages_each, call->turn);
        CARRY_CUDA_TRY(cudaGetLastError(), "the table of pages could not be changed");
    }
    return call->sequences > CARRY_DECODE_FEW ? launch_step<true>(ctx, ordinal, stream, call, columns)
                                              : launch_step<false>(ctx, ordinal, stream, call, columns);
}

} // namespace decode

extern "C" const carry_decode_device carry_decode_cuda = {"cuda", decode::blocks, decode::slots_of, decode::team_of,
                                                          decode::launch};
