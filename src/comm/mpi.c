/* Ranks that are processes started by mpirun or srun. Needs MPI 3.0: Open MPI 4.1, MPICH.

   Messages are non-blocking and polled until the deadline. A receive is always open for the notice that some rank
   has ended the communicator. Only the main thread enters MPI (MPI_THREAD_FUNNELED).

   MPI belongs to the process, not to a context: the first communicator starts it, and it is finalised at exit. A
   process whose communicator has failed does not finalise, since that would wait for the missing peer; the launcher
   then ends the others.

   A call into MPI cannot be interrupted, and some calls that should return at once do not: Open MPI 4.1 over TCP can
   loop in libevent after a write to a rank that died, and MPI_Init and MPI_Finalize wait for every rank. If a
   process stays in MPI longer than the time that each function here sets, a thread ends it with a message (guard.h). */
#include <mpi.h>

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/alone.h"
#include "comm/backend.h"
#include "comm/guard.h"
#include "core/clock.h"
#include "core/error.h"

#define STARTING 30.0 /* seconds added to the deadline: starting thousands of processes takes long */
#define PARTING 0.25  /* seconds for pending messages when a communicator has failed */

typedef struct line {
    MPI_Comm comm;
    MPI_Request notice; /* receive for the notice that a peer has ended the communicator */
    char incoming[CARRY_COMM_REASON], outgoing[CARRY_COMM_REASON];
    MPI_Request *told; /* [size], notices that this rank sent; NULL before the first */
    double parting;    /* time until which requests that are given up are waited for after the end; 0 before */
    const carry_request *waited; /* by the last call, in vain */
    int looks;                   /* at it */
} line;

_Static_assert(sizeof(MPI_Request) <= sizeof(((carry_request *)NULL)->native), "a request of MPI fits into ours");

static bool has_failed; /* per process, as MPI is */

/* On a simulated machine (tools/simulate) time does not pass while a rank computes or polls, so a rank must block
   instead. The simulator detects a rank that never arrives. */
#ifdef CARRY_SIMULATED
static const bool is_simulated = true;
#else
static const bool is_simulated = false;
#endif

static MPI_Request get_native(const carry_request *request) {
    MPI_Request native;
    memcpy(&native, &request->native, sizeof(MPI_Request));
    return native;
}

static void set_native(carry_request *request, MPI_Request native) {
    memcpy(&request->native, &native, sizeof(MPI_Request));
}

static void sleep_for(double seconds) {
    const struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    (void)nanosleep(&pause, NULL);
}

/* Between two polls: at first does nothing, later lets other ranks on this machine run, then sleeps. */
#define AWAKE 2000
static void pause_after(int looks) {
    if (looks > AWAKE) {
        sleep_for(50e-6);
    } else if (looks > 100) {
        (void)sched_yield();
    }
}

/* MPICH reports errors of MPI_Testsome and similar calls not to the request's communicator but to MPI_COMM_WORLD or
   MPI_COMM_SELF, whose default handler ends the process. A handler that the program has set is kept. */
static void return_errors(MPI_Comm comm) {
    MPI_Errhandler handler = MPI_ERRORS_RETURN;
    MPI_Comm_get_errhandler(comm, &handler);
    if (handler == MPI_ERRORS_ARE_FATAL) {
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
}

static void enter(const char *operation, int peer, double until) {
    if (!is_simulated) {
        carry_guard_enter(operation, peer, until);
    }
}

static void leave(void) {
    if (!is_simulated) {
        carry_guard_leave();
    }
}

/* MPI_Finalize may take CARRY_COMM_ALONE seconds, since one rank may still work alone after the others have
   finished. */
static void finish(void) {
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (has_failed) {
        sleep_for(2 * PARTING); /* the launcher ends all ranks when one exits: let the others print first */
    } else if (!finalized) {
        enter("MPI_Finalize", -1, carry_seconds() + CARRY_COMM_ALONE);
        MPI_Finalize();
        leave();
    }
}

static bool init(int *level, double deadline) {
    enter("MPI_Init", -1, carry_seconds() + deadline + STARTING);
    const bool is_started = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, level) == MPI_SUCCESS;
    leave();
    return is_started;
}

