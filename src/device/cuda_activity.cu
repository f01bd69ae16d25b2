/* Kernels, copies and fills of NVIDIA GPUs as reported by CUPTI, for profiles.

   CUPTI is opened only when a profile starts: a binary needs it neither to run nor to be linked. It fills our
   buffers and returns them on its own thread, which adds their records to the log at once, so that a few buffers
   suffice for any number of kernels. Kernels of graphs are reported one by one, like others. CUPTI's clock differs
   from carry_seconds: both are read at the start and at the stop, and times in between are interpolated. */
#include "device/cuda.h"

#include <atomic>
#include <cxxabi.h>
#include <dlfcn.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "core/clock.h"
#include "core/launching.h"
#include "device/activity.h"
}

#if __has_include(<cupti.h>)
#include <cupti.h>

#define FUNCTIONS(X)                     \
    X(cuptiActivityRegisterCallbacks)    \
    X(cuptiActivityEnable)               \
    X(cuptiActivityDisable)              \
    X(cuptiActivityFlushAll)             \
    X(cuptiActivityGetNextRecord)        \
    X(cuptiActivityGetNumDroppedRecords) \
    X(cuptiGetTimestamp)                 \
    X(cuptiSubscribe)                    \
    X(cuptiUnsubscribe)                  \
    X(cuptiEnableCallback)               \
    X(cuptiGetResultString)

/* Each buffer holds some thousands of records. While CUPTI holds MOST_BUFFERS, it drops and counts further records. */
static const size_t BUFFER_BYTES = (size_t)1 << 20;
static const int MOST_BUFFERS = 32;
static const int CLOCK_READINGS = 64;
static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION};

/* Both clocks, read at the same time. */
typedef struct moment {
    double seconds;
    uint64_t stamp; /* nanoseconds, CUPTI's */
} moment;

typedef struct functions {
#define X(name) decltype(&::name) name;
    FUNCTIONS(X)
#undef X
} functions;

/* One per process, as CUPTI is. */
static functions call;
static moment first;
static std::atomic<int> buffers; /* buffers that CUPTI holds */
static std::mutex log_lock;
static CUpti_SubscriberHandle subscriber; /* NULL: launches are not watched */
static carry_activity_log *filled;        /* NULL: nothing is recorded; guarded by log_lock */

