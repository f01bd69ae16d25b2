/* The wait of comm/sums.h, one block whose threads read a flag each, and access to other GPUs. The emulated GPU has
   functions of its own in place of these (tests/emulate/runtime.cpp). */
#include "device/cuda.h"

extern "C" {
#include "comm/sums_device.h"
}

namespace {

__device__ unsigned long long nanoseconds() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__device__ unsigned long long seen(const unsigned long long *flag) {
    unsigned long long value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

/* A rank that closes has raised its flags before: a flag that is missing then will not come. */
__device__ bool is_over(const carry_sums_device &d, const unsigned long long *flag, int rank,
                        unsigned long long round) {
    return *(volatile const int *)&d.over[rank] != 0 && seen(flag) < round;
}

__global__ void wait_for(const __grid_constant__ carry_sums_device d, int which) {
    carry_sums_state *state = (carry_sums_state *)d.memory[d.rank];
    const int r = (int)threadIdx.x;
    const unsigned long long start = nanoseconds(), round = state->round;
    if (r >= d.ranks || *(volatile unsigned *)&state->late != 0) {
        return;
    }
    const unsigned long long *flag = &state->flag[which][r];
    for (unsigned tries = 1; seen(flag) < round; tries++) {
        if (tries % 64 == 0 && (nanoseconds() - start > d.patience || is_over(d, flag, r, round))) {
            state->late = 1;
            *(volatile int *)&d.over[d.rank] = 1;
            break;
        }
        __nanosleep(100);
    }
    __threadfence_system();
}

} // namespace

extern "C" int carry_sums_wait(const carry_sums_device *d, int flag, void *stream) {
    wait_for<<<1, 32, 0, (cudaStream_t)stream>>>(*d, flag);
    return (int)cudaGetLastError();
}

/* Two ranks on one GPU were seen to work; a test with up to eight did not end (docs/results/stream-cluster.md). */
extern "C" int carry_sums_sharing(void) {
    return 2;
}

extern "C" int carry_sums_reach(int ordinal, int other) {
    int can = 0;
    if (ordinal == other) { /* loads the kernel, too, before any rank waits in it (sums.cu) */
        cudaFuncAttributes loaded;
        return (int)cudaFuncGetAttributes(&loaded, wait_for);
    }
    cudaError_t error = cudaDeviceCanAccessPeer(&can, ordinal, other);
    if (error == cudaSuccess) {
        error = can ? cudaDeviceEnablePeerAccess(other, 0) : cudaErrorPeerAccessUnsupported;
    }
    (void)cudaGetLastError();
    return error == cudaErrorPeerAccessAlreadyEnabled ? 0 : (int)error;
}