/* Open MPI writes to the sockets of its peers. If a peer has died, SIGPIPE would end this rank without a message. */
static void ignore_closed_sockets(void) {
    struct sigaction now;
    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
        (void)signal(SIGPIPE, SIG_IGN);
    }
}

static carry_status start(carry_ctx *ctx, double deadline) {
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE, is_main = 0, found = 0;
    MPI_Finalized(&finalized);
    if (finalized) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "MPI has been finalised in this process and cannot start again");
    }
    if (!is_simulated) {
        carry_guard_start();
    }
    MPI_Initialized(&initialized);
    if (!initialized) {
        /* Open MPI, on one machine: a message larger than this limit waits until its sender next enters MPI, which
           makes a chain of eight ranks twice as slow (docs/results/ranks.md). A value that is already set is kept. */
        (void)setenv("OMPI_MCA_btl_vader_eager_limit", "65536", 0);
        if (!init(&level, deadline) || atexit(finish) != 0) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED, "MPI could not be started");
        }
        ignore_closed_sockets();
    }
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if ((level < MPI_THREAD_FUNNELED || !is_main) && !is_simulated) { /* in the simulator, ranks are threads */
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "MPI must have been started with MPI_THREAD_FUNNELED and be used by the thread that did");
    }
    return_errors(MPI_COMM_WORLD);
    return_errors(MPI_COMM_SELF);
    const int *limit = NULL;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    if (!found || *limit < (1 << (CARRY_TAG_BITS + CARRY_GROUP_BITS)) - 1) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "this MPI has tags up to %d and %d are needed", found ? *limit : 0,
                          (1 << (CARRY_TAG_BITS + CARRY_GROUP_BITS)) - 1);
    }
    return CARRY_OK;
}

/* Some builds of Open MPI and MPICH have a function that tells. UCX is detected as a library that is already loaded. */
bool carry_mpi_takes_gpus(char *which, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "this MPI";
    const char *told = getenv("CARRY_MPI_CUDA");
    int length = 0;
    int (*ask)(void) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    void *ucx = dlopen("libucp.so.0", RTLD_NOLOAD | RTLD_LAZY);
    memcpy(&ask, &found, sizeof ask); /* C does not convert a data pointer to a function pointer */
    if (ucx != NULL) {
        (void)dlclose(ucx);
    }
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\t:")] = '\0';
    (void)snprintf(which, size, "%.60s (%s)", version, ucx != NULL ? "UCX" : "without UCX");
    return told != NULL && (told[0] == '0' || told[0] == '1') ? told[0] == '1' : ask != NULL && ask() == 1;
}

/* Returns false if the request is not done before `until`. */
static bool wait_until(MPI_Request *request, double until) {
    int done = 0;
    for (int looks = 0; MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done; looks++) {
        if (carry_seconds() > until) {
            return false;
        }
        pause_after(looks);
    }
    return done != 0;
}

static carry_status open_mpi(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options) {
    CARRY_TRY(start(ctx, options->deadline));
    MPI_Comm_rank(MPI_COMM_WORLD, &wire->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &wire->size);
    line *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a communicator of %d processes", wire->size);
    }
    MPI_Request copied;
    const double until = carry_seconds() + options->deadline;
    enter("open", -1, until);
    MPI_Comm_idup(MPI_COMM_WORLD, &l->comm, &copied);
    const bool is_open = wait_until(&copied, until);
    leave();
    if (!is_open) {
        has_failed = true; /* l is not freed: MPI may still write to it */
        return carry_fail(ctx, CARRY_ETIMEOUT, "open: not all of %d processes came within the deadline of %g s",
                          wire->size, options->deadline); // NOLINT(clang-analyzer-unix.Malloc)
    }
    has_failed = false; /* all ranks have arrived */
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    MPI_Irecv(l->incoming, sizeof l->incoming, MPI_BYTE, MPI_ANY_SOURCE, CARRY_TAG_NOTICE, l->comm, &l->notice);
    wire->state = l;
    return CARRY_OK; /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker): look() and close_mpi() wait for the notice */
}