static void *open_library(void) {
    static const char *const places[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"};
    const char *path = getenv("CARRY_CUPTI");
    if (path != NULL && path[0] != '\0') {
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    void *library = NULL;
    for (int versioned = 1; library == NULL && versioned >= 0; versioned--) {
        for (size_t i = 0; library == NULL && i < sizeof places / sizeof places[0]; i++) {
            char name[96];
            (void)snprintf(name, sizeof name, versioned != 0 ? "%slibcupti.so.%d" : "%slibcupti.so", places[i],
                           CUDART_VERSION / 1000);
            library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return library;
}

static carry_status failed(carry_ctx *ctx, CUptiResult result, const char *what) {
    const char *words = NULL;
    (void)call.cuptiGetResultString(result, &words);
    return carry_fail(ctx, CARRY_EDEVICE, "%s: %s (%d)", what, words != NULL ? words : "an error without a name",
                      (int)result);
}

/* The library stays open: one of its threads may still run its code. */
static carry_status find_functions(carry_ctx *ctx) {
    static bool found;
    if (found) {
        return CARRY_OK;
    }
    void *library = open_library();
    if (library == NULL) {
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "kernels are not on the trace: libcupti was not found (CARRY_CUPTI may say where it is)");
    }
#define X(name)                                                      \
    call.name = (decltype(&::name))dlsym(library, #name);            \
    if (call.name == NULL) {                                         \
        return carry_fail(ctx, CARRY_ENOTFOUND,                      \
                          "kernels are not on the trace: libcupti, " \
                          "as it was found, has no " #name);         \
    }
    FUNCTIONS(X)
#undef X
    found = true;
    return CARRY_OK;
}

/* Takes the fastest of many readings, in which the two clocks were read closest to each other. */
static CUptiResult read_clocks(moment *now) {
    double least = 1e300;
    for (int i = 0; i < CLOCK_READINGS; i++) {
        uint64_t stamp;
        double before = carry_seconds();
        CUptiResult result = call.cuptiGetTimestamp(&stamp);
        double after = carry_seconds();
        if (result != CUPTI_SUCCESS) {
            return result;
        }
        if (after - before < least) {
            least = after - before;
            *now = moment{0.5 * (before + after), stamp};
        }
    }
    return CUPTI_SUCCESS;
}

static double since_first(uint64_t stamp) {
    return 1e-9 * (double)(int64_t)(stamp - first.stamp);
}

/* CUPTI could not time a record that lacks one of its times. */
static void add(carry_activity *activity, const char *name, uint64_t start, uint64_t end) {
    if (start == 0 || end < start) {
        filled->lost++;
        return;
    }
    if (first.seconds + since_first(start) < filled->from) {
        return;
    }
    activity->start = since_first(start);
    activity->end = since_first(end);
    carry_activity_add(filled, activity, name != NULL ? name : "");
}

/* CUPTI's structures only grow at the end, so an older one can read the records of a newer library. */
static void add_kernel(const CUpti_ActivityKernel9 *k) {
    carry_activity activity = {};
    activity.kind = CARRY_ACTIVITY_KERNEL;
    activity.gpu = (int)k->deviceId;
    activity.stream = k->streamId;
    activity.grid[0] = k->gridX;
    activity.grid[1] = k->gridY;
    activity.grid[2] = k->gridZ;
    activity.block[0] = k->blockX;
    activity.block[1] = k->blockY;
    activity.block[2] = k->blockZ;
    activity.registers = k->registersPerThread;
    activity.bytes = (int64_t)k->staticSharedMemory + k->dynamicSharedMemory;
    add(&activity, k->name, k->start, k->end);
}

static const char *copy_name(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
        return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
        return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
        return "copy within the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
        return "copy between devices";
    default:
        return "copy";
    }
}

static void add_copy(const CUpti_ActivityMemcpy5 *c) {
    carry_activity activity = {};
    activity.kind = CARRY_ACTIVITY_COPY;
    activity.gpu = (int)c->deviceId;
    activity.stream = c->streamId;
    activity.bytes = (int64_t)c->bytes;
    add(&activity, copy_name(c->copyKind), c->start, c->end);
}

static void add_fill(const CUpti_ActivityMemset4 *f) {
    carry_activity activity = {};
    activity.kind = CARRY_ACTIVITY_FILL;
    activity.gpu = (int)f->deviceId;
    activity.stream = f->streamId;
    activity.bytes = (int64_t)f->bytes;
    add(&activity, "fill", f->start, f->end);
}

static void add_record(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        add_kernel((const CUpti_ActivityKernel9 *)record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        add_copy((const CUpti_ActivityMemcpy5 *)record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        add_fill((const CUpti_ActivityMemset4 *)record);
        break;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        filled->waits +=
            first.seconds + since_first(((const CUpti_ActivitySynchronization *)record)->start) >= filled->from;
        break;
    default:
        break;
    }
}

static void add_dropped(void) {
    size_t dropped = 0;
    if (call.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_SUCCESS) {
        filled->lost += (int64_t)dropped;
    }
}

/* CUPTI requests buffers on the threads that launch, so nothing here waits for the thread that reads them. */
static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most_records) {
    bool room = buffers.fetch_add(1) < MOST_BUFFERS;
    *buffer = room ? (uint8_t *)aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, BUFFER_BYTES) : NULL;
    *size = *buffer != NULL ? BUFFER_BYTES : 0;
    *most_records = 0; /* as many as fit */
    if (*buffer == NULL) {
        buffers--;
    }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
    (void)context;
    (void)stream;
    (void)size;
    if (buffer == NULL) {
        return;
    }
    {
        std::lock_guard<std::mutex> guard(log_lock);
        CUpti_Activity *record = NULL;
        while (filled != NULL && used > 0 && call.cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
            add_record(record);
        }
        if (filled != NULL) {
            add_dropped();
        }
    }
    free(buffer);
    buffers--;
}

/* Sees launches on the threads that make them, including launches that a graph records: when the graph is replayed,
   only the names of its kernels are known. */
static void CUPTIAPI see_launch(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *about) {
    const CUpti_CallbackData *call_data = (const CUpti_CallbackData *)about;
    const carry_launcher by = carry_launching();
    if (call_data->callbackSite != CUPTI_API_ENTER || call_data->symbolName == NULL || by.name == NULL) {
        return;
    }
    std::lock_guard<std::mutex> guard(log_lock);
    if (filled != NULL) {
        carry_activity_launched(filled, call_data->symbolName, &by);
    }
}

/* Failures are ignored: a profile is useful without the operators of its kernels. */
static void watch_launches(void) {
    static const CUpti_CallbackId driver[] = {
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel};
    static const CUpti_CallbackId runtime[] = {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
                                               CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
                                               CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000};
    if (call.cuptiSubscribe(&subscriber, see_launch, NULL) != CUPTI_SUCCESS) {
        subscriber = NULL;
        return;
    }
    for (CUpti_CallbackId id : driver) {
        (void)call.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    }
    for (CUpti_CallbackId id : runtime) {
        (void)call.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, id);
    }
}

static CUptiResult enable(void) {
    for (CUpti_ActivityKind kind : kinds) {
        CUptiResult result = call.cuptiActivityEnable(kind);
        if (result != CUPTI_SUCCESS) {
            return result;
        }
    }
    return CUPTI_SUCCESS;
}

static void end_recording(void) {
    if (subscriber != NULL) {
        (void)call.cuptiUnsubscribe(subscriber);
        subscriber = NULL;
    }
    for (CUpti_ActivityKind kind : kinds) {
        (void)call.cuptiActivityDisable(kind);
    }
    std::lock_guard<std::mutex> guard(log_lock);
    filled = NULL;
}

/* Converts times from seconds of CUPTI's clock since the first reading to carry_seconds. The rates of the clocks
   differ by parts in a million. If they differ by more than 0.1 %, one clock was set meanwhile, and only the first
   reading is used. */
static void place(carry_activity_log *log, const moment *last) {
    double passed = since_first(last->stamp);
    double rate = passed > 0.0 ? (last->seconds - first.seconds) / passed : 1.0;
    rate = rate > 0.999 && rate < 1.001 ? rate : 1.0;
    for (int64_t i = 0; i < log->count; i++) {
        log->record[i].start = first.seconds + rate * log->record[i].start;
        log->record[i].end = first.seconds + rate * log->record[i].end;
    }
}

static void rename_kernels(carry_activity_log *log) {
    for (int i = 0; i < CARRY_ACTIVITY_NAMES; i++) {
        carry_activity_sum *sum = &log->sum[i];
        if (sum->name == NULL || sum->kind != CARRY_ACTIVITY_KERNEL) {
            continue;
        }
        int status = -1;
        char *whole = abi::__cxa_demangle(sum->name, NULL, NULL, &status);
        char *shown = (char *)malloc(CARRY_ACTIVITY_NAME);
        if (shown != NULL) {
            carry_activity_shorten(shown, status == 0 && whole != NULL ? whole : sum->name);
            free(sum->name);
            sum->name = shown;
        }
        free(whole);
    }
}

extern "C" carry_status carry_cuda_activity_start(carry_ctx *ctx, carry_activity_log *log) {
    CARRY_TRY(find_functions(ctx));
    CUptiResult result = read_clocks(&first);
    if (result != CUPTI_SUCCESS) {
        return failed(ctx, result, "kernels are not on the trace: CUPTI does not tell its clock");
    }
    {
        std::lock_guard<std::mutex> guard(log_lock);
        if (filled != NULL) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "kernels are not on the trace: this process records them for another one already");
        }
        filled = log;
    }
    result = call.cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    result = result == CUPTI_SUCCESS ? enable() : result;
    if (result != CUPTI_SUCCESS) {
        end_recording();
        return failed(ctx, result, "kernels are not on the trace: CUPTI cannot record them");
    }
    watch_launches();
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_activity_stop(carry_ctx *ctx, carry_activity_log *log) {
    moment last = first;
    CUptiResult result = call.cuptiActivityFlushAll(0);
    /* Forced: work that has not ended is reported without its end and counted as lost. */
    CUptiResult forced = call.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    {
        std::lock_guard<std::mutex> guard(log_lock);
        add_dropped();
    }
    end_recording();
    (void)read_clocks(&last);
    place(log, &last);
    rename_kernels(log);
    result = result == CUPTI_SUCCESS ? forced : result;
    return result == CUPTI_SUCCESS
               ? CARRY_OK
               : failed(ctx, result, "kernels are missing on the trace: CUPTI did not hand over all");
}

#else

extern "C" carry_status carry_cuda_activity_start(carry_ctx *ctx, carry_activity_log *) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "kernels are not on the trace: this build was made without CUPTI (cupti.h)");
}

extern "C" carry_status carry_cuda_activity_stop(carry_ctx *, carry_activity_log *) {
    return CARRY_OK;
}

#endif
