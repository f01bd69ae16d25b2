/* CUDA's runtime on the CPU: memory, copies, streams, events and graphs. One lock for all; work is done at once, or
   kept when its stream is recorded.

   Device memory is one range of addresses that may be touched only while a kernel or a copy runs: a host that follows a
   device pointer ends with SIGSEGV, as it would with a GPU. Fresh memory is full of NaN.

   Kernels and copies are recorded for profiles, as CUPTI does on a GPU, with the CPU's clock.

   For tests of the Python package: with CARRY_EMULATE_HOST=1 in the environment, memory of the process counts as managed
   memory, which kernels may read. */
#include <atomic>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "runtime.h"

extern "C" {
#include "core/error.h"
#include "core/launching.h"
#include "comm/sums_device.h"
#include "device/activity.h"
}

struct emulated_stream {
    std::vector<std::function<void()>> *recorded; /* NULL: not recorded */
};
struct emulated_graph {
    std::vector<std::function<void()>> work;
};
struct emulated_event {
    double seconds;
};
struct emulated_pool {
    size_t held; /* bytes in use; freed memory is not kept */
    size_t kept; /* bytes reserved for a request that failed, as on an H200: the whole card */
};

namespace {

constexpr size_t RANGE = (size_t)8 << 30, TOTAL = (size_t)4 << 30, ALIGN = 512;
constexpr int UNITS = 4; /* several, so that work is split; they run one after another */

std::recursive_mutex lock;
std::atomic<int> waiting; /* ranks that wait for the flags of others */
char *range;
int range_file = -1; /* the file behind the range, which other processes map to read from it (IPC) */
size_t high; /* bytes of the range that were ever used */
size_t used;
int opened;
std::map<size_t, size_t> pieces; /* offset to bytes */
std::map<size_t, emulated_pool *> owners; /* the pool of each piece that is from one */
carry_activity_log *filled; /* NULL: nothing is recorded */
std::map<char *, size_t> opened_pieces; /* pieces of other processes, mapped for reading: address to bytes */
thread_local cudaError_t last_error;

cudaError_t keep(cudaError_t error) {
    last_error = error != cudaSuccess ? error : last_error;
    return error;
}

/* Device memory may be touched while an object of this type exists. */
struct touching {
    std::lock_guard<std::recursive_mutex> held;
    touching() : held(lock) {
        if (opened++ == 0 && high > 0) {
            (void)mprotect(range, high, PROT_READ | PROT_WRITE);
        }
    }
    ~touching() {
        if (--opened == 0 && high > 0) {
            (void)mprotect(range, high, PROT_NONE);
        }
    }
};

void run(cudaStream_t stream, std::function<void()> work) {
    if ((uintptr_t)stream > 2 && stream->recorded != NULL) {
        stream->recorded->push_back(std::move(work));
    } else {
        touching a;
        work();
    }
}

double now() {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wraps work so that a profile sees it. The work runs while device memory may be touched, so the lock is held. */
std::function<void()> watched(carry_activity about, const char *name, std::function<void()> work) {
    return [=] {
        const double start = now();
        work();
        if (filled != NULL) {
            carry_activity activity = about;
            activity.start = start;
            activity.end = now();
            carry_activity_add(filled, &activity, name);
        }
    };
}

carry_activity moved(carry_activity_kind kind, size_t bytes) {
    carry_activity about = {};
    about.kind = kind;
    about.bytes = (int64_t)bytes;
    return about;
}

bool is_opened(const void *pointer) {
    std::lock_guard<std::recursive_mutex> held(lock);
    auto next = opened_pieces.upper_bound((char *)pointer);
    return next != opened_pieces.begin() && (--next, (char *)pointer < next->first + next->second);
}

bool is_device(const void *pointer) {
    return range != NULL && (const char *)pointer >= range && (const char *)pointer < range + RANGE;
}

bool host_is_managed() {
    const char *text = getenv("CARRY_EMULATE_HOST");
    return text != NULL && atoi(text) != 0;
}

/* True if the whole piece is inside one allocation. */
bool is_inside(const void *pointer, size_t bytes) {
    if (!is_device(pointer)) {
        return true;
    }
    std::lock_guard<std::recursive_mutex> held(lock);
    const size_t at = (size_t)((const char *)pointer - range);
    auto next = pieces.upper_bound(at);
    return next != pieces.begin() && (--next, at + bytes <= next->first + next->second);
}

} // namespace

static std::atomic<long> launches_left{0}; /* launches until memory runs out; 0: it does not run out */

/* For tests: the n-th launch from now on finds no memory, once, as on a GPU that others have filled. */
extern "C" void carry_emulate_full_after(long n) {
    launches_left = n;
}

namespace emulate {

void enqueue(const config &c, const char *name, std::function<void()> kernel) {
    const char *why = refusal(c);
    if (launches_left > 0 && --launches_left == 0) {
        (void)keep(cudaErrorMemoryAllocation);
        return;
    }
    if (why != NULL) {
        fprintf(stderr, "emulated GPU: %s: %s\n", name, why);
        (void)keep(cudaErrorInvalidValue);
        return;
    }
    {
        const carry_launcher by = carry_launching();
        std::lock_guard<std::recursive_mutex> held(lock);
        if (filled != NULL && by.name != NULL) {
            carry_activity_launched(filled, name, &by);
        }
    }
    carry_activity about = {};
    about.kind = CARRY_ACTIVITY_KERNEL;
    about.grid[0] = (int32_t)c.grid.x;
    about.grid[1] = (int32_t)c.grid.y;
    about.grid[2] = (int32_t)c.grid.z;
    about.block[0] = (int32_t)c.block.x;
    about.block[1] = (int32_t)c.block.y;
    about.block[2] = (int32_t)c.block.z;
    run(c.stream, watched(about, name, [c, name, kernel] {
        for (unsigned z = 0; z < c.grid.z; z++) {
            for (unsigned y = 0; y < c.grid.y; y++) {
                for (unsigned x = 0; x < c.grid.x; x++) {
                    run_block(c, name, kernel, dim3(x, y, z));
                }
            }
        }
    }));
}

} // namespace emulate

extern "C" {

carry_status carry_cuda_activity_start(carry_ctx *ctx, carry_activity_log *log) {
    std::lock_guard<std::recursive_mutex> held(lock);
    if (getenv("CARRY_CUPTI") != NULL || filled != NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "kernels are not on the trace: %s",
                          filled != NULL ? "this process records them for another one already" : "libcupti was not found");
    }
    filled = log;
    return CARRY_OK;
}

carry_status carry_cuda_activity_stop(carry_ctx *, carry_activity_log *log) {
    std::lock_guard<std::recursive_mutex> held(lock);
    filled = NULL;
    for (int i = 0; i < CARRY_ACTIVITY_NAMES; i++) {
        carry_activity_sum *sum = &log->sum[i];
        char *shown = sum->name != NULL && sum->kind == CARRY_ACTIVITY_KERNEL ? (char *)malloc(CARRY_ACTIVITY_NAME) : NULL;
        if (shown != NULL) {
            carry_activity_shorten(shown, sum->name);
            free(sum->name);
            sum->name = shown;
        }
    }
    return CARRY_OK;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorInvalidDevice    ? "invalid device ordinal"
                                                : "invalid argument";
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = getenv("CARRY_EMULATE_NO_GPU") == NULL;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : keep(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = UNITS;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 << 10;
        break;
    case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 8;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    default:
        *value = 1000000;
        break;
    }
    return device == 0 ? cudaSuccess : keep(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    *p = cudaDeviceProp{};
    (void)snprintf(p->name, sizeof p->name, "emulated GPU");
    const char *major = getenv("CARRY_EMULATE_MAJOR"); /* of the compute capability */
    p->major = major != NULL ? atoi(major) : 8;
    p->multiProcessorCount = UNITS;
    p->l2CacheSize = 1 << 20;
    p->totalGlobalMem = TOTAL;
    p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin = 227 << 10;
    return device == 0 ? cudaSuccess : keep(cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    std::lock_guard<std::recursive_mutex> held(lock);
    *available = TOTAL - used;
    *total = TOTAL;
    return cudaSuccess;
}

/* Takes the first gap that is large enough, with one unused line more on either side. */
cudaError_t cudaMalloc(void **data, size_t bytes) {
    touching a;
    *data = NULL;
    if (bytes > TOTAL - used) {
        return keep(cudaErrorMemoryAllocation);
    }
    if (range == NULL) {
        range_file = memfd_create("emulated GPU", MFD_CLOEXEC);
        const bool is_shared = range_file >= 0 && ftruncate(range_file, (off_t)RANGE) == 0;
        range = (char *)mmap(NULL, RANGE, PROT_NONE, (is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE,
                             is_shared ? range_file : -1, 0);
        if (range == MAP_FAILED) {
            range = NULL;
            return keep(cudaErrorMemoryAllocation);
        }
    }
    size_t at = ALIGN;
    for (const auto &piece : pieces) {
        if (piece.first >= at + bytes + ALIGN) {
            break;
        }
        at = (piece.first + piece.second + 2 * ALIGN - 1) / ALIGN * ALIGN;
    }
    if (at + bytes + ALIGN > RANGE) {
        return keep(cudaErrorMemoryAllocation);
    }
    pieces[at] = bytes;
    used += bytes;
    const size_t end = (at + bytes + ALIGN + 65535) / 65536 * 65536;
    if (end > high) {
        high = end < RANGE ? end : RANGE;
        (void)mprotect(range, high, PROT_READ | PROT_WRITE);
    }
    memset(range + at, 0xff, bytes);
    *data = range + at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *data) {
    touching a;
    if (data == NULL) {
        return cudaSuccess;
    }
    const auto piece = is_device(data) ? pieces.find((size_t)((char *)data - range)) : pieces.end();
    if (piece == pieces.end()) {
        return keep(cudaErrorInvalidValue);
    }
    memset(data, 0xff, piece->second);
    used -= piece->second;
    if (owners.count(piece->first) > 0) {
        owners[piece->first]->held -= piece->second;
        owners.erase(piece->first);
    }
    pieces.erase(piece);
    return cudaSuccess;
}

/* An IPC handle says where the memory is mapped from: process, file and offset in it. */
struct handle_words {
    long process;
    int file;
    size_t at, bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *data) {
    std::lock_guard<std::recursive_mutex> held(lock);
    const auto piece = is_device(data) ? pieces.find((size_t)((char *)data - range)) : pieces.end();
    if (piece == pieces.end() || range_file < 0 || getenv("CARRY_EMULATE_NO_IPC") != NULL) {
        return keep(cudaErrorInvalidValue);
    }
    const handle_words words = {(long)getpid(), range_file, piece->first, piece->second};
    memcpy(handle, &words, sizeof words);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **data, cudaIpcMemHandle_t handle, unsigned) {
    handle_words words;
    char path[64];
    memcpy(&words, &handle, sizeof words);
    if (words.process == (long)getpid()) { /* as CUDA */
        return keep(cudaErrorInvalidValue);
    }
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", words.process, words.file);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const size_t before = words.at % (size_t)sysconf(_SC_PAGESIZE);
    char *mapped = file < 0 ? (char *)MAP_FAILED
                            : (char *)mmap(NULL, before + words.bytes, PROT_READ, MAP_SHARED, file, (off_t)(words.at - before));
    if (file >= 0) {
        (void)close(file);
    }
    if (mapped == (char *)MAP_FAILED) {
        return keep(cudaErrorInvalidValue);
    }
    std::lock_guard<std::recursive_mutex> held(lock);
    opened_pieces[mapped + before] = words.bytes;
    *data = mapped + before;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *data) {
    std::lock_guard<std::recursive_mutex> held(lock);
    const auto piece = opened_pieces.find((char *)data);
    if (piece == opened_pieces.end()) {
        return keep(cudaErrorInvalidValue);
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)data % page;
    (void)munmap((char *)data - before, before + piece->second);
    opened_pieces.erase(piece);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    (void)snprintf(text, (size_t)bytes, "emulated %d", device);
    return device == 0 ? cudaSuccess : keep(cudaErrorInvalidDevice);
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned) {
    *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *data != NULL ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *data) {
    free(data);
    return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *) {
    *pool = new emulated_pool();
    return cudaSuccess;
}

/* Memory may outlive it. */
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    std::lock_guard<std::recursive_mutex> held(lock);
    for (auto owner = owners.begin(); owner != owners.end();) {
        owner = owner->second == pool ? owners.erase(owner) : std::next(owner);
    }
    delete pool;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) {
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value) {
    std::lock_guard<std::recursive_mutex> held(lock);
    *(uint64_t *)value = pool->held + (attribute == cudaMemPoolAttrReservedMemCurrent ? pool->kept : 0);
    return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    std::lock_guard<std::recursive_mutex> held(lock);
    pool->kept = 0;
    return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void **data, size_t bytes, cudaMemPool_t pool, cudaStream_t) {
    std::lock_guard<std::recursive_mutex> held(lock);
    const cudaError_t error = cudaMalloc(data, bytes);
    if (error == cudaSuccess) {
        owners[(size_t)((char *)*data - range)] = pool;
        pool->held += bytes;
        pool->kept = 0;
    } else {
        pool->kept = TOTAL - used;
    }
    return error;
}

cudaError_t cudaFreeAsync(void *data, cudaStream_t) {
    return cudaFree(data);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    attributes->type = is_device(pointer) || is_opened(pointer) ? cudaMemoryTypeDevice
                       : host_is_managed() ? cudaMemoryTypeManaged
                                           : cudaMemoryTypeUnregistered;
    attributes->device = 0;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    if (!is_inside(to, bytes) || !is_inside(from, bytes)) {
        return keep(cudaErrorInvalidValue);
    }
    const char *name = is_device(to) == is_device(from) ? "copy within the device"
                       : is_device(to)                  ? "copy host to device"
                                                        : "copy device to host";
    run(stream, watched(moved(CARRY_ACTIVITY_COPY, bytes), name, [=] { memmove(to, from, bytes); }));
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    if (!is_inside(to, bytes)) {
        return keep(cudaErrorInvalidValue);
    }
    run(stream, watched(moved(CARRY_ACTIVITY_FILL, bytes), "fill", [=] { memset(to, byte, bytes); }));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes) {
    return cudaMemsetAsync(to, byte, bytes, NULL);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = new emulated_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) {
    *least = *most = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream->recorded;
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stream->recorded != NULL) {
        return keep(cudaErrorInvalidValue);
    }
    stream->recorded = new std::vector<std::function<void()>>();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    if (stream->recorded == NULL) {
        return keep(cudaErrorInvalidValue);
    }
    *graph = new emulated_graph{std::move(*stream->recorded)};
    delete stream->recorded;
    stream->recorded = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    const bool is = (uintptr_t)stream > 2 && stream->recorded != NULL;
    *status = is ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

/* As the driver may do it: takes a while, every second time, and waits until no work runs, which never happens if that
   work waits for this thread. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long) {
    static std::atomic<int> calls;
    if (calls++ % 2 == 1) {
        usleep(20000);
    }
    while (waiting > 0) {
        sched_yield();
    }
    *ready = new emulated_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    for (const auto &work : graph->work) {
        run(stream, work);
    }
    return cudaSuccess;
}

/* src/comm/cuda/sums_system.cu: the other ranks are threads that need the lock to arrive here. */
int carry_sums_wait(const carry_sums_device *given, int which, void *stream) {
    const carry_sums_device d = *given;
    run((cudaStream_t)stream, [d, which] {
        carry_sums_state *state = (carry_sums_state *)d.memory[d.rank];
        const double start = now();
        waiting++;
        for (int r = 0; r < d.ranks && state->late == 0; r++) {
            volatile unsigned long long *flag = &state->flag[which][r];
            while (*flag < state->round && state->late == 0) {
                if (1e9 * (now() - start) > (double)d.patience || *(volatile int *)&d.over[r] != 0) {
                    state->late = 1;
                    *(volatile int *)&d.over[d.rank] = 1;
                }
                lock.unlock();
                sched_yield();
                lock.lock();
            }
        }
        waiting--;
    });
    return 0;
}

int carry_sums_sharing(void) {
    return CARRY_SUMS_RANKS;
}

int carry_sums_reach(int ordinal, int other) {
    return ordinal == other ? 0 : (int)cudaErrorNotSupported;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new emulated_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    event->seconds = now();
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    *milliseconds = (float)(1e3 * (to->seconds - from->seconds));
    return cudaSuccess;
}
}