static void break_off(carry_wire *wire, carry_request *request, int code) {
    int length = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    MPI_Error_string(code, text, &length);
    (void)snprintf(wire->reason, sizeof wire->reason, "%.200s", text);
    request->state = CARRY_REQUEST_BROKEN;
}

static void post(carry_wire *wire, carry_request *request) {
    const line *l = wire->state;
    if (request->bytes > INT_MAX) {
        (void)snprintf(wire->reason, sizeof wire->reason, "%zu bytes are too many for one message of MPI: at most %d",
                       request->bytes, INT_MAX);
        request->state = CARRY_REQUEST_BROKEN;
        return;
    }
    MPI_Request native = MPI_REQUEST_NULL;
    const int bytes = (int)request->bytes;
    enter(request->operation, request->peer, carry_seconds() + request->comm->deadline);
    const int code = request->to != NULL
                         ? MPI_Irecv(request->to, bytes, MPI_BYTE, request->world, request->tag, l->comm, &native)
                         : MPI_Isend(request->from, bytes, MPI_BYTE, request->world, request->tag, l->comm, &native);
    leave();
    if (code != MPI_SUCCESS) {
        break_off(wire, request, code);
    }
    set_native(request, native); /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker): look() waits for it */
}

static void complete(carry_wire *wire, carry_request *request, const MPI_Status *status, int code) {
    int class = MPI_SUCCESS, bytes = 0;
    MPI_Error_class(code, &class);
    MPI_Get_count(status, MPI_BYTE, &bytes);
    request->state = CARRY_REQUEST_DONE;
    if (class == MPI_ERR_TRUNCATE || (class == MPI_SUCCESS && request->to != NULL && (size_t)bytes < request->bytes)) {
        request->other_bytes = (size_t)bytes;
        request->state = CARRY_REQUEST_MISFIT;
    } else if (class != MPI_SUCCESS) {
        break_off(wire, request, code);
    }
}

/* Returns the time until which this rank waits for a cancelled request to finish. After the communicator has ended, all
   such requests share one period of PARTING seconds, since a program may have posted many of them. */
static double patience(const carry_wire *wire) {
    line *l = wire->state;
    const double now = carry_seconds();
    if (wire->ended_by < 0) {
        return now + PARTING / wire->size;
    }
    l->parting = l->parting > 0 ? l->parting : now + PARTING;
    return l->parting;
}

static void give_up(carry_wire *wire, carry_request *request) {
    const double until = patience(wire);
    MPI_Request native = get_native(request);
    int done = 0;
    enter(request->operation, request->peer, until);
    MPI_Test(&native, &done, MPI_STATUS_IGNORE);
    request->state = done ? CARRY_REQUEST_DONE : CARRY_REQUEST_NONE;
    if (done) {
        return;
    }
    if (request->to != NULL) {
        MPI_Cancel(&native);
    }
    if (!wait_until(&native, until)) {
        MPI_Request_free(&native);
    }
}

/* Leaves no request with MPI if possible. If the peer is dead, its request cannot complete and is only released. */
static void cancel(carry_wire *wire, carry_request *request) {
    give_up(wire, request);
    leave();
}

/* Checks the request and the notice once. */
static void look(carry_wire *wire, carry_request *request, bool waits) {
    line *l = wire->state;
    MPI_Request both[2] = {get_native(request), l->notice};
    MPI_Status status[2];
    int count = 0, index[2];
    const int code = waits && is_simulated ? MPI_Waitsome(2, both, &count, index, status)
                                           : MPI_Testsome(2, both, &count, index, status);
    set_native(request, both[0]);
    l->notice = both[1];
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        break_off(wire, request, code);
        return;
    }
    for (int i = 0; i < count && count != MPI_UNDEFINED; i++) {
        if (index[i] == 0) {
            complete(wire, request, &status[i], code == MPI_SUCCESS ? MPI_SUCCESS : status[i].MPI_ERROR);
        } else if (wire->ended_by < 0) {
            wire->ended_by = status[i].MPI_SOURCE;
            (void)snprintf(wire->reason, sizeof wire->reason, "%.*s", CARRY_COMM_REASON - 1, l->incoming);
        }
    }
}

static void progress(carry_wire *wire, carry_request *request, double until) {
    line *l = wire->state;
    int looks = request == l->waited ? l->looks : 0; /* else a wait in many short calls never sleeps */
    enter(request->operation, request->peer, until > 0 ? until : carry_seconds() + request->comm->deadline);
    for (; request->state == CARRY_REQUEST_PENDING; looks++) {
        look(wire, request, until > 0);
        if (request->state == CARRY_REQUEST_PENDING && wire->ended_by >= 0) {
            give_up(wire, request);
            if (request->state != CARRY_REQUEST_DONE) {
                request->state = CARRY_REQUEST_ENDED;
            }
        } else if (request->state == CARRY_REQUEST_PENDING) {
            if (until <= 0 || carry_seconds() > until) {
                break;
            }
            pause_after(looks);
        }
    }
    if (until > 0 || request == l->waited) {
        l->waited = request->state == CARRY_REQUEST_PENDING ? request : NULL;
        l->looks = looks > AWAKE ? AWAKE + 1 : looks;
    }
    leave();
}

static void abort_mpi(carry_wire *wire, const char *reason) {
    line *l = wire->state;
    wire->ended_by = wire->rank;
    (void)snprintf(wire->reason, sizeof wire->reason, "%s", reason);
    memcpy(l->outgoing, wire->reason, sizeof l->outgoing);
    l->told = calloc((size_t)wire->size, sizeof(MPI_Request));
    enter("end", -1, carry_seconds() + PARTING);
    for (int peer = 0; peer < wire->size && l->told != NULL; peer++) {
        l->told[peer] = MPI_REQUEST_NULL;
        if (peer != wire->rank) {
            MPI_Isend(l->outgoing, sizeof l->outgoing, MPI_BYTE, peer, CARRY_TAG_NOTICE, l->comm, &l->told[peer]);
        }
    }
    leave();
}

static void close_mpi(carry_wire *wire) {
    line *l = wire->state;
    bool is_clear = true;
    const double until = carry_seconds() + PARTING;
    enter("close", -1, until + PARTING);
    for (int peer = 0; peer < wire->size && l->told != NULL; peer++) {
        is_clear = wait_until(&l->told[peer], until) && is_clear;
    }
    if (l->notice != MPI_REQUEST_NULL) {
        MPI_Cancel(&l->notice);
        is_clear = wait_until(&l->notice, carry_seconds() + PARTING) && is_clear;
    }
    if (wire->ended_by >= 0) {
        has_failed = true; /* not freed: MPI must not reuse its number while messages are in flight */
    } else {
        enter("close", -1, carry_seconds() + CARRY_COMM_ALONE); /* may wait for the others */
        MPI_Comm_free(&l->comm);
    }
    leave();
    if (is_clear) {
        free(l->told);
        free(l);
    }
}

const carry_comm_kind carry_comm_mpi = {
    .name = "mpi",
    .about = "ranks are processes that mpirun or srun started",
    .open = open_mpi,
    .post = post,
    .progress = progress,
    .cancel = cancel,
    .abort = abort_mpi,
    .close = close_mpi,
};
